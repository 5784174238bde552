"""Host memory, prefix index and event log of one simulated rank: lean, with an eye on the laws, failing when armed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from lifecycle.errors import DoubleRelease, HostExhausted, IntegrityError
from lifecycle.events import EventsLost, Record
from lifecycle.layout import Layout
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import Anchor, InsertPlan, SlotArray
from lifecycle.testing.sim_store import PAGE_BYTES
from stores.prefix import RadixIndex
from stores.prefix_match import RadixAnchor

FREE, HELD, OUT = 0, 1, 2


class PortDown(Exception):
    """Raised by a simulated port that was told to fail. Not an error of this library, as those of a real port are not."""


class SimMemory:
    """Page slots as plain lists. `writing` counts the reads that may write a slot; `violations` what happened under them."""

    def __init__(self, layout: Layout, capacity_pages: Mapping[str, int], injected: Counter[str]) -> None:
        self._owner = {pool.name: layout.owner(pool.name) for pool in layout.pools}
        self._capacity = dict(capacity_pages)
        self._state = {pool: [FREE] * pages for pool, pages in capacity_pages.items()}
        self._free = {pool: list(range(pages)) for pool, pages in capacity_pages.items()}
        self._quarantined = dict.fromkeys(capacity_pages, 0)
        flat = {pool.name: bytearray(PAGE_BYTES * capacity_pages[layout.owner(pool.name)]) for pool in layout.pools}
        self._bytes = {pool: memoryview(data) for pool, data in flat.items()}
        self.writing: dict[str, Counter[int]] = {pool: Counter() for pool in capacity_pages}
        self.violations: list[str] = []
        self.down: Counter[str] = Counter()
        self.refused = 0  # calls that failed as armed
        self._injected = injected
        for free in self._free.values():
            heapify(free)

    def capacity_pages(self, pool: str) -> int:
        """Return how many slots the pool has."""
        return self._capacity[self._owner[pool]]

    def free_pages(self, pool: str) -> int:
        """Return how many slots are free."""
        return len(self._free[self._owner[pool]])

    def page_bytes(self, pool: str) -> int:
        """Return the bytes of a page."""
        return PAGE_BYTES

    def quarantined_pages(self, pool: str) -> int:
        """Return how many slots are quarantined."""
        return self._quarantined[pool]

    def allocate(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Take the lowest free slots, all or none."""
        if self._fails("exhaust"):
            raise HostExhausted(next(iter(need)), 0, 0)
        if self._fails("allocate"):
            raise PortDown("simulated: allocate failed")
        for pool, pages in need.items():
            if pages > len(self._free[pool]):
                raise HostExhausted(pool, pages, len(self._free[pool]))
        given = {}
        for pool, pages in need.items():
            slots = [heappop(self._free[pool]) for _ in range(pages)]
            for slot in slots:
                self._state[pool][slot] = HELD
            self._watch("allocated", pool, slots)
            given[pool] = np.array(slots, dtype=np.int32)
        return given

    def release(self, pool: str, slots: SlotArray) -> None:
        """Give held slots back, all or none."""
        if self._fails("release"):
            raise PortDown("simulated: release failed")
        taken = self._take(pool, slots, FREE)
        for slot in taken:
            heappush(self._free[pool], slot)
        self._watch("released", pool, taken)

    def quarantine(self, pool: str, slots: SlotArray) -> None:
        """Take held slots out of use, all or none."""
        if self._fails("quarantine"):
            raise PortDown("simulated: quarantine failed")
        self._quarantined[pool] += len(self._take(pool, slots, OUT))

    def buffers(self, pool: str, slots: SlotArray) -> list[memoryview]:
        """Return one view per slot."""
        data = self._bytes[pool]
        return [data[slot * PAGE_BYTES : (slot + 1) * PAGE_BYTES] for slot in slots.tolist()]

    def check_integrity(self) -> None:
        """Recount every slot."""
        faults = []
        for pool, states in self._state.items():
            counts = Counter(states)
            if counts[FREE] != len(self._free[pool]) or counts[OUT] != self._quarantined[pool]:
                faults.append(f"pool {pool}: {dict(counts)} counted, {len(self._free[pool])} free booked")
        if faults:
            raise IntegrityError("simulated host memory", faults)

    def _take(self, pool: str, slots: SlotArray, to: int) -> list[int]:
        states, taken = self._state[pool], list[int](slots.tolist())
        wrong = [slot for slot in taken if states[slot] != HELD]
        if wrong or len(set(taken)) != len(taken):
            self.violations.append(f"slots {wrong or taken} of {pool} were given back and are not held")
            raise DoubleRelease(f"cannot give back slots {taken} of {pool}: {wrong} are not held")
        for slot in taken:
            states[slot] = to
        return taken

    def _fails(self, verb: str) -> bool:
        if not self.down[verb]:
            return False
        self.down[verb] -= 1
        self.refused += 1
        self._injected[f"{verb} fails"] += 1
        return True

    def _watch(self, what: str, pool: str, slots: list[int]) -> None:
        writing = self.writing[pool]
        if writing and (busy := [slot for slot in slots if writing[slot]]):
            self.violations.append(f"slots {busy} of {pool} were {what} while a read may write them")


class SimIndex(RadixIndex):
    """The reference index, with verbs that fail when armed and answers to `plan_insert` that an engine could give."""

    def __init__(self, layout: Layout, degrade: bool, injected: Counter[str]) -> None:
        super().__init__(layout, degrade)
        self.down: Counter[str] = Counter()
        self.refused = 0  # calls that failed as armed
        self.refusals: list[Reason] = []  # for the next plans, alike on all ranks
        self._injected = injected

    def _enter(self, verb: str) -> None:
        if self.down[verb]:
            self.down[verb] -= 1
            self.refused += 1
            self._injected[f"{verb} fails"] += 1
            raise PortDown(f"simulated: {verb} failed")

    def lock(self, anchor: Anchor) -> None:
        """Lock, or fail."""
        self._enter("lock")
        super().lock(anchor)

    def unlock(self, anchor: Anchor) -> None:
        """Unlock, or fail."""
        self._enter("unlock")
        super().unlock(anchor)

    def evict(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Evict, or fail."""
        self._enter("evict")
        return super().evict(need)

    def plan_insert(self, anchor: Anchor, keys: Sequence[str], offer: Mapping[str, tuple[int, int]]) -> InsertPlan | Reason:
        """Plan, refuse or fail."""
        self._enter("plan_insert")
        if self.refusals:
            self._injected[f"{self.refusals[0]} refused"] += 1
            return self.refusals.pop(0)
        return super().plan_insert(anchor, keys, offer)

    def insert(
        self,
        anchor: Anchor,
        keys: Sequence[str],
        offer: Mapping[str, tuple[int, int]],
        slots: Mapping[str, SlotArray],
        source: int,
        tick: int,
    ) -> RadixAnchor:
        """Insert, or fail."""
        self._enter("insert")
        return super().insert(anchor, keys, offer, slots, source, tick)


class SimLog:
    """An event log in memory whose disk can be full for a while: what it drops is counted and marked in its place."""

    def __init__(self, injected: Counter[str]) -> None:
        self.kept: list[Record] = []
        self.full = 0  # how many records are dropped from now on
        self._gap: tuple[int, int, int] | None = None  # first seq, its time, how many
        self._lost = 0
        self._injected = injected

    def append(self, record: Record) -> None:
        """Keep a record, or drop it."""
        if self.full:
            self.full -= 1
            self._lost += 1
            self._injected["event lost"] += 1
            first, at_ns, count = self._gap or (record.seq, record.at_ns, 0)
            self._gap = first, at_ns, count + 1
            return
        self._end_gap()
        self.kept.append(record)

    def _end_gap(self) -> None:
        if self._gap is not None:
            first, at_ns, count = self._gap
            self.kept.append(Record(first, at_ns, EventsLost(events=count, first_seq=first, cause="simulated: disk full")))
            self._gap = None

    def flush(self) -> None:
        """Do nothing."""

    def records(self) -> Iterable[Record]:
        """Return what was kept."""
        if not self.full:
            self._end_gap()
        return self.kept

    @property
    def lost_events(self) -> int:
        """How many were dropped."""
        return self._lost

    def close(self) -> None:
        """Do nothing."""
