"""What a match hands out: the place in the tree, and a copy of what the tree held there."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.layout import KV
from lifecycle.runtime.ports import SlotArray
from stores.prefix_node import Mask, Node, Rows


@dataclass(frozen=True, slots=True)
class RadixAnchor:
    """The end of a prefix of `pages` pages. Equal only to handles on the same stay of that prefix in the same index."""

    pages: int
    key: str
    node: Node = field(repr=False)
    root: Node = field(repr=False)

    @property
    def is_live(self) -> bool:
        """Whether the last page is still where it was when the handle was made."""
        return self.node.alive and self.node.end == self.pages


class RadixMatch:
    """The longest prefix that the pools asked for cover. A copy: later changes of the index do not show in it.

    The slots are good to read for as long as the anchor is locked.
    """

    __slots__ = ("_covered", "_rows", "_slots", "_sources", "anchor", "pages")

    def __init__(self, rows: Rows, anchor: RadixAnchor, slots: SlotArray, covered: Mask, sources: NDArray[np.int64]) -> None:
        self.pages = anchor.pages
        self.anchor = anchor
        self._rows = rows
        self._slots, self._covered, self._sources = slots, covered, sources

    @property
    def sources(self) -> tuple[tuple[int, int, int], ...]:
        """Which prefetch brought which kv pages: (start, stop, prefetch id; 0 for the engine), in order."""
        return self.sources_of(KV)

    def sources_of(self, pool: str) -> tuple[tuple[int, int, int], ...]:
        """Return the same for what `pool` holds (a riding pool: for its owner's slots); pages it lacks are left out."""
        row = self._rows.row[self._rows.layout.owner(pool)]
        line, held = self._sources[row], self.slots(pool) >= 0
        cuts = np.flatnonzero((line[1:] != line[:-1]) | (held[1:] != held[:-1])) + 1
        edges = [0, *cuts.tolist(), self.pages]
        return tuple((lo, hi, int(line[lo])) for lo, hi in pairwise(edges) if lo < hi and held[lo])

    def slots(self, pool: str, lo: int = 0, hi: int | None = None) -> SlotArray:
        """Return the slots of the pages [lo, hi), by default all; -1 where the pool does not cover the page.

        A pool that rides on another answers with that pool's slots. Raises `ConfigError` outside [0, pages).
        """
        hi = self.pages if hi is None else hi
        if not 0 <= lo <= hi <= self.pages:
            raise ConfigError(f"cannot give slots of pages [{lo}, {hi}): the match has {self.pages} pages")
        rows = self._rows
        slots: SlotArray = self._slots[rows.row[rows.layout.owner(pool)], lo:hi].copy()
        if pool in rows.rider:
            slots[~self._covered[rows.rider[pool], lo:hi]] = -1
        return slots


def longest_covered(pages: int, wanted: Iterable[tuple[Mask, int | None]]) -> int:
    """Return the longest m <= pages that every pool covers, from (which pages it holds, trailing window or None)."""
    good: Mask | None = None
    for held, window in wanted:
        if held.all():
            continue
        at = np.arange(pages)
        # For m = at + 1: the last page below m that is missing, or -1.
        last_hole = np.maximum.accumulate(np.where(held, -1, at))
        fits = last_hole < (0 if window is None else np.maximum(0, at + 1 - window))
        good = fits if good is None else good & fits
    if good is None:
        return pages
    ends = np.flatnonzero(good)
    return int(ends[-1]) + 1 if ends.size else 0
