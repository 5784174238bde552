"""What is wrong when an event says that something is, and what an operator can do. Says nothing of what is ordinary."""

from typing import NamedTuple

from lifecycle.events import (
    CoordinatorStopped,
    Declined,
    Discarded,
    Event,
    EventsLost,
    Evicted,
    HostQuarantined,
    ObligationStuck,
    PageOverwritten,
    QuarantineAgreed,
    ReadFailed,
    ReadLost,
)  # fmt: skip
from lifecycle.reasons import ReadCode, Reason


class Advice(NamedTuple):
    """What an anomaly is called, what to do, and within what it is said once: each event, its prefetch, or the run."""

    what: str
    to_do: str
    once_per: str = "event"


_STORE = "look at the page store of this rank: "
_READ_CODES = {
    ReadCode.SHORT: "a page was shorter than it must be; was it written with another page size, or is it half written?",
    ReadCode.CORRUPT: "a page did not match its header or checksum; delete it and look for what damages pages",
    ReadCode.LEASE_EXPIRED: "the lease ran out before the bytes came; make the lease longer, or batches and queues shorter",
    ReadCode.IO_ERROR: "it reported an error; its own log says which",
    ReadCode.BAD_RESULT: "it does not answer with one `PageResult` per key; its adapter does not keep the port's contract",
}
_DISCARDED = {
    Reason.QUERY_FAILED: Advice(
        "existence query failed", _STORE + "the query raised, was not answered in time, or not for every key of every pool"
    ),
    Reason.ANCHOR_LOST: Advice(
        "anchor lost", "the index let go of a place that was locked; look for evictions that ignore its locks"
    ),
    Reason.INSERT_DROPPED: Advice(
        "insert dropped", "the index would not take pages that were read; look at what moved it under the anchor meanwhile"
    ),
    Reason.SYNC_FAILED: Advice(
        "a round failed",
        "nothing is published any more; close the coordinator of every rank and start fresh ones with empty indexes",
        "run",
    ),
}


MAY_BE_WRONG: frozenset[type[Event]] = frozenset(
    {
        ReadLost, ReadFailed, Discarded, HostQuarantined, Evicted, QuarantineAgreed, ObligationStuck, Declined, EventsLost,
        CoordinatorStopped, PageOverwritten,
    }
)  # fmt: skip
"""The events that `advice` may have something to say of."""


def advice(event: Event) -> Advice | None:
    """Return what is wrong and what to do about it, or None for an event that is ordinary."""
    match event:
        case ReadLost():
            return Advice(
                "read lost", _STORE + "a read was not answered within lost_read_s; its pages stay out of use from here on"
            )
        case ReadFailed(code=code) if code in _READ_CODES:
            return Advice(f"read failed: {code}", _STORE + _READ_CODES[code], "prefetch")
        case Discarded(reason=reason):
            return _DISCARDED.get(reason)
        case HostQuarantined():
            return Advice("pages quarantined", "a lost read may still write them; only a restart brings them back")
        case Evicted(quarantined=slots) if slots:
            return Advice("evicted pages quarantined", "a lost read may still write them; only a restart brings them back")
        case QuarantineAgreed():
            return Advice("pages taken off the budget", "a rank has quarantined them; see its log for the reads it lost")
        case ObligationStuck():
            return Advice(
                "obligation stuck", "the port refuses it at every tick; see the error, and that the engine frees nothing itself"
            )
        case PageOverwritten(source=source):
            return Advice(
                "a resident page was overwritten",
                "something wrote to it after it had landed: a late write, or the engine's own copy;"
                f" `prefetch-audit blast-radius --prefetch {source}` names the requests that were served it",
            )
        case Declined(reason=Reason.READERS_LOST):
            return Advice(
                "prefetching is off", _STORE + "more readers than max_lost_reads hang; once they come back it goes on", "run"
            )
        case EventsLost():
            return Advice("events lost", "see the cause; what this log says of prefetches around here is not complete")
        case CoordinatorStopped(open_obligations=count) if count:
            return Advice("stopped with open obligations", "host memory or the index still holds them; see the warnings before")
        case _:
            return None
