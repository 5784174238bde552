"""Ports of an engine's own whose answers are right but not in our types, or wrong in number."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from lifecycle.events import Committed, Discarded, HostReserved, LogOpened, PlanAgreed, PrefixServed
from lifecycle.keys import page_keys
from lifecycle.layout import dsa
from lifecycle.policies import Policies, WaitComplete
from lifecycle.runtime import Coordinator
from lifecycle.runtime.ports import InsertPlan, SlotArray
from stores.events import MemoryEventLog, SqliteEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex

LAYOUT = dsa()
PAGE_BYTES = {pool.name: 64 for pool in LAYOUT.pools}
KEYS = page_keys(range(32), page_size=4)


class NumpyMemory(TorchHostMemory):
    """Counts as numpy does."""

    def free_pages(self, pool: str) -> Any:
        """Return numpy's number."""
        return np.int64(super().free_pages(pool))

    def quarantined_pages(self, pool: str) -> Any:
        """Return numpy's number."""
        return np.int64(super().quarantined_pages(pool))

    def page_bytes(self, pool: str) -> Any:
        """Return numpy's number."""
        return np.int64(super().page_bytes(pool))


class NumpyPlace:
    """A place, or a match, that counts as numpy does."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.pages = np.int64(real.pages)
        self.key = getattr(real, "key", "")

    @property
    def anchor(self) -> "NumpyPlace":
        """Return the place of a match."""
        return NumpyPlace(self.real.anchor)

    @property
    def sources(self) -> tuple[Any, ...]:
        """Return where the pages of a match came from."""
        return tuple([tuple(map(np.int64, source)) for source in self.real.sources])


class NumpyIndex(RadixIndex):
    """Counts as numpy does."""

    def match(self, keys: Sequence[str], tick: int, pools: Sequence[str] | None = None) -> Any:
        """Return a match in numpy's numbers."""
        return NumpyPlace(super().match(keys, tick, pools))

    def lock(self, anchor: Any) -> None:
        """Lock the place."""
        super().lock(getattr(anchor, "real", anchor))

    def unlock(self, anchor: Any) -> None:
        """Unlock the place."""
        super().unlock(getattr(anchor, "real", anchor))

    def plan_insert(self, anchor: Any, *offer: Any) -> Any:
        """Return a plan in numpy's numbers."""
        plan = super().plan_insert(anchor.real, *offer)
        if not isinstance(plan, InsertPlan):
            return plan
        ranges: Any = {pool: tuple([(np.int64(a), np.int64(b)) for a, b in pages]) for pool, pages in plan.taken.items()}
        return InsertPlan(plan.end_page, ranges)

    def insert(self, anchor: Any, *offer: Any) -> Any:
        """Insert at the place."""
        return super().insert(anchor.real, *offer)

    def evictable_pages(self, pool: str) -> Any:
        """Return numpy's number."""
        return np.int64(super().evictable_pages(pool))


def filled() -> MemoryPageStore:
    """Return a store that has the prompt."""
    store = MemoryPageStore(PAGE_BYTES)
    for pool in PAGE_BYTES:
        store.write(pool, KEYS, [memoryview(bytes(64))] * len(KEYS))
    return store


def served(memory: TorchHostMemory, index: RadixIndex, events: Any) -> Coordinator:
    """Run one prefetch to its end and serve it."""
    coordinator = Coordinator(
        LAYOUT, Policies(stop=WaitComplete()), 4, store=filled(), memory=memory, index=index, events=events, readers=1
    )
    coordinator.issue("r", 0, KEYS, index.match(KEYS, 0).anchor)
    for _ in range(2000):
        if not coordinator.snapshot()["in_flight"]:
            break
        coordinator.tick()
        time.sleep(0.001)
    coordinator.served("r", index.match(KEYS, coordinator.tick_number))
    return coordinator


def test_numbers_of_numpy_are_numbers(tmp_path: Any) -> None:
    """An engine that counts with numpy loses no event: what its ports say is logged in plain numbers."""
    events = SqliteEventLog(tmp_path / "rank0.sqlite")
    coordinator = served(NumpyMemory(LAYOUT, {"kv": 6}, PAGE_BYTES), NumpyIndex(LAYOUT), events)
    coordinator.close()
    coordinator.check_integrity()
    logged = [record.event for record in events.records()]
    events.close()
    assert events.lost_events == 0
    assert {type(event) for event in logged} > {LogOpened, PlanAgreed, Committed, PrefixServed}
    assert type(coordinator.snapshot()["budget_pages"]["kv"]) is int


class ListMemory(TorchHostMemory):
    """Gives its slots as a list."""

    def allocate(self, need: Mapping[str, int]) -> Any:
        """Return lists."""
        return {pool: slots.tolist() for pool, slots in super().allocate(need).items()}


def test_slots_in_a_list_are_slots() -> None:
    """Slots are what they are, in whatever sequence they come."""
    coordinator = served(ListMemory(LAYOUT, {"kv": 8}, PAGE_BYTES), RadixIndex(LAYOUT), MemoryEventLog())
    assert coordinator.take_loaded("r") == 32
    coordinator.close()
    coordinator.check_integrity()


class RoundingMemory(TorchHostMemory):
    """Gives another number of slots than was asked."""

    by = 1

    def allocate(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Return more, or fewer."""
        return super().allocate({pool: pages + self.by for pool, pages in need.items()})


@pytest.mark.parametrize("by", [1, -1])
def test_another_number_of_slots_is_refused(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that rounds leaks nothing: all it gave goes back, and the warning says how many it gave for how many."""
    monkeypatch.setattr(RoundingMemory, "by", by)
    memory, events = RoundingMemory(LAYOUT, {"kv": 16}, PAGE_BYTES), MemoryEventLog()
    with capture_logs() as logs:
        coordinator = served(memory, RadixIndex(LAYOUT), events)
    assert [f"{8 + by} slots for 8 pages" in entry["error"] for entry in logs] == [True]
    assert memory.free_pages("kv") == 16
    kinds = {type(record.event) for record in events.records()}
    assert Discarded in kinds
    assert HostReserved not in kinds
    coordinator.close()
    coordinator.check_integrity()
