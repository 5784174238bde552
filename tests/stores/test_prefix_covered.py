"""How far a prefix is covered, against the words of its definition, over every small case."""

from itertools import product

import numpy as np
import pytest

from stores.prefix_match import longest_covered


@pytest.mark.parametrize("window", [None, 1, 2])
def test_a_pool_covers_what_it_holds_of_a_prefix(window: int | None) -> None:
    """Every combination of four pages: the longest prefix of which the pool holds all pages, or those of its window."""
    for flags in product((False, True), repeat=4):
        good = [m for m in range(1, 5) if all(flags[0 if window is None else max(0, m - window) : m])]
        assert longest_covered(4, [(np.array(flags), window)]) == max(good, default=0), flags


def test_every_pool_that_is_asked_for_must_cover_the_same_prefix() -> None:
    """Not the shorter of two lengths: one that both cover."""
    rider, window = np.array([True, True, True, False]), np.array([False, True, False, True])
    assert longest_covered(4, [(rider, None)]) == 3
    assert longest_covered(4, [(window, 1)]) == 4
    assert longest_covered(4, [(rider, None), (window, 1)]) == 2
    assert longest_covered(4, []) == 4
