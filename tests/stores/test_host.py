"""Host memory: slots are taken all or none, given back once, and the bytes behind a view never move."""

import gc
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.errors import ConfigError, DoubleRelease, HostExhausted, IntegrityError
from lifecycle.layout import Layout, dsa, kv_only, swa
from lifecycle.runtime.ports import HostMemory
from stores.host import TorchHostMemory

Build = Callable[..., TorchHostMemory]


@pytest.fixture
def build() -> Iterator[Build]:
    """Build host memories of 8 slots per pool and check the books of each at the end."""
    built: list[TorchHostMemory] = []

    def make(layout: Layout, slots: int = 8, nbytes: int = 16) -> TorchHostMemory:
        host = TorchHostMemory(layout, {p.name: slots for p in layout.own}, {p.name: nbytes for p in layout.pools}, pin=False)
        built.append(host)
        return host

    yield make
    for host in built:
        host.check_integrity()


def taken(host: TorchHostMemory, pages: int, pool: str = "kv") -> list[int]:
    """Allocate and return the slots as a list."""
    return host.allocate({pool: pages})[pool].tolist()


def counts(host: TorchHostMemory, pool: str = "kv") -> tuple[int, int, int]:
    """Return free, held, quarantined."""
    return host.free_pages(pool), host.held_pages(pool), host.quarantined_pages(pool)


def slots(*numbers: int) -> np.ndarray:
    """Return slot numbers as the port has them."""
    return np.array(numbers, np.int32)


def test_it_satisfies_the_port(build: Build) -> None:
    """`TorchHostMemory` is a `HostMemory`."""
    host: HostMemory = build(kv_only())
    assert host.capacity_pages("kv") == 8


def test_an_allocation_is_one_range_where_one_fits(build: Build) -> None:
    """The first range that holds all pages is used, even if an earlier, smaller one is free."""
    host = build(kv_only())
    assert taken(host, 3) == [0, 1, 2]
    assert taken(host, 2) == [3, 4]
    host.release("kv", slots(0, 1, 2))
    host.release("kv", slots(4))
    assert taken(host, 4) == [4, 5, 6, 7]
    assert counts(host) == (3, 5, 0)


def test_a_scattered_allocation_uses_the_largest_ranges_in_ascending_order(build: Build) -> None:
    """Where no range fits, the fewest ranges are used and the slots ascend."""
    host = build(kv_only(), slots=12)
    taken(host, 12)
    host.release("kv", slots(0, 2, 3, 4, 7, 8))
    assert taken(host, 4) == [2, 3, 4, 7]
    assert taken(host, 2) == [0, 8]
    assert host.free_pages("kv") == 0


def test_neighbours_grow_together_again(build: Build) -> None:
    """Slots given back in any order are one range again."""
    host = build(kv_only())
    taken(host, 8)
    for slot in (3, 5, 4, 0, 7, 1, 2, 6):
        host.release("kv", slots(slot))
    assert taken(host, 8) == list(range(8))


def test_slots_may_be_given_back_in_any_order(build: Build) -> None:
    """A release of unsorted slots frees exactly those."""
    host = build(kv_only())
    taken(host, 8)
    host.release("kv", slots(6, 1, 2, 5))
    assert counts(host) == (4, 4, 0)
    assert taken(host, 4) == [1, 2, 5, 6]


def test_an_allocation_that_does_not_fit_takes_nothing_in_any_pool(build: Build) -> None:
    """All or nothing across pools, and the error says which pool, how many were asked and how many are free."""
    host = build(swa())
    taken(host, 6, "swa")
    with pytest.raises(HostExhausted, match=r"cannot allocate 3 pages of pool 'swa': 2 are free") as caught:
        host.allocate({"kv": 5, "swa": 3})
    assert (caught.value.pool, caught.value.asked_pages, caught.value.free_pages) == ("swa", 3, 2)
    assert counts(host, "kv") == (8, 0, 0)
    assert counts(host, "swa") == (2, 6, 0)


def test_an_allocation_of_nothing_is_empty(build: Build) -> None:
    """Zero pages are no slots, of the right type."""
    got = build(kv_only()).allocate({"kv": 0})["kv"]
    assert got.dtype == np.int32
    assert got.size == 0


@pytest.mark.parametrize("verb", ["release", "quarantine"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ((1, 2, 4), "slot 4 is free, not held"),
        ((1, 3), "slot 3 is quarantined, not held"),
        ((2, 1, 2), "slot 2 is given twice"),
        ((1, 1), "slot 1 is given twice"),
        ((2, 8), "there is no slot 8"),
        ((-1, 0), "there is no slot -1"),
        ((2, 1, 1, 4), "slot 1 is given twice"),
    ],
)
def test_what_is_not_held_cannot_be_given_back(build: Build, verb: str, wrong: tuple[int, ...], why: str) -> None:
    """A slot that is free, quarantined, unknown or given twice is refused by name, and nothing of the call happens."""
    host = build(kv_only())
    taken(host, 4)
    host.quarantine("kv", slots(3))
    with pytest.raises(DoubleRelease, match=f"cannot {verb} pool 'kv': {why}"):
        getattr(host, verb)("kv", slots(*wrong))
    assert counts(host) == (4, 3, 1)


def test_a_tail_freed_twice_is_freed_once(build: Build) -> None:
    """The same range released by two functions raises the second time; the free list grows by 3 (sglang#13483)."""
    host = build(kv_only())
    taken(host, 8)
    host.release("kv", slots(5, 6, 7))
    with pytest.raises(DoubleRelease):
        host.release("kv", slots(5, 6, 7))
    assert host.free_pages("kv") == 3


def test_quarantined_slots_are_never_reused(build: Build) -> None:
    """A quarantined slot is neither free nor held, and no allocation returns it."""
    host = build(kv_only())
    taken(host, 8)
    host.quarantine("kv", slots(2, 5))
    host.release("kv", slots(0, 1, 3, 4, 6, 7))
    assert counts(host) == (6, 0, 2)
    assert taken(host, 6) == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("verb", ["release", "quarantine"])
def test_a_riding_pool_has_no_slots_to_give_back(build: Build, verb: str) -> None:
    """Only the owner's slots can be given back, so none is freed for both (sglang#22767)."""
    host = build(dsa())
    taken(host, 8)
    with pytest.raises(ConfigError, match=f"cannot {verb} slots of pool 'indexer': it uses the slots of 'kv'"):
        getattr(host, verb)("indexer", slots(0))
    with pytest.raises(ConfigError, match="cannot allocate slots of pool 'indexer'"):
        host.allocate({"indexer": 1})
    assert counts(host) == (0, 8, 0)
    assert host.capacity_pages("indexer") == 8


def test_a_view_is_exactly_the_page_of_its_slot(build: Build) -> None:
    """What is written through the view of a slot is that row of that pool's tensor and nothing else."""
    host = build(dsa())
    first, second = host.buffers("indexer", slots(5, 2))
    assert (len(first), first.readonly, first.format, first.ndim) == (16, False, "B", 1)
    first[:] = bytes(range(16))
    second[:] = b"\xff" * 16
    expected = np.zeros((8, 16), np.uint8)
    expected[5], expected[2] = np.arange(16), 255
    assert np.array_equal(host.views("indexer"), expected)
    assert np.array_equal(host.tensor("indexer").numpy(), expected)
    assert not host.views("kv").any()


@pytest.mark.parametrize("slot", [-1, 8])
def test_a_view_of_a_slot_that_is_not_there_is_refused(build: Build, slot: int) -> None:
    """No view reaches outside the pool."""
    with pytest.raises(ConfigError, match=f"cannot view slot {slot} of pool 'kv'"):
        build(kv_only()).buffers("kv", slots(0, slot))


def test_memory_stays_mapped_while_a_view_lives() -> None:
    """A read that comes back after the host memory is gone still writes into mapped memory."""
    host = TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 16}, pin=False)
    memory = weakref.ref(host.views("kv").base)  # the tensor that owns the storage
    (view,) = host.buffers("kv", slots(3))
    del host
    gc.collect()
    assert memory() is not None
    view[:] = b"\x07" * 16
    assert memory()[3].tolist() == [7] * 16
    del view
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize(
    ("capacity", "nbytes", "why"),
    [
        ({"kv": 4, "indexer": 4}, {"kv": 8, "indexer": 8}, "capacity_pages has kv, indexer"),
        ({"kv": 4}, {"kv": 8}, "page_bytes has kv"),
        ({}, {"kv": 8, "indexer": 8}, "capacity_pages has nothing"),
        ({"kv": 0}, {"kv": 8, "indexer": 8}, "capacity_pages of pool 'kv' is 0"),
        ({"kv": 4}, {"kv": 8, "indexer": -1}, "page_bytes of pool 'indexer' is -1"),
        ({"kv": 2**31}, {"kv": 8, "indexer": 8}, "pool 'kv' has 2147483648 slots"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(capacity: dict[str, int], nbytes: dict[str, int], why: str) -> None:
    """Sizes must name exactly the pools there are, and be positive."""
    with pytest.raises(ConfigError, match=why):
        TorchHostMemory(dsa(), capacity, nbytes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_memory_cannot_be_pinned_without_cuda() -> None:
    """Asking for pinned memory where there is none is an error; the default follows the machine."""
    with pytest.raises(ConfigError, match="CUDA is not available"):
        TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 16}, pin=True)
    assert not TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 16}).pinned


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_is_pinned_where_there_is_cuda() -> None:
    """With a GPU, the tensors are page-locked by default."""
    host = TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 16})
    assert host.tensor("kv").is_pinned()


def test_check_integrity_sees_a_slot_that_changed_behind_the_books() -> None:
    """A slot whose state no verb changed is reported, with its pool."""
    host = TorchHostMemory(kv_only(), {"kv": 4}, {"kv": 16}, pin=False)
    host._books["kv"]._state[2] = 1
    with pytest.raises(IntegrityError, match=r"host memory does not add up: pool kv: counted \[3, 1, 0\]"):
        host.check_integrity()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "release", "quarantine"]), st.integers(0, 9), st.randoms())))
def test_slots_are_in_one_state_at_a_time(steps: list[tuple[str, int, object]]) -> None:
    """Whatever is taken and given back, in any order, a slot is handed out only while it is free."""
    host = TorchHostMemory(kv_only(), {"kv": 24}, {"kv": 1}, pin=False)
    held: list[int] = []
    gone = 0
    for verb, pages, random in steps:
        if verb == "take" and pages > 24 - len(held) - gone:
            with pytest.raises(HostExhausted):
                host.allocate({"kv": pages})
        elif verb == "take":
            got = host.allocate({"kv": pages})["kv"].tolist()
            assert got == sorted(got)
            assert not set(got) & set(held)
            held += got
        else:
            random.shuffle(held)  # type: ignore[attr-defined]
            given_back, held = held[:pages], held[pages:]
            getattr(host, verb)("kv", slots(*given_back))
            gone += len(given_back) if verb == "quarantine" else 0
        assert counts(host) == (24 - len(held) - gone, len(held), gone)
        host.check_integrity()
