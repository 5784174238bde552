"""The full recount of a radix tree, for `check_integrity`: every book against what the nodes say."""

from collections.abc import Iterator, Sequence

import numpy as np

from stores.prefix_evict import may_give_kv, may_give_row
from stores.prefix_node import Node, Rows
from stores.prefix_tree import RadixTree


def tree_faults(tree: RadixTree, locks: int) -> list[str]:
    """Return everything that does not add up, in words; `locks` is how many the index says are held."""
    rows, root = tree.rows, tree.root
    nodes = list(_nodes(root))
    out = [fault for node in nodes for fault in _node_faults(rows, node, root)]
    if out:
        return out  # the recounts below rely on the shape
    out += _lock_faults(rows, nodes, locks)
    keys = [key for node in nodes for key in node.keys]
    if len(set(keys)) != len(keys):
        out.append("a page key stands in two places")
    for row, name in enumerate(rows.own):
        slots = np.concatenate([node.slots[row][node.slots[row] >= 0] for node in nodes])
        if len(np.unique(slots)) != len(slots):
            out.append(f"pool {name}: a slot is owned twice")
        if len(slots) != tree.resident[row]:
            out.append(f"pool {name}: {len(slots)} slots are resident, the books say {tree.resident[row]}")
        if row:
            free = sum(int(np.count_nonzero(node.unlocked(row))) for node in nodes)
        else:
            free = sum(node.pages for node in nodes if not node.kv_locks)
        if free != tree.evictable[row]:
            out.append(f"pool {name}: {free} pages are evictable, the books say {tree.evictable[row]}")
        may_give = may_give_row(row) if row else may_give_kv
        out += [
            f"pool {name}: the node at pages {_where(node)} may give pages and is not queued"
            for node in nodes
            if may_give(node) and not tree.queues[row].holds(node)
        ]
    return out


def _nodes(root: Node) -> Iterator[Node]:
    ahead = [root]
    while ahead:
        node = ahead.pop()
        yield node
        ahead.extend(node.children.values())


def _where(node: Node) -> str:
    return f"[{node.start}, {node.end})"


def _node_faults(rows: Rows, node: Node, root: Node) -> Iterator[str]:
    where = f"the node at pages {_where(node)}"
    pages = node.pages
    if node is not root and not pages:
        yield f"{where} is empty"
    if not node.alive:
        yield f"{where} is dead and still in the tree"
    for key, child in node.children.items():
        if child.parent is not node or child.start != node.end or child.keys[:1] != (key,):
            yield f"{where} and its child at pages {_where(child)} do not fit together"
        if child.tick > node.tick and node is not root:
            yield f"{where} was used at tick {node.tick}, before its child at {child.tick}"
    widths = {array.shape[1] for array in (node.slots, node.sources, node.covered, node.locks)}
    if widths != {pages}:
        yield f"{where} has {pages} keys and arrays of {sorted(widths)} pages"
        return
    if bool((node.slots[0] < 0).any()):
        yield f"{where} has pages without kv"
    for row, riders in enumerate(rows.riders_of):
        for rider in riders:
            if bool((node.covered[rider] & (node.slots[row] < 0)).any()):
                yield f"{where}: {rows.riders[rider]} covers pages that {rows.own[row]} does not hold"


def _lock_faults(rows: Rows, nodes: Sequence[Node], locks: int) -> Iterator[str]:
    held = sum(node.anchored for node in nodes)
    if held != locks:
        yield f"{held} locks stand on anchors, the books say {locks}"
    kv = {node.uid: 0 for node in nodes}
    pages = {node.uid: np.zeros_like(node.locks) for node in nodes}
    for anchor in nodes:
        above: Node | None = anchor if anchor.anchored else None
        while above is not None:
            kv[above.uid] += anchor.anchored
            for row, pool in enumerate(rows.layout.own):
                if row:
                    lo, hi = pool.window(0, anchor.end)
                    lo, hi = max(lo, above.start), max(lo, above.start, min(hi, above.end))
                    pages[above.uid][row - 1, lo - above.start : hi - above.start] += anchor.anchored
            above = above.parent
    for node in nodes:
        if kv[node.uid] != node.kv_locks or not np.array_equal(pages[node.uid], node.locks):
            yield f"the node at pages {_where(node)} has locks that no anchor accounts for, or too few"
