"""Prompts and inserts that the tests of the prefix index share."""

import numpy as np

from lifecycle.keys import KeyChain, page_keys
from lifecycle.layout import KV
from stores.prefix import RadixIndex
from stores.prefix_match import RadixAnchor


def prompt(pages: int, branch: int = 0, shared: int = 0) -> KeyChain:
    """Return keys of a prompt: `shared` pages that all branches have, then pages of this branch."""
    return page_keys([*range(2 * shared), *(1000 * branch + i for i in range(2 * shared, 2 * pages))], 2)


def put(
    index: RadixIndex,
    keys: KeyChain,
    *,
    under: RadixAnchor | None = None,
    first: int = 0,
    source: int = 0,
    tick: int = 0,
    **offer: tuple[int, int] | None,
) -> RadixAnchor:
    """Insert the prompt's pages from the anchor on, all pools covered as a prefix needs; page p gets slot first + p."""
    under = under or index.root
    ranges = {KV: (under.pages, len(keys))}
    for pool in index._layout.pools:
        ranges.setdefault(pool.name, pool.window(under.pages, len(keys)))
    ranges = {name: r for name, r in {**ranges, **offer}.items() if r is not None}
    slots = {name: np.arange(lo + first, hi + first, dtype=np.int32) for name, (lo, hi) in ranges.items()}
    return index.insert(under, keys, ranges, slots, source, tick)
