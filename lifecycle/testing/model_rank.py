"""One rank of the model: the real book, decisions and votes over the least model of reads and effects that keeps their order.

Mirrors what `runtime/` does between them, without queues, slots, clocks and ports. Cloned at every step, so kept small.
"""

import copy

import numpy as np

from lifecycle import coverage, decide, votes
from lifecycle import events as ev
from lifecycle import ranges as r
from lifecycle.book import Book
from lifecycle.coverage import Flags
from lifecycle.local import Local
from lifecycle.prefetch import Prefetch
from lifecycle.reasons import Reason
from lifecycle.rows import Report
from lifecycle.states import State
from lifecycle.testing.model_copy import (
    ENDED,
    LOST,
    QUEUED,
    Job,
    Reads,
    clone_book,
    clone_reads,
    local_key,
    prefetch_key,
)
from lifecycle.testing.model_scope import Scope

_LATE_NS = 1 << 60


class ModelRank:
    """A rank. Verbs change it in place: clone first."""

    __slots__ = ("book", "late", "reads", "scope", "tick", "tight", "tree")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.book = Book(scope.layout, scope.capacity_pages, scope.policies.degrade)
        self.reads: dict[int, Reads] = {}
        self.tree: dict[str, r.Ranges] = {}  # the index: pages of the one prompt, per own pool
        self.late = False  # every limit has run out here
        self.tick = 0
        self.tight = False  # host memory will refuse the next allocation here

    # --- copies and keys -----------------------------------------------------------------------------------------------

    def clone(self) -> "ModelRank":
        """Return a copy that shares nothing that changes."""
        other = copy.copy(self)
        other.book = clone_book(self.book)
        other.tree = dict(self.tree)
        other.reads = {id_: clone_reads(reads) for id_, reads in self.reads.items()}
        return other

    def key(self) -> int:
        """Return the hash of everything that can matter to what comes."""
        book = self.book
        replica = book.replica
        return hash(
            (
                tuple(prefetch_key(p) for p in replica.in_flight.values()),
                tuple(local_key(local) for local in book.local.values()),
                tuple((id_, reads.facts()) for id_, reads in self.reads.items()),
                tuple(replica.quarantined_pages.values()),
                tuple(sorted(self.tree.items())),
                replica.next_id,
                self.late,
                self.tight,
            )
        )

    # --- what happens here ---------------------------------------------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """Evolve the book, which refuses what is not legal."""
        self.book.apply(event)

    def issue(self, request: str, attempt: int) -> None:
        """Begin a prefetch of the whole span; a newer attempt discards the older one."""
        older = self.book.replica.newest(request)
        if older is not None and not older.terminal:
            self.end(older, Reason.SUPERSEDED)
        self.begin(self.decide_issue(request, attempt))

    def decide_issue(self, request: str, attempt: int) -> ev.Issued | ev.Declined:
        """Decide whether a prefetch of the whole span begins."""
        return decide.issue(self.book.replica, self.scope.policies, 1, request, attempt, self.scope.keys, 0, "")

    def begin(self, decided: ev.Issued | ev.Declined, tried: bool = False) -> None:
        """Begin what was decided, or wait."""
        self.emit(decided)
        if isinstance(decided, ev.Issued):
            self.reads[decided.prefetch] = Reads()
            return
        wait = decide.wait_after_decline(self.book.replica, self.scope.policies, 1, decided, self.tick, tried)
        if wait is not None:
            self.emit(wait)

    def progress(self, id_: int) -> None:
        """Withdraw what lies beyond the ceiling; see whether all that matters is answered."""
        reads, local = self.reads[id_], self.book.local[id_]
        shared = local.shared
        if shared.state is not State.TRANSFERRING:
            return
        ceiling = min(local.ceiling(), shared.ceiling_page)
        if ceiling < shared.plan_page:
            self._withdraw(reads, ceiling)
        reads.progress.all_answered = not reads.progress.reserve_failed and all(
            job.status in (ENDED, LOST) or job.pages[0] >= ceiling for job in reads.jobs
        )

    @staticmethod
    def _withdraw(reads: Reads, from_page: int) -> None:
        for job in reads.jobs:
            if job.status == QUEUED and job.pages[0] >= from_page:
                job.status = ENDED

    # --- rounds --------------------------------------------------------------------------------------------------------

    def settle_all(self) -> None:
        """Do what is due for every prefetch, as at the start of a tick."""
        for id_ in list(self.book.local):
            if self.book.local[id_].shared.state not in (State.ISSUED, State.TRANSFERRING):
                self.settle(id_)

    def report(self, id_: int) -> Report:
        """Return this rank's row."""
        scope = self.scope
        now_ns = _LATE_NS if self.late else 0
        return votes.report(scope.layout, scope.policies, self.book.local[id_], self.reads[id_].progress, now_ns)

    def take_report(self, prefetch: Prefetch, report: Report) -> bool:
        """Move a prefetch by its agreed row; say whether its set must be agreed first."""
        scope = self.scope
        if not decide.hit_is_known(prefetch, report):
            here = self.book.local[prefetch.id].runs()
            self.take(prefetch, decide.row(scope.layout, prefetch, report, here, scope.ranks, 0))
            return False
        if refusal := decide.too_little(prefetch, scope.policies, report):
            self.take(prefetch, refusal)
            return False
        if scope.layout.has_trailing(scope.policies.degrade):
            return True
        self.take_lengths(prefetch, np.arange(prefetch.end_page) < report.hit_page)
        return False

    def take_lengths(self, prefetch: Prefetch, lengths: Flags) -> None:
        """Make the plan, reserve and queue the reads."""
        scope = self.scope
        room = {pool.name: self.book.replica.budget(pool.name) for pool in scope.layout.own}
        events = decide.plan(scope.layout, scope.policies, prefetch, lengths, room)
        self.take(prefetch, events)
        plan = events[0]
        if isinstance(plan, ev.PlanAgreed):
            self._reserve(plan)

    def _reserve(self, plan: ev.PlanAgreed) -> None:
        reads, book, layout = self.reads[plan.prefetch], self.book, self.scope.layout
        if self.tight:
            self.tight = False
            reads.progress.reserve_failed = True
            return
        for pool, (lo, hi) in plan.reserved.items():
            taken = book.held_pages[pool] + book.resident_pages[pool] + book.quarantined_pages[pool]
            assert taken + hi - lo <= self.scope.capacity_pages[pool], f"the budget of {pool} allowed what does not fit"
            self.emit(ev.HostReserved(plan.prefetch, pool, (lo, hi), ()))
        for group in layout.groups:
            owner = group[0].name
            if owner not in plan.reserved:
                continue
            parts = [(pool.name, pool.window(0, plan.plan_page)) for pool in group if pool.name not in plan.left_out]
            reads.jobs.append(Job(owner, plan.reserved[owner], tuple(part for part in parts if part[1][0] < part[1][1])))
        self.progress(plan.prefetch)

    def take(self, prefetch: Prefetch, events: tuple[ev.Event, ...]) -> None:
        """Append the events of one decision and do what follows from them."""
        if not events:
            return
        reads, last = self.reads[prefetch.id], events[-1]
        outcome = self._published(prefetch, last) if isinstance(last, ev.Synced) else None
        wait = decide.wait_after_miss(self.book.replica, self.scope.policies, prefetch, events[0], self.tick)
        for event in events:
            self.emit(event)
            if isinstance(event, ev.Terminated):
                self._withdraw(reads, -1)
            elif isinstance(event, ev.Capped):
                self.progress(prefetch.id)
        if wait is not None:
            self.emit(wait)
        if outcome is not None:
            self.take(prefetch, decide.outcome(self.scope.layout, self.scope.policies, 1, prefetch, *outcome))
        elif isinstance(last, ev.Closed):
            self._forget(prefetch.id)
        else:
            if prefetch.terminal:
                self._withdraw(reads, -1)
            self.settle(prefetch.id)

    def _published(self, prefetch: Prefetch, synced: ev.Synced) -> tuple[coverage.Outcome, dict[str, r.Ranges] | Reason]:
        found = decide.usable(self.scope.layout, self.scope.policies, prefetch, synced.agreed)
        offer = coverage.published(self.scope.layout, 0, found.usable_page, found.dropped)
        taken = {p: r.subtract(r.span(*offer[p]), self.tree.get(p, r.EMPTY)) for p in offer if p in prefetch.reserved}
        return found, {pool: pages for pool, pages in taken.items() if pages}

    def end(self, prefetch: Prefetch, reason: Reason) -> None:
        """Discard a prefetch by command."""
        self.take(prefetch, decide.end(prefetch, reason))

    # --- effects -------------------------------------------------------------------------------------------------------

    def settle(self, id_: int) -> None:
        """Hand over, release, unlock, settle, as far as it is due."""
        local = self.book.local[id_]
        for pool, pages in local.handed().items():
            late = r.intersect(pages, local.obligations.busy(pool))
            lost = r.intersect(pages, local.obligations.lost.get(pool, r.EMPTY))
            self._check_landed(local, pool, pages)
            self.emit(ev.HostHandedOver(id_, pool, pages, r.union(late, lost)))
            self.tree[pool] = r.union(self.tree.get(pool, r.EMPTY), pages)
            if lost:
                self.emit(ev.LateWriteEnded(id_, pool, lost, lost=True))
        for pool, part, release, quarantine in local.releasable():
            if release:
                self.emit(ev.HostReleased(id_, pool, release, part))
            if quarantine:
                self.emit(ev.HostQuarantined(id_, pool, quarantine, part))
        if local.shared.terminal:
            if local.obligations.anchor:
                self.emit(ev.AnchorUnlocked(id_))
            if not local.settled and local.obligations.settled:
                self.emit(ev.Settled(id_))

    def _check_landed(self, local: Local, owner: str, pages: r.Ranges) -> None:
        shared = local.shared
        offer = coverage.published(self.scope.layout, 0, shared.usable_page, shared.dropped)
        for pool, window in offer.items():
            if self.scope.layout.owner(pool) == owner:
                stray = r.subtract(r.intersect(pages, r.span(*window)), local.landed.get(pool, r.EMPTY))
                assert not stray, f"pages {r.text(stray)} of {pool} are published and never landed here"

    def _forget(self, id_: int) -> None:
        local = self.book.local.get(id_)
        if local is not None and local.obligations.resident_lock:
            self.emit(ev.PagesUnlocked(id_))
        self.reads.pop(id_, None)
