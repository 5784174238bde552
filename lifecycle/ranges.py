"""Sets of page numbers as sorted half-open ranges.

A `Ranges` is a tuple of `(start, stop)` pairs, sorted, disjoint, non-touching, none empty. `((2, 5),)` is pages 2, 3
and 4. Slot numbers use the same type. Knows nothing of pools or prefetches.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
Ranges = tuple[Range, ...]

EMPTY: Ranges = ()


def span(start: int, stop: int) -> Ranges:
    """Return [start, stop) as ranges; empty when stop <= start."""
    return ((start, stop),) if start < stop else EMPTY


def count(ranges: Ranges) -> int:
    """Return how many numbers the ranges hold."""
    return sum(stop - start for start, stop in ranges)


def union(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers in either."""
    if not left or not right:
        return left or right
    merged: list[Range] = []
    for start, stop in sorted(left + right):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers in both."""
    out: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < stop:
            out.append((start, stop))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers in `left` that are not in `right`."""
    if not left or not right:
        return left
    out: list[Range] = []
    j = 0
    for start, stop in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        k = j
        while k < len(right) and right[k][0] < stop:
            if start < right[k][0]:
                out.append((start, right[k][0]))
            start = max(start, right[k][1])
            k += 1
        if start < stop:
            out.append((start, stop))
    return tuple(out)


def is_ranges(ranges: Ranges) -> bool:
    """Say whether the ranges are sorted, disjoint, non-touching and non-empty."""
    return all(0 <= start < stop for start, stop in ranges) and all(a[1] < b[0] for a, b in pairwise(ranges))


_FEW = 16
"""Up to so many numbers a loop is quicker than numpy."""


def runs(numbers: Sequence[int] | NDArray[np.int32]) -> tuple[Range, ...]:
    """Return consecutive ascending runs of `numbers`, in their order: 5 6 7 2 3 gives (5, 8), (2, 4).

    Not a set: the order is that of the pages which the slots belong to.
    """
    array = np.asarray(numbers)
    if array.size <= _FEW:
        return _runs_of_few(array.tolist())
    cuts = np.flatnonzero(array[1:] != array[:-1] + 1)
    if not cuts.size:
        return ((int(array[0]), int(array[-1]) + 1),)
    starts = [int(array[0]), *array[cuts + 1].tolist()]
    stops = [*(array[cuts] + 1).tolist(), int(array[-1]) + 1]
    return tuple(zip(starts, stops, strict=True))


def _runs_of_few(numbers: list[int]) -> tuple[Range, ...]:
    out: list[Range] = []
    for number in numbers:
        if out and out[-1][1] == number:
            out[-1] = (out[-1][0], number + 1)
        else:
            out.append((number, number + 1))
    return tuple(out)


def text(ranges: Ranges) -> str:
    """Return ranges for people: `[0:2) [5:8)`, or `none`."""
    return " ".join(f"[{start}:{stop})" for start, stop in ranges) or "none"
