"""The replica: what is the same on all ranks, as the fold of replicated events, and the digest that travels with rounds.

Only two things change it: commands that the scheduler gives alike on all ranks, and the reduced result of a round.
Knows nothing of slots, clocks or reads.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import xxhash

from lifecycle import ranges as r
from lifecycle.errors import NotInFlight, ObligationError, UnknownRequest, WaitError
from lifecycle.events import (
    EVENT_TYPES,
    Adopted,
    Clamped,
    Closed,
    Committed,
    Declined,
    Event,
    Evicted,
    Issued,
    LoadedTaken,
    PlanAgreed,
    PrefixServed,
    QuarantineAgreed,
    RequestFinished,
    TokensCredited,
    TokensReturned,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.layout import Layout
from lifecycle.prefetch import Prefetch, evolve
from lifecycle.requests import RequestState
from lifecycle.waiting import Waiting

DIGEST_BITS = 62
"""Two 31-bit words of a round's header."""

RECENT = 32
"""How many replicated steps are kept, to name the first that differs between ranks."""

_ENCODE = msgspec.msgpack.Encoder().encode


def _reader(names: tuple[str, ...]) -> Callable[[Event], tuple[Any, ...]]:
    """Return what reads these fields of an event, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    (name,) = names
    return lambda event: (getattr(event, name),)


_FACTS = {kind: (str(kind.__struct_config__.tag), _reader(kind.REPLICATED)) for kind in EVENT_TYPES.values() if kind.REPLICATED}
"""Wire name and replicated fields of each event that has any: what enters the digest."""


class Step(NamedTuple):
    """One replicated event, with the digest of the replica after it."""

    ordinal: int
    digest: int
    event: Event

    def text(self) -> str:
        """Return the event for people, in ASCII: `issued prefetch=7 request='r7' attempt=0 …`."""
        name = str(self.event.__struct_config__.tag).partition(".")[0]
        return " ".join((name, *(f"{field}={_shown(getattr(self.event, field))}" for field in self.event.REPLICATED)))


def _shown(value: object) -> str:
    """Return a value for people; of a page key, which is long, only its head."""
    return f"{value[:12]}.." if isinstance(value, str) and len(value) == 64 else f"{value!a}"


class Replica:
    """Prefetches, budgets, occupancy and requests, equal on all ranks after every round."""

    __slots__ = (
        "_ids",
        "_steps",
        "budget_pages",
        "digest",
        "in_flight",
        "layout",
        "next_id",
        "occupied_tokens",
        "quarantined_pages",
        "recent",
        "requests",
        "reserved_pages",
        "resident_pages",
        "waiting",
    )  # fmt: skip

    def __init__(self, layout: Layout, budget_pages: Mapping[str, int]) -> None:
        self.layout = layout
        self.budget_pages = {pool.name: budget_pages[pool.name] for pool in layout.own}
        self.in_flight: dict[int, Prefetch] = {}
        self._ids: list[int] = []
        self.requests: dict[str, RequestState] = {}
        self.waiting = Waiting()
        self.next_id = 1
        self.occupied_tokens = 0
        self.reserved_pages = dict.fromkeys(self.budget_pages, 0)
        self.resident_pages = dict.fromkeys(self.budget_pages, 0)
        self.quarantined_pages = dict.fromkeys(self.budget_pages, 0)
        self.digest = 0
        self.recent: deque[Step] = deque(maxlen=RECENT)
        self._steps = 0

    def budget(self, pool: str) -> int:
        """Return the pages of an own pool that no rank has promised to anyone: below zero after a late quarantine."""
        promised = self.resident_pages[pool] + self.quarantined_pages[pool] + self.reserved_pages[pool]
        return self.budget_pages[pool] - promised

    def next_ids(self, after: int, count: int) -> list[int]:
        """Return up to `count` ids in flight, in id order from the first one above `after`, wrapping."""
        if len(self._ids) <= count:
            return list(self._ids)
        start = bisect_right(self._ids, after)
        chosen = self._ids[start : start + count]
        return chosen + self._ids[: count - len(chosen)]

    def newest(self, request: str) -> Prefetch | None:
        """Return the prefetch of the newest attempt of a request, while it is in flight."""
        state = self.requests.get(request)
        return None if state is None or state.prefetch is None else self.in_flight.get(state.prefetch)

    def apply(self, event: Event) -> None:
        """Fold one event: changes the replica if it says something about it, and the digest with it.

        What is not legal, or happens a second time, raises and changes nothing.
        """
        kind = type(event)
        facts = _FACTS.get(kind)
        if facts is None:
            return
        said = _ENCODE((facts[0], *facts[1](event)))  # first: what cannot be encoded must change nothing
        id_ = getattr(event, "prefetch", None)
        if id_ is not None and kind is not Issued:
            prefetch = self.in_flight.get(id_)
            if prefetch is None:
                raise NotInFlight(id_, type(event).__name__)
            evolve(prefetch, event)
        handler = _APPLY.get(kind)
        if handler is not None:
            handler(self, event)
        self.digest = xxhash.xxh3_64_intdigest(said, seed=self.digest) >> (64 - DIGEST_BITS)
        self._steps += 1
        self.recent.append(Step(self._steps, self.digest, event))

    # --- one handler per event -----------------------------------------------------------------------------------------

    def _declined(self, event: Declined) -> None:
        state = self.requests.get(event.request)
        if state is None or event.attempt > state.attempt:
            self.requests[event.request] = RequestState(event.attempt)
            self.waiting.drop(event.request)

    def _issued(self, event: Issued) -> None:
        if event.prefetch != self.next_id:
            raise ObligationError(event.prefetch, "issue", f"the next id is {self.next_id}")
        self.next_id += 1
        self.in_flight[event.prefetch] = Prefetch(event)
        self._ids.append(event.prefetch)
        state = self.requests.get(event.request) or RequestState(event.attempt)
        self.requests[event.request] = state.next(event.attempt, event.prefetch)
        self.waiting.drop(event.request)
        self.occupied_tokens += event.reserved_tokens

    def _planned(self, event: PlanAgreed) -> None:
        for pool, (lo, hi) in event.reserved.items():
            self.reserved_pages[pool] += hi - lo

    def _published(self, event: Committed | Clamped) -> None:
        for pool, taken in event.taken.items():
            pages = r.count(taken)
            self.reserved_pages[pool] -= pages
            self.resident_pages[pool] += pages

    def _closed(self, event: Closed) -> None:
        prefetch = self.in_flight.pop(event.prefetch)
        del self._ids[bisect_right(self._ids, event.prefetch) - 1]
        for pool, (lo, hi) in prefetch.reserved.items():
            self.reserved_pages[pool] -= hi - lo - r.count(prefetch.taken.get(pool, r.EMPTY))
        state = self.requests.get(prefetch.request)
        if state is not None and state.prefetch == prefetch.id:
            state.prefetch = None

    def _returned(self, event: TokensReturned) -> None:
        self.occupied_tokens -= event.tokens

    def _credited(self, event: TokensCredited) -> None:
        prefetch = self.in_flight[event.prefetch]
        state = self.requests.get(prefetch.request)
        if state is not None and state.attempt == prefetch.attempt:
            state.loaded_tokens = event.tokens

    def _taken(self, event: LoadedTaken) -> None:
        state = self._request("take the loaded tokens of", event.request)
        if state.taken:
            raise ObligationError(state.prefetch or 0, f"take the loaded tokens of {event.request!r}", "they were taken before")
        state.taken = True

    def _finished(self, event: RequestFinished) -> None:
        self._request("finish", event.request)
        del self.requests[event.request]
        self.waiting.drop(event.request)

    def _served(self, event: PrefixServed) -> None:
        state = self.requests.get(event.request)
        if state is not None and state.attempt == event.attempt:
            state.served = True
            self.waiting.drop(event.request)

    def _wait_began(self, event: WaitBegan) -> None:
        state = self._request("begin a wait of", event.request)
        if state.attempt != event.attempt or state.queries != event.queries:
            why = f"attempt {state.attempt} is the newest, and has asked {state.queries} times"
            raise WaitError("begin a wait of", event.request, why)
        self.waiting.begin(event)
        state.waits_since = event.tick if state.waits_since is None else state.waits_since

    def _wait_ended(self, event: WaitEnded) -> None:
        self.waiting.end(event)

    def _request(self, operation: str, request: str) -> RequestState:
        state = self.requests.get(request)
        if state is None:
            raise UnknownRequest(operation, request)
        return state

    def _quarantined(self, event: QuarantineAgreed) -> None:
        self.quarantined_pages[event.pool] = event.pages

    def _evicted(self, event: Evicted) -> None:
        self.resident_pages[event.pool] -= event.pages

    def _adopted(self, event: Adopted) -> None:
        for pool, pages in event.pages.items():
            self.resident_pages[pool] += pages

    def facts(self) -> dict[str, object]:
        """Return everything, for comparing two replicas."""
        return {
            "in_flight": {id_: prefetch.facts() for id_, prefetch in self.in_flight.items()},
            "requests": {request: state.facts() for request, state in self.requests.items()},
            "waiting": self.waiting.facts(),
            "next_id": self.next_id,
            "occupied_tokens": self.occupied_tokens,
            "reserved_pages": dict(self.reserved_pages),
            "resident_pages": dict(self.resident_pages),
            "quarantined_pages": dict(self.quarantined_pages),
            "digest": self.digest,
        }


_APPLY: dict[type[Event], Callable[[Replica, Any], None]] = {
    Declined: Replica._declined,
    Issued: Replica._issued,
    PlanAgreed: Replica._planned,
    Committed: Replica._published,
    Clamped: Replica._published,
    Closed: Replica._closed,
    TokensReturned: Replica._returned,
    TokensCredited: Replica._credited,
    LoadedTaken: Replica._taken,
    RequestFinished: Replica._finished,
    PrefixServed: Replica._served,
    WaitBegan: Replica._wait_began,
    WaitEnded: Replica._wait_ended,
    QuarantineAgreed: Replica._quarantined,
    Evicted: Replica._evicted,
    Adopted: Replica._adopted,
}
