"""Everything that one rank's log says: the replica, this rank's side of each prefetch, and its host pages, as one fold.

`fold(log) == live state` holds because the live coordinator changes its book by `apply` alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lifecycle import ranges as r
from lifecycle.errors import NotInFlight
from lifecycle.events import (
    Adopted,
    AnchorUnlocked,
    Clamped,
    Closed,
    Committed,
    Event,
    Evicted,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    HostReserved,
    Issued,
    LateWriteEnded,
    PagesUnlocked,
    TokensCredited,
    TokensReturned,
)  # fmt: skip
from lifecycle.layout import Layout
from lifecycle.local import Local, evolve_local
from lifecycle.replica import Replica

_LOCAL_REFUSES = (TokensReturned, TokensCredited)


class Book:
    """The state of one rank. Page counts are per pool with own slots."""

    __slots__ = (
        "degrade",
        "held_pages",
        "layout",
        "local",
        "locks",
        "quarantined_pages",
        "replica",
        "resident_pages",
        "tainted_pages",
    )

    def __init__(self, layout: Layout, budget_pages: Mapping[str, int], degrade: bool = False) -> None:
        self.layout = layout
        self.degrade = degrade
        self.replica = Replica(layout, budget_pages)
        self.local: dict[int, Local] = {}
        own = [pool.name for pool in layout.own]
        self.held_pages = dict.fromkeys(own, 0)  # reserved by prefetches, on this rank
        self.resident_pages = dict.fromkeys(own, 0)  # owned by the index, on this rank
        self.quarantined_pages = dict.fromkeys(own, 0)
        self.tainted_pages = dict.fromkeys(own, 0)  # resident, with a lost read: quarantined when evicted
        self.locks = 0

    def apply(self, event: Event) -> None:
        """Fold one event. What is not legal raises and changes nothing."""
        id_ = getattr(event, "prefetch", None)
        local = self.local.get(id_) if id_ is not None else None
        if id_ is not None and local is None and type(event) is not Issued:
            raise NotInFlight(id_, type(event).__name__)
        # Both sides must agree; the one that may refuse goes first, so that a refusal changes nothing.
        if local is not None and type(event) in _LOCAL_REFUSES:
            evolve_local(local, event)
            self.replica.apply(event)
        else:
            self.replica.apply(event)
            if local is not None:
                evolve_local(local, event)
        if type(event) is Issued:
            self.local[event.prefetch] = Local(self.layout, self.degrade, self.replica.in_flight[event.prefetch])
        count = _COUNT.get(type(event))
        if count is not None:
            count(self, event)
        if local is not None and local.shared.closed and not local.obligations.resident_lock:
            if type(event) is Closed and not local.obligations.settled:
                return  # closed by this rank alone (shutdown): what is still open stays on the book
            del self.local[local.shared.id]

    def open_obligations(self) -> int:
        """Return how many obligations of any prefetch are open on this rank."""
        return sum(len(local.obligations.open_names()) for local in self.local.values())

    def faults(self) -> list[str]:
        """Return what does not add up in the book itself."""
        faults = []
        tokens = sum(local.obligations.tokens or 0 for local in self.local.values())
        if tokens != self.replica.occupied_tokens:
            faults.append(f"{self.replica.occupied_tokens} tokens are occupied, prefetches reserved {tokens}")
        for pool, held in self.held_pages.items():
            pages = sum(r.count(local.obligations.pages.get(pool, r.EMPTY)) for local in self.local.values())
            if pages != held:
                faults.append(f"{held} pages of {pool} are held, prefetches owe {pages}")
            reserved = sum(
                hi - lo - r.count(p.taken.get(pool, r.EMPTY))
                for p in self.replica.in_flight.values()
                for lo, hi in [p.reserved.get(pool, (0, 0))]
            )
            if reserved != self.replica.reserved_pages[pool]:
                faults.append(f"{self.replica.reserved_pages[pool]} pages of {pool} are reserved, prefetches say {reserved}")
        locks = sum(o.anchor + o.resident_lock for o in (local.obligations for local in self.local.values()))
        for waiter in self.replica.waiting:
            state, newest = self.replica.requests.get(waiter.request), self.replica.newest(waiter.request)
            if state is None or state.attempt != waiter.attempt or not (newest is None or newest.terminal):
                faults.append(f"attempt {waiter.attempt} of {waiter.request!r} waits, and is in flight or not the newest")
        if locks != self.locks:
            faults.append(f"{self.locks} locks are held, prefetches owe {locks}")
        return faults


def _reserved(book: Book, event: HostReserved) -> None:
    book.held_pages[event.pool] += event.pages[1] - event.pages[0]


def _released(book: Book, event: HostReleased) -> None:
    book.held_pages[event.pool] -= r.count(event.pages)


def _quarantined(book: Book, event: HostQuarantined) -> None:
    pages = r.count(event.pages)
    book.held_pages[event.pool] -= pages
    book.quarantined_pages[event.pool] += pages


def _handed_over(book: Book, event: HostHandedOver) -> None:
    pages = r.count(event.pages)
    book.held_pages[event.pool] -= pages
    book.resident_pages[event.pool] += pages


def _late_ended(book: Book, event: LateWriteEnded) -> None:
    if event.lost:
        book.tainted_pages[event.pool] += r.count(event.pages)


def _adopted(book: Book, event: Adopted) -> None:
    for pool, pages in event.pages.items():
        book.resident_pages[pool] += pages


def _evicted(book: Book, event: Evicted) -> None:
    gone = sum(hi - lo for lo, hi in event.quarantined)
    book.resident_pages[event.pool] -= event.pages
    book.tainted_pages[event.pool] -= gone
    book.quarantined_pages[event.pool] += gone


def _locked(book: Book, event: Issued | Committed | Clamped) -> None:
    book.locks += 1


def _unlocked(book: Book, event: AnchorUnlocked | PagesUnlocked) -> None:
    book.locks -= 1


_COUNT: dict[type[Event], Callable[[Book, Any], None]] = {
    HostReserved: _reserved,
    HostReleased: _released,
    HostQuarantined: _quarantined,
    HostHandedOver: _handed_over,
    LateWriteEnded: _late_ended,
    Adopted: _adopted,
    Evicted: _evicted,
    Issued: _locked,
    Committed: _locked,
    Clamped: _locked,
    AnchorUnlocked: _unlocked,
    PagesUnlocked: _unlocked,
}


def fold(layout: Layout, budget_pages: Mapping[str, int], events: Iterable[Event], degrade: bool = False) -> Book:
    """Return the book that the events lead to; raises what `apply` raises at the first one that is not legal."""
    book = Book(layout, budget_pages, degrade)
    for event in events:
        book.apply(event)
    return book
