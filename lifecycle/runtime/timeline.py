"""Things by a time of theirs, the earliest first; what is over meanwhile is dropped for good."""

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_LEAST = 64


class Timeline(Generic[T]):
    """Keeps no more than about twice what is not over, also behind something that stays.

    Adding costs the same on average, however much there is.
    """

    def __init__(self, is_over: Callable[[T], bool]) -> None:
        self._is_over = is_over
        self._next: list[tuple[int, int, T]] = []  # time, number, what
        self._number = count()
        self._sweep_at = _LEAST

    def __len__(self) -> int:
        return len(self._next)

    def __iter__(self) -> Iterator[T]:
        return (what for _, _, what in self._next)

    def add(self, at_ns: int, what: T) -> None:
        """Keep something until its time has come or it is over."""
        if len(self._next) >= self._sweep_at:
            self._next = [each for each in self._next if not self._is_over(each[2])]
            heapq.heapify(self._next)
            self._sweep_at = max(_LEAST, 2 * len(self._next))
        heapq.heappush(self._next, (at_ns, next(self._number), what))

    def until(self, now_ns: int) -> Iterator[T]:
        """Take out and yield what is due by then and not over. More may be added meanwhile."""
        while self._next and (self._next[0][0] <= now_ns or self._is_over(self._next[0][2])):
            _, _, what = heapq.heappop(self._next)
            if not self._is_over(what):
                yield what
