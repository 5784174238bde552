"""When to look at a prefetch again because a limit of its ends: for one rank alone, where no round looks at all of them."""

import heapq

from lifecycle.runtime.rank import Rank
from lifecycle.runtime.transfer import Transfer
from lifecycle.votes import deadline_ns

_LEAST = 64


class Deadlines:
    """The limits of the prefetches in flight, the next one first. Kept by one rank alone; with several, rounds see to it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._next: list[tuple[int, int]] = []
        self._sweep_at = _LEAST  # limits of what has closed go when they would be as many again

    def watch(self, transfer: Transfer) -> None:
        """Look at the prefetch again when its limit ends, or now if it has."""
        deadline = deadline_ns(self._rank.policies, transfer.local, transfer.progress)
        if not self._rank.alone or deadline is None:
            return
        if deadline > self._rank.clock_ns():
            if len(self._next) >= self._sweep_at:
                self._sweep()
            heapq.heappush(self._next, (deadline, transfer.local.shared.id))
        else:
            self._rank.transfers.dirty.add(transfer.local.shared.id)

    def pass_on(self, now_ns: int) -> None:
        """Have those looked at whose limit has ended; another limit may begin there."""
        transfers = self._rank.transfers
        while self._next and self._next[0][0] <= now_ns:
            _, id_ = heapq.heappop(self._next)
            due = transfers.of.get(id_)
            if due is not None and not due.local.shared.terminal:
                transfers.dirty.add(id_)
                self.watch(due)

    def _sweep(self) -> None:
        of = self._rank.transfers.of
        self._next = [each for each in self._next if each[1] in of]
        heapq.heapify(self._next)
        self._sweep_at = max(_LEAST, 2 * len(self._next))
