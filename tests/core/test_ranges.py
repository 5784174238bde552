"""Ranges against plain Python sets."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lifecycle import ranges as r

NUMBERS = st.frozensets(st.integers(0, 40), max_size=25)
relaxed = settings(deadline=None, max_examples=300)


def of_set(numbers: frozenset[int]) -> r.Ranges:
    """Build ranges the slow way: one number at a time."""
    out: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if out and out[-1][1] == n:
            out[-1] = (out[-1][0], n + 1)
        else:
            out.append((n, n + 1))
    return tuple(out)


def to_set(ranges: r.Ranges) -> frozenset[int]:
    return frozenset(n for start, stop in ranges for n in range(start, stop))


@relaxed
@given(NUMBERS, NUMBERS)
@example(frozenset({0, 1, 2, 3, 4, 5}), frozenset({2, 3}))
@example(frozenset({0, 1}), frozenset({2, 3}))
def test_union_intersect_and_subtract_are_those_of_sets(left: frozenset[int], right: frozenset[int]) -> None:
    """Each operation gives the set's answer in the one canonical form."""
    a, b = of_set(left), of_set(right)
    assert r.union(a, b) == of_set(left | right)
    assert r.intersect(a, b) == of_set(left & right)
    assert r.subtract(a, b) == of_set(left - right)


@relaxed
@given(NUMBERS, NUMBERS)
def test_the_parts_of_a_split_are_disjoint_and_whole(reserved: frozenset[int], landed: frozenset[int]) -> None:
    """Cutting a set in two by another loses no number and counts none twice."""
    whole, by = of_set(reserved), of_set(landed)
    kept, rest = r.intersect(whole, by), r.subtract(whole, by)
    assert r.intersect(kept, rest) == r.EMPTY
    assert r.union(kept, rest) == whole
    assert r.count(kept) + r.count(rest) == r.count(whole) == len(reserved)


@relaxed
@given(NUMBERS)
def test_canonical_form_round_trips(numbers: frozenset[int]) -> None:
    """A set and its ranges stand for each other."""
    ranges = of_set(numbers)
    assert r.is_ranges(ranges)
    assert to_set(ranges) == numbers


@pytest.mark.parametrize(
    "bad",
    [((2, 2),), ((3, 1),), ((-1, 2),), ((4, 6), (0, 2)), ((0, 3), (2, 5)), ((0, 2), (2, 4)), ((0, 2), (0, 2))],
    ids=["empty", "backwards", "negative", "unsorted", "overlapping", "touching", "twice"],
)
def test_is_ranges_says_no_to_any_other_form(bad: r.Ranges) -> None:
    """A set has one form only, so that equal sets compare equal."""
    assert not r.is_ranges(bad)


@pytest.mark.parametrize(
    ("start", "stop", "pages"), [(2, 5, ((2, 5),)), (2, 2, ()), (5, 2, ())], ids=["three", "none", "backwards"]
)
def test_span_is_empty_unless_it_goes_forward(start: int, stop: int, pages: r.Ranges) -> None:
    """A span that ends where it starts, or before, holds nothing."""
    assert r.span(start, stop) == pages
    assert r.count(pages) == max(0, stop - start)


@relaxed
@given(st.lists(st.integers(0, 12), max_size=30))
def test_runs_keep_order_and_repeats(numbers: list[int]) -> None:
    """Laying the runs out again gives the numbers as they came."""
    got = r.runs(numbers)
    assert [n for start, stop in got for n in range(start, stop)] == numbers
    assert all(a[1] != b[0] for a, b in pairwise(got)), "neighbouring runs are one run"
    assert r.runs(np.array(numbers, dtype=np.int32)) == got


def test_runs_are_plain_whole_numbers() -> None:
    """Runs of a numpy array hold Python ints, which an event can encode."""
    assert r.runs(np.array([5, 6, 7, 2, 3], dtype=np.int32)) == ((5, 8), (2, 4))
    assert {type(n) for run in r.runs(np.array([5, 6, 2], dtype=np.int32)) for n in run} == {int}


def test_text_is_half_open_and_names_nothing() -> None:
    """People read half-open ranges, and a word where there are none."""
    assert r.text(((0, 2), (5, 8))) == "[0:2) [5:8)"
    assert r.text(r.EMPTY) == "none"
