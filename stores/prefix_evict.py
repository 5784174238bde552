"""In which order the tree gives pages up: the nodes that might, least recently used first."""

import heapq
from collections.abc import Callable

from stores.prefix_node import Node

_Entry = tuple[int, int, int, int, Node]


class LruQueue:
    """The nodes that may give pages of one pool, by (last tick, insertion number, first page).

    A node stands in the queue at most once and its entry is looked at only when it comes up. A node's place
    only moves back, so an outdated entry comes up too early, never too late, and is put in again. `may_give` says
    whether a node is (still) a candidate.
    """

    def __init__(self, bit: int, may_give: Callable[[Node], bool]) -> None:
        self._bit = 1 << bit
        self._may_give = may_give
        self._heap: list[_Entry] = []
        self._dead = 0

    def offer(self, node: Node) -> None:
        """Put a node in, if it may give pages and is not there."""
        if not node.queued & self._bit and self._may_give(node):
            node.queued |= self._bit
            heapq.heappush(self._heap, _entry(node))

    def holds(self, node: Node) -> bool:
        """Say whether the node stands in the queue."""
        return bool(node.queued & self._bit)

    def forget(self, node: Node) -> None:
        """Note that a node died; dead entries are swept out before they are the greater part."""
        if not node.queued & self._bit:
            return
        self._dead += 1
        if self._dead > 64 and 2 * self._dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[4].alive]
            heapq.heapify(self._heap)
            self._dead = 0

    def pop(self) -> Node:
        """Take out the least recently used node that may give pages. The caller knows that there is one."""
        while True:
            entry = heapq.heappop(self._heap)
            node = entry[4]
            if not node.alive:
                self._dead -= 1
                continue
            if not self._may_give(node):
                node.queued &= ~self._bit
            elif entry[:3] != (node.tick, node.number, node.start):
                heapq.heappush(self._heap, _entry(node))
            else:
                node.queued &= ~self._bit
                return node


def _entry(node: Node) -> _Entry:
    return node.tick, node.number, node.start, node.uid, node


def may_give_kv(node: Node) -> bool:
    """Say whether the end of the node can be cut off: an unlocked leaf."""
    return node.alive and node.parent is not None and not node.children and not node.kv_locks


def may_give_row(row: int) -> Callable[[Node], bool]:
    """Return the test for another pool: any page that holds an unlocked slot of it."""
    return lambda node: node.alive and bool(node.unlocked(row).any())
