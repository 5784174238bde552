"""Prometheus metrics of a rank, computed from its records. Needs the extra `metrics`.

A prefetch's tokens are counted when it ends, all at once, so that hit = used + unfulfilled at every scrape between two
batches of records. What is kept is bounded by what is in flight.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lifecycle import ranges as r
from lifecycle.adapters.families import REGISTRY, CollectorRegistry, families_of
from lifecycle.adapters.stories import OUTCOMES, Outcome, Stories, Story, account
from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.rank import RankAudit
from lifecycle.decide import MISSES
from lifecycle.events import (
    Adopted,
    Committed,
    Declined,
    Event,
    EventsLost,
    Evicted,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    HostReserved,
    LogOpened,
    ObligationStuck,
    PageOverwritten,
    PagesLanded,
    PagesScrubbed,
    PlanAgreed,
    QuarantineAgreed,
    ReadFailed,
    ReadLost,
    Record,
    RoundDone,
    Synced,
    Terminated,
    TransferStarted,
    WaitEnded,
)  # fmt: skip
from lifecycle.reasons import Part, Reason

_ENDS = [reason for reason in Reason if reason.code <= Reason.INSERT_DROPPED.code]  # why a prefetch can end
_WAITS = (Reason.RATE_LIMITED, Reason.TOO_SHORT, *sorted(MISSES))
_USES = ("held", "resident", "quarantined")


class _Metric(Protocol):
    def labels(self, *values: str) -> Any: ...


class PrometheusObserver:
    """Counts what the records of one rank say. `labels` are added to every metric, and `rank` if they have none.

    `verify` runs the audit on every record, too, and counts the violations it finds by law; without it that metric has no
    samples. Several observers, of several ranks, may share a registry. Pages of host memory are counted from the header on,
    so that they drift when events are lost. Raises `ConfigError` for names or labels that are taken.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        labels: Mapping[str, str] | None = None,
        *,
        prefix: str = "lifecycle:",
        verify: bool = False,
    ) -> None:
        self._labels = dict(labels or {})
        self._ranked = "rank" not in self._labels
        names = (*self._labels, "rank") if self._ranked else tuple(self._labels)
        self._families = families_of(registry, prefix, names)
        self._common: tuple[str, ...] = ()
        self._known: dict[tuple[_Metric, tuple[str, ...]], Any] = {}
        self._shown: dict[tuple[_Metric, tuple[str, ...]], int] = {}
        self._stories = Stories()
        self._host: dict[tuple[str, str], int] = {}  # (pool, use) -> pages
        self._verify = verify
        self._audit: RankAudit | None = None

    def observe(self, records: Sequence[Record]) -> None:
        """Count the next records of the rank."""
        for record in records:
            past = self._stories.is_past(record)
            story = self._stories.feed(record)
            if self._stories.opened is None:
                continue
            count = _COUNT.get(type(record.event))
            if count is not None:
                count(self, story, record)
            if self._audit is not None and not past:
                self._audit.feed(record)
        if self._stories.opened is not None:
            self._set_gauges()

    def close(self) -> None:
        """Do nothing: what was counted stays."""

    # --- children, by their labels -------------------------------------------------------------------------------------

    def _of(self, family: _Metric, *values: str) -> Any:
        child = self._known.get((family, values))
        if child is None:
            every = (*self._common, *values)
            child = self._known[family, values] = family.labels(*every) if every else family
        return child

    def _set_gauges(self) -> None:
        families, stories = self._families, self._stories
        for state, count in stories.by_state.items():
            self._show(count, families.in_flight, state.value)
        self._show(stories.occupied_tokens, families.occupied)
        for reason in _WAITS:
            self._show(stories.by_wait[reason], families.waiting, reason.value)
        self._show(len(stories.stuck), families.stuck)
        for (pool, use), pages in self._host.items():
            self._show(pages, families.host, pool, use)

    def _show(self, value: int, family: _Metric, *values: str) -> None:
        """Set a gauge, unless it shows that value."""
        if self._shown.get((family, values)) != value:
            self._shown[family, values] = value
            self._of(family, *values).set(value)

    def _move(self, pool: str, pages: int, *, out: str | None = None, into: str | None = None) -> None:
        if out is not None:
            self._host[pool, out] = self._host.get((pool, out), 0) - pages
        if into is not None:
            self._host[pool, into] = self._host.get((pool, into), 0) + pages

    # --- the run -------------------------------------------------------------------------------------------------------

    def _opened(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._known.clear()
        self._shown.clear()
        self._common = (*self._labels.values(), str(event.rank)) if self._ranked else tuple(self._labels.values())
        families = self._families
        plain = (families.hit, families.used, families.rounds, families.stuck_total, families.lost_events)
        for family in (*plain, families.queue_wait, families.read, families.sync, families.round, families.bandwidth):
            self._of(family)  # there from the start, as zero
        for reason in (*_ENDS, Part.DUPLICATE):
            self._of(families.unfulfilled, reason.value)
        if self._verify:
            self._audit = RankAudit(event.rank, self._violation)
            for law in Law:
                self._of(families.violations, law.value)
        limit = event.policies.get("limit_tokens")
        if isinstance(limit, int):
            self._of(families.limit).set(limit)
        for pool, pages in event.capacity_pages.items():
            self._of(families.capacity, pool).set(pages)
            self._of(families.quarantined, pool).set(0)
            self._of(families.overwritten, pool)
            self._host.update({(pool, use): 0 for use in _USES})

    def _lost(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.lost_events).inc(event.events)

    def _violation(self, violation: Violation) -> None:
        self._of(self._families.violations, violation.law.value).inc()

    def _round(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.rounds).inc()
        self._of(self._families.round).observe(event.duration_ns / 1e9)

    # --- prefetches ----------------------------------------------------------------------------------------------------

    def _declined(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.outcomes, "declined", event.reason.value).inc()

    def _tried(self, story: None, record: Record) -> None:
        reason = self._stories.tried
        if reason is not None:
            self._of(self._families.retries, reason.value).inc()

    def _planned(self, story: Story | None, record: Record) -> None:
        event: Any = record.event
        if story is not None:
            self._of(self._families.pages).observe(event.plan_page - story.start_page)

    def _started(self, story: Story | None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.queue_wait).observe(event.queued_ns / 1e9)

    def _terminated(self, story: Story | None, record: Record) -> None:
        if story is not None:
            self._observe_read(story)

    def _observe_read(self, story: Story) -> None:
        read_s = story.read_s
        if read_s is not None:
            self._of(self._families.read).observe(read_s)
            if read_s > 0 and story.nbytes:
                self._of(self._families.bandwidth).observe(story.nbytes / read_s / 1e9)

    def _synced(self, story: Story | None, record: Record) -> None:
        if story is not None and story.sync_s is not None:
            self._of(self._families.sync).observe(story.sync_s)

    def _ended(self, story: Story | None, record: Record) -> None:
        event: Any = record.event
        if story is None:  # its beginning is lost
            return
        if story.terminated_ns is None:
            self._observe_read(story)
        self._count_outcome(story, event)

    def _count_outcome(self, story: Story, outcome: Outcome) -> None:
        families, opened = self._families, self._stories.opened
        assert opened is not None, "there is no story without a header"
        reason = Reason.COMPLETED if isinstance(outcome, Committed) else outcome.reason
        self._of(families.outcomes, story.state.value, reason.value).inc()
        tokens = account(story, outcome, opened.page_size_tokens)
        self._of(families.hit).inc(tokens.hit)
        self._of(families.used).inc(tokens.used)
        for why, count in tokens.unfulfilled.items():
            self._of(families.unfulfilled, why).inc(count)

    def _stuck(self, story: Story | None, record: Record) -> None:
        self._of(self._families.stuck_total).inc()

    # --- reads and host memory -----------------------------------------------------------------------------------------

    def _landed(self, story: Story | None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.read_pages, event.pool, "landed").inc(event.pages[1] - event.pages[0])
        self._of(self._families.read_bytes, event.pool).inc(event.nbytes)

    def _failed(self, story: Story | None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.read_pages, event.pool, event.code.value).inc(event.pages[1] - event.pages[0])

    def _lost_read(self, story: Story | None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.lost_reads, event.pool).inc()

    def _host_moved(self, story: Story | None, record: Record) -> None:
        match record.event:
            case HostReserved(pool=pool, pages=(lo, hi)):
                self._move(pool, hi - lo, into="held")
            case HostReleased(pool=pool, pages=pages):
                self._move(pool, r.count(pages), out="held")
            case HostQuarantined(pool=pool, pages=pages):
                self._move(pool, r.count(pages), out="held", into="quarantined")
            case HostHandedOver(pool=pool, pages=pages):
                self._move(pool, r.count(pages), out="held", into="resident")
            case Evicted(pool=pool, pages=count, quarantined=slots):
                self._move(pool, count, out="resident")
                self._move(pool, sum(hi - lo for lo, hi in slots), into="quarantined")
            case Adopted(pages=adopted):
                for pool, count in adopted.items():
                    self._move(pool, count, into="resident")
            case _:
                raise AssertionError("no other event moves pages")

    def _scrubbed(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.scrubbed).inc(event.checked)

    def _overwritten(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.overwritten, event.pool).inc()

    def _budget(self, story: None, record: Record) -> None:
        event: Any = record.event
        self._of(self._families.quarantined, event.pool).set(event.pages)


_COUNT: dict[type[Event], Callable[[PrometheusObserver, Any, Record], None]] = {
    LogOpened: PrometheusObserver._opened,
    EventsLost: PrometheusObserver._lost,
    RoundDone: PrometheusObserver._round,
    Declined: PrometheusObserver._declined,
    WaitEnded: PrometheusObserver._tried,
    PlanAgreed: PrometheusObserver._planned,
    TransferStarted: PrometheusObserver._started,
    Terminated: PrometheusObserver._terminated,
    Synced: PrometheusObserver._synced,
    **dict.fromkeys(OUTCOMES, PrometheusObserver._ended),
    ObligationStuck: PrometheusObserver._stuck,
    PagesLanded: PrometheusObserver._landed,
    ReadFailed: PrometheusObserver._failed,
    ReadLost: PrometheusObserver._lost_read,
    **dict.fromkeys(
        (HostReserved, HostReleased, HostQuarantined, HostHandedOver, Evicted, Adopted), PrometheusObserver._host_moved
    ),
    QuarantineAgreed: PrometheusObserver._budget,
    PagesScrubbed: PrometheusObserver._scrubbed,
    PageOverwritten: PrometheusObserver._overwritten,
}
