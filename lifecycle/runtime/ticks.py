"""The tick: drain what readers answered, agree, move what may move; and the ends of a run, by order or by failure."""

from collections.abc import Iterable
from typing import NoReturn

from lifecycle.errors import ConfigError, CoordinatorClosed, RankDivergence, SyncFailed
from lifecycle.logger import Logger
from lifecycle.reasons import Reason
from lifecycle.rows import Masks, Report, Round
from lifecycle.runtime.agreement import Exchange
from lifecycle.runtime.deadlines import Deadlines
from lifecycle.runtime.draining import drain
from lifecycle.runtime.ending import close, discard_all, wind_down
from lifecycle.runtime.issuing import Issuing
from lifecycle.runtime.naming import Naming
from lifecycle.runtime.rank import Rank
from lifecycle.votes import report

log = Logger(__name__)


class Ticks:
    """Runs the ticks of one rank: commands came before; then those who wait are tried, what the readers answered is drained,
    round t - lag is consumed and round t launched.

    With lag 0 the round is launched first and consumed at once. With one rank there is no round at all.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._deadlines = Deadlines(rank)
        self.issuing = Issuing(rank, self._deadlines.watch)
        self._fault: Exception | None = None  # an error of this rank's own: its next round is launched as failed
        self._naming = False  # the replicas differ: nothing moves any more, and the exchange that says why is on its way

    @property
    def fault(self) -> Exception | None:
        """An error of this rank's own: its next round is launched as failed."""
        return self._fault

    @property
    def naming(self) -> bool:
        """Whether the ranks have diverged and the exchange that says why is on its way: what fails has not been told yet."""
        return self._naming

    def tick(self) -> None:
        """Run one iteration with the rank's transport."""
        rank, lag = self._rank, self._rank.policies.lag_ticks
        self._begin()
        if rank.alone:
            self._consume_alone()
        else:
            if lag == 0:
                self._launch_round()
            self._consume_due()
            if lag:
                self._launch_round()
        self._flush()

    def begin(self) -> Round | None:
        """Begin a tick by hand; return the round to be reduced, or None with one rank and at ticks without a round."""
        if self._rank.policies.lag_ticks:
            raise ConfigError("cannot begin a tick by hand with a lag: use tick() and a transport")
        self._begin()
        if self._rank.alone:
            self._consume_alone()
            self._flush()
            return None
        if not self._round_is_due():
            self._flush()
            return None
        return self._build()

    def end(self, reduced: Round) -> Masks | Naming | None:
        """Take the reduced round; return the second exchange that it calls for, or None."""
        self._check_going("end")
        second = self._consume_round(reduced)
        self._flush()
        return second

    def end_second(self, reduced: Masks | Naming) -> None:
        """Take the reduced second exchange."""
        self._check_going("end")
        self._consume_second(reduced)
        self._flush()

    def fail_tick(self, error: Exception) -> NoReturn:
        """Take it that the exchange of a tick by hand failed, as `tick` does of the transport's."""
        rank = self._rank
        if rank.alone and not rank.closed:
            raise ConfigError("cannot fail a tick: one rank alone exchanges nothing (call this only where a round was begun)")
        self._check_going("fail")
        self.fail(SyncFailed(rank.agreement.number, rank.transport.ranks, repr(error)), error)

    def _check_going(self, operation: str) -> None:
        """Raise for a tick that a close or a failure has ended already: what it exchanged is void."""
        rank = self._rank
        if rank.closed:
            raise CoordinatorClosed(f"cannot {operation} a tick: the coordinator is closed (start a fresh one)")
        if rank.failure is not None and not self._naming:
            raise rank.failure.with_traceback(None)

    # --- before the round ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        rank = self._rank
        if rank.closed:
            raise CoordinatorClosed("cannot tick: the coordinator is closed (start a fresh one)")
        rank.tick_number += 1
        rank.steps.tick = rank.tick_number
        if rank.failure is not None and not self._naming:
            wind_down(rank, self.issuing)
            self._flush()
            raise rank.failure.with_traceback(None)  # or it would grow by a frame at every tick
        if rank.alone:
            self._try_waiting()
            drain(rank)
            return
        try:
            if self._fault is None:
                self._try_waiting()
                drain(rank)
        except Exception as error:  # the round must be launched before this rank raises, or its peers would hang
            self.note_fault(error)

    def _try_waiting(self) -> None:
        """Try again whoever waits, before anything local is looked at: here all ranks decide alike.

        A rank whose index has yet to take what it promised does not, as with a fault: its next round tells the others.
        """
        if self._rank.failure is None and not self._rank.settler.behind:
            self.issuing.try_waiting()

    def _reports(self, ids: Iterable[int]) -> list[Report]:
        """Return what this rank says of these prefetches now."""
        layout, policies, of, now_ns = self._rank.layout, self._rank.policies, self._rank.transfers.of, self._rank.clock_ns()
        return [report(layout, policies, of[id_].local, of[id_].progress, now_ns) for id_ in ids]

    # --- rounds --------------------------------------------------------------------------------------------------------

    def _build(self) -> Round:
        agreement, declining = self._rank.agreement, self._rank.transfers.declining
        self._fault = self._fault or self._rank.settler.index_fault
        if self._fault is None:
            try:
                return agreement.build(self._reports, False, declining)
            except Exception as error:  # as in _begin
                self.note_fault(error)
        return agreement.build(self._reports, True, declining)

    def _launch_round(self) -> None:
        if not self._naming and self._round_is_due():
            self._launch(self._build())

    def _round_is_due(self) -> bool:
        """By tick number alone, so that all ranks launch alike."""
        return self._rank.tick_number % self._rank.policies.round_every_ticks == 0

    def _launch(self, exchange: Exchange) -> None:
        rank = self._rank
        try:
            rank.agreement.launch(exchange, rank.tick_number + rank.policies.lag_ticks)
        except RuntimeError as error:
            self.fail(SyncFailed(exchange.number, rank.transport.ranks, repr(error)), error)

    def _consume_due(self) -> None:
        rank, pending = self._rank, self._rank.agreement.pending
        while pending and pending[0].due <= rank.tick_number:
            item = pending.popleft()
            try:
                item.wait()
            except RuntimeError as error:
                self.fail(SyncFailed(item.exchange.number, rank.transport.ranks, repr(error)), error)
            if not isinstance(item.exchange, Round):
                self._consume_second(item.exchange)
                continue
            second = self._consume_round(item.exchange)
            if second is not None:
                self._launch(second)

    def _consume_round(self, round_: Round) -> Masks | Naming | None:
        rank, ranks = self._rank, self._rank.transport.ranks
        header, same = rank.agreement.header(round_)
        if header.failed:
            cause = "an error of this rank's own" if self._fault else "a rank reported an error of its own (see its log)"
            self.fail(SyncFailed(round_.number, ranks, cause), self._fault)
        if not same:
            return self._diverge(round_)
        rows = rank.agreement.rows(round_)
        masks = rank.agreement.masks_after(round_, rows)
        if self._fault is None:  # with one, the peers move on and this rank no more: its next round tells them
            try:
                for prefetch, agreed in rank.agreement.read(round_, rows, masks, header):
                    if rank.settler.behind:  # this rank's index differs by now: as with a fault
                        break
                    rank.steps.take_report(prefetch, agreed, ranks, round_.number, sets_apart=True)
                if masks is not None:
                    rank.agreement.fill(masks, rank.transfers.of)
            except Exception as error:  # as in _begin
                self.note_fault(error)
        rank.agreement.forget_closed()
        return masks

    def _diverge(self, round_: Round) -> Naming:
        """Publish nothing more; ask all ranks for their last commands, so that the error can name the one that differs."""
        rank = self._rank
        exchange = rank.agreement.name_divergence(round_.number)
        self._naming = True
        rank.failure = RankDivergence(round_.number, rank.transport.ranks, "the replicas of the ranks differ")
        discard_all(self._rank, self.issuing, Reason.SYNC_FAILED)
        return exchange

    def _consume_second(self, exchange: Masks | Naming) -> None:
        if isinstance(exchange, Naming):
            self._naming = False
            self.fail(self._rank.agreement.read_naming(exchange), self._fault)
        self._consume_masks(exchange)

    def _consume_masks(self, masks: Masks) -> None:
        if self._fault is not None or self._rank.settler.behind:
            return
        try:
            for prefetch, lengths in self._rank.agreement.read_masks(masks):
                self._rank.steps.take_lengths(prefetch, lengths)
        except Exception as error:  # as in _begin
            self.note_fault(error)

    def note_fault(self, error: Exception) -> None:
        """Keep an error of this rank's own, for its next round to tell the others."""
        if self._fault is None:
            self._fault = error
            log.error(
                "this rank failed; its next round tells the others",
                error=repr(error),
                what_to_do="see the error; then start fresh coordinators on all ranks, with empty indexes",
            )

    def _flush(self) -> None:
        """Hand over, once a tick, what others do: the reads that were planned, and the events."""
        self._rank.transfers.send()
        try:
            self._rank.events.flush()
        except Exception as error:  # as in _begin
            if self._rank.alone:
                raise
            self.note_fault(error)

    # --- one rank ------------------------------------------------------------------------------------------------------

    def _consume_alone(self) -> None:
        """Take this rank's own reports in place of a round: only of what may have something new to say."""
        transfers, agreement, now_ns = self._rank.transfers, self._rank.agreement, self._rank.clock_ns()
        agreement.take_header(transfers.declining, agreement.quarantined_here(), tuple(agreement.fed))
        self._deadlines.pass_on(now_ns)
        waiting = sorted(transfers.dirty, reverse=True)
        transfers.dirty.clear()
        try:
            while waiting and not self._rank.settler.behind:  # another insert or an eviction would break its promise
                id_ = waiting[-1]
                shared = transfers.of[id_].local.shared
                if not shared.closed:
                    self._rank.steps.take_report(shared, self._reports([id_])[0], 1, 0, sets_apart=False)
                waiting.pop()
        finally:
            transfers.dirty.update(waiting)  # a port that raised did nothing: they are looked at again at the next tick

    # --- the end -------------------------------------------------------------------------------------------------------

    def fail(self, failure: SyncFailed, cause: BaseException | None) -> NoReturn:
        """Publish nothing more, discard everything, tell the scheduler."""
        self._naming = False  # the exchange that says why the ranks differ may be the one that failed
        self._rank.failure = failure
        discard_all(self._rank, self.issuing, Reason.SYNC_FAILED)
        self._flush()
        raise failure from cause

    def close(self, timeout_s: float) -> None:
        """Discard what is in flight, wait up to `timeout_s` for reads that are out, quarantine what they may still write."""
        if not self._rank.closed:
            close(self._rank, self.issuing, timeout_s)
