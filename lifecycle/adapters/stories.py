"""What observers know of each prefetch in flight: a light fold of a rank's records, that any log or part of one can feed.

Unlike `lifecycle.book` it checks nothing and forgives gaps: what is in flight when records are missing is forgotten, and
counted again from the next `Issued`. Keeps nothing of a prefetch that is closed, or of a run that a fresh header ended.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lifecycle import ranges as r
from lifecycle.events import (
    AnchorUnlocked,
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
    LogOpened,
    ObligationStuck,
    PagesLanded,
    PagesUnlocked,
    PlanAgreed,
    PrefixServed,
    Record,
    RequestFinished,
    Synced,
    Terminated,
    TokensReturned,
    TransferStarted,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.layout import KV
from lifecycle.reasons import Part, Reason
from lifecycle.states import State

Outcome = Committed | Clamped | Discarded
OUTCOMES = (Committed, Clamped, Discarded)


class Story:
    """One prefetch as told so far. Pages are absolute, times are on the log's monotonic clock."""

    __slots__ = (
        "attempt", "end_page", "hit_page", "id", "issued_ns", "nbytes", "outcome", "participants", "plan", "queued_ns",
        "read_ended_ns", "request", "reserved_tokens", "said", "start_page", "state", "synced_ns", "terminated_ns",
    )  # fmt: skip

    def __init__(self, event: Issued, at_ns: int) -> None:
        self.id, self.request, self.attempt = event.prefetch, event.request, event.attempt
        self.start_page, self.end_page = event.start_page, event.end_page
        self.reserved_tokens: int | None = event.reserved_tokens  # None once returned
        self.state = State.ISSUED
        self.issued_ns = at_ns
        self.hit_page: int | None = None  # on this rank; None while it is not known
        self.plan: PlanAgreed | None = None
        self.queued_ns: int | None = None  # from the issue to the first claimed read
        self.nbytes = 0
        self.terminated_ns: int | None = None
        self.read_ended_ns: int | None = None  # nothing that lands counts from here on
        self.synced_ns: int | None = None
        self.participants = 0
        self.outcome: Outcome | None = None
        self.said: set[str] = set()  # what an observer has said of it already

    @property
    def queue_wait_s(self) -> float | None:
        """Seconds from the issue to the first claimed read; None if none was claimed."""
        return None if self.queued_ns is None else self.queued_ns / 1e9

    @property
    def read_s(self) -> float | None:
        """Seconds from the first claimed read to the end of reading; None while that is not known."""
        if self.queued_ns is None or self.read_ended_ns is None:
            return None
        return (self.read_ended_ns - self.issued_ns - self.queued_ns) / 1e9

    @property
    def sync_s(self) -> float | None:
        """Seconds from the end of reading until all ranks had one result; None if this rank was alone, or never got there."""
        if self.participants < 2 or self.synced_ns is None or self.terminated_ns is None:
            return None
        return (self.synced_ns - self.terminated_ns) / 1e9


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Where the hit of one prefetch went: `hit == used + sum(unfulfilled)`, in tokens."""

    hit: int
    used: int
    unfulfilled: Mapping[str, int]


def account(story: Story, outcome: Outcome, page_size_tokens: int) -> TokenAccount:
    """Say where every hit token went. The hit is what all ranks agreed on, or without a plan what this rank's shard has.

    Used is what the index took. The rest is unfulfilled: what the plan left out for want of host memory, what the outcome
    cut off by its reason, and as `duplicate` what the index had by then from elsewhere.
    """
    plan, start = story.plan, story.start_page
    pages: Counter[str] = Counter()
    if plan is None:
        hit_page = planned = start if story.hit_page is None else story.hit_page
    else:
        hit_page, planned = plan.hit_page, plan.plan_page
        pages[(plan.cut or Reason.HOST_CAPACITY).value] += hit_page - planned
    usable, used = start, 0
    if not isinstance(outcome, Discarded):
        usable, used = outcome.usable_page, r.count(outcome.taken.get(KV, r.EMPTY))
    reason = Reason.COMPLETED if isinstance(outcome, Committed) else outcome.reason
    pages[reason.value] += planned - usable
    pages[Part.DUPLICATE.value] += usable - start - used
    unfulfilled = {why: count * page_size_tokens for why, count in pages.items() if count}
    return TokenAccount((hit_page - start) * page_size_tokens, used * page_size_tokens, unfulfilled)


class Stories:
    """The prefetches in flight of one rank, as its records tell them."""

    def __init__(self) -> None:
        self.opened: LogOpened | None = None
        self.of: dict[int, Story] = {}
        self.by_state: dict[State, int] = dict.fromkeys(State, 0)
        self.occupied_tokens = 0
        self.waiting: dict[str, Reason] = {}  # requests that wait to be tried again, and why
        self.by_wait: Counter[Reason] = Counter()
        self.tried: Reason | None = None  # why the request waited that the last record says is tried now
        self.stuck: set[tuple[int, str]] = set()  # (prefetch, obligation) that a port has failed too often to discharge
        self.era = 0  # how often everything was forgotten
        self._next_seq = 0

    @property
    def rank(self) -> int | None:
        """The rank that the log's header names."""
        return None if self.opened is None else self.opened.rank

    def feed(self, record: Record) -> Story | None:
        """Take one record; return the prefetch that it is about, if it is about one in flight (or just closed)."""
        event = record.event
        kind = type(event)
        if kind is LogOpened:
            self._open(event, record)  # type: ignore[arg-type]  # mypy does not narrow by `kind`
            return None
        if kind is EventsLost:
            if not self.is_past(record):
                self._lose(event)  # type: ignore[arg-type]
            return None
        if record.seq != self._next_seq:
            self._forget()
        self._next_seq = record.seq + 1
        if kind in _OF_WAITS:
            self._wait(event)
        if kind is Issued:
            return self._begin(event, record.at_ns)  # type: ignore[arg-type]
        story = self.of.get(getattr(event, "prefetch", -1))
        take = _TAKE.get(kind)
        if story is not None and take is not None:
            take(self, story, event, record.at_ns)
        elif kind is ObligationStuck:  # its prefetch may be closed, but for the last lock
            self.stuck.add((event.prefetch, event.obligation))  # type: ignore[union-attr]
        elif self.stuck and kind in _DISCHARGES:
            self.stuck.difference_update(_DISCHARGES[kind](event))
        return story

    def is_past(self, record: Record) -> bool:
        """Say whether a record only tells of events that the log lost after they were seen here."""
        return type(record.event) is EventsLost and record.seq < self._next_seq

    def _open(self, event: LogOpened, record: Record) -> None:
        self._forget()
        self.opened, self._next_seq = event, record.seq + 1

    def _lose(self, event: EventsLost) -> None:
        self._forget()
        self._next_seq = event.first_seq + event.events

    def _begin(self, event: Issued, at_ns: int) -> Story | None:
        if self.opened is None:
            return None  # without the header there is no page size
        story = self.of[event.prefetch] = Story(event, at_ns)
        self.by_state[State.ISSUED] += 1
        self.occupied_tokens += event.reserved_tokens
        return story

    def _forget(self) -> None:
        self.era += 1
        self.of.clear()
        self.by_state = dict.fromkeys(State, 0)
        self.occupied_tokens = 0
        self.waiting.clear()
        self.by_wait = Counter(dict.fromkeys(self.by_wait, 0))
        self.stuck.clear()

    def _wait(self, event: Any) -> None:
        """Take in who begins to wait, and whoever does no longer: tried, given up, begun, served or forgotten."""
        reason = self.waiting.pop(event.request, None)
        if reason is not None:
            self.by_wait[reason] -= 1
        self.tried = reason if isinstance(event, WaitEnded) and event.reason is None else None
        if isinstance(event, WaitBegan):
            self.waiting[event.request] = event.reason
            self.by_wait[event.reason] += 1

    def move(self, story: Story, state: State) -> None:
        """Put a prefetch into a state."""
        self.by_state[story.state] -= 1
        self.by_state[state] += 1
        story.state = state


def _resolved(stories: Stories, story: Story, event: HitResolved, at_ns: int) -> None:
    story.hit_page = event.hit_page


def _planned(stories: Stories, story: Story, event: PlanAgreed, at_ns: int) -> None:
    story.plan = event
    stories.move(story, State.TRANSFERRING)


def _started(stories: Stories, story: Story, event: TransferStarted, at_ns: int) -> None:
    story.queued_ns = event.queued_ns


def _landed(stories: Stories, story: Story, event: PagesLanded, at_ns: int) -> None:
    story.nbytes += event.nbytes


def _terminated(stories: Stories, story: Story, event: Terminated, at_ns: int) -> None:
    story.terminated_ns = story.read_ended_ns = at_ns
    stories.move(story, State.TERMINATED)


def _synced(stories: Stories, story: Story, event: Synced, at_ns: int) -> None:
    story.synced_ns, story.participants = at_ns, event.participants
    stories.move(story, State.SYNCED)


def _ended(stories: Stories, story: Story, event: Outcome, at_ns: int) -> None:
    story.outcome = event
    if story.read_ended_ns is None:
        story.read_ended_ns = at_ns
    stories.move(story, _STATE_OF[type(event)])


def _returned(stories: Stories, story: Story, event: TokensReturned, at_ns: int) -> None:
    stories.occupied_tokens -= event.tokens
    story.reserved_tokens = None


def _closed(stories: Stories, story: Story, event: Closed, at_ns: int) -> None:
    stories.by_state[story.state] -= 1
    del stories.of[story.id]


_OF_WAITS = frozenset({WaitBegan, WaitEnded, Issued, PrefixServed, RequestFinished})

_STATE_OF: dict[type[Event], State] = {
    Committed: State.COMMITTED,
    Clamped: State.CLAMPED,
    Discarded: State.DISCARDED,
}

_TAKE: dict[type[Event], Callable[[Stories, Story, Any, int], None]] = {
    HitResolved: _resolved,
    PlanAgreed: _planned,
    TransferStarted: _started,
    PagesLanded: _landed,
    Terminated: _terminated,
    Synced: _synced,
    Committed: _ended,
    Clamped: _ended,
    Discarded: _ended,
    TokensReturned: _returned,
    Closed: _closed,
}

# The obligations, by the name under which one is reported as stuck, that an event shows to be discharged.
_DISCHARGES: dict[type[Event], Callable[[Any], tuple[tuple[int, str], ...]]] = {
    HostHandedOver: lambda event: ((event.prefetch, "hand over"),),
    HostReleased: lambda event: ((event.prefetch, f"{event.part} of {event.pool}"),),
    HostQuarantined: lambda event: ((event.prefetch, f"{event.part} of {event.pool}"),),
    AnchorUnlocked: lambda event: ((event.prefetch, "anchor"), (event.prefetch, "lock what was handed over")),
    PagesUnlocked: lambda event: ((event.prefetch, "resident lock"),),
}
