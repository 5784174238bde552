"""What SGLang's pools are in our words: the layout of a live cache, and whose each host slot is."""

from collections.abc import Iterable, Sequence
from typing import Any

from lifecycle.errors import ConfigError
from lifecycle.layout import KV, AllPages, Layout, Pool, TrailingPages
from lifecycle.ranges import Range, Ranges

UNKNOWN, HELD, RESIDENT, FREE = range(4)
"""Where a slot is: not known (it was out when we came), held by a prefetch, owned by the tree, given back."""

ENGINE = 0
"""The owner of what the engine itself put into host memory."""


def name_of(pool: object) -> str:
    """Return the plain name of a pool, however SGLang spells it."""
    return str(getattr(pool, "value", pool))


def host_pools(controller: Any) -> dict[str, Any]:
    """Return the host pools by name, kv first; one that is not part of a group is kv."""
    group = controller.mem_pool_host
    entries = getattr(group, "entries", None)
    if entries is None:
        return {KV: group}
    anchor = group.anchor_entry
    return {KV: anchor.host_pool, **{name_of(each.name): each.host_pool for each in entries if each is not anchor}}


def layout_of(tree: Any, controller: Any) -> Layout:
    """Return the layout that a live cache has, every sidecar required, as SGLang has them.

    Raises `ConfigError` for a pool that is declared in no way that is known here.
    """
    page_size = controller.page_size
    riders = [(name_of(s.pool_name), name_of(s.indices_from_pool), name_of(s.hit_policy)) for s in _specs(tree)]
    riding = {name for name, _, _ in riders}
    pools = [Pool(KV)]
    for name in host_pools(controller):
        if name == KV or name in riding or name == "draft":
            continue
        if name == "swa":
            window = -(-int(tree.sliding_window_size) // page_size)
            pools.append(Pool(name, TrailingPages(window)))
        elif name == "mamba":
            pools.append(Pool(name, TrailingPages(1)))
        else:
            raise ConfigError(f"cannot look at pool {name!r}: it is neither a sidecar that rides on another nor swa or mamba")
    own = {pool.name: pool for pool in pools}
    for name, source, policy in riders:
        if source not in own:
            raise ConfigError(f"cannot look at pool {name!r}: it rides on {source!r}, which is not a pool with slots here")
        pools.append(Pool(name, AllPages() if policy == "all_pages" else own[source].coverage, rides_on=source))
    return Layout("sglang", tuple(pools))


class _Spec:
    """A sidecar as `SidecarPoolSpec` has it."""

    def __init__(self, transfer: Any) -> None:
        self.pool_name, self.indices_from_pool = transfer.name, transfer.indices_from_pool
        self.hit_policy = transfer.hit_policy


def _specs(tree: Any) -> list[Any]:
    specs = getattr(tree, "sidecar_pool_specs", None)
    if specs is not None:
        return list(specs)
    extra = getattr(tree, "_get_extra_pools", None)
    return [_Spec(each) for each in (extra() if extra is not None else {}).get("extra_pools", ())]


FEW = 64


def starts(indices: Any, page_size: int) -> list[int]:
    """Return a copy of what a tensor of indices says: the first index of each page."""
    if indices.numel() <= FEW:  # a slice costs more than some numbers too many
        few: list[int] = indices.tolist()[::page_size]
        return few
    firsts: list[int] = indices.numpy()[::page_size].tolist()  # a slice of a tensor costs more than one of an array
    return firsts


class Slots:
    """Whose each slot of one pool is. Slots count in pages: an index of SGLang's divided by the pool's page size."""

    def __init__(self, pool: Any) -> None:
        self.page_size = max(1, int(pool.page_size))
        self.capacity = int(pool.size) // self.page_size
        self._place = bytearray(self.capacity)
        self._owner = [ENGINE] * self.capacity

    def of(self, indices: Sequence[int]) -> list[int]:
        """Return the slots of the first index of each page, in page order."""
        size = self.page_size
        return [index // size for index in indices]

    def take(self, slots: Sequence[int], owner: int, place: int) -> None:
        """Note that slots belong to someone now."""
        count = len(slots)
        if count > 4 and slots[-1] - slots[0] == count - 1 and slots == list(range(slots[0], slots[0] + count)):
            self._place[slots[0] : slots[0] + count] = bytes((place,)) * count
            self._owner[slots[0] : slots[0] + count] = [owner] * count
            return
        for slot in slots:
            self._place[slot] = place
            self._owner[slot] = owner

    def give(self, slots: Sequence[int]) -> dict[tuple[int, int], list[int]]:
        """Note that slots are given back; return them by owner and by where they were."""
        found: dict[tuple[int, int], list[int]] = {}
        for slot in slots:
            key = (self._owner[slot], self._place[slot])
            group = found.get(key)
            if group is None:
                group = found[key] = []
            group.append(slot)
            if key[1]:
                self._place[slot] = FREE
        return found

    def residents(self, indices: Sequence[int]) -> list[int | None]:
        """Return who brought what the tree holds in these slots; None where that was before we came."""
        return [self._owner[slot] if self._place[slot] == RESIDENT else None for slot in self.of(indices)]


def slot_runs(slots: Sequence[int]) -> tuple[Range, ...]:
    """Return consecutive ascending runs of slots, in their order."""
    if not slots:
        return ()
    first, count = slots[0], len(slots)
    if slots[-1] - first == count - 1 and list(slots) == list(range(first, first + count)):
        return ((first, first + count),)
    out: list[Range] = []
    at = 0
    while at < count:
        stop = at + 1
        while stop < count and slots[stop] == slots[stop - 1] + 1:
            stop += 1
        out.append((slots[at], slots[at] + stop - at))
        at = stop
    return tuple(out)


def page_ranges(pages: Iterable[int]) -> Ranges:
    """Return a set of page numbers as ranges."""
    return slot_runs(sorted(pages))
