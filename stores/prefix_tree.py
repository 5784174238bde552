"""The radix tree itself and its books: how many slots each pool has in it, and how many of them could go.

Moves nodes and numbers; which move is allowed is decided in `prefix.py`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lifecycle.layout import KV, Pool
from lifecycle.runtime.ports import SlotArray
from stores.prefix_evict import LruQueue, may_give_kv, may_give_row
from stores.prefix_node import Mask, Node, Rows
from stores.prefix_offer import Offer

Step = tuple[Node, int]  # a node and how many of its pages are on the path
Freed = list[list[NDArray[np.int32]]]  # by row


class Survey(NamedTuple):
    """What the tree has of an offer: kv up to `reached`, along `path`; per row, which offered pages it lacks."""

    path: list[Step]
    reached: int
    lacks: dict[int, Mask]


class RadixTree:
    """Nodes under one root, with running totals per row of `rows`; row 0 is kv."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.resident = [0] * len(rows.own)
        self.evictable = [0] * len(rows.own)
        self.queues = [LruQueue(0, may_give_kv)]
        self.queues += [LruQueue(row, may_give_row(row)) for row in range(1, len(rows.own))]
        self._uid = self.insertions = 0
        self.root = Node(rows, 0, (), 0, 0, 0, 0, 0)

    def walk(self, node: Node, keys: tuple[str, ...], end: int) -> tuple[list[Step], int]:
        """Follow the keys from the end of `node` on, up to page `end`; return the nodes passed and the page reached."""
        path: list[Step] = []
        at = node.end
        while at < end:
            child = node.children.get(keys[at])
            if child is None:
                break
            ahead, held = keys[at : min(end, at + child.pages)], child.keys
            take = len(ahead)
            if held[:take] != ahead:
                take = next(i for i, (have, want) in enumerate(zip(held, ahead, strict=False)) if have != want)
            path.append((child, take))
            at += take
            if take < child.pages:
                break
            node = child
        return path, at

    def gather(self, path: list[Step]) -> tuple[SlotArray, NDArray[np.int64], Mask]:
        """Return copies of slots, sources and coverage along a path."""
        if len(path) == 1:
            node, take = path[0]
            return node.slots[:, :take].copy(), node.sources[:, :take].copy(), node.covered[:, :take].copy()
        root = self.root  # has no page; stands for an empty path
        return (
            np.concatenate([root.slots, *(node.slots[:, :take] for node, take in path)], axis=1),
            np.concatenate([root.sources, *(node.sources[:, :take] for node, take in path)], axis=1),
            np.concatenate([root.covered, *(node.covered[:, :take] for node, take in path)], axis=1),
        )

    def held(self, pool: Pool, slots: SlotArray, covered: Mask) -> Mask:
        """Return which of the gathered pages the pool holds."""
        rider = self.rows.rider.get(pool.name)
        out: Mask = slots[self.rows.row[pool.name]] >= 0 if rider is None else covered[rider]
        return out

    def cut(self, node: Node, pages: int) -> Node:
        """Split a node after `pages` pages and return the upper part."""
        upper = node.split(pages, self._next_uid())
        for queue in self.queues[1:]:
            queue.offer(upper)
        return upper

    def survey(self, anchor: Node, keys: tuple[str, ...], offer: Offer) -> Survey:
        """Compare an offer with the tree, changing nothing."""
        path, reached = self.walk(anchor, keys, offer[KV][1])
        lacks: dict[int, Mask] = {}
        for row, name in enumerate(self.rows.own):
            lo, hi = offer.get(name, (0, 0))
            if not row or lo == hi:
                continue
            mask: Mask = np.ones(hi - lo, np.bool_)
            for node, take in path:
                low, high = max(lo, node.start), min(hi, node.start + take)
                if low < high:
                    mask[low - lo : high - lo] = node.slots[row, low - node.start : high - node.start] < 0
            lacks[row] = mask
        return Survey(path, reached, lacks)

    def grow(
        self, parent: Node, chain: tuple[str, ...], end: int, slots: NDArray[np.int32], source: int, offer: Offer, tick: int
    ) -> Node:  # fmt: skip
        """Hang a node under `parent` for the pages up to `end`, with their kv slots; the caller fills the other rows."""
        start = parent.end
        node = Node(self.rows, start, chain, start, end, tick, self.insertions, self._next_uid())
        node.parent = parent
        parent.children[node.head] = node
        node.slots[0] = slots
        node.sources[0] = source
        for rider in self.rows.riders_of[0]:
            first, last = offer.get(self.rows.riders[rider], (0, 0))
            node.covered[rider, max(0, first - start) : max(0, last - start)] = True
        self.resident[0] += node.pages
        self.evictable[0] += node.pages
        self.queues[0].offer(node)
        return node

    def fill(self, node: Node, row: int, slots: NDArray[np.int32], lacks: Mask, source: int, offer: Offer) -> int:
        """Give a node those of the offered slots of a row beside kv that it lacks, with the coverage that rides on them."""
        lo, hi = offer[self.rows.own[row]]
        low, high = max(lo, node.start), min(hi, node.end)
        if low >= high:
            return 0
        at = slice(low - node.start, high - node.start)
        fresh = lacks[low - lo : high - lo]
        count = int(np.count_nonzero(fresh))
        if not count:
            return 0
        if count == high - low:  # the common case: no mask
            node.slots[row, at] = slots[low - lo : high - lo]
            node.sources[row, at] = source
        else:
            node.slots[row, at][fresh] = slots[low - lo : high - lo][fresh]
            node.sources[row, at][fresh] = source
        for rider in self.rows.riders_of[row]:
            first, last = offer.get(self.rows.riders[rider], (0, 0))
            pages = np.arange(low, high)
            node.covered[rider, at] |= fresh & (pages >= first) & (pages < last)
        self.resident[row] += count
        # A hole in a locked window is locked as soon as it is filled.
        self.evictable[row] += int(np.count_nonzero(fresh & (node.locks[row - 1, at] == 0)))
        self.queues[row].offer(node)
        return count

    def lock_path(self, anchor: Node, by: int) -> None:
        """Add `by` (1 or -1) to the locks of the anchor's prefix: kv from page 0, every other pool its window."""
        end = anchor.end
        windows = [(row, *pool.window(0, end)) for row, pool in enumerate(self.rows.layout.own) if row]
        node: Node | None = anchor
        while node is not None:
            node.kv_locks += by
            if node.kv_locks == (1 if by > 0 else 0):  # the first lock came or the last one went
                self.evictable[0] -= by * node.pages
                self.queues[0].offer(node)
            for row, lo, hi in windows:
                low, high = max(lo, node.start) - node.start, min(hi, node.end) - node.start
                if low >= high:
                    continue
                before = int(np.count_nonzero(node.unlocked(row)[low:high]))
                node.locks[row - 1, low:high] += by
                self.evictable[row] += int(np.count_nonzero(node.unlocked(row)[low:high])) - before
                if by < 0:
                    self.queues[row].offer(node)
            node = node.parent

    def evict_end(self, want: int, freed: Freed) -> tuple[str, int]:
        """Cut up to `want` pages off the least recently used unlocked leaf; return the last key and how many went."""
        node = self.queues[0].pop()
        parent, key = node.parent, node.key
        assert parent is not None, "the root is never a candidate"
        count = min(want, node.pages)
        for row, line in enumerate(node.trim(count)):
            slots = line[line >= 0]
            freed[row].append(slots)
            self.resident[row] -= len(slots)
            self.evictable[row] -= len(slots)  # where kv is unlocked, every pool is
        if node.alive:
            self.queues[0].offer(node)
        else:
            for queue in self.queues:
                queue.forget(node)
            self.queues[0].offer(parent)
        return key, count

    def evict_row(self, row: int, want: int, freed: Freed) -> tuple[str, int]:
        """Take up to `want` unlocked slots of a pool from the least recently used node; return its key and how many."""
        node = self.queues[row].pop()
        pages = np.flatnonzero(node.unlocked(row))[:want]
        freed[row].append(node.slots[row, pages])
        node.slots[row, pages] = -1
        for rider in self.rows.riders_of[row]:
            node.covered[rider, pages] = False
        self.resident[row] -= len(pages)
        self.evictable[row] -= len(pages)
        self.queues[row].offer(node)
        return node.key, len(pages)

    def drop_all(self, freed: Freed) -> None:
        """Make every node dead and collect its slots; the tree is of no use afterwards."""
        ahead = [self.root]
        while ahead:
            node = ahead.pop()
            node.alive = False
            for row, line in enumerate(node.slots):
                freed[row].append(line[line >= 0])
            ahead.extend(node.children.values())

    def _next_uid(self) -> int:
        self._uid += 1
        return self._uid
