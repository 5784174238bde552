"""Room in host memory: what the budgets leave, what eviction can add, and the engine's own pages.

Every choice looks at replicated counts (the replica's budgets, the index's shape), never at this rank's free list.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import index as whole

import numpy as np

from lifecycle import coverage
from lifecycle import ranges as r
from lifecycle.book import Book
from lifecycle.errors import IntegrityError
from lifecycle.events import Adopted, Event, Evicted
from lifecycle.layout import AllPages, Layout
from lifecycle.logger import Logger
from lifecycle.ranges import Range, Ranges
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import Anchor, HostMemory, PrefixIndex, SlotArray

log = Logger(__name__)

Fill = Callable[[str, Range, SlotArray], None]
"""Writes the pages [lo, hi) of a pool into the slots given, one per page."""


class Residency:
    """The pages that the index owns, and the way in and out for everyone but a prefetch."""

    def __init__(
        self, layout: Layout, book: Book, memory: HostMemory, index: PrefixIndex, emit: Callable[[Event], None]
    ) -> None:
        self._layout = layout
        self._book = book
        self._memory = memory
        self._index = index
        self._emit = emit
        self._tainted: dict[str, set[int]] = {pool.name: set() for pool in layout.own}
        # What left the index and host memory has not taken yet: to be free again, and to be quarantined.
        self.locked: list[Anchor] = []  # of no prefetch, where the index did not drop the lock
        self.unreleased: list[tuple[str, SlotArray]] = []
        self.unquarantined: list[tuple[str, SlotArray]] = []

    def room(self) -> dict[str, int]:
        """Return, per own pool, how many pages could be reserved now, after evicting all that may go."""
        budget = self._book.replica.budget
        return {pool.name: budget(pool.name) + whole(self._index.evictable_pages(pool.name)) for pool in self._layout.own}

    def make_room(self, need: Mapping[str, int]) -> None:
        """Evict until the budget of each pool covers `need` pages; the caller has checked `room`."""
        short = {}
        for pool, pages in need.items():
            missing = pages - self._book.replica.budget(pool)
            if missing > 0:
                short[pool] = missing
        if not short:
            return
        for pool, slots in self._index.evict(short).items():
            if len(slots):
                self._let_go(pool, slots)

    def allocate(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Take slots of host memory, one a page, or raise having kept none."""
        slots = {pool: np.asarray(given, dtype=np.int32) for pool, given in self._memory.allocate(need).items()}
        wrong = [pool for pool in {**need, **slots} if len(slots.get(pool, ())) != need.get(pool, 0)]
        if wrong:  # as an allocator that rounds up would: what is too much, nobody would give back
            self.unreleased += [(pool, given) for pool, given in slots.items() if len(given)]
            self.retry()
            raise IntegrityError(
                "host memory",
                [
                    f"pool {pool}: {len(slots.get(pool, ()))} slots for {need.get(pool, 0)} pages (need one a page)"
                    for pool in wrong
                ],
            )
        return slots

    def _let_go(self, pool: str, slots: SlotArray) -> None:
        tainted = self._tainted[pool]
        bad = np.array([slot for slot in slots.tolist() if slot in tainted], dtype=np.int32) if tainted else slots[:0]
        self._emit(Evicted(pool, len(slots), r.runs(slots), r.runs(bad)))
        if len(bad):
            tainted.difference_update(bad.tolist())
            self.unquarantined.append((pool, bad))
            slots = slots[~np.isin(slots, bad)]
        if len(slots):
            self.unreleased.append((pool, slots))
        self.retry()

    def retry(self) -> None:
        """Give back what host memory would not take so far, and drop the locks that the index would not drop."""
        self.locked = self._still_locked(self.locked)
        self.unreleased = _refused(self._memory.release, self.unreleased)
        self.unquarantined = _refused(self._memory.quarantine, self.unquarantined)

    def unlock(self, anchor: Anchor) -> None:
        """Drop a lock that no prefetch holds; tried again at the next tick if the index will not."""
        self.locked = self._still_locked([*self.locked, anchor])

    def _still_locked(self, anchors: list[Anchor]) -> list[Anchor]:
        still = []
        for anchor in anchors:
            try:
                self._index.unlock(anchor)
            except Exception as error:  # a failing port: the lock stays, and is dropped at a later tick
                log.warning(
                    "the index did not drop a lock that no prefetch holds; it is tried again at the next tick",
                    page=anchor.pages,
                    error=repr(error),
                    what_to_do="see the error; its prefix is not evicted until then",
                )
                still.append(anchor)
        return still

    def taint(self, pool: str, slots: SlotArray) -> None:
        """Remember resident slots that a lost read may still write: quarantined when they are evicted."""
        self._tainted[pool].update(slots.tolist())

    def adopt(self, request: str, keys: Sequence[str], anchor: Anchor, end_page: int, fill: Fill, tick: int) -> int:
        """Take the engine's own pages [anchor.pages, end_page) into host memory and the index; return the end reached.

        Shortened to what there is room for. A command: all ranks give it alike. `fill` writes the bytes of every pool.
        """
        self._index.lock(anchor)
        try:
            room = self.room()  # what the anchor holds cannot make any
            for pool in self._layout.required(self._book.degrade):
                if pool.rides_on is not None:
                    continue
                if isinstance(pool.coverage, AllPages) or room[pool.name] < pool.coverage.window_pages:
                    end_page = min(end_page, anchor.pages + max(0, room[pool.name]))
            if end_page <= anchor.pages:
                return anchor.pages
            return self._adopt_locked(request, keys, anchor, whole(end_page), fill, tick)
        finally:
            self.unlock(anchor)

    def _adopt_locked(self, request: str, keys: Sequence[str], anchor: Anchor, end_page: int, fill: Fill, tick: int) -> int:
        left_out: tuple[str, ...] = ()  # optional and degradable pools without room: they shorten nothing
        while True:  # making room may drop pages that the index had, so the plan is made until its needs are met
            offer = coverage.published(self._layout, anchor.pages, end_page, left_out)
            found = self._index.plan_insert(anchor, keys, offer)
            if isinstance(found, Reason):
                return anchor.pages
            wanted = plain(found.taken)
            need = {pool: r.count(pages) for pool, pages in wanted.items()}
            room = self.room()
            if short := [pool for pool, pages in need.items() if pages > room[pool]]:
                groups = [group for group in self._layout.groups if group[0].name in short]
                if any(coverage.is_required(self._book.degrade, group[0]) for group in groups):
                    return anchor.pages
                left_out += tuple([pool.name for group in groups for pool in group])
                continue
            if all(pages <= self._book.replica.budget(pool) for pool, pages in need.items()):
                break
            self.make_room(need)
        slots = self.allocate({pool: pages for pool, pages in need.items() if pages})
        placed: dict[str, SlotArray] = {}
        for pool_spec in self._layout.own:
            pool = pool_spec.name
            if pool not in offer:
                continue
            lo, hi = offer[pool]
            placed[pool] = np.full(hi - lo, -1, dtype=np.int32)
            taken_slots, used = slots.get(pool, placed[pool][:0]), 0
            for first, stop in wanted.get(pool, r.EMPTY):
                placed[pool][first - lo : stop - lo] = taken_slots[used : used + stop - first]
                used += stop - first
        try:
            for name, window in offer.items():
                owner = self._layout.owner(name)
                for lo, hi in r.intersect(wanted.get(owner, r.EMPTY), r.span(*window)):
                    fill(name, (lo, hi), placed[owner][lo - offer[owner][0] : hi - offer[owner][0]])
            self._index.insert(anchor, keys, offer, placed, 0, tick)
        except BaseException:
            self.unreleased += [(pool, taken) for pool, taken in slots.items() if len(taken)]
            self.retry()
            raise
        runs = {pool: r.runs(taken) for pool, taken in slots.items()}
        self._emit(Adopted(request, {pool: pages for pool, pages in need.items() if pages}, end_page, runs))
        return end_page


def plain(taken: Mapping[str, Ranges]) -> dict[str, Ranges]:
    """Return what an index would take, but for pools of which that is nothing, in numbers that a log can hold."""
    return {pool: tuple([(whole(lo), whole(hi)) for lo, hi in pages]) for pool, pages in taken.items() if pages}


def _refused(port: Callable[[str, SlotArray], None], waiting: list[tuple[str, SlotArray]]) -> list[tuple[str, SlotArray]]:
    """Offer each to host memory and return what it did not take."""
    refused = []
    for pool, slots in waiting:
        try:
            port(pool, slots)
        except Exception as error:  # a failing port: nothing happened, it is tried again at the next tick
            log.warning(
                "host memory did not take evicted pages back; they are offered again at the next tick",
                pool=pool,
                pages=len(slots),
                error=repr(error),
                what_to_do="see the error; if it stays, somebody else has released these slots",
            )
            refused.append((pool, slots))
    return refused
