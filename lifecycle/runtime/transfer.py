"""What the edge holds for one prefetch in flight. Lives on the scheduler's thread."""

import numpy as np

from lifecycle import ranges as r
from lifecycle.coverage import Flags
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.local import Local
from lifecycle.runtime.jobs import Job, Part
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


def reads_of(transfer: Transfer, layout: Layout, absent: frozenset[str], batch_pages: int) -> list[Job]:
    """Return the reads of a plan, in order: kv and its riders batch by batch, trailing pools last."""
    shared = transfer.local.shared
    jobs: list[Job] = []
    for group in layout.groups:
        owner = group[0].name
        if owner not in transfer.slots:
            continue
        lo, hi = shared.reserved[owner]
        for first in range(lo, hi, batch_pages):
            batch = (first, min(hi, first + batch_pages))
            parts = []
            for pool in group:
                wlo, whi = pool.window(shared.start_page, shared.plan_page)
                plo, phi = max(batch[0], wlo), min(batch[1], whi)
                if plo < phi and pool.name not in shared.left_out and pool.name not in absent:
                    parts.append(Part(pool.name, (plo, phi), transfer.keys, transfer.slots_of(owner, plo, phi)))
            if parts:
                jobs.append(Job(shared.id, owner, batch, tuple(parts)))
    return jobs
