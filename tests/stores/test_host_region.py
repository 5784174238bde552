"""Host memory with header room: pages are what they were, the room in front of each belongs to its slot alone."""

import numpy as np
import pytest
import torch
from mooncake_engine_fake import FakeEngine

from lifecycle.errors import ConfigError
from lifecycle.keys import EMPTY_NAMESPACE
from lifecycle.layout import dsa, kv_only
from stores.host import TorchHostMemory
from stores.host_region import Rooms, SlotRegion
from stores.pages import MemoryPageStore, MooncakePageStore, header_room
from stores.pages.header import HEADER_BYTES


def roomy(room: int = 256, nbytes: int = 512) -> TorchHostMemory:
    """Return memory of 8 slots whose kv pages have room and whose indexer pages have none."""
    return TorchHostMemory(dsa(), {"kv": 8}, {"kv": nbytes, "indexer": 16}, pin=False, header_room_bytes={"kv": room})


def test_slots_lie_page_and_room_apart() -> None:
    """A view is the page alone, behind its room; the first room is where the memory begins."""
    memory = roomy()
    at = [np.frombuffer(view, np.uint8).ctypes.data for view in memory.buffers("kv", range(8))]
    first = memory.regions()[0].memory.ctypes.data
    assert at == [first + 768 * slot + 256 for slot in range(8)]
    assert [view.nbytes for view in memory.buffers("kv", range(8))] == [512] * 8


def test_what_room_costs_is_told() -> None:
    """Slots are as many as without; the bytes taken are those of pages and rooms."""
    memory = roomy()
    assert (memory.capacity_pages("kv"), memory.page_bytes("kv")) == (8, 512)
    assert (memory.header_room_bytes("kv"), memory.allocated_bytes("kv")) == (256, 8 * 768)
    assert (memory.header_room_bytes("indexer"), memory.allocated_bytes("indexer")) == (0, 8 * 16)


def test_views_and_tensors_are_the_pages_alone() -> None:
    """What is written through a view is that row of array and tensor; no room is among them."""
    memory = roomy()
    memory.regions()[0].memory[:] = 9
    memory.views("kv")[:] = 0
    (view,) = memory.buffers("kv", [5])
    view[:] = b"\x07" * 512
    expected = np.zeros((8, 512), np.uint8)
    expected[5] = 7
    assert np.array_equal(memory.views("kv"), expected)
    assert np.array_equal(memory.tensor("kv").numpy(), expected)
    assert memory.tensor("kv")[5].is_contiguous()
    assert torch.equal(memory.tensor("kv")[5].clone(), torch.full((512,), 7, dtype=torch.uint8))
    assert (memory.regions()[0].memory[:, :256] == 9).all()


def test_slots_stay_aligned_to_the_room() -> None:
    """With a room of 4 KiB and pages of whole 4 KiB, slots lie as far from a boundary as the memory does."""
    memory = roomy(4096, 8192)
    first = memory.regions()[0].memory.ctypes.data
    assert {(np.frombuffer(view, np.uint8).ctypes.data - first) % 4096 for view in memory.buffers("kv", range(8))} == {0}


def test_regions_are_the_same_ones_at_every_call() -> None:
    """Who asks twice shares the books of the rooms."""
    memory = roomy()
    assert [id(region.rooms) for region in memory.regions()] == [id(region.rooms) for region in memory.regions()]


@pytest.mark.parametrize("room", [-64, 1, 100, 255, 256.0, "256", True, None])
def test_a_room_that_makes_no_sense_is_refused(room: object) -> None:
    """A room is whole, not negative and a multiple of 64 bytes; the pool is named."""
    with pytest.raises(ConfigError, match=r"pool 'kv': a header room of .* no multiple of 64"):
        TorchHostMemory(kv_only(), {"kv": 8}, {"kv": 512}, pin=False, header_room_bytes={"kv": room})  # type: ignore[dict-item]


def test_room_for_a_pool_that_is_not_there_is_refused() -> None:
    """The message says which pools there are."""
    with pytest.raises(ConfigError, match=r"has 'swa', which is no pool of it \(there are kv, indexer\)"):
        TorchHostMemory(dsa(), {"kv": 8}, {"kv": 512, "indexer": 16}, pin=False, header_room_bytes={"swa": 256})


def test_a_store_says_what_room_it_can_use() -> None:
    """Mooncake the bytes of its header, for each pool; a store in memory none."""
    assert header_room(MemoryPageStore({"kv": 8}), ["kv"]) == {}
    mooncake = MooncakePageStore(FakeEngine(), {"kv": 8}, EMPTY_NAMESPACE, "r0of1")
    assert header_room(mooncake, ["kv", "swa"]) == {"kv": HEADER_BYTES, "swa": HEADER_BYTES}


@pytest.mark.parametrize(
    ("memory", "room", "why"),
    [
        (np.zeros(768, np.uint8), 256, "need uint8 of"),
        (np.zeros((2, 768), np.int8), 256, "need uint8 of"),
        (np.zeros((0, 768), np.uint8), 256, "need uint8 of"),
        (np.zeros((2, 768), np.uint8)[:, :512], 256, "contiguous writable"),
        (np.frombuffer(bytes(1536), np.uint8).reshape(2, 768), 256, "contiguous writable"),
        (np.zeros((2, 256), np.uint8), 256, "leaves no page"),
        (np.zeros((2, 768), np.uint8), 100, "no multiple of 64"),
    ],
)
def test_memory_that_is_no_rows_of_room_and_page_is_refused(memory: np.ndarray, room: int, why: str) -> None:
    """An engine that declares its own memory is told what is wrong with it."""
    with pytest.raises(ConfigError, match=why):
        SlotRegion(memory, room)


def test_a_room_is_taken_by_one_at_a_time() -> None:
    """Who asks for one that is in use, or for one twice, gets none of those asked for, until it is given back."""
    rooms = Rooms()
    assert not rooms.take([3, 4, 3])
    assert rooms.take([3, 4])
    assert not rooms.take([4, 5])
    rooms.give_back([3, 4])
    assert rooms.take([4, 5])
    assert rooms.taken == 2
    with pytest.raises(AssertionError, match=r"nobody has: \[6\]"):
        rooms.give_back([5, 6])
    assert rooms.taken == 2


def test_more_than_the_room_cannot_be_taken() -> None:
    """A header that is longer than the room is refused, not cut."""
    region = roomy(room=64).regions()[0]
    assert region.heads(64).shape == (8, 64)
    with pytest.raises(ConfigError, match="256 bytes of rooms of 64"):
        region.heads(256)
