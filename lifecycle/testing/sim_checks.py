"""The laws of DESIGN section 6 as checks of a simulated rank: cheap ones after every step, full recounts now and then."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from lifecycle.errors import IntegrityError
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.runtime.ports import Match
from lifecycle.states import State
from lifecycle.testing.sim_rank import SimRank
from lifecycle.testing.sim_store import page_of
from stores.prefix_match import RadixMatch


class Violation(AssertionError):
    """Raised when a simulated run breaks a law; `kind` names the law, for shrinking."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(f"{kind}: {detail}")


def not_taken_back(rank: SimRank) -> tuple[Counter[str], Counter[str]]:
    """Return the pages per pool that left the index and that host memory has not freed, and not quarantined, yet."""
    residency = rank.coordinator._rank.residency
    both = Counter[str](), Counter[str]()
    for pages, waiting in zip(both, (residency.unreleased, residency.unquarantined), strict=True):
        for pool, slots in waiting:
            pages[pool] += len(slots)
    return both


def balance(rank: SimRank, layout: Layout) -> None:
    """Every slot is free, held, resident or quarantined; every lock and token is owed by a prefetch."""
    book, memory, index = rank.coordinator.book, rank.memory, rank.index
    if memory.violations:
        raise Violation("quiescence", f"rank {rank.number}: {memory.violations[0]}")
    unreleased, unquarantined = not_taken_back(rank)
    for pool in layout.own:
        name = pool.name
        free, out = memory.free_pages(name), memory.quarantined_pages(name)
        held, resident = book.held_pages[name], book.resident_pages[name]
        waiting = unreleased[name] + unquarantined[name]
        total = free + held + resident + out + waiting
        agreed = resident == index.resident_pages(name) and out + unquarantined[name] == book.quarantined_pages[name]
        if total != memory.capacity_pages(name) or not agreed:
            raise Violation(
                "balance",
                f"rank {rank.number}, pool {name}: {free} free + {held} held + {resident} resident (index:"
                f" {index.resident_pages(name)}) + {out} quarantined (log: {book.quarantined_pages[name]})"
                f" + {waiting} not taken back, of {memory.capacity_pages(name)}",
            )
    owed = book.locks - sum(
        transfer.local.obligations.resident_lock and not transfer.end_locked
        for transfer in rank.coordinator._rank.transfers.of.values()
    )
    owed += len(rank.coordinator._rank.residency.locked)
    if index.lock_count() != owed:
        raise Violation("locks", f"rank {rank.number}: the index has {index.lock_count()}, the log says {owed}")
    tokens = sum(local.obligations.tokens or 0 for local in book.local.values())
    if tokens != book.replica.occupied_tokens:
        raise Violation("occupancy", f"rank {rank.number}: {book.replica.occupied_tokens} occupied, {tokens} owed")
    if any(prefetch.state is State.SYNCED for prefetch in book.replica.in_flight.values()):
        raise Violation("states", f"rank {rank.number}: a prefetch rests in synced")


def what_is_published_is_served(rank: SimRank, request: str, match: Match) -> None:
    """Nothing that the newest prefetch of a request has published is missing from its match."""
    newest = rank.coordinator.book.replica.newest(request)
    if newest is None or newest.state not in (State.COMMITTED, State.CLAMPED):
        return
    behind = rank.coordinator._rank.settler.behind  # an index that failed has yet to take what is published
    if newest.id not in behind and match.pages < newest.usable_page:
        raise Violation("published", f"{newest} published {newest.usable_page} pages, {match.pages} are served")


def recount(rank: SimRank, replay: bool) -> None:
    """Recount everything; `replay` folds the log, too."""
    try:
        rank.coordinator.check_integrity(replay)
    except IntegrityError as error:
        raise Violation("integrity", str(error)) from error


def equal(ranks: Sequence[SimRank]) -> None:
    """All replicas and the shapes of all indexes are equal."""
    first = ranks[0]
    facts, digest = first.coordinator.book.replica.facts(), first.index.digest()
    for other in ranks[1:]:
        if other.coordinator.book.replica.facts() != facts:
            raise Violation("replicas", f"ranks {first.number} and {other.number} differ and no round noticed")
        if other.index.digest() != digest:
            raise Violation("indexes", f"ranks {first.number} and {other.number} have indexes of another shape")


def pages_are_right(rank: SimRank, layout: Layout, keys: KeyChain, match: Match) -> None:
    """Every page that a match covers, in every pool, holds the bytes of its key."""
    assert isinstance(match, RadixMatch)
    for pool in layout.pools:
        slots = match.slots(pool.name)
        there = np.flatnonzero(slots >= 0)
        for page, buffer in zip(there.tolist(), rank.memory.buffers(pool.name, slots[there]), strict=True):
            want = page_of(pool.name, keys[page], rank.number)
            if buffer != want:
                raise Violation(
                    "garbled",
                    f"rank {rank.number} serves page {page} of {pool.name} from slot {slots[page]}: it holds"
                    f" {bytes(buffer)!r}, not {want!r}",
                )


def nothing_left(rank: SimRank, layout: Layout) -> None:
    """Nothing is in flight and nothing is owed."""
    book, replica = rank.coordinator.book, rank.coordinator.book.replica
    left = {
        "obligations": {id_: local.obligations.open_names() for id_, local in book.local.items()},
        "prefetches in flight": list(replica.in_flight),
        "occupied tokens": replica.occupied_tokens,
        "locks": rank.index.lock_count(),
        "reserved pages": sum(replica.reserved_pages.values()),
        "held pages": sum(book.held_pages.values()),
        "pages not taken back": sum(pages.total() for pages in not_taken_back(rank)),
        "unclaimed reads": rank.readers.queue.unclaimed(),
        "requests that wait": len(replica.waiting) + len(rank.coordinator._rank.waiting_keys),
    }
    if leaks := {what: amount for what, amount in left.items() if amount}:
        raise Violation("leak", f"rank {rank.number}, {layout.name}: {leaks}")
