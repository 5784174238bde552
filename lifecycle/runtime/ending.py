"""The end of everything in flight: by order, or because a round failed. What cannot end now is said, and keeps nothing else."""

from lifecycle.events import Closed
from lifecycle.logger import Logger
from lifecycle.reasons import Reason
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


def close_settled(rank: Rank) -> None:
    """Close what this rank holds nothing of any more: nobody will agree on it."""
    for prefetch in list(rank.book.replica.in_flight.values()):
        if rank.book.local[prefetch.id].settled:
            rank.steps.take(prefetch, (Closed(prefetch.id),))
    rank.agreement.forget_closed()
