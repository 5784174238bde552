"""The page store contract on a real Mooncake master, and what only a real one shows. Starts and stops its own master."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import mooncake_master
import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray
from page_slots import InSlots
from page_store_contract import KEYS, PAGE_BYTES, PageStoreContract, blanks, page, pages

from lifecycle.errors import StoreError
from lifecycle.keys import EMPTY_NAMESPACE, Namespace, page_keys
from lifecycle.layout import dsa
from lifecycle.reasons import ReadCode
from stores.host import TorchHostMemory
from stores.host_region import SlotRegion
from stores.pages import MooncakePageStore, open_page_store, register_host_memory
from stores.pages.header import HEADER_BYTES, PageHeader
from stores.pages.mooncake_engine import Engine

REASON = mooncake_master.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

NAMESPACE = Namespace(model="m", dtype="bf16")
SHARDS = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mooncake_master.Master]:
    with mooncake_master.running(tmp_path_factory.mktemp("mooncake")) as master:
        yield master


@pytest.fixture(scope="session")
def engine(master: mooncake_master.Master) -> Iterator[Engine]:
    engine = master.client()
    yield engine
    engine.close()


def shard_store(master: mooncake_master.Master, engine: Engine, **settings: bool) -> MooncakePageStore:
    """Return a store for a shard of its own, empty."""
    return MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, next(SHARDS), master=master.address, **settings)


class TestMooncakePageStore(PageStoreContract):
    @pytest.fixture
    def store(self, master: mooncake_master.Master, engine: Engine) -> MooncakePageStore:
        return shard_store(master, engine)


class TestUnverifiedMooncakePageStore(PageStoreContract):
    @pytest.fixture
    def store(self, master: mooncake_master.Master, engine: Engine) -> MooncakePageStore:
        return shard_store(master, engine, verify=False)


class TestMooncakePageStoreWithRoom(PageStoreContract):
    @pytest.fixture
    def store(self, master: mooncake_master.Master, engine: Engine) -> InSlots:
        return InSlots(shard_store(master, engine))


class TestUnverifiedMooncakePageStoreWithRoom(PageStoreContract):
    @pytest.fixture
    def store(self, master: mooncake_master.Master, engine: Engine) -> InSlots:
        return InSlots(shard_store(master, engine, verify=False))


@pytest.fixture
def store(master: mooncake_master.Master, engine: Engine) -> Iterator[MooncakePageStore]:
    store = shard_store(master, engine)
    yield store
    store.check_integrity()
    store.close()


def put_raw(store: MooncakePageStore, engine: Engine, place: int, data: bytes) -> None:
    """Put bytes of anyone's making where the page of a key would be."""
    source = np.frombuffer(data, np.uint8).copy()
    at = source.ctypes.data
    name = store._pools["kv"].prefix + KEYS[place]
    assert engine.register_buffer(at, source.nbytes) == 0
    assert engine.batch_put_from_multi_buffers([name], [[at]], [[source.nbytes]]) == [0]
    assert engine.unregister_buffer(at) == 0


def test_objects_of_others_are_never_served(store: MooncakePageStore, engine: Engine) -> None:
    """Another shard, namespace, pool or key in the header, another length or other bytes: each has its code and cause."""
    shard = store._pools["kv"].prefix.split("/")[1]
    digest, payload = NAMESPACE.digest(), page("kv", 0)
    total = xxhash.xxh3_64_intdigest(payload)
    good = PageHeader("kv", shard, digest, 4096).pack(KEYS[0], total) + payload
    wrong = {
        "corrupt.shard": PageHeader("kv", "other", digest, 4096).pack(KEYS[1], total) + payload,
        "corrupt.namespace": PageHeader("kv", shard, Namespace("x").digest(), 4096).pack(KEYS[2], total) + payload,
        "corrupt.pool": PageHeader("indexer", shard, digest, 4096).pack(KEYS[3], total) + payload,
        "corrupt.key": PageHeader("kv", shard, digest, 4096).pack(KEYS[0], total) + payload,
        "corrupt.payload": PageHeader("kv", shard, digest, 4096).pack(KEYS[5], total ^ 1) + payload,
        "short": good[:-1],
        "corrupt.too_long": good + b"x",
        "corrupt.magic": np.random.default_rng(1).bytes(HEADER_BYTES + 4096),
    }
    put_raw(store, engine, 0, good)
    for place, data in enumerate(wrong.values(), start=1):
        put_raw(store, engine, place, data)
    put_raw(store, engine, 9, PageHeader("kv", shard, digest, 4096).pack(KEYS[9], total) + payload)
    results = store.read_into("kv", KEYS[:10], blanks("kv", 10))
    expected = [ReadCode.SHORT if cause == "short" else ReadCode.CORRUPT for cause in wrong]
    assert [result.code for result in results] == [None, *expected, None]
    assert {cause: store.stats()[f"read.{cause}"] for cause in wrong} == dict.fromkeys(wrong, 1)
    assert store.restorable(KEYS[:10], ["kv"])["kv"].tolist() == [True, *[False] * 8, True]
    assert store.write("kv", KEYS[1:9], pages("kv", range(1, 9))) == [True] * 8
    assert [result.code for result in store.read_into("kv", KEYS[:10], blanks("kv", 10))] == [None] * 10


def test_pages_in_registered_memory_take_no_detour(store: MooncakePageStore) -> None:
    """Written from and read into their own place."""
    memory = np.zeros((16, 4096), np.uint8)
    store.register([memory])
    for place in range(8):
        memory[place] = np.frombuffer(page("kv", place), np.uint8)
    assert store.write("kv", KEYS[:8], [memory[place].data for place in range(8)]) == [True] * 8
    results = store.read_into("kv", KEYS[:8], [memory[place].data for place in range(8, 16)])
    assert [result.code for result in results] == [None] * 8
    assert (memory[8:] == memory[:8]).all()
    assert store.stats() == {"write.ok": 8, "read.ok": 8}


def test_memory_registered_twice_is_refused(store: MooncakePageStore) -> None:
    """The engine refuses it, and the message says what may be the matter."""
    memory = np.zeros(4096, np.uint8)
    store.register([memory])
    with pytest.raises(StoreError, match="is part of it registered"):
        store.register([memory])


def test_a_cluster_without_room_keeps_what_it_has(master: mooncake_master.Master, engine: Engine) -> None:
    """A write that finds no room is False and no page; what was stored before is read."""
    store = MooncakePageStore(engine, {"kv": 4 << 20}, NAMESPACE, next(SHARDS), master=master.address)
    memory = np.zeros((1, 4 << 20), np.uint8)
    store.register([memory])
    written = []
    for place in range(24):
        memory[:] = place
        written += store.write("kv", [KEYS[place]], [memory[0].data])
    assert written[0]
    assert not all(written)
    assert store.stats()["write.no_room"] == written.count(False)
    stored = [place for place in range(24) if written[place]]
    for place, claimed in enumerate(store.restorable(KEYS[:24], ["kv"])["kv"].tolist()):
        (result,) = store.read_into("kv", [KEYS[place]], [memory[0].data])
        assert (result.code is None) == claimed  # the cluster may have evicted
        assert result.code is ReadCode.MISSING or (place in stored and (memory == place).all())
    store.delete("kv", KEYS[:24])
    store.check_integrity()
    store.close()


def test_a_spec_opens_a_store_that_others_share(master: mooncake_master.Master, engine: Engine) -> None:
    """`mooncake:HOST:PORT,METADATA` opens a store with a client of its own, which sees what others wrote."""
    shard = next(SHARDS)
    near = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, shard)
    far = open_page_store(master.spec, PAGE_BYTES, NAMESPACE, shard, capacity_bytes=0)
    near.write("kv", KEYS[:3], pages("kv", range(3)))
    buffers = blanks("kv", 3)
    assert [result.code for result in far.read_into("kv", KEYS[:3], buffers)] == [None] * 3  # over TCP
    assert [bytes(buffer) for buffer in buffers] == [page("kv", place) for place in range(3)]
    far.close()
    near.close()


def test_slots_with_room_and_others_mix_over_tcp(master: mooncake_master.Master, engine: Engine) -> None:
    """From the memory of another client: pages in one piece, in two, and by the detour, each whole."""
    shard = next(SHARDS)
    near = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, shard)
    far = open_page_store(master.spec, PAGE_BYTES, NAMESPACE, shard, capacity_bytes=0)
    memory = TorchHostMemory(dsa(), {"kv": 8}, PAGE_BYTES, header_room_bytes={"kv": HEADER_BYTES})
    plain = np.zeros((2, 4096), np.uint8)
    register_host_memory(far, [*memory.regions(), plain])
    first, second, third = memory.buffers("kv", [6, 1, 2])
    buffers = [first, plain[1].data, second, *blanks("kv", 1), third]
    near.write("kv", KEYS[:5], pages("kv", range(5)))
    assert [result.code for result in far.read_into("kv", KEYS[:5], buffers)] == [None] * 5
    assert [bytes(buffer) for buffer in buffers] == [page("kv", place) for place in range(5)]
    assert far.delete("kv", KEYS[:5]) == 5
    assert far.write("kv", KEYS[:5], buffers) == [True] * 5
    back = blanks("kv", 5)
    assert [result.code for result in near.read_into("kv", KEYS[:5], back)] == [None] * 5
    assert [bytes(buffer) for buffer in back] == [page("kv", place) for place in range(5)]
    far.close()
    near.close()


WRITER = """
import sys
import numpy as np
from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.host_region import SlotRegion
from stores.pages import open_page_store
store = open_page_store(sys.argv[1], {"kv": 65536}, EMPTY_NAMESPACE, sys.argv[2], capacity_bytes=0)
keys = page_keys(list(range(64)), 1)
room = int(sys.argv[3])
rows = np.zeros((64, room + 65536), np.uint8)
store.register([SlotRegion(rows, room)])
memory = rows[:, room:]
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    memory[:] = 1 + turn % 250
    store.write("kv", keys, [row.data for row in memory])
"""


def whole_pages(store: MooncakePageStore, keys: Sequence[str], memory: NDArray[np.uint8]) -> int:
    """Read every key; return how many came, each of which must be whole: one byte, repeated."""
    results = store.read_into("kv", keys, [row.data for row in memory])
    rows = [row for row, result in zip(memory, results, strict=True) if result.code is None]
    assert all(row[0] > 0 and (row == row[0]).all() for row in rows)
    return len(rows)


@pytest.mark.parametrize("room", [0, HEADER_BYTES])
def test_a_killed_writer_leaves_no_torn_page(master: mooncake_master.Master, engine: Engine, room: int) -> None:
    """Beside a writer that replaces its pages and is killed in the midst of it, a page read ok is whole."""
    shard = next(SHARDS)
    keys = page_keys(list(range(64)), 1)
    store = MooncakePageStore(engine, {"kv": 65536}, EMPTY_NAMESPACE, shard, master=master.address)
    rows = np.zeros((64, room + 65536), np.uint8)
    store.register([SlotRegion(rows, room)])
    memory = rows[:, room:]
    seen = 0
    command = [sys.executable, "-c", WRITER, master.spec, shard, str(room)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 60
            while process.poll() is None:
                assert time.monotonic() < deadline
                seen += whole_pages(store, keys, memory)
                if seen > 500:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        finally:
            process.kill()
    assert seen > 500
    whole_pages(store, keys, memory)
    store.delete("kv", keys)
    store.check_integrity()
    store.close()
