"""The books of one pool's slots: which are free, held, quarantined. Holds no bytes.

Free slots are kept as sorted, coalesced ranges, so that an allocation is few ranges and no verb does work per page.
"""

from array import array
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, DoubleRelease
from lifecycle.ranges import Range, runs
from lifecycle.runtime.ports import SlotArray

FREE, HELD, QUARANTINED = 0, 1, 2
_STATE_NAMES = ("free", "held", "quarantined")


class SlotBook:
    """Count and find the slots of one pool."""

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free = capacity
        self.held = self.quarantined = 0
        self._state: NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        # The free ranges. Arrays: searched with bisect, and seen by numpy without a copy.
        self._starts = array("q", [0])
        self._stops = array("q", [capacity])

    def take(self, pages: int) -> SlotArray:
        """Take `pages` slots, at most `free`: of the first range that holds them all, else of the fewest; ascending."""
        assert pages <= self.free, f"{pages} slots taken of {self.free} that are free"
        if not pages:
            return np.empty(0, np.int32)
        parts = [np.arange(start, stop, dtype=np.int32) for start, stop in self._choose(pages)]
        slots = parts[0] if len(parts) == 1 else np.concatenate(parts)
        for part in parts:
            self._state[int(part[0]) : int(part[-1]) + 1] = HELD
        self.free -= pages
        self.held += pages
        return slots

    def release(self, verb: str, slots: SlotArray) -> None:
        """Make held slots free, or raise `DoubleRelease` having changed nothing; `verb` begins the message."""
        found = self._held_runs(verb, slots)
        for start, stop in found:
            self._state[start:stop] = FREE
            self._give_back(start, stop)
        self.free += len(slots)
        self.held -= len(slots)

    def quarantine(self, verb: str, slots: SlotArray) -> None:
        """Make held slots quarantined for good, or raise `DoubleRelease` having changed nothing."""
        for start, stop in self._held_runs(verb, slots):
            self._state[start:stop] = QUARANTINED
        self.held -= len(slots)
        self.quarantined += len(slots)

    def faults(self) -> list[str]:
        """Return what does not add up, against a full recount."""
        out = []
        counted = np.bincount(self._state, minlength=3).tolist()
        booked = [self.free, self.held, self.quarantined]
        if counted != booked:
            out.append(f"counted {counted} slots free, held, quarantined; the books say {booked}")
        if sum(booked) != self.capacity:
            out.append(f"free, held and quarantined slots are {sum(booked)}, the capacity is {self.capacity}")
        listed = tuple(zip(self._starts, self._stops, strict=True))
        if listed != runs(np.flatnonzero(self._state == FREE).astype(np.int32)):
            out.append("the free ranges are not the free slots")
        return out

    def _choose(self, pages: int) -> list[Range]:
        sizes = np.frombuffer(self._stops, np.int64) - np.frombuffer(self._starts, np.int64)
        fits = sizes >= pages
        first = int(fits.argmax())
        if fits[first]:
            return [self._cut(first, pages)]
        # No range holds them all: the largest first, and of the last one only what is still needed.
        largest = np.argpartition(sizes, -pages)[-pages:] if pages < len(sizes) else np.arange(len(sizes))
        largest = largest[np.argsort(-sizes[largest], kind="stable")]
        number = int(np.searchsorted(np.cumsum(sizes[largest]), pages)) + 1
        spare = int(sizes[largest[:number]].sum()) - pages
        sizes[largest[number - 1]] -= spare
        # From the back, so that the places before stay where they are.
        return [self._cut(at, int(sizes[at])) for at in np.sort(largest[:number])[::-1].tolist()][::-1]

    def _cut(self, at: int, pages: int) -> Range:
        start = self._starts[at]
        if start + pages == self._stops[at]:
            del self._starts[at], self._stops[at]
        else:
            self._starts[at] = start + pages
        return start, start + pages

    def _give_back(self, start: int, stop: int) -> None:
        starts, stops = self._starts, self._stops
        at = bisect_left(starts, start)
        joins_left = at > 0 and stops[at - 1] == start
        joins_right = at < len(starts) and starts[at] == stop
        if joins_left and joins_right:
            stops[at - 1] = stops[at]
            del starts[at], stops[at]
        elif joins_left:
            stops[at - 1] = stop
        elif joins_right:
            starts[at] = start
        else:
            starts.insert(at, start)
            stops.insert(at, stop)

    def _held_runs(self, verb: str, slots: SlotArray) -> tuple[Range, ...]:
        given = np.asarray(slots)
        if not given.size:
            return ()
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ConfigError(f"cannot {verb}: slots have shape {given.shape}, type {given.dtype} (use flat integers)")
        first, last = int(given[0]), int(given[-1])
        if last - first + 1 == given.size and bool((given[1:] > given[:-1]).all()):  # one run, the common case
            found: tuple[Range, ...] = ((first, last + 1),)
            low, high = first, last
        else:
            given = np.sort(given)
            found = runs(given)
            low, high = int(given[0]), int(given[-1])
            twice = np.flatnonzero(given[1:] == given[:-1])
            if twice.size:
                raise DoubleRelease(f"cannot {verb}: slot {int(given[twice[0]])} is given twice (nothing changed)")
        if low < 0 or high >= self.capacity:
            wrong = low if low < 0 else high
            raise DoubleRelease(f"cannot {verb}: there is no slot {wrong} of {self.capacity} (nothing changed)")
        for start, stop in found:
            bad = np.flatnonzero(self._state[start:stop] != HELD)
            if bad.size:
                slot = start + int(bad[0])
                state = _STATE_NAMES[self._state[slot]]
                raise DoubleRelease(f"cannot {verb}: slot {slot} is {state}, not held (nothing changed)")
        return found
