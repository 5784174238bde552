"""What a run did in numbers: outcomes and reasons, hits and waste, waits and reads, occupancy. One pass over a rank's log."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from lifecycle import ranges as r
from lifecycle.audit.gauges import Curve, Histogram
from lifecycle.audit.story import Story, Teller
from lifecycle.audit.tables import Line, table
from lifecycle.audit.words import count_of, duration, name, share
from lifecycle.events import (
    Adopted,
    Clamped,
    Committed,
    Declined,
    Discarded,
    Evicted,
    Issued,
    LogOpened,
    ObligationStuck,
    PagesLanded,
    PrefixServed,
    ReadFailed,
    Record,
    Terminated,
    TokensReturned,
    TransferStarted,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.ranges import EMPTY

WAITS = ("queue_wait", "read_time", "issue_to_outcome")


class Stats:
    """Counts of one rank, as its log is fed. Memory: what is in flight, and gauges of a fixed size."""

    def __init__(self) -> None:
        self.events = 0
        self.prefetches = 0
        self.requests = 0  # served
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()
        self.waited: Counter[str] = Counter()  # how often a request began to wait to be tried again, and how that ended
        self.pages: Counter[str] = Counter()  # asked, hit, planned, published, served, from_prefetch, evicted, adopted
        self.landed: Counter[str] = Counter()  # by pool
        self.failed: Counter[str] = Counter()  # by pool and code
        self.wasted: Counter[str] = Counter()  # pages read and thrown away, by pool and cause
        self.nbytes = 0
        self.stuck = 0
        self.waits = {wait: Histogram() for wait in WAITS}
        self.occupied = Curve()
        self.occupied_tokens = 0
        self._teller = Teller()

    @property
    def in_flight(self) -> int:
        """Return how many prefetches are not over."""
        return len(self._teller.open)

    def feed(self, record: Record) -> None:
        """Take a record."""
        self.events += 1
        event, at_ns = record.event, record.at_ns
        story = self._teller.feed(record)
        match event:
            case LogOpened():
                self.occupied = Curve(event.monotonic_ns)
            case Declined():
                self.declined[event.reason.value] += 1
            case WaitBegan():
                self.waited[f"for {event.reason}"] += 1
            case WaitEnded():
                self.waited["tried" if event.reason is None else f"over: {event.reason}"] += 1
            case Issued():
                self.prefetches += 1
                self.pages["asked"] += event.end_page - event.start_page
                self._occupy(at_ns, event.reserved_tokens)
            case TokensReturned():
                self._occupy(at_ns, -event.tokens)
            case TransferStarted():
                self.waits["queue_wait"].add(max(0, event.queued_ns))
            case PagesLanded():
                self.landed[event.pool] += event.pages[1] - event.pages[0]
                self.nbytes += event.nbytes
            case ReadFailed():
                self.failed[f"{event.pool} {event.code}"] += event.pages[1] - event.pages[0]
            case PrefixServed():
                self.requests += 1
                self.pages["served"] += event.end_page
                self.pages["from_prefetch"] += sum(hi - lo for lo, hi, source in event.sources if source)
            case Evicted():
                self.pages["evicted"] += event.pages
            case Adopted():
                self.pages["adopted"] += sum(event.pages.values())
            case ObligationStuck():
                self.stuck += 1
            case Committed() | Clamped() | Discarded() if story is not None:
                self._ended(story, at_ns)
            case _:
                pass

    def _occupy(self, at_ns: int, tokens: int) -> None:
        self.occupied_tokens += tokens
        self.occupied.add(at_ns, self.occupied_tokens)

    def _ended(self, story: Story, at_ns: int) -> None:
        outcome = story.outcome
        assert outcome is not None, "the teller has just kept it"
        kind = type(outcome).__name__.lower()
        reason = getattr(outcome, "reason", None)
        self.outcomes[kind] += 1
        self.reasons[f"{kind} {reason.value}" if reason is not None else kind] += 1
        issued = story.issued
        self.waits["issue_to_outcome"].add(max(0, at_ns - story.at[Issued][1]))
        if story.plan is not None:
            self.pages["hit"] += story.plan.hit_page - issued.start_page
            self.pages["planned"] += story.plan.plan_page - issued.start_page
        elif story.hit is not None:
            self.pages["hit"] += story.hit.hit_page - issued.start_page
        self.pages["published"] += story.usable_page - issued.start_page
        if TransferStarted in story.at:
            stop = story.at.get(Terminated, (0, at_ns))[1]
            self.waits["read_time"].add(max(0, stop - story.at[TransferStarted][1]))
        self._waste(story, reason.value if reason is not None else "completed")

    def _waste(self, story: Story, reason: str) -> None:
        """Count what landed and is not published, and what is published that the index had already."""
        taken = getattr(story.outcome, "taken", {})
        for pool, landed in story.landed.items():
            lo, hi = story.issued.start_page, story.usable_page
            beyond = r.count(r.subtract(landed, r.span(lo, hi)))
            if beyond:
                self.wasted[f"{pool}: {reason}"] += beyond
            if story.plan is not None and pool in story.plan.reserved:
                twice = r.count(r.subtract(r.intersect(landed, r.span(lo, hi)), taken.get(pool, EMPTY)))
                if twice:
                    self.wasted[f"{pool}: duplicate"] += twice

    def facts(self) -> dict[str, Any]:
        """Return every number, for programs. Times are in nanoseconds."""
        return {
            "events": self.events,
            "prefetches": self.prefetches,
            "in_flight": self.in_flight,
            "outcomes": dict(self.outcomes),
            "reasons": dict(self.reasons),
            "declined": dict(self.declined),
            "waited": dict(self.waited),
            "pages": dict(self.pages),
            "landed_pages": dict(self.landed),
            "failed_pages": dict(self.failed),
            "wasted_pages": dict(self.wasted),
            "read_bytes": self.nbytes,
            "stuck": self.stuck,
            "served_requests": self.requests,
            "waits_ns": {wait: gauge.summary() for wait, gauge in self.waits.items()},
            "occupied_tokens": {
                "peak": self.occupied.peak,
                "last": self.occupied_tokens,
                "points": self.occupied.points(),
            },
        }


def stats(records: Iterable[Record]) -> Stats:
    """Return the numbers of one rank's log."""
    counted = Stats()
    for record in records:
        counted.feed(record)
    return counted


def text(counted: Stats, title: str) -> Iterator[Line]:
    """Yield what is printed."""
    yield f"{title}: {count_of(counted.events, 'event')}, {counted.prefetches} prefetches, {counted.in_flight} not over"
    yield ""
    whole = sum(counted.outcomes.values())
    if whole:
        rows = [[reason, str(n), share(n, whole)] for reason, n in counted.reasons.most_common()]
        yield table(["outcome", "prefetches", "share"], rows, numbers=("prefetches", "share"))
        yield ""
    if counted.declined:
        rows = [[reason, str(n)] for reason, n in counted.declined.most_common()]
        yield table(["declined as", "times"], rows, numbers=("times",))
        yield ""
    if counted.waited:
        rows = [[what, str(n)] for what, n in counted.waited.most_common()]
        yield table(["waited to be tried again", "times"], rows, numbers=("times",))
        yield ""
    pages, asked = counted.pages, counted.pages["asked"]
    rows = [[what, str(pages[what]), share(pages[what], asked)] for what in ("asked", "hit", "planned", "published")]
    yield table(["kv pages", "pages", "of asked"], rows, numbers=("pages", "of asked"))
    served = count_of(counted.requests, "request")
    yield f"served {served}: {pages['served']} pages, {pages['from_prefetch']} of them prefetched"
    yield ""
    if counted.landed or counted.failed:
        rows = [[name(pool), str(n)] for pool, n in counted.landed.most_common(32)]
        rows += [[f"{name(what)} (failed)", str(n)] for what, n in counted.failed.most_common(32)]
        yield table(["read", "pages"], rows, numbers=("pages",))
        yield ""
    if counted.wasted:
        rows = [[name(cause), str(n), share(n, sum(counted.landed.values()))] for cause, n in counted.wasted.most_common(32)]
        yield table(["read and thrown away", "pages", "of read"], rows, numbers=("pages", "of read"))
        yield ""
    rows = []
    for wait in WAITS:
        summary = counted.waits[wait].summary()
        rows.append([wait.replace("_", " "), *(duration(summary[each]) for each in ("p50", "p90", "p99", "max"))])
    yield table(["time", "p50", "p90", "p99", "max"], rows, numbers=("p50", "p90", "p99", "max"))
    yield f"occupied tokens: peak {counted.occupied.peak}, at the end {counted.occupied_tokens} {counted.occupied.spark()}"
    if counted.stuck:
        yield f"stuck obligations: {counted.stuck}"
