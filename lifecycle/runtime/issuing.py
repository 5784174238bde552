"""Beginning a prefetch: by command, or by the coordinator itself for a request that waits. The one way in.

Who waits and who is tried are facts of the replica and of the tick number, so all ranks try the same at the same tick; only
the keys of those who wait are kept here at the edge.
"""

from collections.abc import Callable
from operator import index as whole

from lifecycle import decide
from lifecycle.errors import AnchorLost, DuplicateAttempt, WrongAnchor
from lifecycle.events import Declined, Issued, WaitEnded
from lifecycle.keys import KeyChain
from lifecycle.logger import Logger
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import Anchor
from lifecycle.runtime.rank import Rank
from lifecycle.runtime.transfer import Transfer
from lifecycle.waiting import Waiter

log = Logger(__name__)


class Issuing:
    """Issues and declines on one rank. `watch` looks at a prefetch again when its limit ends."""

    def __init__(self, rank: Rank, watch: Callable[[Transfer], None]) -> None:
        self._rank = rank
        self._watch = watch
        self._failed_tries = 0  # in a row, by a port

    def issue(self, request: str, attempt: int, keys: KeyChain, anchor: Anchor) -> int | Declined:
        """Begin a prefetch by command; the errors are those of `Coordinator.issue`."""
        rank, replica, start = self._rank, self._rank.book.replica, whole(anchor.pages)
        if start > len(keys) or (start and keys[start - 1] != anchor.key):
            raise WrongAnchor(request, start, len(keys))
        state, newest = replica.requests.get(request), replica.newest(request)
        if state is not None and (attempt < state.attempt or (attempt == state.attempt and state.issued)):
            rank.emit(self._decide(request, attempt, keys, anchor, Reason.DUPLICATE))
            raise DuplicateAttempt(request, attempt, state.attempt, newest.state if newest else "closed")
        if (newest is None or newest.terminal) and request not in replica.waiting:
            return self._begin(self._decide_and_lock(request, attempt, keys, anchor), keys, anchor)
        locked = self._lock(anchor)  # before what there is of the request ends: an index that raises changes nothing
        if newest is not None and not newest.terminal:
            rank.steps.end(newest, Reason.SUPERSEDED)
        if state is not None and attempt > state.attempt:
            self.end_wait(request, Reason.SUPERSEDED)
        decided = self._decide(request, attempt, keys, anchor, self._refused())
        if isinstance(decided, Issued) and not locked:
            decided = self._decide(request, attempt, keys, anchor, Reason.ANCHOR_LOST)
        elif isinstance(decided, Declined) and locked:
            rank.residency.unlock(anchor)
        return self._begin(decided, keys, anchor)

    # --- those who wait ------------------------------------------------------------------------------------------------

    def try_waiting(self) -> None:
        """Try again whoever may be tried at this tick: first the line for room, then those who ask L3 again."""
        rank = self._rank
        replica, policies, tick = rank.book.replica, rank.policies, rank.tick_number
        if not replica.waiting:
            return
        while (over := decide.given_up(replica, policies, tick)) is not None:
            rank.emit(over)
        while (waiter := decide.next_for_room(replica, policies)) is not None:
            if not self._try(waiter):
                return
        while (waiter := decide.next_to_ask(replica, tick)) is not None:
            if not self._try(waiter):
                return

    def _try(self, waiter: Waiter) -> bool:
        """Try one that waits; return whether to go on with the next."""
        rank, keys = self._rank, self._rank.waiting_keys[waiter.request]
        try:
            anchor = rank.index.match(keys, rank.tick_number).anchor
            decided = self._decide_and_lock(waiter.request, waiter.attempt, keys, anchor)
        except Exception as error:  # a failing port: nothing happened
            if not rank.alone:
                raise  # this rank's index may differ by now, which its next round tells
            self._failed_tries += 1
            if self._failed_tries & (self._failed_tries - 1) == 0:  # at 1, 2, 4, 8, ...: as the settler warns
                log.warning(
                    "a port failed; the request is tried again at the next tick",
                    request=waiter.request,
                    tries=self._failed_tries,
                    error=repr(error),
                    what_to_do="see the error: the prefix index raised where it should not",
                )
            return False
        self._failed_tries = 0
        if waiter.for_room and isinstance(decided, Declined) and decided.reason is Reason.RATE_LIMITED:
            self._wait(decided, keys, tried=True)  # the index has less of it by now: it needs more, and keeps its place
            return True
        rank.emit(WaitEnded(waiter.request, waiter.attempt, rank.tick_number, None))
        self._begin(decided, keys, anchor, tried=True)
        return True

    def end_wait(self, request: str, reason: Reason) -> bool:
        """End the wait of a request, if it waits; return whether it did."""
        waiter = self._rank.book.replica.waiting.get(request)
        if waiter is None:
            return False
        self._rank.emit(WaitEnded(request, waiter.attempt, self._rank.tick_number, reason))
        return True

    # --- both ----------------------------------------------------------------------------------------------------------

    def _decide(self, request: str, attempt: int, keys: KeyChain, anchor: Anchor, refused: Reason | None) -> Issued | Declined:
        rank, start = self._rank, whole(anchor.pages)
        return decide.issue(
            rank.book.replica, rank.policies, rank.page_size_tokens, request, attempt, keys, start, anchor.key, refused
        )

    def _refused(self) -> Reason | None:
        return Reason.READERS_LOST if self._rank.agreement.declining else None

    def _decide_and_lock(self, request: str, attempt: int, keys: KeyChain, anchor: Anchor) -> Issued | Declined:
        decided = self._decide(request, attempt, keys, anchor, self._refused())
        if isinstance(decided, Issued) and not self._lock(anchor):
            return self._decide(request, attempt, keys, anchor, Reason.ANCHOR_LOST)
        return decided

    def _lock(self, anchor: Anchor) -> bool:
        """Lock the anchor, or return False where its place is gone."""
        try:
            self._rank.index.lock(anchor)
        except AnchorLost:
            return False
        except Exception as error:  # where ranks share its shape, the others have begun: the next round says why not here
            self._rank.settler.index_fault = error
            raise
        return True

    def _begin(self, decided: Issued | Declined, keys: KeyChain, anchor: Anchor, tried: bool = False) -> int | Declined:
        rank = self._rank
        rank.emit(decided)
        if isinstance(decided, Declined):
            self._wait(decided, keys, tried)
            return decided
        transfer = Transfer(rank.book.local[decided.prefetch], keys, anchor, rank.clock_ns())
        rank.transfers.of[decided.prefetch] = transfer
        rank.transfers.ask(transfer)
        self._watch(transfer)
        return decided.prefetch

    def _wait(self, declined: Declined, keys: KeyChain, tried: bool) -> None:
        rank = self._rank
        replica, policies, tick = rank.book.replica, rank.policies, rank.tick_number
        wait = decide.wait_after_decline(replica, policies, rank.page_size_tokens, declined, tick, tried)
        if wait is not None:
            rank.emit(wait)
        if declined.request in replica.waiting:
            rank.waiting_keys[declined.request] = keys
