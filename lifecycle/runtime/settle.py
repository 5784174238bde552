"""The effects: hand over, release, unlock, settle. Each port call is followed by the event that discharges it.

A port that raises did nothing: the obligation stays open and is tried again at the next tick. An index that raises while
several ranks share its shape makes this rank's replica differ, so the failure is reported to the round.
"""

from collections.abc import Callable

from lifecycle import coverage
from lifecycle import ranges as r
from lifecycle.events import (
    AnchorUnlocked,
    Event,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    LateWriteEnded,
    ObligationStuck,
    PagesUnlocked,
    Settled,
)  # fmt: skip
from lifecycle.layout import Layout
from lifecycle.logger import Logger
from lifecycle.ranges import Ranges
from lifecycle.reasons import Part
from lifecycle.runtime.ports import HostMemory, PrefixIndex
from lifecycle.runtime.transfer import Transfer
from lifecycle.states import State

log = Logger(__name__)


class Settler:
    """Runs what is due for a prefetch, in the order of DESIGN section 6."""

    def __init__(
        self,
        layout: Layout,
        memory: HostMemory,
        index: PrefixIndex,
        emit: Callable[[Event], None],
        stuck_after_tries: int,
    ) -> None:
        self._layout = layout
        self._memory = memory
        self._index = index
        self._emit = emit
        self._stuck_after = stuck_after_tries
        self._tries: dict[tuple[int, str], int] = {}
        self.retry: set[int] = set()  # prefetches with a port that failed
        self.index_fault: Exception | None = None  # what made this rank's index differ from its peers'
        self.behind: set[int] = set()  # what the index has promised to take and has not, or not locked yet

    def refusals(self) -> list[tuple[tuple[int, str], int]]:
        """Return how often a port has refused what a prefetch owes, as ((prefetch, obligation), tries). For any thread."""
        return list(self._tries.items())

    def settle(self, transfer: Transfer, tick: int) -> None:
        """Do everything that is due now."""
        local = transfer.local
        shared = local.shared
        self.retry.discard(shared.id)
        if shared.state in (State.COMMITTED, State.CLAMPED):
            self._hand_over(transfer, tick)
        for pool, part, release, quarantine in local.releasable():
            if release:
                self._give_back(transfer, pool, part, release, lost=False)
            if quarantine:
                self._give_back(transfer, pool, part, quarantine, lost=True)
        if shared.terminal:
            self._unlock_anchor(transfer)
            if not local.settled and local.obligations.settled and shared.id not in self.retry:
                self._emit(Settled(shared.id))

    def _hand_over(self, transfer: Transfer, tick: int) -> None:
        shared, obligations = transfer.local.shared, transfer.local.obligations
        if transfer.end_anchor is None:
            offer = coverage.published(self._layout, shared.start_page, shared.usable_page, shared.dropped)
            slots = {pool: transfer.slots_of(pool, *offer[pool]) for pool in offer if pool in transfer.slots}

            def insert() -> None:
                transfer.end_anchor = self._index.insert(transfer.anchor, transfer.keys, offer, slots, shared.id, tick)

            self.behind.add(shared.id)
            if not self._try(shared.id, "hand over", insert, index=True):
                return
            for pool, pages in transfer.local.handed().items():
                late = r.intersect(pages, obligations.busy(pool))
                lost = r.intersect(pages, obligations.lost.get(pool, r.EMPTY))
                self._emit(HostHandedOver(shared.id, pool, pages, r.union(late, lost)))
                if lost:
                    self._emit(LateWriteEnded(shared.id, pool, lost, lost=True))
        end_anchor = transfer.end_anchor
        if end_anchor is not None and not transfer.end_locked:
            transfer.end_locked = self._try(
                shared.id, "lock what was handed over", lambda: self._index.lock(end_anchor), index=True
            )
        if transfer.end_locked:
            self.behind.discard(shared.id)

    def _give_back(self, transfer: Transfer, pool: str, part: Part, pages: Ranges, lost: bool) -> None:
        shared = transfer.local.shared
        how = f"{'quarantined' if lost else 'released'} as {part}"
        transfer.local.obligations.check_discharge(pool, pages, how)
        slots = transfer.slots_of_ranges(pool, pages)
        port = self._memory.quarantine if lost else self._memory.release
        if self._try(shared.id, f"{part} of {pool}", lambda: port(pool, slots)):
            event = HostQuarantined if lost else HostReleased
            self._emit(event(shared.id, pool, pages, part))

    def _unlock_anchor(self, transfer: Transfer) -> None:
        shared = transfer.local.shared
        published = shared.state is not State.DISCARDED
        if not transfer.local.obligations.anchor or (published and not transfer.end_locked):
            return
        if self._try(shared.id, "anchor", lambda: self._index.unlock(transfer.anchor), index=True):
            self._emit(AnchorUnlocked(shared.id))

    def close(self, transfer: Transfer) -> bool:
        """Drop the lock on what was handed over, after the close; return whether nothing is left."""
        shared, end_anchor = transfer.local.shared, transfer.end_anchor
        self.retry.discard(shared.id)
        if end_anchor is None or not transfer.local.obligations.resident_lock:
            return True
        if not self._try(shared.id, "resident lock", lambda: self._index.unlock(end_anchor), index=True):
            return False
        self._emit(PagesUnlocked(shared.id))
        return True

    def _try(self, prefetch: int, what: str, call: Callable[[], None], index: bool = False) -> bool:
        key = (prefetch, what)
        try:
            call()
        except Exception as error:  # a failing port: nothing happened; it is tried again, and reported when it stays so
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            self.retry.add(prefetch)
            if tries & (tries - 1) == 0:  # at 1, 2, 4, 8, …: a port that stays broken must not fill the disk with lines
                log.warning(
                    "a port failed; it is tried again at the next tick",
                    prefetch=prefetch,
                    obligation=what,
                    tries=tries,
                    error=repr(error),
                    what_to_do="see the error; if it stays, the port breaks its contract or the engine frees what is ours",
                )
            if index:
                self.index_fault = error
            if tries == self._stuck_after:
                self._emit(ObligationStuck(prefetch, what, tries, repr(error)))
            return False
        self._tries.pop(key, None)
        return True
