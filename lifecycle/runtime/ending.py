"""The end of everything in flight: by order, or because a round failed. What cannot end now is said, and keeps nothing else."""

from lifecycle.events import Closed, CoordinatorStopped
from lifecycle.logger import Logger
from lifecycle.reasons import Reason
from lifecycle.runtime.draining import drain
from lifecycle.runtime.issuing import Issuing
from lifecycle.runtime.rank import Rank

log = Logger(__name__)


def discard_all(rank: Rank, issuing: Issuing, reason: Reason) -> None:
    """Discard what is in flight, and end every wait."""
    for prefetch in list(rank.book.replica.in_flight.values()):
        if not prefetch.terminal:
            try:
                rank.steps.end(prefetch, reason)
            except Exception as error:  # one that cannot end must not keep the others, nor hide why all end
                log.error(
                    "a prefetch could not be discarded",
                    prefetch=prefetch.id,
                    error=repr(error),
                    what_to_do="see the error; what it holds is lost to this process until a restart",
                )
    for waiter in list(rank.book.replica.waiting):
        issuing.end_wait(waiter.request, reason)


def _close_settled(rank: Rank) -> None:
    """Close what this rank holds nothing of any more: nobody will agree on it."""
    for prefetch in list(rank.book.replica.in_flight.values()):
        if rank.book.local[prefetch.id].settled:
            rank.steps.take(prefetch, (Closed(prefetch.id),))
    rank.agreement.forget_closed()


def wind_down(rank: Rank, issuing: Issuing) -> None:
    """After a failure, discharge what can be discharged by now."""
    try:
        discard_all(rank, issuing, Reason.SYNC_FAILED)
        drain(rank)
        _close_settled(rank)
    except Exception as error:  # the scheduler is told of the failure, not of what came after it; tried at each tick
        log.error(
            "what is owed after the failure could not be discharged yet; it is tried at each tick",
            error=repr(error),
            what_to_do="go on calling tick, or close: what stays open is listed by snapshot()",
        )


def close(rank: Rank, issuing: Issuing, timeout_s: float) -> None:
    """Discard what is in flight, wait up to `timeout_s` for reads that are out, quarantine what they may still write."""
    discard_all(rank, issuing, Reason.SHUTDOWN)
    rank.readers.close(timeout_s)
    drain(rank)
    for transfer in list(rank.transfers.of.values()):
        rank.transfers.give_up(transfer)
        rank.settler.settle(transfer, rank.tick_number)
    _close_settled(rank)
    rank.closed = True
    reason = Reason.SYNC_FAILED if rank.failure else Reason.SHUTDOWN
    rank.append(CoordinatorStopped(reason, rank.book.open_obligations(), dict(rank.book.quarantined_pages)))
    rank.events.flush()
