"""The story of a prefetch on one rank: what its log says of it, with places and times. Judges nothing, and refuses nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lifecycle import ranges as r
from lifecycle.events import (
    Capped,
    Clamped,
    Closed,
    Committed,
    Discarded,
    Event,
    EventsLost,
    HitResolved,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    Issued,
    PagesLanded,
    PagesUnlocked,
    PlanAgreed,
    ReadFailed,
    ReadLost,
    Record,
    Settled,
    Synced,
    Terminated,
    TokensCredited,
    TokensReturned,
    TransferStarted,
    Wanted,
)  # fmt: skip
from lifecycle.layout import Layout, TrailingPages
from lifecycle.ranges import EMPTY, Ranges

Outcome = Committed | Clamped | Discarded
Place = tuple[int, int]
"""The seq and the time of a record."""


class Story:
    """One prefetch on one rank. `at` has the place of the last event of each type."""

    __slots__ = (
        "at", "capped", "credited", "failed", "gapped", "handed", "hit", "issued", "landed", "lost", "nbytes", "outcome",
        "over", "plan", "quarantined", "queued_ns", "released", "returned", "synced", "terminated",
    )  # fmt: skip

    def __init__(self, issued: Issued, place: Place) -> None:
        self.issued = issued
        self.at: dict[type[Event], Place] = {Issued: place}
        self.hit: HitResolved | None = None
        self.plan: PlanAgreed | None = None
        self.capped: Capped | None = None
        self.queued_ns: int | None = None
        self.landed: dict[str, Ranges] = {}
        self.failed: list[tuple[ReadFailed, int]] = []  # with the seq
        self.lost: list[tuple[ReadLost, int]] = []
        self.nbytes = 0
        self.terminated: Terminated | None = None
        self.synced: Synced | None = None
        self.outcome: Outcome | None = None
        self.handed: dict[str, Ranges] = {}
        self.released: list[HostReleased] = []
        self.quarantined: list[HostQuarantined] = []
        self.returned: int | None = None
        self.credited: int | None = None
        self.gapped = False  # events were lost meanwhile: what is not here may have happened
        self.over = False  # nothing more is to come of it

    @property
    def id(self) -> int:
        """Return the id of the prefetch."""
        return self.issued.prefetch

    @property
    def plan_page(self) -> int:
        """Return the end of what was to be read; the start of the span without a plan."""
        return self.issued.start_page if self.plan is None else self.plan.plan_page

    @property
    def usable_page(self) -> int:
        """Return the end of what was published; the start of the span if nothing was."""
        return self.outcome.usable_page if isinstance(self.outcome, (Committed, Clamped)) else self.issued.start_page

    def run(self, layout: Layout, pool_name: str) -> int:
        """Return the leading run of what landed: an absolute end, or for trailing pools a count of keys."""
        pool = layout.pool(pool_name)
        trailing = isinstance(pool.coverage, TrailingPages)
        first, _ = pool.window(self.issued.start_page, self.plan_page)
        end = next((hi for lo, hi in self.landed.get(pool_name, EMPTY) if lo <= first < hi), first)
        if self.plan is None:
            return 0 if trailing else self.issued.start_page
        return end - first if trailing else end

    def fate(self, pool: str, page: int) -> str:
        """Return what became of one page of a pool on this rank, in words."""
        if any(lo <= page < hi for lo, hi in self.landed.get(pool, EMPTY)):
            return "landed"
        for failed, seq in self.failed:
            if failed.pool == pool and failed.pages[0] <= page < failed.pages[1]:
                return f"failed ({failed.code}, seq {seq})"
        for lost, seq in self.lost:
            if lost.pages[0] <= page < lost.pages[1]:
                return f"its read was lost (seq {seq})"
        if self.plan is not None and pool in self.plan.left_out:
            return "the pool was left out of the plan"
        return "never answered in time" if self.plan is not None and page < self.plan_page else "never asked for"


def _keep(field: str) -> Callable[[Story, Any], None]:
    return lambda story, event: setattr(story, field, event)


def _landed(story: Story, event: PagesLanded) -> None:
    story.landed[event.pool] = r.union(story.landed.get(event.pool, EMPTY), (event.pages,))
    story.nbytes += event.nbytes


def _handed(story: Story, event: HostHandedOver) -> None:
    story.handed[event.pool] = r.union(story.handed.get(event.pool, EMPTY), event.pages)


def _started(story: Story, event: TransferStarted) -> None:
    story.queued_ns = event.queued_ns


def _returned(story: Story, event: TokensReturned) -> None:
    story.returned = event.tokens


def _credited(story: Story, event: TokensCredited) -> None:
    story.credited = event.tokens


def _nothing(story: Story, event: Event) -> None:
    """Keep only the place."""


_TELL: Mapping[type[Event], Callable[[Story, Any], None]] = {
    Wanted: _nothing,
    HitResolved: _keep("hit"),
    PlanAgreed: _keep("plan"),
    Capped: _keep("capped"),
    TransferStarted: _started,
    PagesLanded: _landed,
    Terminated: _keep("terminated"),
    Synced: _keep("synced"),
    Committed: _keep("outcome"),
    Clamped: _keep("outcome"),
    Discarded: _keep("outcome"),
    HostHandedOver: _handed,
    HostReleased: lambda story, event: story.released.append(event),
    HostQuarantined: lambda story, event: story.quarantined.append(event),
    TokensReturned: _returned,
    TokensCredited: _credited,
    Settled: _nothing,
    Closed: _nothing,
    PagesUnlocked: _nothing,
}
_WITH_SEQ = {ReadFailed: "failed", ReadLost: "lost"}


class Teller:
    """Follows the prefetches of one rank. Memory: one story per prefetch in flight."""

    def __init__(self, only: frozenset[int] | None = None) -> None:
        self._only = only
        self._next = 0
        self.open: dict[int, Story] = {}

    def feed(self, record: Record) -> Story | None:
        """Take a record; return the story of its prefetch, if it is of one that is in flight."""
        event = record.event
        if record.seq != self._next or type(event) is EventsLost:
            for story in self.open.values():
                story.gapped = True
        self._next = record.seq + (max(1, event.events) if isinstance(event, EventsLost) else 1)
        id_ = getattr(event, "prefetch", None)
        if id_ is None or (self._only is not None and id_ not in self._only):
            return None
        kind = type(event)
        if isinstance(event, Issued):
            story = self.open[id_] = Story(event, (record.seq, record.at_ns))
            return story
        found = self.open.get(id_)
        if found is None:
            return None
        if kind in _WITH_SEQ:
            getattr(found, _WITH_SEQ[kind]).append((event, record.seq))
        elif (tell := _TELL.get(kind)) is not None:
            tell(found, event)
            found.at[kind] = (record.seq, record.at_ns)
        if kind is PagesUnlocked or (kind is Closed and not isinstance(found.outcome, (Committed, Clamped))):
            found.over = True
            del self.open[id_]
        return found


def stories(records: Iterable[Record], only: frozenset[int] | None = None) -> Iterator[Story]:
    """Yield each prefetch of a log once: when it is over, or at the end of the log."""
    teller = Teller(only)
    for record in records:
        story = teller.feed(record)
        if story is not None and story.over:
            yield story
    yield from teller.open.values()
