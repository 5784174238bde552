"""When to look at a prefetch again because a limit of its ends: for one rank alone, where no round looks at all of them."""

from lifecycle.runtime.rank import Rank
from lifecycle.runtime.timeline import Timeline
from lifecycle.runtime.transfer import Transfer
from lifecycle.votes import deadline_ns


class Deadlines:
    """The limits of the prefetches in flight, the next one first. Kept by one rank alone; with several, rounds see to it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.limits: Timeline[int] = Timeline(self._is_over)  # of prefetches by their ids: of what closed nothing is kept

    def watch(self, transfer: Transfer) -> None:
        """Look at the prefetch again when its limit ends, or now if it has."""
        deadline = deadline_ns(self._rank.policies, transfer.local, transfer.progress)
        if not self._rank.alone or deadline is None:
            return
        if deadline > self._rank.clock_ns():
            self.limits.add(deadline, transfer.local.shared.id)
        else:
            self._rank.transfers.dirty.add(transfer.local.shared.id)

    def pass_on(self, now_ns: int) -> None:
        """Have those looked at whose limit has ended; another limit may begin there."""
        transfers = self._rank.transfers
        for id_ in self.limits.until(now_ns):
            transfers.dirty.add(id_)
            self.watch(transfers.of[id_])

    def _is_over(self, id_: int) -> bool:
        transfer = self._rank.transfers.of.get(id_)
        return transfer is None or transfer.local.shared.terminal
