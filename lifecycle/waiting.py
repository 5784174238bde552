"""Requests that wait: in line for room under the limit, or to ask L3 again after a miss. The fold of their events.

Part of the replica, so alike on all ranks; counts ticks, never seconds. Who begins to wait, and when one is tried, is decided
in `decide.py`.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from lifecycle.errors import WaitError
from lifecycle.events import WaitBegan, WaitEnded
from lifecycle.reasons import Reason


class Waiter(NamedTuple):
    """One request that waits. `since_tick` is when it took its place, `due_tick` the first tick at which it may be tried."""

    request: str
    attempt: int
    reason: Reason  # `rate_limited`: in line for room. Otherwise why there was nothing to read
    since_tick: int
    due_tick: int
    tokens: int  # what it would reserve, as far as is known
    queries: int  # how often this attempt has asked L3

    @property
    def for_room(self) -> bool:
        """Whether it stands in line for room under the limit."""
        return self.reason is Reason.RATE_LIMITED


class Waiting:
    """Everyone who waits, each once: the line for room, in order; and those who ask again, by when they are due."""

    __slots__ = ("for_room", "to_ask")

    def __init__(self) -> None:
        # Ordered ones, since the first of a plain dict is behind everything that was popped before it.
        self.for_room: OrderedDict[str, Waiter] = OrderedDict()
        self.to_ask: OrderedDict[str, Waiter] = OrderedDict()  # the pause is the same for all: the first one is due first

    def __len__(self) -> int:
        return len(self.for_room) + len(self.to_ask)

    def __contains__(self, request: str) -> bool:
        return request in self.for_room or request in self.to_ask

    def __iter__(self) -> Iterator[Waiter]:
        yield from self.for_room.values()
        yield from self.to_ask.values()

    def get(self, request: str) -> Waiter | None:
        """Return how a request waits, or None."""
        return self.for_room.get(request) or self.to_ask.get(request)

    @property
    def first_for_room(self) -> Waiter | None:
        """The head of the line for room."""
        return next(iter(self.for_room.values()), None)

    @property
    def first_to_ask(self) -> Waiter | None:
        """Whoever is due first to ask L3 again."""
        return next(iter(self.to_ask.values()), None)

    def begin(self, event: WaitBegan) -> None:
        """Take a request in. One that stands in line for room already keeps its place: only what it needs is new."""
        since = event.tick
        known = self.for_room.get(event.request)
        if known is not None and event.reason is Reason.RATE_LIMITED:
            since = known.since_tick
        elif event.request in self:
            raise WaitError("begin a wait of", event.request, "it waits already")
        waiter = Waiter(event.request, event.attempt, event.reason, since, event.due_tick, event.tokens, event.queries)
        (self.for_room if waiter.for_room else self.to_ask)[event.request] = waiter

    def end(self, event: WaitEnded) -> None:
        """Let a request go, or raise `WaitError` and change nothing."""
        waiter = self.get(event.request)
        if waiter is None or waiter.attempt != event.attempt:
            raise WaitError("end a wait of", event.request, f"attempt {event.attempt} does not wait")
        self.drop(event.request)

    def drop(self, request: str) -> None:
        """Let a request go if it waits: it has begun, was served, or is forgotten."""
        if self.for_room.pop(request, None) is None:
            self.to_ask.pop(request, None)

    def facts(self) -> tuple[Waiter, ...]:
        """Return everyone in order, for comparing two replicas."""
        return tuple(self)
