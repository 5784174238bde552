"""What is offered to the prefix index, checked before anything changes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.layout import KV
from lifecycle.runtime.ports import Anchor, SlotArray
from stores.prefix_node import Mask, Rows

Offer = Mapping[str, tuple[int, int]]


def check_offer(rows: Rows, anchor: Anchor, keys: int, offer: Offer) -> None:
    """Raise `ConfigError` unless kv offers [anchor.pages, u), every other pool a range within, and there are u keys."""
    start, end = offer.get(KV, (-1, -1))
    if start != anchor.pages or end < start:
        raise ConfigError(f"cannot insert: kv offers {offer.get(KV)}, the anchor is at {anchor.pages} (start there)")
    if keys < end:
        raise ConfigError(f"cannot insert up to page {end}: there are {keys} keys (give those from page 0 on)")
    for name, (lo, hi) in offer.items():
        rows.layout.pool(name)
        if lo > hi or (lo < hi and not start <= lo <= hi <= end):
            raise ConfigError(f"cannot insert: {name} offers [{lo}, {hi}), which is not within kv's [{start}, {end})")


def check_slots(rows: Rows, offer: Offer, slots: Mapping[str, SlotArray]) -> list[NDArray[np.int32]]:
    """Return the slots by row, or raise `ConfigError` unless each own pool has one slot per page that it offers."""
    given: list[NDArray[np.int32]] = []
    for name in rows.own:
        lo, hi = offer.get(name, (0, 0))
        array = np.asarray(slots.get(name, ()), np.int32)
        if array.shape != (hi - lo,):
            raise ConfigError(f"cannot insert: {name} offers {hi - lo} pages with slots of shape {array.shape}")
        given.append(array)
    return given


def check_taken(rows: Rows, given: list[NDArray[np.int32]], fresh_kv: NDArray[np.int32], lacks: Mapping[int, Mask]) -> None:
    """Raise `ConfigError` unless each page that is taken has a slot; what stands beside the others does not matter."""
    for row, taken in ((0, fresh_kv), *((row, given[row][mask]) for row, mask in lacks.items())):
        if taken.size and (slot := int(taken.min())) < 0:
            raise ConfigError(f"cannot insert: {rows.own[row]} offers slot {slot} (slots count from 0)")
