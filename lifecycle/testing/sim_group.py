"""The collective of a simulation: one MIN over all ranks, in one process, deferred by the lag.

The ranks run one after the other, so a blocking exchange cannot be a call: with lag 0 the world reduces the rounds by hand,
and the opening exchange is run twice, once to see every rank's buffer and once to answer.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from lifecycle.runtime.transport import Buffer, Wait

T = TypeVar("T")


class Seen(Exception):
    """Raised by the first opening exchange of a rank, once its buffer is known."""


class Group:
    """The state that the ranks' transports share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.crash: set[int] = set()  # ranks whose next wait fails
        self.dead: set[int] = set()  # ranks that launch nothing any more
        self._opening: list[Buffer] | None = []
        self._opened: Buffer | None = None
        self._boards: dict[int, dict[int, Buffer]] = {}
        self._results: dict[int, Buffer] = {}
        self._left: dict[int, int] = {}
        self._next = [0] * ranks

    def build(self, build: Callable[[int], T]) -> list[T]:
        """Return what `build` makes for every rank, its opening exchange reduced over all."""
        for rank in range(self.ranks):
            try:
                build(rank)
            except Seen:
                continue
        seen = self._opening or []
        assert len(seen) == self.ranks, "every rank opens with one exchange"
        self._opened, self._opening = np.minimum.reduce(seen), None
        built = [build(rank) for rank in range(self.ranks)]
        self._opened = None
        return built

    def launch(self, rank: int, buffer: Buffer) -> Wait:
        """Take a rank's buffer; the returned function puts the result into it."""
        if self._opening is not None:
            self._opening.append(buffer)
            raise Seen
        if self._opened is not None:
            buffer[:] = self._opened
            return _nothing
        number = self._next[rank]
        self._next[rank] += 1
        self._boards.setdefault(number, {})[rank] = buffer.copy()
        return lambda: self._wait(rank, number, buffer)

    def _wait(self, rank: int, number: int, buffer: Buffer) -> None:
        if rank in self.crash:
            self.crash.discard(rank)
            self.dead.add(rank)
            raise RuntimeError("simulated: the connection was reset")
        if number not in self._results:
            board = self._boards.pop(number, {})
            if len(board) < self.ranks:
                self.dead.add(rank)
                raise RuntimeError(f"simulated: the exchange timed out, {self.ranks - len(board)} ranks are missing")
            assert len({(b.shape, b.dtype) for b in board.values()}) == 1, "shapes differ: the collective would abort"
            self._results[number] = np.minimum.reduce(list(board.values()))
            self._left[number] = self.ranks
        buffer[:] = self._results[number]
        self._left[number] -= 1
        if not self._left[number]:
            del self._results[number], self._left[number]


def _nothing() -> None:
    return None


class SimTransport:
    """One rank's way into the group."""

    def __init__(self, rank: int, group: Group) -> None:
        self.rank = rank
        self._group = group

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self._group.ranks

    def launch(self, buffer: Buffer) -> Wait:
        """Begin to reduce `buffer` in place."""
        return self._group.launch(self.rank, buffer)
