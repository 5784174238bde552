"""One prefetch on one rank as the audit sees it: plain facts and page sets, kept apart from the live code's own.

R reserved   C landed (the leading run)   U usable   T taken by the index
R - C tail · C - U clamped · U - T duplicate · T handed over
"""

from collections.abc import Mapping

from lifecycle import ranges as r
from lifecycle.coverage import landed_pages
from lifecycle.events import AnchorUnlocked, Event, Issued, PagesUnlocked, TokensCredited, TokensReturned
from lifecycle.layout import Layout, TrailingPages
from lifecycle.ranges import EMPTY, Range, Ranges
from lifecycle.reasons import Part, Reason
from lifecycle.states import State


def meet(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers in both, quickly for the one range that page sets nearly always are."""
    if left == right:
        return left
    if len(left) == 1 and len(right) == 1:
        lo, hi = max(left[0][0], right[0][0]), min(left[0][1], right[0][1])
        return ((lo, hi),) if lo < hi else EMPTY
    return r.intersect(left, right)


def without(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers in `left` alone, quickly where the two are alike."""
    if left == right:
        return EMPTY
    return r.subtract(left, right) if right else left


def size(pages: Ranges) -> int:
    """Return how many numbers there are, quickly for one range."""
    if len(pages) == 1:
        return pages[0][1] - pages[0][0]
    return r.count(pages)


class Held:
    """The pages of one pool with own slots that this rank reserved for one prefetch."""

    __slots__ = ("asked", "claimed", "gone", "late", "late_claims", "lost", "open", "reserved", "runs", "tainted")

    def __init__(self, pages: Range, runs: tuple[Range, ...]) -> None:
        self.reserved = pages
        self.runs = runs  # slots, in page order
        self.open: Ranges = (pages,)  # not discharged yet
        self.asked: Ranges = EMPTY  # under a claim, now or before
        self.claimed: list[tuple[Range, int, int]] = []  # reads that may be writing, with seq and time of their claim
        self.lost: Ranges = EMPTY
        self.late_claims = 0  # reads that were claimed after the end
        self.late: Ranges = EMPTY  # handed over while a read may still write them
        self.tainted: Ranges = EMPTY  # handed over, and a lost read may still write them
        self.gone: list[tuple[Ranges, str, int]] = []  # what was discharged, how, and in which record

    def busy(self) -> Ranges:
        """Return the pages that a claimed read may be writing."""
        pages = EMPTY
        for claimed, _, _ in self.claimed:
            pages = r.union(pages, (claimed,))
        return pages

    def lost_count(self) -> int:
        """Return how many pages lost reads took out of use: quarantined, or to be when they are evicted."""
        count = r.count(self.tainted) if self.tainted else 0
        for pages, how, _ in self.gone:
            if how == "quarantined":
                count += r.count(pages)
        return count

    def writer(self, pages: Ranges) -> int:
        """Return the seq of a claim over some of the pages."""
        return next(seq for claimed, seq, _ in self.claimed if r.intersect(pages, (claimed,)))

    def slots(self, pages: Ranges) -> list[Range]:
        """Return the slots of some of the reserved pages, in page order."""
        first = self.reserved[0]
        if len(self.runs) == 1:
            base = self.runs[0][0] - first
            if len(pages) == 1:
                return [(pages[0][0] + base, pages[0][1] + base)]
            return [(lo + base, hi + base) for lo, hi in pages]
        found: list[Range] = []
        for lo, hi in pages:
            at = first
            for start, stop in self.runs:
                low, high = max(lo, at), min(hi, at + stop - start)
                if low < high:
                    found.append((start + low - at, start + high - at))
                at += stop - start
        return found

    def how(self, page: int) -> tuple[str, int] | None:
        """Return how a page was discharged before, and in which record."""
        return next(((how, seq) for pages, how, seq in self.gone if r.intersect(pages, ((page, page + 1),))), None)


class Account:
    """What the log said so far of one prefetch. `marks` has the seq of the last event of each type."""

    __slots__ = (
        "_parts", "agreed", "answered", "attempt", "ceiling_page", "closed", "credit", "dropped", "end_page", "failed",
        "held", "hit_ns", "hit_page", "id", "issued_ns", "landed", "late", "leading", "left_out", "lost_in_round",
        "lost_required", "marks", "miss", "plan_page", "published", "queued_ns", "reason", "request", "reserved",
        "reserved_tokens", "runs", "same_decision", "start_page", "started_ns", "state", "taken", "usable_page", "withdrawn",
    )  # fmt: skip

    def __init__(self, event: Issued, seq: int, issued_ns: int) -> None:
        self.id = event.prefetch
        self.request = event.request
        self.attempt = event.attempt
        self.start_page = self.plan_page = self.usable_page = event.start_page
        self.end_page = self.ceiling_page = event.end_page
        self.reserved_tokens = event.reserved_tokens
        self.state = State.ISSUED
        self.published = False  # whether anything of it is
        self.marks: dict[type[Event], int] = {Issued: seq}
        self.hit_page: int | None = None  # of this rank
        self.reserved: Mapping[str, Range] = {}  # agreed; empty without a plan
        self.left_out: tuple[str, ...] = ()
        self.held: dict[str, Held] = {}
        self.landed: dict[str, Ranges] = {}
        self.failed: dict[str, Ranges] = {}
        self.answered: dict[str, Ranges] = {}
        self.runs: dict[str, int] | None = None  # what landed, frozen at the end
        self.agreed: Mapping[str, int] = {}
        self.reason: Reason | None = None
        self.taken: Mapping[str, Ranges] = {}
        self.dropped: tuple[str, ...] = ()
        self.credit: int | None = None  # tokens owed
        self.closed = False
        self.issued_ns = issued_ns
        self.queued_ns = 0
        self.miss: Reason | None = None  # why the hit of this rank is short
        self.lost_required = False  # whether a lost read must stop it
        self.lost_in_round = 0  # the last round before that
        self.hit_ns = self.started_ns = 0  # when this rank's hit, and its first claim, were told
        self.leading: Mapping[str, int] = {}  # pages before the first missing one, per pool that was asked
        self.late = False  # whether it was told that its limit was missed
        self._parts: dict[tuple[str, State], dict[Part | None, Ranges]] = {}
        self.withdrawn = -1  # the record after which claims found at a withdrawal may directly follow
        self.same_decision = False  # whether Synced came with Terminated, so that its rows were sent before the freeze

    @property
    def issued_seq(self) -> int:
        """The record that issued it."""
        return self.marks[Issued]

    def run(self, layout: Layout, pool_name: str) -> int:
        """Return the leading run of a pool: an absolute end, or for trailing pools a count of keys."""
        pool = layout.pool(pool_name)
        trailing = isinstance(pool.coverage, TrailingPages)
        if not self.reserved:
            return 0 if trailing else self.start_page
        first, _ = pool.window(self.start_page, self.plan_page)
        for start, stop in self.landed.get(pool_name, EMPTY):
            if start <= first < stop:
                return stop - first if trailing else stop
        return 0 if trailing else first

    def freeze(self, layout: Layout) -> dict[str, int]:
        """Return the runs of all pools, as they stood at the end."""
        if self.runs is None:
            self.runs = {pool.name: self.run(layout, pool.name) for pool in layout.pools}
        return self.runs

    def parts(self, layout: Layout, pool_name: str) -> dict[Part | None, Ranges]:
        """Return which reserved pages belong in which part; None is the part that is handed over.

        Before the outcome only the tail is known, and no other part is there. In one state nothing of it changes.
        """
        found = self._parts.get((pool_name, self.state))
        if found is None:
            found = self._parts[(pool_name, self.state)] = self._partition(layout, pool_name)
        return found

    def _partition(self, layout: Layout, pool_name: str) -> dict[Part | None, Ranges]:
        pool = layout.pool(pool_name)
        reserved = (self.held[pool_name].reserved,)
        run = self.freeze(layout)[pool_name]
        landed = meet(landed_pages(pool, self.start_page, self.plan_page, run), reserved)
        tail = without(reserved, landed)
        if self.state is State.DISCARDED:
            return {Part.TAIL: tail, Part.CLAMPED: landed}
        if not self.published:
            return {Part.TAIL: tail}
        usable = EMPTY
        if pool_name not in self.dropped and self.usable_page > self.start_page:
            usable = meet(landed, r.span(*pool.window(self.start_page, self.usable_page)))
            agreed = self.agreed.get(pool_name, run)
            if agreed != run:
                usable = meet(usable, landed_pages(pool, self.start_page, self.plan_page, agreed))
        taken = meet(self.taken.get(pool_name, EMPTY), usable)
        return {
            Part.TAIL: tail,
            Part.CLAMPED: without(landed, usable),
            Part.DUPLICATE: without(usable, taken),
            None: taken,
        }

    def debts(self) -> list[str]:
        """Return what is open, in words: one for each that the live books would name."""
        marks = self.marks
        debts = []
        if AnchorUnlocked not in marks:
            debts.append("anchor")
        if TokensReturned not in marks:
            debts.append("tokens")
        if self.credit is not None and TokensCredited not in marks:
            debts.append("credit")
        if PagesUnlocked not in marks and self.published:
            debts.append("lock on what was handed over")
        for pool, held in self.held.items():
            if held.open:
                debts.append(f"pages of {pool} {r.text(held.open)}")
        for pool, held in self.held.items():
            if held.late:
                debts.append(f"late write of {pool} {r.text(held.late)}")
        return debts
