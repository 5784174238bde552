"""What one rank knows and owes of a prefetch: the fold of its local events. Never enters the replica except by a round."""

from collections.abc import Callable, Iterator
from typing import Any

from lifecycle import ranges as r
from lifecycle.coverage import landed_pages, nothing_landed, published
from lifecycle.errors import ObligationError
from lifecycle.events import (
    AnchorUnlocked,
    Clamped,
    Committed,
    Discarded,
    Event,
    HitResolved,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    HostReserved,
    LateWriteEnded,
    PagesLanded,
    PagesUnlocked,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    ReadLost,
    Settled,
    Terminated,
    TokensCredited,
    TokensReturned,
    TransferStarted,
    Wanted,
)  # fmt: skip
from lifecycle.layout import KV, Layout, TrailingPages
from lifecycle.obligations import Obligations, Parts, partition
from lifecycle.prefetch import Prefetch
from lifecycle.ranges import EMPTY, Range, Ranges
from lifecycle.reasons import Part, Reason
from lifecycle.states import State

UNKNOWN = -1


class Local:
    """One rank's side of a prefetch."""

    __slots__ = (
        "_runs", "degrade", "failed", "frozen", "hit_page", "landed", "layout", "lost_required", "miss", "obligations",
        "settled", "shared", "started", "wanted",
    )  # fmt: skip

    def __init__(self, layout: Layout, degrade: bool, shared: Prefetch) -> None:
        self.layout = layout
        self.degrade = degrade
        self.shared = shared
        self.obligations = Obligations(shared.id, shared.reserved_tokens)
        self.wanted = False
        self.hit_page = UNKNOWN
        self.miss: Reason | None = None
        self.started = False
        self.landed: dict[str, Ranges] = {}
        self._runs: dict[str, int] | None = None  # what `run` says of every pool, kept up: each round asks for it
        self.failed: dict[str, Ranges] = {}
        self.lost_required = False
        self.frozen: dict[str, int] | None = None
        self.settled = False

    def run(self, pool_name: str) -> int:
        """Return the landed value of a pool: the leading run as an absolute end, or for trailing pools as a count."""
        pool = self.layout.pool(pool_name)
        if not self.shared.reserved:
            return 0 if isinstance(pool.coverage, TrailingPages) else self.shared.start_page
        lo, _ = pool.window(self.shared.start_page, self.shared.plan_page)
        first = self.landed.get(pool_name, EMPTY)[:1]
        end = first[0][1] if first and first[0][0] == lo else lo
        return end - lo if isinstance(pool.coverage, TrailingPages) else end

    def runs(self) -> dict[str, int]:
        """Return the landed value of every pool, frozen once terminated."""
        if self.frozen is not None:
            return self.frozen
        if self._runs is None:
            self._runs = nothing_landed(self.layout, self.shared.start_page)
        return self._runs

    def ceiling(self) -> int:
        """Return the first page of a required all-pages pool that is known to have failed here; the plan's end if none."""
        page = self.shared.plan_page
        if not self.failed:  # nearly always, and every row of every round asks
            return page
        for pool in self.layout.required(self.degrade):
            failed = self.failed.get(pool.name)
            if failed and not isinstance(pool.coverage, TrailingPages):
                page = min(page, failed[0][0])
        return page

    def unanswered(self, owner: str, pages: Range) -> Iterator[str]:
        """Yield the required pools in the slots of `owner` of which no answer has come for some of these pages."""
        for pool in self.layout.required(self.degrade):
            if self.layout.owner(pool.name) == owner:
                asked = r.intersect((pages,), r.span(*pool.window(self.shared.start_page, self.shared.plan_page)))
                answered = r.union(self.landed.get(pool.name, EMPTY), self.failed.get(pool.name, EMPTY))
                if r.subtract(asked, answered):
                    yield pool.name

    def parts(self, pool_name: str) -> Parts:
        """Return the partition of the reserved pages of an own pool, as far as the state allows: before the outcome stands,
        everything that landed counts as usable and taken, so that only the tail is free to go."""
        shared = self.shared
        pool = self.layout.pool(pool_name)
        reserved = r.span(*shared.reserved[pool_name])
        landed = landed_pages(pool, shared.start_page, shared.plan_page, self.runs()[pool_name])
        if not shared.terminal:
            return partition(reserved, landed, landed, landed)
        if shared.state is State.DISCARDED:
            return partition(reserved, landed, EMPTY, EMPTY)
        window = published(self.layout, shared.start_page, shared.usable_page, shared.dropped).get(pool_name)
        usable = r.intersect(landed, (window,)) if window and window[0] < window[1] else EMPTY
        return partition(reserved, landed, usable, shared.taken.get(pool_name, EMPTY))

    def releasable(self) -> list[tuple[str, Part, Ranges, Ranges]]:
        """Return what may go back now, as (pool, part, pages to release, pages to quarantine): settled by the state, still
        open, and with no claimed read that may write it."""
        if self.shared.state in (State.ISSUED, State.TRANSFERRING):
            return []
        due: list[tuple[str, Part, Ranges, Ranges]] = []
        for pool, held in self.obligations.pages.items():
            if not held:
                continue
            busy, lost = self.obligations.busy(pool), self.obligations.lost.get(pool, EMPTY)
            for part, pages in self.parts(pool).released():
                ready = r.subtract(r.intersect(pages, held), busy)
                if ready:
                    due.append((pool, part, r.subtract(ready, lost), r.intersect(ready, lost)))
        return due

    def handed(self) -> dict[str, Ranges]:
        """Return the pages per own pool that the index takes and that are not handed over yet."""
        if self.shared.state not in (State.COMMITTED, State.CLAMPED):
            return {}
        pages = self.obligations.pages
        return {pool: due for pool, taken in self.shared.taken.items() if (due := r.intersect(taken, pages.get(pool, EMPTY)))}

    @property
    def taken_kv_pages(self) -> int:
        """How many kv pages the index takes."""
        return r.count(self.shared.taken.get(KV, EMPTY))


def evolve_local(local: Local, event: Event) -> None:
    """Change this rank's side as the event says, or raise `ObligationError` and change nothing."""
    apply = _EVOLVE.get(type(event))
    if apply is not None:
        apply(local, event)


def _wanted(local: Local, event: Wanted) -> None:
    local.wanted = True


def _resolved(local: Local, event: HitResolved) -> None:
    local.hit_page, local.miss = event.hit_page, event.miss


def _reserved(local: Local, event: HostReserved) -> None:
    local.obligations.reserve(event.pool, event.pages)


def _started(local: Local, event: TransferStarted) -> None:
    local.started = True


def _claimed(local: Local, event: ReadClaimed) -> None:
    local.obligations.claim(event.pool, event.pages)


def _add(sets: dict[str, Ranges], pool: str, pages: Range) -> None:
    sets[pool] = r.union(sets.get(pool, EMPTY), (pages,))


def _landed(local: Local, event: PagesLanded) -> None:
    _add(local.landed, event.pool, event.pages)
    if local._runs is None:
        local._runs = nothing_landed(local.layout, local.shared.start_page)
    local._runs[event.pool] = local.run(event.pool)


def _failed(local: Local, event: ReadFailed) -> None:
    _add(local.failed, event.pool, event.pages)


def _read_ended(local: Local, event: ReadEnded) -> None:
    local.obligations.end_read(event.pool, event.pages)


def _read_lost(local: Local, event: ReadLost) -> None:
    local.obligations.lose_read(event.pool, event.pages)
    if local.shared.state is State.TRANSFERRING and any(local.unanswered(event.pool, event.pages)):
        local.lost_required = True


def _freeze(local: Local, event: Terminated) -> None:
    local.frozen = dict(event.landed)


def _freeze_discarded(local: Local, event: Discarded) -> None:
    if local.frozen is None:
        local.frozen = dict(local.runs())


def _publish(local: Local, event: Committed | Clamped) -> None:
    local.obligations.publish()


def _handed_over(local: Local, event: HostHandedOver) -> None:
    local.obligations.hand_over(event.pool, event.pages, event.late)


def _released(local: Local, event: HostReleased) -> None:
    local.obligations.discharge(event.pool, event.pages, f"released as {event.part}")


def _quarantined(local: Local, event: HostQuarantined) -> None:
    local.obligations.discharge(event.pool, event.pages, f"quarantined as {event.part}")


def _late_ended(local: Local, event: LateWriteEnded) -> None:
    local.obligations.end_late(event.pool, event.pages)


def _anchor(local: Local, event: AnchorUnlocked) -> None:
    local.obligations.unlock_anchor()


def _tokens(local: Local, event: TokensReturned) -> None:
    local.obligations.return_tokens(event.tokens)


def _credited(local: Local, event: TokensCredited) -> None:
    local.obligations.give_credit()


def _unlocked(local: Local, event: PagesUnlocked) -> None:
    local.obligations.unlock_pages()


def _settled(local: Local, event: Settled) -> None:
    if local.settled or not local.obligations.settled:
        still = ", ".join(local.obligations.open_names()) or "it is settled already"
        raise ObligationError(local.shared.id, "settle", still)
    local.settled = True


_EVOLVE: dict[type[Event], Callable[[Local, Any], None]] = {
    Wanted: _wanted,
    HitResolved: _resolved,
    HostReserved: _reserved,
    TransferStarted: _started,
    ReadClaimed: _claimed,
    PagesLanded: _landed,
    ReadFailed: _failed,
    ReadEnded: _read_ended,
    ReadLost: _read_lost,
    Terminated: _freeze,
    Discarded: _freeze_discarded,
    Committed: _publish,
    Clamped: _publish,
    HostHandedOver: _handed_over,
    HostReleased: _released,
    HostQuarantined: _quarantined,
    LateWriteEnded: _late_ended,
    AnchorUnlocked: _anchor,
    TokensReturned: _tokens,
    TokensCredited: _credited,
    PagesUnlocked: _unlocked,
    Settled: _settled,
}
