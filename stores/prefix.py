"""The prefix index of L2: a radix tree over page keys, with per-pool coverage, provenance, locks and LRU by tick.

Reference implementation of `ports.PrefixIndex`. Knows slot numbers and keys, never bytes. All verbs belong to the
scheduler thread. No verb but `reset` and `check_integrity` costs more than the path it walks or the pages it drops.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from lifecycle.errors import AnchorLost, ConfigError, HostExhausted, IntegrityError, ObligationError
from lifecycle.layout import KV, Layout
from lifecycle.ranges import EMPTY, Ranges, runs, span
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import Anchor, InsertPlan, SlotArray
from stores.prefix_check import tree_faults
from stores.prefix_match import RadixAnchor, RadixMatch, longest_covered
from stores.prefix_node import Node, Rows
from stores.prefix_offer import check_offer, check_slots, check_taken
from stores.prefix_tree import Freed, RadixTree


class RadixIndex:
    """Keep which prefixes host memory holds. Keys are chained digests: a page's key stands for the prefix up to it.

    `degrade` spares the rebuildable pools in a match that names no pools. Anchors are handles on the end of a prefix;
    they survive splits and are lost when that page is evicted or the index is reset, even if the prefix comes back.
    """

    def __init__(self, layout: Layout, degrade: bool = False) -> None:
        self.layout = self._layout = layout
        self.degrade = degrade
        self._rows = Rows(layout)
        self._required = layout.required(degrade)
        self._tree = RadixTree(self._rows)
        self._locks = 0
        self._hash = xxhash.xxh3_64()

    @property
    def root(self) -> RadixAnchor:
        """The place before page 0."""
        return self._anchor(self._tree.root)

    def match(self, keys: Sequence[str], tick: int, pools: Sequence[str] | None = None) -> RadixMatch:
        """Return the longest prefix that `pools` (default: all required ones) cover, and mark it used at `tick`.

        kv is always asked for. May split a node, so that the place found is the end of one.
        """
        asked = self._required if pools is None else tuple(self._layout.pool(name) for name in pools)
        tree = self._tree
        path, reached = tree.walk(tree.root, _chain(keys), len(keys))
        slots, sources, covered = tree.gather(path)
        pages = longest_covered(
            reached, [(tree.held(pool, slots, covered), Rows.window(pool)) for pool in asked if pool.name != KV]
        )
        node = tree.root
        for step, pages_of_step in path:
            if step.start >= pages:
                break
            take = min(pages_of_step, pages - step.start)
            node = step if take == step.pages else tree.cut(step, take)
            node.touch(tick)
        return RadixMatch(self._rows, self._anchor(node), slots[:, :pages], covered[:, :pages], sources[:, :pages])

    def lock(self, anchor: Anchor) -> None:
        """Keep kv and what rides on it for the anchor's whole prefix, and every other pool's window at its end.

        Raises `AnchorLost`, having locked nothing, if the place is gone.
        """
        node = self._live("lock", anchor)
        self._tree.lock_path(node, 1)
        node.anchored += 1
        self._locks += 1
        self._note("lock", node.key)

    def unlock(self, anchor: Anchor) -> None:
        """Drop one lock. Raises `ObligationError`, having changed nothing, if the anchor is not locked."""
        node = self._find(anchor)
        if node is None or not node.anchored:
            what = f"unlock the anchor at page {anchor.pages}"
            raise ObligationError(0, what, "it is not locked in this index (unlock once per lock)")
        self._tree.lock_path(node, -1)
        node.anchored -= 1
        self._locks -= 1
        self._note("unlock", node.key)

    def plan_insert(self, anchor: Anchor, keys: Sequence[str], offer: Mapping[str, tuple[int, int]]) -> InsertPlan | Reason:
        """Say what `insert` would take, changing nothing.

        `keys` are those of the prompt from page 0 on. `offer["kv"]` is [anchor.pages, u); other pools offer ranges
        within it. kv pages are taken where the tree has none; pages of another pool with own slots where it holds no
        slot; what rides on a pool follows the pages that are taken of it, so a duplicate keeps the coverage it has.
        Returns `Reason.ANCHOR_LOST` if the place is gone, `Reason.INSERT_DROPPED` if the keys do not pass the anchor.
        Raises `ConfigError` for an offer that makes no sense.
        """
        chain = _chain(keys)
        check_offer(self._rows, anchor, len(chain), offer)
        node = self._find(anchor)
        if node is None:
            return Reason.ANCHOR_LOST
        if node.pages and chain[node.end - 1] != node.key:
            return Reason.INSERT_DROPPED
        survey = self._tree.survey(node, chain, offer)
        taken: dict[str, Ranges] = dict.fromkeys(self._rows.own, EMPTY)
        taken[KV] = span(survey.reached, offer[KV][1])
        for row, lacks in survey.lacks.items():
            name = self._rows.own[row]
            taken[name] = runs((np.flatnonzero(lacks) + offer[name][0]).astype(np.int32))
        return InsertPlan(offer[KV][1], taken)

    def insert(
        self,
        anchor: Anchor,
        keys: Sequence[str],
        offer: Mapping[str, tuple[int, int]],
        slots: Mapping[str, SlotArray],
        source: int,
        tick: int,
    ) -> RadixAnchor:
        """Take what `plan_insert` said, now owning those slots; return the place at the end of the offer.

        `slots[pool]` has one slot per page of `offer[pool]` for each pool with own slots; those of pages that are not
        taken stay the caller's. Raises `AnchorLost` or `ConfigError` having taken nothing.
        """
        chain = _chain(keys)
        check_offer(self._rows, anchor, len(chain), offer)
        given = check_slots(self._rows, offer, slots)
        node = self._live("insert under", anchor)
        if node.pages and chain[node.end - 1] != node.key:
            raise ConfigError(f"cannot insert at page {node.end}: the keys do not pass the anchor (match them again)")
        tree, end = self._tree, offer[KV][1]
        path, reached, lacks = tree.survey(node, chain, offer)
        fresh_kv = given[0][reached - node.end :]
        check_taken(self._rows, given, fresh_kv, lacks)
        steps = [step if take == step.pages else tree.cut(step, take) for step, take in path]
        tree.insertions += 1
        counts = [end - reached] + [0] * (len(self._rows.own) - 1)
        if reached < end:
            steps.append(tree.grow(steps[-1] if steps else node, chain, end, fresh_kv, source, offer, tick))
        for row, mask in lacks.items():
            counts[row] = sum(tree.fill(step, row, given[row], mask, source, offer) for step in steps)
        last = steps[-1] if steps else node
        above: Node | None = last
        while above is not None:
            above.touch(tick)
            above = above.parent
        self._note("insert", last.key, end, source, *counts)
        return self._anchor(last)

    def evictable_pages(self, pool: str) -> int:
        """Return how many pages of the pool (a riding pool: of its owner) `evict` could give back now."""
        return self._tree.evictable[self._rows.row[self._layout.owner(pool)]]

    def evict(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Drop at least `need` pages per pool, least recently used first; return every slot freed, in every own pool.

        kv goes first, from the ends of unlocked leaves, with all that other pools hold for those pages; what they still
        need goes from any unlocked page, lowest page first. Raises `HostExhausted`, having dropped nothing, if a pool
        cannot give what is needed.
        """
        tree = self._tree
        for name, pages in need.items():
            own = self._rows.row.get(name)
            if own is None or pages < 0:
                names = ", ".join(self._rows.own)
                raise ConfigError(f"cannot evict {pages} pages of pool {name!r}: ask for 0 or more of {names}")
            if pages > tree.evictable[own]:
                raise HostExhausted(name, pages, tree.evictable[own])
        freed: Freed = [[] for _ in self._rows.own]
        left = need.get(KV, 0)
        while left > 0:
            key, count = tree.evict_end(left, freed)
            left -= count
            self._note("evict", key, KV, count)
        for row, name in enumerate(self._rows.own):
            left = need.get(name, 0) - sum(map(len, freed[row])) if row else 0
            while left > 0:
                key, count = tree.evict_row(row, left, freed)
                left -= count
                self._note("evict", key, name, count)
        return self._joined(freed)

    def reset(self) -> dict[str, SlotArray]:
        """Drop everything, locked or not, and return the slots of every own pool. All anchors made before are lost."""
        freed: Freed = [[] for _ in self._rows.own]
        self._tree.drop_all(freed)
        self._tree = RadixTree(self._rows)
        self._locks = 0
        self._note("reset", *(sum(map(len, parts)) for parts in freed))
        return self._joined(freed)

    def resident_pages(self, pool: str) -> int:
        """Return how many slots of the pool (a riding pool: of its owner) the index owns."""
        return self._tree.resident[self._rows.row[self._layout.owner(pool)]]

    def lock_count(self) -> int:
        """Return how many locks are held (each `lock` not yet undone counts one)."""
        return self._locks

    def digest(self) -> int:
        """Return 62 bits that stand for what was inserted, evicted, locked and unlocked so far; never for slots."""
        return self._hash.intdigest() >> 2

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the tree's own books do not add up. Walks the whole tree."""
        faults = tree_faults(self._tree, self._locks)
        if faults:
            raise IntegrityError("prefix index", faults)

    def _joined(self, freed: Freed) -> dict[str, SlotArray]:
        empty = np.empty(0, np.int32)
        return {name: np.concatenate([empty, *parts]) for name, parts in zip(self._rows.own, freed, strict=True)}

    def _anchor(self, node: Node) -> RadixAnchor:
        return RadixAnchor(node.end, node.key, node, self._tree.root)

    def _find(self, anchor: Anchor) -> Node | None:
        if isinstance(anchor, RadixAnchor) and anchor.root is self._tree.root and anchor.is_live:
            return anchor.node
        return None

    def _live(self, verb: str, anchor: Anchor) -> Node:
        node = self._find(anchor)
        if node is None:
            where = f"the anchor at page {anchor.pages} (key {anchor.key[:12] or 'none'})"
            raise AnchorLost(f"cannot {verb} {where}: it is not in the index any more (match the prompt again)")
        return node

    def _note(self, *facts: object) -> None:
        self._hash.update(repr(facts).encode())


def _chain(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys as a tuple, uncopied where they are one: a copy touches every key."""
    return keys if isinstance(keys, tuple) else tuple(keys)
