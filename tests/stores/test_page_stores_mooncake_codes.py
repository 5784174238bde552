"""The Mooncake page store over a client made up: codes, places, beliefs, outages. Needs no Mooncake."""

import threading
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import structlog
from freezegun import freeze_time
from mooncake_engine_fake import FakeEngine
from page_store_contract import KEYS, PAGE_BYTES, PageStoreContract, blanks, page, pages

from lifecycle.errors import ConfigError, IntegrityError, StoreError
from lifecycle.keys import Namespace
from lifecycle.layout import preset
from lifecycle.reasons import ReadCode
from stores.host import TorchHostMemory
from stores.pages import FilePageStore, MooncakePageStore, open_page_store, register_host_memory
from stores.pages.header import FIELDS, HEADER_BYTES
from stores.pages.mooncake_engine import Address

NAMESPACE = Namespace(model="m", dtype="bf16")


def name(place: int, pool: str = "kv") -> str:
    """Return the name of the object of a key."""
    return f"plcpage1/r0of1/{pool}/{KEYS[place]}"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def store(engine: FakeEngine) -> Iterator[MooncakePageStore]:
    store = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1")
    yield store
    store.check_integrity()
    store.close()
    assert not engine.registered


class TestMooncakePageStoreOnAFake(PageStoreContract):
    @pytest.fixture
    def store(self) -> MooncakePageStore:
        return MooncakePageStore(FakeEngine(), PAGE_BYTES, NAMESPACE, "r0of1")


def codes(store: MooncakePageStore, count: int, pool: str = "kv") -> list[ReadCode | None]:
    """Read the first keys and return their codes; a page that is ok has its own bytes."""
    buffers = blanks(pool, count)
    results = store.read_into(pool, KEYS[:count], buffers)
    for place, result in enumerate(results):
        if result.code is None:
            assert bytes(buffers[place]) == page(pool, place)
    return [result.code for result in results]


# --- codes ---


@pytest.mark.parametrize(
    ("code", "read_code", "cause"),
    [
        (-704, ReadCode.MISSING, "missing"),
        (-703, ReadCode.MISSING, "missing.being_written"),
        (-712, ReadCode.MISSING, "missing.replica"),
        (-707, ReadCode.LEASE_EXPIRED, "lease_expired"),
        (-800, ReadCode.IO_ERROR, "io_error.transfer_fail"),
        (-600, ReadCode.IO_ERROR, "io_error.invalid_params"),
        (-1, ReadCode.IO_ERROR, "io_error.1"),
        (-1103, ReadCode.IO_ERROR, "io_error.1103"),
        (0, ReadCode.SHORT, "short"),
        (HEADER_BYTES + 7, ReadCode.SHORT, "short"),
        (HEADER_BYTES + 4097, ReadCode.CORRUPT, "corrupt.too_long"),
    ],
)
def test_every_answer_is_a_code_of_its_own_page(
    engine: FakeEngine, store: MooncakePageStore, code: int, read_code: ReadCode, cause: str
) -> None:
    """Whatever the engine answers for one key is a coded failure of that key; its neighbours are read."""
    store.write("kv", KEYS[:3], pages("kv", range(3)))
    engine.answers["get", name(1)] = [code] if code else [-1]
    if code == 0:
        engine._get = lambda *_: 0  # type: ignore[method-assign]
        del engine.answers["get", name(1)]
        assert codes(store, 1) == [read_code]
    else:
        assert codes(store, 3) == [None, read_code, None]
    assert store.stats()[f"read.{cause}"] == 1


def test_a_batch_that_outlived_its_lease_is_read_again(engine: FakeEngine, store: MooncakePageStore) -> None:
    """A lease that ran out once costs a second read of those pages alone, and they are read."""
    store.write("kv", KEYS[:4], pages("kv", range(4)))
    engine.order("get", name(1), -707, 0)
    engine.order("get", name(3), -707, 0)
    assert codes(store, 4) == [None] * 4
    assert [call for call in engine.calls if call[0] == "get"] == [("get", 4), ("get", 2)]
    assert store.stats()["read.retried"] == 2


def test_a_page_replaced_under_the_read_is_read_again(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Bytes that do not match once, and do the second time, are a page."""
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    whole = engine.objects[name(0)]
    torn = [whole[:-1] + b"\0", whole]
    get = engine._get
    engine._get = lambda *given: (engine.objects.update({name(0): torn.pop(0)}), get(*given))[1]  # type: ignore[method-assign]
    assert codes(store, 1) == [None]


def test_no_call_has_more_than_128_keys(engine: FakeEngine, store: MooncakePageStore) -> None:
    """220 keys are two calls of each verb, and 220 answers."""
    assert store.write("indexer", KEYS[:220], pages("indexer", range(220))) == [True] * 220
    assert store.restorable(KEYS[:220], ["indexer"])["indexer"].sum() == 220
    assert codes(store, 220, "indexer") == [None] * 220
    assert store.delete("indexer", KEYS[:220]) == 220
    assert engine.calls == [(verb, count) for verb in ("put", "exist", "get", "remove") for count in (128, 92)]


def test_answers_that_are_not_one_per_key_fail_the_batch(engine: FakeEngine, store: MooncakePageStore) -> None:
    """A list of another length says nothing about any key."""
    engine.misshapen = True
    assert codes(store, 3) == [ReadCode.BAD_RESULT] * 3
    with pytest.raises(StoreError, match="3 answers came for 2 keys"):
        store.restorable(KEYS[:2], ["kv"])
    with pytest.raises(StoreError, match="3 answers came for 2 keys"):
        store.write("kv", KEYS[:2], pages("kv", range(2)))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_a_header_that_says_something_else_is_corrupt(engine: FakeEngine, field: str, verify: bool) -> None:
    """Each field is compared, and what is wrong is counted by its name; without verification all but the checksums are."""
    store = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1", verify)
    store.write("kv", KEYS[:2], pages("kv", range(2)))
    data = bytearray(engine.objects[name(0)])
    data[FIELDS[field][0]] ^= 1
    engine.objects[name(0)] = bytes(data)
    if field.endswith("checksum") and not verify:
        assert codes(store, 2) == [None, None]
    else:
        assert codes(store, 2) == [ReadCode.CORRUPT, None]
        cause = "header_checksum" if field == "payload_checksum" else field
        assert store.stats()[f"read.corrupt.{cause}"] == 1
    store.close()


def test_bytes_that_changed_are_corrupt_unless_nobody_looks(engine: FakeEngine) -> None:
    """Verification finds a flipped bit of the page and of its checksum; without it only the header is compared."""
    for verify, expected in ((True, [ReadCode.CORRUPT] * 2), (False, [None] * 2)):
        store = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1", verify)
        store.write("kv", KEYS[:2], pages("kv", range(2)))
        for place, at in enumerate((-1, FIELDS["payload_checksum"][0])):
            data = bytearray(engine.objects[name(place)])
            data[at] ^= 1
            engine.objects[name(place)] = bytes(data)
        results = store.read_into("kv", KEYS[:2], blanks("kv", 2))
        assert [result.code for result in results] == expected
        store.close()
        engine.objects.clear()
    assert results[0].checksum is None


def test_ten_thousand_fuzzed_objects_are_never_served(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Cut, extended, flipped anywhere or made up, an object that is not the page is a coded failure."""
    keys = KEYS[:200]
    store.write("indexer", keys, pages("indexer", range(200)))
    whole = dict(engine.objects)
    dice = np.random.default_rng(7)
    for _ in range(50):
        for each, data in whole.items():
            kind, at = int(dice.integers(4)), int(dice.integers(len(data)))
            if kind == 0:
                changed = data[:at]
            elif kind == 1:
                changed = data + bytes(1 + at)
            elif kind == 2:
                changed = data[:at] + bytes([data[at] ^ (1 << int(dice.integers(8)))]) + data[at + 1 :]
            else:
                changed = dice.bytes(len(data))
            engine.objects[each] = changed
        for result in store.read_into("indexer", keys, blanks("indexer", 200)):
            assert result.code in (ReadCode.SHORT, ReadCode.CORRUPT)
    assert sum(store.stats()[f"read.{cause}"] for cause in ("short", "corrupt.too_long", "corrupt.payload")) > 5000


# --- places ---


def test_pages_are_read_straight_into_their_slots(engine: FakeEngine) -> None:
    """The transport is given the address of the slot itself, and nothing as large as a page is allocated."""
    layout = preset("kv_only")
    memory = TorchHostMemory(layout, {"kv": 32}, {"kv": 1 << 20})
    store = MooncakePageStore(engine, {"kv": 1 << 20}, NAMESPACE, "r0of1")
    register_host_memory(store, memory.regions())
    slots = memory.allocate({"kv": 8})["kv"]
    buffers = memory.buffers("kv", slots)
    for seed, buffer in enumerate(buffers):
        buffer[:] = np.random.default_rng(seed).bytes(1 << 20)
    before = [bytes(buffer) for buffer in buffers]
    assert store.write("kv", KEYS[:8], buffers) == [True] * 8
    memory.views("kv")[:] = 0
    tracemalloc.start()
    store.read_into("kv", KEYS[:8], buffers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    first = memory.tensor("kv").data_ptr()
    assert [pieces[1:] for pieces in engine.pieces] == [[(first + int(slot) * (1 << 20), 1 << 20)] for slot in slots]
    assert [bytes(buffer) for buffer in buffers] == before
    assert peak < 1 << 19
    assert not {cause for cause in store.stats() if "detour" in cause}
    store.close()


def test_memory_that_is_not_registered_takes_a_counted_detour(engine: FakeEngine, store: MooncakePageStore) -> None:
    """The transport never sees it, its pages are read and written all the same, beside others that are."""
    known = np.zeros((2, 4096), np.uint8)
    store.register([known])
    mixed = [known[0].data, memoryview(bytearray(4096)), known[1].data]
    for place, buffer in enumerate(mixed):
        buffer[:] = page("kv", place)
    assert store.write("kv", KEYS[:3], mixed) == [True] * 3
    read = [known[1].data, memoryview(bytearray(4096)), known[0].data]
    assert [result.code for result in store.read_into("kv", KEYS[:3], read)] == [None] * 3
    assert [bytes(buffer) for buffer in read] == [page("kv", place) for place in range(3)]
    assert store.stats()["read.detour"] == store.stats()["write.detour"] == 1


def test_large_pages_that_are_not_registered_take_the_detour_in_turns(engine: FakeEngine) -> None:
    """The detour holds four of 1 MiB: ten are written and read in three calls each, whole."""
    store = MooncakePageStore(engine, {"kv": 1 << 20}, NAMESPACE, "r0of1")
    given = [np.random.default_rng(seed).bytes(1 << 20) for seed in range(10)]
    assert store.write("kv", KEYS[:10], [memoryview(data) for data in given]) == [True] * 10
    buffers = [memoryview(bytearray(1 << 20)) for _ in given]
    assert [result.code for result in store.read_into("kv", KEYS[:10], buffers)] == [None] * 10
    assert [bytes(buffer) for buffer in buffers] == given
    assert engine.calls == [(verb, count) for verb in ("put", "get") for count in (4, 4, 2)]
    store.check_integrity()
    store.close()


def test_a_page_half_outside_what_is_registered_takes_the_detour(engine: FakeEngine, store: MooncakePageStore) -> None:
    """The whole page must lie in one region."""
    memory = np.zeros(3 * 4096, np.uint8)
    store.register([memory[: 4096 + 100]])
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    store.read_into("kv", KEYS[:1], [memory[4096:8192].data])
    assert store.stats()["read.detour"] == 1
    assert memory[4096:8192].tobytes() == page("kv", 0)


def test_memory_that_cannot_be_registered_is_refused(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Gaps and constants are the caller's fault; a refusal of the engine says its code."""
    for wrong in (np.zeros((4, 8), np.uint8)[:, :4], np.frombuffer(bytes(8), np.uint8), np.zeros(0, np.uint8)):
        with pytest.raises(ConfigError, match="contiguous writable"):
            store.register([wrong])
    engine.refuse_register = -600
    with pytest.raises(StoreError, match="code -600"):
        store.register([np.zeros(64, np.uint8)])


def test_other_stores_need_not_know_the_host_memory(tmp_path: object) -> None:
    """Registering with a store that does not care does nothing."""
    register_host_memory(FilePageStore(f"{tmp_path}", PAGE_BYTES, NAMESPACE, "r0of1"), [np.zeros(8, np.uint8)])


# --- beliefs ---


def test_a_page_found_bad_is_not_claimed_for_a_while(engine: FakeEngine, store: MooncakePageStore) -> None:
    """The engine goes on saying that it is there; the store does so again after ten seconds, or once it is written."""
    with freeze_time("2030-01-01") as clock:
        store.write("kv", KEYS[:2], pages("kv", range(2)))
        engine.objects[name(0)] = bytes(HEADER_BYTES + 4096)
        assert codes(store, 2) == [ReadCode.CORRUPT, None]
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [False, True]
        clock.tick(9.9)
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [False, True]
        clock.tick(0.2)
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [True, True]
        assert codes(store, 1) == [ReadCode.CORRUPT]
        store.write("kv", KEYS[:1], pages("kv", range(1)))
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [True, True]


def test_a_page_whose_segment_is_gone_costs_one_failure(engine: FakeEngine, store: MooncakePageStore) -> None:
    """What the master claims and nobody can read is asked for once in a while, not by every request."""
    with freeze_time("2030-01-01"):
        store.write("kv", KEYS[:1], pages("kv", range(1)))
        engine.order("get", name(0), -800)
        assert codes(store, 1) == [ReadCode.IO_ERROR]
        for _ in range(99):
            assert not store.restorable(KEYS[:1], ["kv"])["kv"].any()
        assert [call for call in engine.calls if call[0] == "exist"] == []


@pytest.mark.parametrize("code", [-704, -707])
def test_a_miss_and_a_lapsed_lease_leave_the_answer_to_the_master(
    engine: FakeEngine, store: MooncakePageStore, code: int
) -> None:
    """A page that was missing may be written by others at any time, one whose lease lapsed is there."""
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    engine.order("get", name(0), code)
    store.read_into("kv", KEYS[:1], blanks("kv", 1))
    assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [True]


def test_a_bad_page_is_replaced_by_the_next_write(engine: FakeEngine, store: MooncakePageStore) -> None:
    """The engine keeps the first object of a name; one that was found bad goes first."""
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    engine.objects[name(0)] = engine.objects[name(0)][:-1]
    assert codes(store, 1) == [ReadCode.SHORT]
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]
    assert codes(store, 1) == [None]
    assert store.stats()["write.replaced"] == 1


def test_a_page_that_another_wrote_is_kept(engine: FakeEngine, store: MooncakePageStore) -> None:
    """The same key is the same page: nothing is removed to write it again."""
    other = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1")
    other.write("kv", KEYS[:1], pages("kv", range(1)))
    for _ in range(2):
        assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]
    assert ("remove", 1) not in engine.calls
    other.close()


def test_a_write_that_failed_is_not_believed(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Only what the engine said is stored is stored; the others of the batch are."""
    engine.order("put", name(1), -200)
    assert store.write("kv", KEYS[:3], pages("kv", range(3))) == [True, False, True]
    assert [store._beliefs.stored(name(place)) for place in range(3)] == [True, False, True]
    assert store.restorable(KEYS[:3], ["kv"])["kv"].tolist() == [True, False, True]
    assert store.stats()["write.no_room"] == 1


def test_a_failed_read_takes_the_belief_back(engine: FakeEngine, store: MooncakePageStore) -> None:
    """A page that the cluster dropped is not believed stored any more once a read says so."""
    store.write("kv", KEYS[:2], pages("kv", range(2)))
    del engine.objects[name(0)]
    assert codes(store, 2) == [ReadCode.MISSING, None]
    assert [store._beliefs.stored(name(place)) for place in range(2)] == [False, True]


# --- outages ---


def test_a_dead_master_is_asked_once_and_not_again_for_a_second(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Its calls block for seconds each; misses do not wait for them, and beliefs about pages stay as they were."""
    with freeze_time("2030-01-01") as clock:
        store.write("kv", KEYS[:2], pages("kv", range(2)))
        engine.dead = True
        engine.calls.clear()
        assert codes(store, 2) == [ReadCode.IO_ERROR] * 2
        assert codes(store, 2) == [ReadCode.IO_ERROR] * 2
        assert store.write("kv", KEYS[2:3], pages("kv", range(2, 3))) == [False]
        with pytest.raises(StoreError, match="does not answer"):
            store.restorable(KEYS[:2], ["kv"])
        with pytest.raises(StoreError, match="does not answer"):
            store.delete("kv", KEYS[:2])
        assert engine.calls == [("get", 2)]
        engine.dead = False
        clock.tick(1.1)
        assert codes(store, 2) == [None, None]
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [True, True]


def test_a_master_that_does_not_listen_is_not_called(engine: FakeEngine) -> None:
    """With its address known, time alone does not let a call through."""
    store = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1", master=Address("127.0.0.1", 1))
    with freeze_time("2030-01-01") as clock:
        engine.dead = True
        with pytest.raises(StoreError, match=r"127\.0\.0\.1:1: the master does not answer"):
            store.restorable(KEYS[:1], ["kv"])
        clock.tick(5)
        assert codes(store, 1) == [ReadCode.IO_ERROR]
        assert engine.calls == [("exist", 1)]
    store.close()


def test_close_waits_for_the_read_in_flight(engine: FakeEngine) -> None:
    """The memory stays registered until the transport is through with it."""
    store = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1", owns_engine=True)
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    engine.gate = threading.Event()
    reader = threading.Thread(target=codes, args=(store, 1))
    reader.start()
    while not store._calls:
        time.sleep(0.001)
    closer = threading.Thread(target=store.close)
    closer.start()
    while not store._closed:
        time.sleep(0.001)
    assert engine.registered
    assert not engine.closed
    engine.gate.set()
    closer.join()
    reader.join()
    assert engine.closed
    assert not engine.registered


def test_close_leaves_memory_to_a_read_that_never_ends(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns in bounded time, says so, and nothing is torn from under the transport."""
    monkeypatch.setattr("stores.pages.mooncake._CLOSE_S", 0.01)
    store = MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1", owns_engine=True)
    engine.gate = threading.Event()
    reader = threading.Thread(target=codes, args=(store, 1))
    reader.start()
    while not store._calls:
        time.sleep(0.001)
    with structlog.testing.capture_logs() as logs:
        store.close()
    assert [entry["event"] for entry in logs] == ["not_closed"]
    assert engine.registered
    assert not engine.closed
    engine.gate.set()
    reader.join()


def test_books_that_do_not_add_up_are_reported(store: MooncakePageStore) -> None:
    """A block lent while no call is in flight is a leak."""
    with store._transfer._headers.take(), pytest.raises(IntegrityError, match="no call is in flight, and 1 blocks are lent"):
        store.check_integrity()


# --- specs ---


@pytest.mark.parametrize("spec", ["mooncake", "mooncake:", "mooncake:host", "mooncake::1", "mooncake:h:0", "mooncake:h:99999"])
def test_a_spec_without_a_master_is_refused(spec: str) -> None:
    """The message says what an address looks like."""
    with pytest.raises(ConfigError, match="need HOST:PORT"):
        open_page_store(spec, PAGE_BYTES, NAMESPACE, "r0of1")


def test_a_master_that_is_not_there_is_said_at_once() -> None:
    """Opening does not wait for the client's own patience, a minute or more."""
    with pytest.raises(StoreError, match=r"Mooncake"):
        open_page_store("mooncake:127.0.0.1:1", PAGE_BYTES, NAMESPACE, "r0of1")


def test_a_shard_name_is_checked(engine: FakeEngine) -> None:
    """It is part of the object's name."""
    with pytest.raises(ConfigError, match="shard name 'a/b'"):
        MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "a/b")
