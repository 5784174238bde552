"""One prefetch as all ranks see it, and `evolve`, the only place that changes it.

Holds replicated facts alone: two replicas that were given the same events hold equal prefetches. What this rank read and
owes is in `local.py`.
"""

from collections.abc import Callable
from typing import Any

from lifecycle.errors import IllegalTransition
from lifecycle.events import (
    Capped,
    Clamped,
    Closed,
    Committed,
    Discarded,
    Event,
    Issued,
    PlanAgreed,
    Synced,
    Terminated,
)
from lifecycle.machine import step
from lifecycle.ranges import Range, Ranges
from lifecycle.reasons import Reason
from lifecycle.states import TERMINAL, State
from lifecycle.table import Trigger


class Prefetch:
    """The state of one prefetch: the fold of its replicated events. Lengths are absolute page ends."""

    __slots__ = (
        "agreed", "anchor_key", "attempt", "ceiling_page", "closed", "dropped", "end_page", "hit_page", "id", "last_key",
        "left_out", "moves", "plan_page", "reason", "request", "reserved", "reserved_tokens", "start_page", "state",
        "taken", "usable_page",
    )  # fmt: skip

    def __init__(self, issued: Issued) -> None:
        self.id = issued.prefetch
        self.request = issued.request
        self.attempt = issued.attempt
        self.start_page = issued.start_page
        self.end_page = issued.end_page
        self.last_key = issued.last_key
        self.anchor_key = issued.anchor_key
        self.reserved_tokens = issued.reserved_tokens
        self.state = State.ISSUED
        self.moves = 0  # counts decisions; a row launched before the last one is void
        self.hit_page = issued.start_page
        self.plan_page = issued.start_page
        self.ceiling_page = issued.end_page
        self.reserved: dict[str, Range] = {}
        self.left_out: tuple[str, ...] = ()
        self.agreed: dict[str, int] = {}
        self.usable_page = issued.start_page
        self.taken: dict[str, Ranges] = {}
        self.dropped: tuple[str, ...] = ()
        self.reason: Reason | None = None
        self.closed = False

    @property
    def terminal(self) -> bool:
        """Whether the outcome stands."""
        return self.state in TERMINAL

    def facts(self) -> tuple[Any, ...]:
        """Return every field, for comparing two replicas."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"<Prefetch {self.id} of {self.request!r}/{self.attempt}: {self.state}, [{self.start_page}, {self.end_page})>"


def evolve(prefetch: Prefetch, event: Event) -> None:
    """Change the prefetch as the event says, or raise `IllegalTransition` and change nothing.

    Events that say nothing about the replica are ignored.
    """
    apply = _EVOLVE.get(type(event))
    if apply is not None:
        apply(prefetch, event)
        prefetch.moves += 1


def _planned(prefetch: Prefetch, event: PlanAgreed) -> None:
    prefetch.state = step(prefetch.id, prefetch.state, Trigger.PLAN)
    prefetch.hit_page, prefetch.plan_page = event.hit_page, event.plan_page
    prefetch.ceiling_page = event.plan_page
    prefetch.reserved, prefetch.left_out = dict(event.reserved), event.left_out


def _capped(prefetch: Prefetch, event: Capped) -> None:
    if prefetch.state is not State.TRANSFERRING or event.ceiling_page >= prefetch.ceiling_page:
        rule = f"a transferring one may be capped below page {prefetch.ceiling_page}"
        raise IllegalTransition(prefetch.id, f"cap at page {event.ceiling_page}", prefetch.state, (), rule)
    prefetch.ceiling_page = event.ceiling_page


def _terminated(prefetch: Prefetch, event: Terminated) -> None:
    prefetch.state = step(prefetch.id, prefetch.state, Trigger.TERMINATE)
    prefetch.reason = event.reason


def _synced(prefetch: Prefetch, event: Synced) -> None:
    prefetch.state = step(prefetch.id, prefetch.state, Trigger.SYNC)
    prefetch.agreed = dict(event.agreed)


def _published(prefetch: Prefetch, event: Committed | Clamped, trigger: Trigger) -> None:
    prefetch.state = step(prefetch.id, prefetch.state, trigger)
    prefetch.usable_page, prefetch.taken, prefetch.dropped = event.usable_page, dict(event.taken), event.dropped


def _committed(prefetch: Prefetch, event: Committed) -> None:
    _published(prefetch, event, Trigger.COMMIT)
    prefetch.reason = Reason.COMPLETED


def _clamped(prefetch: Prefetch, event: Clamped) -> None:
    _published(prefetch, event, Trigger.CLAMP)
    prefetch.reason = event.reason


def _discarded(prefetch: Prefetch, event: Discarded) -> None:
    prefetch.state = step(prefetch.id, prefetch.state, Trigger.DISCARD)
    prefetch.reason = event.reason


def _closed(prefetch: Prefetch, event: Closed) -> None:
    if not prefetch.terminal or prefetch.closed:
        state = "closed" if prefetch.closed else prefetch.state
        raise IllegalTransition(prefetch.id, "close", state, (), "it is closed once, after its outcome")
    prefetch.closed = True


_EVOLVE: dict[type[Event], Callable[[Prefetch, Any], None]] = {
    PlanAgreed: _planned,
    Capped: _capped,
    Terminated: _terminated,
    Synced: _synced,
    Committed: _committed,
    Clamped: _clamped,
    Discarded: _discarded,
    Closed: _closed,
}
