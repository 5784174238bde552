"""From decisions to events to effects: the one way in which a prefetch moves on a live rank.

A decision (`lifecycle/decide.py`) returns events; they are appended and evolve the book; then what follows from them is
done: reads withdrawn, pages reserved, outcome decided, debts settled.
"""

from collections.abc import Callable

import numpy as np

from lifecycle import coverage, decide
from lifecycle.book import Book
from lifecycle.coverage import Flags
from lifecycle.events import Capped, Closed, Event, HostReserved, PlanAgreed, Synced, Terminated
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.logger import Logger
from lifecycle.policies import Policies
from lifecycle.prefetch import Prefetch
from lifecycle.ranges import Ranges, runs
from lifecycle.reasons import Reason
from lifecycle.rows import Report
from lifecycle.runtime.ports import PrefixIndex
from lifecycle.runtime.residency import Residency, plain
from lifecycle.runtime.settle import Settler
from lifecycle.runtime.transfer import Transfer
from lifecycle.runtime.transfers import Transfers

log = Logger(__name__)


class Steps:
    """Takes the agreed facts of a prefetch and moves it."""

    def __init__(
        self, layout: Layout, policies: Policies, page_size_tokens: int, book: Book, index: PrefixIndex,
        residency: Residency, transfers: Transfers, settler: Settler, emit: Callable[[Event], None],
        waiting_keys: dict[str, KeyChain],
    ) -> None:  # fmt: skip
        self._layout = layout
        self._policies = policies
        self._page_size = page_size_tokens
        self._index = index
        self._residency = residency
        self._transfers = transfers
        self._settler = settler
        self._replica = book.replica
        self._emit = emit
        self._waiting_keys = waiting_keys
        self._trailing = layout.has_trailing(policies.degrade)
        self.tick = 0

    def take_report(self, prefetch: Prefetch, report: Report, participants: int, round_number: int, sets_apart: bool) -> None:
        """Move a prefetch by its agreed report. `sets_apart`: restorable sets come by an exchange of their own."""
        if not decide.hit_is_known(prefetch, report):
            here = self._transfers.of[prefetch.id].local.runs()
            self.take(prefetch, decide.row(self._layout, prefetch, report, here, participants, round_number))
            return
        refusal = decide.too_little(prefetch, self._policies, report)
        if refusal:
            self.take(prefetch, refusal)
        elif not self._trailing:
            span_pages = prefetch.end_page - prefetch.start_page
            self.take_lengths(prefetch, np.arange(span_pages) < report.hit_page - prefetch.start_page)
        elif not sets_apart:
            lengths = self._transfers.of[prefetch.id].lengths
            assert lengths is not None, "a hit is known only once the query is answered"
            self.take_lengths(prefetch, lengths)

    def take_lengths(self, prefetch: Prefetch, lengths: Flags) -> None:
        """Make the plan from the lengths that all ranks can restore, and begin to read."""
        room = self._residency.room()
        events = decide.plan(self._layout, self._policies, prefetch, lengths, room)
        plan = events[0]
        if isinstance(plan, PlanAgreed):
            self._residency.make_room({pool: hi - lo for pool, (lo, hi) in plan.reserved.items()})
        self.take(prefetch, events)
        if isinstance(plan, PlanAgreed):
            self._reserve(self._transfers.of[prefetch.id], plan)

    def _reserve(self, transfer: Transfer, plan: PlanAgreed) -> None:
        need = {pool: hi - lo for pool, (lo, hi) in plan.reserved.items()}
        try:
            slots = self._residency.allocate(need)
        except Exception as error:  # the budget allowed it: a local failure, which the round makes everyone's
            log.warning(
                "host memory refused what the budget allowed; the prefetch ends",
                prefetch=plan.prefetch,
                error=repr(error),
                what_to_do="see the error; let nobody else take slots that the coordinator was given at its start",
            )
            transfer.progress.reserve_failed = True
            self._transfers.dirty.add(plan.prefetch)
            return
        for pool, pages in plan.reserved.items():
            transfer.slots[pool] = (pages[0], slots[pool])
            self._emit(HostReserved(plan.prefetch, pool, pages, runs(slots[pool])))
        self._transfers.start(transfer)

    def take(self, prefetch: Prefetch, events: tuple[Event, ...]) -> None:
        """Append the events of one decision and do what follows from them."""
        if not events:
            return
        transfer, last = self._transfers.of[prefetch.id], events[-1]
        # Asked before anything is appended: an index that raises leaves the prefetch where it is, not in SYNCED.
        published = self._published(transfer, last) if isinstance(last, Synced) else None
        wait = decide.wait_after_miss(self._replica, self._policies, prefetch, events[0], self.tick)
        for event in events:
            self._emit(event)
            if isinstance(event, Terminated):
                self._transfers.stop(transfer)
            elif isinstance(event, Capped):
                self._transfers.cap(transfer)
        if wait is not None:
            self._emit(wait)
            self._waiting_keys[prefetch.request] = transfer.keys
        self._transfers.dirty.add(prefetch.id)
        if published is not None:
            self.take(prefetch, decide.outcome(self._layout, self._policies, self._page_size, prefetch, *published))
        elif isinstance(last, Closed):
            self.forget(transfer)
        else:
            if prefetch.terminal:
                self._transfers.stop(transfer)
            self._settler.settle(transfer, self.tick)

    def _published(self, transfer: Transfer, synced: Synced) -> tuple[coverage.Outcome, dict[str, Ranges] | Reason]:
        """Return what is usable, and what the index would take of it."""
        prefetch = transfer.local.shared
        found = decide.usable(self._layout, self._policies, prefetch, synced.agreed)
        if found.usable_page <= prefetch.start_page:
            return found, {}
        offer = coverage.published(self._layout, prefetch.start_page, found.usable_page, found.dropped)
        plan = self._index.plan_insert(transfer.anchor, transfer.keys, offer)
        return found, plan if isinstance(plan, Reason) else plain(plan.taken)

    def end(self, prefetch: Prefetch, reason: Reason) -> None:
        """Discard a prefetch that is not terminal, by command."""
        self.take(prefetch, decide.end(prefetch, reason))

    def forget(self, transfer: Transfer) -> None:
        """Drop the last lock of a closed prefetch, and the prefetch; tried again at the next tick if the lock stays."""
        if self._settler.close(transfer):
            id_ = transfer.local.shared.id
            self._transfers.of.pop(id_, None)
            self._transfers.dirty.discard(id_)
