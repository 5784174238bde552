"""Which pages of a chain are worth writing to L3 now. A pure rule: knows no store, no clock, no bytes.

What L3 holds is of use only as far as a prefix can be restored from it, so the head of a chain is never skipped: a page that
L3 lacks is written before those behind it, whoever wrote them, whenever that was, and however long host memory has had it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lifecycle.coverage import Flags, leading_run, longest, restorable, whole_windows
from lifecycle.errors import ConfigError
from lifecycle.layout import Layout, Pool, TrailingPages

PageNumbers = NDArray[np.intp]
"""Absolute page numbers, ascending."""


def due_pages(
    layout: Layout, there: Mapping[str, Flags], held: Mapping[str, Flags], degrade: bool = False
) -> dict[str, PageNumbers]:
    """Return, per pool, the pages that L3 is to get, in chain order.

    `there` and `held` say, per pool of the layout and for each page from 0 on, whether L3 seems to hold it and whether host
    memory does. A page is due if host memory holds it, L3 seems not to, and with what both hold some length that needs it can
    be restored: nothing behind a page that neither has, and of a trailing pool nothing of a window with a hole in it. Raises
    `ConfigError` where the pools are not those of the layout or the lengths differ.
    """
    _check(layout, there, held)
    either = {pool.name: np.asarray(there[pool.name]) | held[pool.name] for pool in layout.pools}
    lengths = restorable(layout, degrade, either)
    reach = longest(lengths, 0)
    due = {}
    for pool in layout.pools:
        wanted = _wanted(pool, lengths, reach, either[pool.name])
        due[pool.name] = np.flatnonzero(wanted & held[pool.name] & ~np.asarray(there[pool.name]))
    return due


def _wanted(pool: Pool, lengths: Flags, reach: int, either: Flags) -> Flags:
    """Return which pages of the pool some restorable length needs."""
    pages = np.arange(len(lengths))
    if not isinstance(pool.coverage, TrailingPages):
        return pages < min(reach, leading_run(either))
    window_pages = pool.coverage.window_pages
    ends = np.flatnonzero(lengths & whole_windows(either, window_pages)) + 1
    following = np.append(ends, len(pages) + window_pages + 1)[np.searchsorted(ends, pages, side="right")]
    return pages >= following - window_pages  # the first length that ends behind the page reaches back to it


def _check(layout: Layout, there: Mapping[str, Flags], held: Mapping[str, Flags]) -> None:
    pools = {pool.name for pool in layout.pools}
    sizes = {len(flags) for flags in (*there.values(), *held.values())}
    if there.keys() != pools or held.keys() != pools or len(sizes) > 1:
        raise ConfigError(
            f"cannot say which pages are due: there are flags for {', '.join(there)} and {', '.join(held)}, of lengths"
            f" {sorted(sizes)} (give both for each of {', '.join(sorted(pools))}, one flag per page)"
        )
