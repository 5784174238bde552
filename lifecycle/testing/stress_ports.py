"""What a stress run stands on: host memory that notices a write into a free slot, and a collective of threads."""

import threading
from collections.abc import Mapping

import numpy as np

from lifecycle.layout import Layout
from lifecycle.runtime.ports import SlotArray
from lifecycle.runtime.transport import Buffer, Wait
from lifecycle.testing.sim_checks import Violation
from stores.host import TorchHostMemory

POISON = 0xEE
PATIENCE_S = 300.0
"""How long a rank waits for its peers in one exchange."""


class PoisonedMemory(TorchHostMemory):
    """Host memory whose free slots hold a pattern: whoever writes one, a read that was thought over, is found out.

    What was found stands in `violations`: an error would count as a port that fails. Slots that are quarantined may be
    written.
    """

    def __init__(self, layout: Layout, capacity_pages: Mapping[str, int], page_bytes: Mapping[str, int]) -> None:
        super().__init__(layout, capacity_pages, page_bytes)
        self.violations: list[str] = []
        self._riders = {own.name: [p.name for p in layout.pools if layout.owner(p.name) == own.name] for own in layout.own}
        self._is_free = {own: np.ones(pages, dtype=np.bool_) for own, pages in capacity_pages.items()}
        for pool in layout.pools:
            self.views(pool.name)[:] = POISON

    def allocate(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Take slots, and look whether they are as they were left."""
        given = super().allocate(need)
        for pool, slots in given.items():
            self._look(pool, slots)
            self._is_free[pool][slots] = False
        return given

    def release(self, pool: str, slots: SlotArray) -> None:
        """Give slots back and put the pattern into them."""
        super().release(pool, slots)
        self._is_free[pool][slots] = True
        for name in self._riders[pool]:
            self.views(name)[slots] = POISON

    def look_at_all(self) -> None:
        """Look at every free slot; raises `Violation` with what was found by now."""
        for pool, free in self._is_free.items():
            self._look(pool, np.flatnonzero(free).astype(np.int32))
        if self.violations:
            raise Violation("quiescence", self.violations[0])

    def _look(self, pool: str, slots: SlotArray) -> None:
        for name in self._riders[pool]:
            written = slots[(self.views(name)[slots] != POISON).any(axis=1)]
            if written.size:
                self.violations.append(f"slot {int(written[0])} of {name} was written while it was free")


class ThreadGroup:
    """One MIN over ranks that are threads."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_S)
        self._board: list[Buffer | None] = [None] * ranks

    def reduce(self, rank: int, buffer: Buffer) -> None:
        """Reduce in place; returns once every rank has. Raises `RuntimeError` where one has gone."""
        self._board[rank] = buffer
        self._barrier.wait()
        given = [each for each in self._board if each is not None]
        if len({(each.shape, each.dtype) for each in given}) != 1:
            raise Violation("collectives", "the shapes of the ranks' exchanges differ")
        reduced = np.minimum.reduce(given)
        self._barrier.wait()  # all have reduced: now each may write over its own
        buffer[:] = reduced
        self._barrier.wait()

    def leave(self) -> None:
        """Make every exchange fail from now on: a rank has gone."""
        self._barrier.abort()


class ThreadTransport:
    """One rank's way into the group."""

    def __init__(self, rank: int, group: ThreadGroup) -> None:
        self.rank = rank
        self._group = group

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self._group.ranks

    def launch(self, buffer: Buffer) -> Wait:
        """Reduce at once."""
        self._group.reduce(self.rank, buffer)
        return _nothing


def _nothing() -> None:
    return None
