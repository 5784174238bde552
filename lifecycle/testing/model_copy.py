"""The reads of a model rank, and copies and keys of what it holds: a step changes a copy, and equal keys are one state."""

import copy
from collections import deque
from typing import TypeVar

from lifecycle import ranges as r
from lifecycle.book import Book
from lifecycle.coverage import Flags
from lifecycle.local import Local
from lifecycle.prefetch import Prefetch
from lifecycle.replica import Replica
from lifecycle.votes import Progress

T = TypeVar("T")
QUEUED, CLAIMED, ENDED, LOST = range(4)


class Job:
    """A read of one own pool's pages and of what rides on it; `answered` parts of it are in."""

    __slots__ = ("answered", "owner", "pages", "parts", "status")

    def __init__(self, owner: str, pages: r.Range, parts: tuple[tuple[str, r.Range], ...]) -> None:
        self.owner, self.pages, self.parts = owner, pages, parts
        self.status, self.answered = QUEUED, 0

    def facts(self) -> tuple[object, ...]:
        """Return what can differ."""
        return self.owner, self.pages, self.status, self.answered


class Reads:
    """What the edge of one rank knows of one prefetch."""

    __slots__ = ("jobs", "lengths", "progress")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.progress = Progress(0)
        self.lengths: Flags | None = None

    def facts(self) -> tuple[object, ...]:
        """Return everything, for hashing."""
        p = self.progress
        lengths = None if self.lengths is None else self.lengths.tobytes()
        return tuple(job.facts() for job in self.jobs), p.started_ns, p.all_answered, p.reserve_failed, lengths


def prefetch_key(p: Prefetch) -> tuple[object, ...]:
    """Return the replicated facts of a prefetch that can differ, for hashing."""
    return (
        p.id, p.state, p.moves, p.hit_page, p.plan_page, p.ceiling_page, tuple(p.reserved.items()), p.left_out,
        tuple(p.agreed.items()), p.usable_page, tuple(p.taken.items()), p.dropped, p.reason, p.closed,
    )  # fmt: skip


def local_key(local: Local) -> tuple[object, ...]:
    """Return what one rank knows and owes of a prefetch, for hashing."""
    o = local.obligations
    return (
        local.wanted, local.hit_page, local.miss, tuple(local.landed.items()), tuple(local.failed.items()), local.lost_required,
        None if local.frozen is None else tuple(local.frozen.items()), local.settled, o.anchor, o.tokens, o.credit,
        o.resident_lock, tuple(o.pages.items()), tuple((pool, tuple(out)) for pool, out in o.claimed.items()),
        tuple(o.lost.items()), tuple(o.late.items()),
    )  # fmt: skip


def clone_reads(reads: Reads) -> Reads:
    """Return a copy that shares nothing that changes."""
    other = copy.copy(reads)
    other.jobs = [copy.copy(job) for job in reads.jobs]
    other.progress = copy.copy(reads.progress)
    return other


def clone_book(book: Book) -> Book:
    """Return a copy that shares nothing that changes. Histories, which only make errors precise, stay behind."""
    other = _twin(book)
    other.replica = _clone_replica(book.replica)
    for id_, local in book.local.items():
        twin = other.local[id_] = _twin(local)
        # A prefetch that is closed on this rank alone is no longer in the replica.
        twin.shared = other.replica.in_flight.get(id_) or copy.copy(local.shared)
        twin.obligations = _twin(local.obligations)
        twin.obligations.history = {}
        twin.obligations.claimed = {pool: list(out) for pool, out in local.obligations.claimed.items()}
    return other


def _clone_replica(replica: Replica) -> Replica:
    other = _twin(replica)
    other.in_flight = {id_: _twin(prefetch) for id_, prefetch in replica.in_flight.items()}
    other.requests = {name: copy.copy(state) for name, state in replica.requests.items()}
    other.waiting = _twin(replica.waiting)
    other.recent.clear()
    return other


def _twin(thing: T) -> T:
    """Return a copy of a slotted object, with copies of the collections that it holds."""
    other = copy.copy(thing)
    for name in type(thing).__slots__:  # type: ignore[attr-defined]  # the core's classes have slots
        value = getattr(thing, name)
        if isinstance(value, (dict, list, set, deque)):
            setattr(other, name, value.copy())
    return other
