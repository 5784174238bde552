"""What the edge holds for one prefetch in flight. Lives on the scheduler's thread."""

import numpy as np

from lifecycle import ranges as r
from lifecycle.coverage import Flags
from lifecycle.keys import KeyChain
from lifecycle.local import Local
from lifecycle.runtime.jobs import Job
from lifecycle.runtime.ports import Anchor, SlotArray
from lifecycle.votes import Progress


class Transfer:
    """Keys, anchor, slots and jobs of one prefetch."""

    __slots__ = ("anchor", "end_anchor", "end_locked", "jobs", "keys", "lengths", "local", "progress", "query", "slots")

    def __init__(self, local: Local, keys: KeyChain, anchor: Anchor, issued_ns: int) -> None:
        self.local = local
        self.keys = keys
        self.anchor = anchor
        self.progress = Progress(issued_ns)
        self.query: Job | None = None
        self.lengths: Flags | None = None
        self.slots: dict[str, tuple[int, SlotArray]] = {}  # own pool -> first reserved page, slots from there
        self.jobs: list[Job] = []
        self.end_anchor: Anchor | None = None  # of what was handed over
        self.end_locked = False

    def slots_of(self, pool: str, lo: int, hi: int) -> SlotArray:
        """Return the slots of the pages [lo, hi) of an own pool."""
        first, slots = self.slots[pool]
        return slots[lo - first : hi - first]

    def slots_of_ranges(self, pool: str, pages: r.Ranges) -> SlotArray:
        """Return the slots of several page ranges, in page order."""
        found = [self.slots_of(pool, lo, hi) for lo, hi in pages]
        return found[0] if len(found) == 1 else np.concatenate(found)
