"""Pages of slots with header room, on a client made up: one piece each, judged, and no byte beside the slot touched."""

import threading
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from mooncake_engine_fake import FakeEngine
from page_slots import InSlots
from page_store_contract import KEYS, PAGE_BYTES, PageStoreContract, blanks, page, pages

from lifecycle.errors import ConfigError
from lifecycle.keys import Namespace, page_keys
from lifecycle.layout import dsa, kv_only
from lifecycle.policies import Policies, WaitComplete
from lifecycle.reasons import ReadCode
from lifecycle.runtime import Coordinator
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.host_region import SlotRegion
from stores.pages import MooncakePageStore, header_room, register_host_memory
from stores.pages.header import FIELDS, HEADER_BYTES
from stores.prefix import RadixIndex

NAMESPACE = Namespace(model="m", dtype="bf16")
WHOLE = HEADER_BYTES + PAGE_BYTES["kv"]


def new_store(engine: FakeEngine, verify: bool = True) -> MooncakePageStore:
    """Return a store over the engine."""
    return MooncakePageStore(engine, PAGE_BYTES, NAMESPACE, "r0of1", verify)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(params=[True, False], ids=["verified", "unverified"])
def store(engine: FakeEngine, request: pytest.FixtureRequest) -> Iterator[MooncakePageStore]:
    store = new_store(engine, request.param)
    yield store
    store.check_integrity()
    store.close()
    assert not engine.registered


class TestMooncakePageStoreWithRoom(PageStoreContract):
    @pytest.fixture
    def store(self) -> InSlots:
        return InSlots(new_store(FakeEngine()))


def host(store: MooncakePageStore, room: int = HEADER_BYTES, slots: int = 32) -> TorchHostMemory:
    """Return registered memory whose kv slots have room."""
    memory = TorchHostMemory(dsa(), {"kv": slots}, PAGE_BYTES, pin=False, header_room_bytes={"kv": room})
    register_host_memory(store, memory.regions())
    return memory


def codes(store: MooncakePageStore, buffers: list[memoryview]) -> list[ReadCode | None]:
    """Read the first keys into the buffers and return their codes; a page that is ok has its own bytes."""
    results = store.read_into("kv", KEYS[: len(buffers)], buffers)
    for place, result in enumerate(results):
        if result.code is None:
            assert bytes(buffers[place]) == page("kv", place)
    return [result.code for result in results]


# --- places ---


@pytest.mark.parametrize("room", [HEADER_BYTES, 320, 4096])
def test_header_and_page_are_read_in_one_piece(engine: FakeEngine, store: MooncakePageStore, room: int) -> None:
    """The transport is given one address a page, a header before that of the slot's page; all else of the pool stays."""
    memory = host(store, room)
    store.write("kv", KEYS[:4], pages("kv", range(4)))
    rows = memory.regions()[0].memory
    rows[:] = 7
    slots = [5, 2, 30, 3]
    assert codes(store, memory.buffers("kv", slots)) == [None] * 4
    first = memory.tensor("kv").data_ptr()
    assert engine.pieces == [[(first + slot * (room + 4096) - HEADER_BYTES, WHOLE)] for slot in slots]
    rows[slots, room - HEADER_BYTES :] = 7
    assert (rows == 7).all()
    assert "read.detour" not in store.stats()


def test_nothing_as_large_as_a_page_is_allocated_for_a_read(engine: FakeEngine) -> None:
    """No page is copied on its way into a slot with room."""
    store = MooncakePageStore(engine, {"kv": 1 << 20}, NAMESPACE, "r0of1")
    memory = TorchHostMemory(kv_only(), {"kv": 8}, {"kv": 1 << 20}, pin=False, header_room_bytes=header_room(store, ["kv"]))
    register_host_memory(store, memory.regions())
    buffers = memory.buffers("kv", range(8))
    for seed, buffer in enumerate(buffers):
        buffer[:] = np.random.default_rng(seed).bytes(1 << 20)
    before = [bytes(buffer) for buffer in buffers]
    assert store.write("kv", KEYS[:8], buffers) == [True] * 8
    memory.views("kv")[:] = 0
    tracemalloc.start()
    results = store.read_into("kv", KEYS[:8], buffers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [result.code for result in results] == [None] * 8
    assert [bytes(buffer) for buffer in buffers] == before
    assert peak < 1 << 19
    store.close()


@pytest.mark.parametrize("room", [0, 64, 192])
def test_a_room_that_the_header_does_not_fit_is_left_alone(engine: FakeEngine, store: MooncakePageStore, room: int) -> None:
    """The header is read beside the page, as without room, and no byte of the rooms changes."""
    memory = host(store, room)
    store.write("kv", KEYS[:3], pages("kv", range(3)))
    memory.regions()[0].memory[:] = 7
    assert codes(store, memory.buffers("kv", [4, 5, 6])) == [None] * 3
    assert {len(pieces) for pieces in engine.pieces} == {2}
    assert (memory.regions()[0].memory[:, :room] == 7).all()


def test_batches_may_mix_slots_with_and_without_room_and_memory_of_others(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Pages that lie alike go in one call, each comes back whole, and the answers are in the order of the keys."""
    memory = host(store)
    plain = TorchHostMemory(kv_only(), {"kv": 8}, {"kv": 4096}, pin=False)
    register_host_memory(store, plain.regions())
    roomy, bare = memory.buffers("kv", range(6)), plain.buffers("kv", range(6))
    buffers = [roomy[0], bare[0], *blanks("kv", 2), bare[1], roomy[3], roomy[1]]
    for place, buffer in enumerate(buffers):
        buffer[:] = page("kv", place)
    assert store.write("kv", KEYS[:7], buffers) == [True] * 7
    for buffer in buffers:
        buffer[:] = bytes(4096)
    del engine.objects[store._pools["kv"].prefix + KEYS[5]]
    assert codes(store, buffers) == [None] * 5 + [ReadCode.MISSING, None]
    assert sorted(len(pieces) for pieces in engine.pieces) == [1] * 5 + [2] * 2
    assert (store.stats()["read.detour"], store.stats()["write.detour"]) == (2, 2)
    assert sorted(call for call in engine.calls if call[0] == "get") == [("get", 2), ("get", 2), ("get", 3)]


def test_a_page_that_is_not_a_slots_own_has_no_room(engine: FakeEngine, store: MooncakePageStore) -> None:
    """A buffer of the right length that begins elsewhere in the region is read as it lies, and what is before it stays."""
    memory = host(store)
    flat = memory.regions()[0].memory.reshape(-1)
    store.write("kv", KEYS[:3], pages("kv", range(3)))
    flat[:] = 7
    odd = 3 * WHOLE + HEADER_BYTES + 64
    places = [flat[0:4096], flat[odd : odd + 4096], memory.views("kv")[9]]
    assert codes(store, [place.data for place in places]) == [None] * 3
    assert sorted(len(pieces) for pieces in engine.pieces) == [1, 2, 2]
    for place in (*places, memory.regions()[0].memory[9]):
        place[:] = 7
    assert (flat == 7).all()


def test_pages_of_another_size_have_no_room(engine: FakeEngine) -> None:
    """A region declared for other pages than the store's is memory like any other."""
    store = MooncakePageStore(engine, {"kv": 2048}, NAMESPACE, "r0of1")
    memory = TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 4096}, pin=False, header_room_bytes={"kv": HEADER_BYTES})
    register_host_memory(store, memory.regions())
    halves = [buffer[:2048] for buffer in memory.buffers("kv", range(2))]
    assert store.write("kv", KEYS[:2], halves) == [True] * 2
    assert [result.code for result in store.read_into("kv", KEYS[:2], halves)] == [None] * 2
    assert {len(pieces) for pieces in engine.pieces} == {2}
    store.close()


def test_an_engine_declares_memory_of_its_own(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Any contiguous rows will do, told by the same type."""
    rows = np.zeros((4, 512 + 4096), np.uint8)
    store.register([SlotRegion(rows, 512)])
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    assert codes(store, [rows[2, 512:].data]) == [None]
    assert engine.pieces == [[(rows.ctypes.data + 2 * 4608 + 256, WHOLE)]]


def test_pages_registered_without_their_rooms_are_refused(store: MooncakePageStore) -> None:
    """The views of slots with room are not contiguous; the message says what to register."""
    memory = TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 4096}, pin=False, header_room_bytes={"kv": 256})
    with pytest.raises(ConfigError, match=r"their `regions\(\)`"):
        store.register([memory.views("kv")])


# --- judged ---


@pytest.mark.parametrize("field", FIELDS)
def test_a_header_in_the_room_is_judged_before_the_page_counts(
    engine: FakeEngine, store: MooncakePageStore, field: str
) -> None:
    """Each field is compared as it is beside the page; without verification all but the checksums are."""
    memory = host(store)
    store.write("kv", KEYS[:2], pages("kv", range(2)))
    name = store._pools["kv"].prefix + KEYS[0]
    data = bytearray(engine.objects[name])
    data[FIELDS[field][0]] ^= 1
    engine.objects[name] = bytes(data)
    unseen = field.endswith("checksum") and not store._pools["kv"]._verify
    assert codes(store, memory.buffers("kv", [1, 2])) == [None if unseen else ReadCode.CORRUPT, None]


def test_a_stale_header_in_the_room_is_no_page(engine: FakeEngine, store: MooncakePageStore) -> None:
    """What an earlier read left in a slot and its room is not taken for what this one failed to bring."""
    memory = host(store)
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    buffers = memory.buffers("kv", [3])
    assert codes(store, buffers) == [None]
    engine.order("get", store._pools["kv"].prefix + KEYS[0], -800)
    assert codes(store, buffers) == [ReadCode.IO_ERROR]
    engine.order("get", store._pools["kv"].prefix + KEYS[0], WHOLE - 1)
    assert codes(store, buffers) == [ReadCode.SHORT]


def test_a_page_in_a_slot_is_that_of_the_key_asked_for(engine: FakeEngine, store: MooncakePageStore) -> None:
    """An object of another key, brought into the slot by a master that hands memory out again, is refused."""
    memory = host(store)
    store.write("kv", KEYS[:2], pages("kv", range(2)))
    prefix = store._pools["kv"].prefix
    engine.objects[prefix + KEYS[0]] = engine.objects[prefix + KEYS[1]]
    assert codes(store, memory.buffers("kv", [0, 1])) == [ReadCode.CORRUPT, None]
    assert store.stats()["read.corrupt.key"] == 1


# --- owned ---


def test_a_slot_given_twice_in_a_call_has_one_room(engine: FakeEngine, store: MooncakePageStore) -> None:
    """Two pages written from one slot have each their own header; both are read back."""
    memory = host(store)
    (buffer,) = memory.buffers("kv", [4])
    buffer[:] = page("kv", 9)
    assert store.write("kv", KEYS[:2], [buffer, buffer]) == [True, True]
    places = memory.buffers("kv", [0, 1])
    assert [result.code for result in store.read_into("kv", KEYS[:2], places)] == [None, None]
    assert [bytes(place) for place in places] == [page("kv", 9)] * 2


def test_two_calls_never_share_a_room(engine: FakeEngine) -> None:
    """While one store reads into a slot, another that writes from it puts its header elsewhere."""
    one, memory = new_store(engine), None
    memory = host(one)
    one.write("kv", KEYS[:1], pages("kv", range(1)))
    far = FakeEngine()
    other = MooncakePageStore(far, PAGE_BYTES, NAMESPACE, "r1of1")
    register_host_memory(other, memory.regions())
    (buffer,) = memory.buffers("kv", [6])
    engine.gate = threading.Event()
    reader = threading.Thread(target=one.read_into, args=("kv", KEYS[:1], [buffer]))
    reader.start()
    while not memory.regions()[0].rooms.taken:
        time.sleep(0.001)
    room = memory.regions()[0].memory[6, :HEADER_BYTES].copy()
    other.write("kv", KEYS[1:2], [buffer])
    assert np.array_equal(memory.regions()[0].memory[6, :HEADER_BYTES], room)
    engine.gate.set()
    reader.join()
    assert not memory.regions()[0].rooms.taken
    assert far.objects
    for store in (one, other):
        store.check_integrity()
        store.close()


def test_a_client_that_raises_gives_the_rooms_back(engine: FakeEngine, store: MooncakePageStore) -> None:
    """The next read of the slot has its room."""
    memory = host(store)
    store.write("kv", KEYS[:1], pages("kv", range(1)))

    def fail(*_: object) -> int:
        raise RuntimeError("the client broke")

    engine._get, get = fail, engine._get  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the client broke"):
        store.read_into("kv", KEYS[:1], memory.buffers("kv", [0]))
    engine._get = get  # type: ignore[method-assign]
    engine.pieces.clear()
    assert codes(store, memory.buffers("kv", [0])) == [None]
    assert [len(pieces) for pieces in engine.pieces] == [1]


def test_a_late_write_lands_in_the_room_of_a_slot_that_is_still_held(engine: FakeEngine) -> None:
    """After an abort the slots of a claimed read, rooms and all, are nobody else's until it has come back."""
    store = MooncakePageStore(engine, {"kv": 4096}, NAMESPACE, "r0of1")
    memory = TorchHostMemory(kv_only(), {"kv": 8}, {"kv": 4096}, pin=False, header_room_bytes=header_room(store, ["kv"]))
    register_host_memory(store, memory.regions())
    index, keys = RadixIndex(kv_only()), page_keys(range(8), 2)
    coordinator = Coordinator(
        kv_only(), Policies(stop=WaitComplete()), 2, store=store, memory=memory, index=index, events=MemoryEventLog()
    )
    assert store.write("kv", keys, pages("kv", range(4))) == [True] * 4
    engine.gate = threading.Event()
    coordinator.issue("r", 0, keys, index.match(keys, 0).anchor)
    rows, rooms = memory.regions()[0].memory, memory.regions()[0].rooms
    while rooms.taken < 4:
        coordinator.tick()
    coordinator.abort("r")
    coordinator.tick()
    assert memory.held_pages("kv") == 4
    others = memory.allocate({"kv": 4})["kv"]
    rows[others] = 7
    engine.gate.set()
    while memory.held_pages("kv") > 4:
        coordinator.tick()
    assert rooms.taken == 0
    assert (rows[others] == 7).all()
    held = np.setdiff1d(np.arange(8), others)
    assert rows[held, :8].any(axis=1).all()  # there the late write has landed
    memory.release("kv", others)
    coordinator.finish("r")
    coordinator.check_integrity()
    coordinator.close()
    store.close()
