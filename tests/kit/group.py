"""Ranks that are threads, for as long as they open: one MIN over all of them."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class ThreadGroup:
    """A transport for ranks that are threads: one MIN, in place. Used for the opening exchange."""

    def __init__(self, rank: int, ranks: int, barrier: threading.Barrier, board: list[Any]) -> None:
        self.rank, self.ranks = rank, ranks
        self._barrier, self._board = barrier, board

    def launch(self, buffer: NDArray[Any]) -> Callable[[], None]:
        """Reduce at once; the call waits for the others."""
        self._board[self.rank] = buffer.copy()
        self._barrier.wait()
        reduced = np.minimum.reduce(self._board)
        self._barrier.wait()
        buffer[:] = reduced
        return lambda: None


def in_threads(build: Callable[[int, ThreadGroup], T], ranks: int) -> list[T | Exception]:
    """Build each rank in a thread of its own, as the opening exchange needs; return it, or what it raised."""
    barrier, board = threading.Barrier(ranks), [None] * ranks
    built: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            built[rank] = build(rank, ThreadGroup(rank, ranks, barrier, board))
        except Exception as error:
            built[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return built
