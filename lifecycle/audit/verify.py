"""Checking logs against the laws, as a stream: each rank by itself, and all ranks of a run against each other."""

from collections.abc import Iterable, Iterator, Sequence

from lifecycle.audit.laws import Violation
from lifecycle.audit.peers import Peers
from lifecycle.audit.rank import RankAudit
from lifecycle.events import Record


def verify_logs(logs: Sequence[Iterable[Record]]) -> list[Violation]:
    """Return every violation in the logs of one run, one log per rank, in the order in which they are found."""
    return list(violations(logs))


def verify_log(records: Iterable[Record]) -> list[Violation]:
    """Return every violation in the log of one rank. What takes the logs of other ranks is not checked."""
    return verify_logs([records])


def violations(logs: Sequence[Iterable[Record]]) -> Iterator[Violation]:
    """Yield the violations in the logs of one run as they are found.

    Reads all logs in step, by what the ranks have in common. Memory is bounded by what is in flight (and one byte for each
    host slot that is used), not by the length of the logs. A log that ends early is compared as far as it goes.
    """
    found: list[Violation] = []
    ranks = [RankAudit(place, found.append) for place in range(len(logs))]
    if len(ranks) == 1:
        feed = ranks[0].feed
        for record in logs[0]:
            feed(record)
            if found:
                yield from found
                found.clear()
        return
    peers = Peers(ranks, [iter(log) for log in logs], found.append)
    while peers.advance():
        yield from found
        found.clear()
    yield from found
