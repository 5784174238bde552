"""What the radix tree is made of: runs of pages with their slots, sources, coverage and locks.

Arrays have one row per pool and one column per page. Knows nothing of eviction order or of the other nodes' books.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifecycle.layout import Layout, Pool, TrailingPages
from lifecycle.runtime.ports import SlotArray

Mask = NDArray[np.bool_]


class Rows:
    """Which row of a node's arrays belongs to which pool: kv is row 0 of the pools with own slots."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.own = tuple(pool.name for pool in layout.own)
        self.row = {name: row for row, name in enumerate(self.own)}
        riders = [pool for pool in layout.pools if pool.rides_on is not None]
        self.riders = tuple(pool.name for pool in riders)
        self.rider = {name: row for row, name in enumerate(self.riders)}
        self.riders_of = tuple(tuple(row for row, rider in enumerate(riders) if rider.rides_on == name) for name in self.own)

    @staticmethod
    def window(pool: Pool) -> int | None:
        """Return the trailing window in pages, or None where the pool covers all pages."""
        return pool.coverage.window_pages if isinstance(pool.coverage, TrailingPages) else None


class Node:
    """The pages [start, end) of every prefix that passes through here.

    `slots[row]` is -1 where the pool holds nothing. `kv_locks` counts the locked anchors at or below this node; `locks`
    has, for each pool with own slots but kv, the locks of each page. `anchored` counts those on its own end.
    """

    __slots__ = (
        "_chain",
        "_first",
        "alive",
        "anchored",
        "children",
        "covered",
        "kv_locks",
        "locks",
        "number",
        "pages",
        "parent",
        "queued",
        "slots",
        "sources",
        "start",
        "tick",
        "uid",
    )

    def __init__(
        self, rows: Rows, start: int, chain: tuple[str, ...], lo: int, hi: int, tick: int, number: int, uid: int
    ) -> None:  # fmt: skip
        pages = hi - lo
        self.start = start
        self.share(chain, lo, hi)
        self.parent: Node | None = None
        self.children: dict[str, Node] = {}
        self.slots: SlotArray = np.full((len(rows.own), pages), -1, np.int32)
        self.sources: NDArray[np.int64] = np.zeros((len(rows.own), pages), np.int64)
        self.covered: Mask = np.zeros((len(rows.riders), pages), np.bool_)
        self.locks: NDArray[np.int32] = np.zeros((len(rows.own) - 1, pages), np.int32)
        self.kv_locks = self.anchored = 0
        self.tick, self.number, self.uid = tick, number, uid
        self.alive = True
        self.queued = 0  # one bit per pool: the node stands in that pool's queue of candidates

    @property
    def keys(self) -> tuple[str, ...]:
        """The page keys; a copy, so ask for `pages`, `head` and `key` where those do."""
        return self._chain[self._first : self._first + self.pages]

    @keys.setter
    def keys(self, keys: tuple[str, ...]) -> None:
        self._chain, self._first, self.pages = keys, 0, len(keys)

    def share(self, chain: tuple[str, ...], lo: int, hi: int) -> None:
        """Take the keys [lo, hi) of a chain: in place where they are most of it, since a copy touches every key."""
        if 2 * (hi - lo) >= len(chain):
            self._chain, self._first, self.pages = chain, lo, hi - lo
        else:
            self.keys = chain[lo:hi]

    @property
    def end(self) -> int:
        """The page after the last one."""
        return self.start + self.pages

    @property
    def head(self) -> str:
        """The key of the first page, under which the parent has the node."""
        return self._chain[self._first]

    @property
    def key(self) -> str:
        """The key of the last page; empty at the root."""
        return self._chain[self._first + self.pages - 1] if self.pages else ""

    def touch(self, tick: int) -> None:
        """Mark the node used at `tick`."""
        if tick > self.tick:
            self.tick = tick

    def unlocked(self, row: int) -> Mask:
        """Return which pages hold a slot of the pool that could be dropped without dropping kv (row 1 and up)."""
        out: Mask = (self.slots[row] >= 0) & (self.locks[row - 1] == 0)
        return out

    def split(self, pages: int, uid: int) -> "Node":
        """Move the first `pages` pages to a new node above this one and return it; what is left keeps its identity.

        Anchors point at ends, so they stay good. Both parts keep locks, tick and insertion number.
        """
        parent = self.parent
        assert parent is not None, "the root has no pages to split"
        assert 0 < pages < self.pages, "a split leaves pages on both sides"
        upper = Node.__new__(Node)
        keys = self.keys
        upper.start, upper.keys = self.start, keys[:pages]
        for name in ("slots", "sources", "covered", "locks"):
            array: NDArray[Any] = getattr(self, name)
            setattr(upper, name, array[:, :pages].copy())
            setattr(self, name, array[:, pages:].copy())
        upper.kv_locks, upper.anchored = self.kv_locks, 0
        upper.tick, upper.number, upper.uid = self.tick, self.number, uid
        upper.alive, upper.queued = True, 0
        self.start, self.keys = self.start + pages, keys[pages:]
        upper.parent, upper.children = parent, {self.head: self}
        parent.children[upper.head] = upper
        self.parent = upper
        return upper

    def trim(self, pages: int) -> SlotArray:
        """Drop the last `pages` pages and return their slots per row (-1: none); with no page left the node is dead."""
        left = self.pages - pages
        dropped: SlotArray = self.slots[:, left:].copy()
        if not left:
            assert self.parent is not None, "the root has no pages to drop"
            del self.parent.children[self.head]
            self.alive = False
            return dropped
        self.keys = self.keys[:left]
        for name in ("slots", "sources", "covered", "locks"):
            array: NDArray[Any] = getattr(self, name)
            setattr(self, name, array[:, :left].copy())
        return dropped
