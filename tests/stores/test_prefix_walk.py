"""Random walks over the prefix index, beside a brute-force model and a second rank with other slot numbers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lifecycle.errors import AnchorLost, HostExhausted, ObligationError
from lifecycle.layout import KV, AllPages, Layout, Need, Pool, TrailingPages, deepseek_v4, dsa, kv_only, mamba, swa
from lifecycle.ranges import runs
from lifecycle.reasons import Reason
from stores.prefix import RadixIndex

SHIFT = 1000  # the other rank's slots

ODD = Layout(
    "odd",
    (
        Pool(KV),
        Pool("tail", TrailingPages(3), rides_on=KV, need=Need.OPTIONAL),
        Pool("extra", AllPages()),
        Pool("extra_tail", TrailingPages(2), rides_on="extra"),
    ),
)

LAYOUTS = [kv_only(draft=True), dsa(draft=True), swa(3), mamba(), deepseek_v4(2, draft=True), ODD]

prompts = st.lists(st.sampled_from("ab"), max_size=9).map(
    lambda letters: tuple("".join(letters[: i + 1]) for i in range(len(letters)))
)  # like digests: each key stands for all before it


Keys = tuple[str, ...]


@dataclass(eq=False)
class Page:
    """One page of one prefix; a page that comes back is another record."""

    prefix: Keys
    tick: int
    number: int
    slots: dict[str, int]
    sources: dict[str, int]
    riders: set[str] = field(default_factory=set)


class Model:
    """What the index must do, found by looking at all pages: no tree, no counters, no queues."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.number = layout, 0
        self.pages: dict[Keys, Page] = {}
        self.locks: list[Page | None] = []  # None: the root

    def has(self, pool: str, prefix: Keys) -> bool:
        page = self.pages.get(prefix)
        return page is not None and (pool in page.slots or pool in page.riders)

    def match(self, keys: Keys, tick: int, pools: list[str]) -> int:
        def fits(m: int) -> bool:
            for name in {KV, *pools}:
                cover = self.layout.pool(name).coverage
                lo = max(0, m - cover.window_pages) if isinstance(cover, TrailingPages) else 0
                if not all(self.has(name, keys[: i + 1]) for i in range(lo, m)):
                    return False
            return all(keys[: i + 1] in self.pages for i in range(m))

        best = max(m for m in range(len(keys) + 1) if fits(m))
        self.touch(keys[:best], tick)
        return best

    def touch(self, prefix: Keys, tick: int) -> None:
        for i in range(len(prefix)):
            page = self.pages[prefix[: i + 1]]
            page.tick = max(page.tick, tick)

    def locked(self, pool: str, page: Page) -> bool:
        def covers(end: Page) -> bool:
            cover, length = self.layout.pool(pool).coverage, len(end.prefix)
            lo = length - cover.window_pages if isinstance(cover, TrailingPages) else 0
            return lo < len(page.prefix) <= length and end.prefix[: len(page.prefix)] == page.prefix

        return any(end is not None and covers(end) for end in self.locks)

    def takes(self, pool: str, keys: Keys, lo: int, hi: int) -> list[int]:
        return [i for i in range(lo, hi) if not self.has(pool, keys[: i + 1])]

    def insert(self, keys: Keys, offer: dict[str, tuple[int, int]], slots: dict[str, Any], source: int, tick: int) -> None:
        self.number += 1
        for own in self.layout.own:
            lo, hi = offer.get(own.name, (0, 0))
            for i in self.takes(own.name, keys, lo, hi):
                new = Page(keys[: i + 1], tick, self.number, {}, {})
                page = self.pages.setdefault(keys[: i + 1], new)
                page.slots[own.name], page.sources[own.name] = int(slots[own.name][i - lo]), source
                for rider in self.layout.pools:
                    first, last = offer.get(rider.name, (0, 0))
                    if rider.rides_on == own.name and first <= i < last:
                        page.riders.add(rider.name)
        self.touch(keys[: offer[KV][1]], tick)

    def evictable(self, pool: str) -> list[Page]:
        return [page for page in self.pages.values() if pool in page.slots and not self.locked(pool, page)]

    def evict(self, need: dict[str, int]) -> dict[str, list[int]]:
        freed: dict[str, list[int]] = {own.name: [] for own in self.layout.own}
        for pool in freed:
            while len(freed[pool]) < need.get(pool, 0):
                able = self.evictable(pool)
                if pool == KV:
                    inner = {prefix[:-1] for prefix in self.pages}
                    able = [page for page in able if page.prefix not in inner]
                page = min(able, key=lambda p: (p.tick, p.number, len(p.prefix)))
                for name in list(page.slots) if pool == KV else [pool]:
                    freed[name].append(page.slots.pop(name))
                    page.riders -= {rider.name for rider in self.layout.pools if rider.rides_on == name}
                if pool == KV:
                    del self.pages[page.prefix]
        return freed


class Walk(RuleBasedStateMachine):
    """Feed the same calls to an index, to a second rank, and to the model."""

    layout: Layout

    def __init__(self) -> None:
        super().__init__()
        self.index, self.peer, self.model = RadixIndex(self.layout), RadixIndex(self.layout), Model(self.layout)
        self.anchors: list[tuple[Any, Any, Page | None]] = [(self.index.root, self.peer.root, None)]
        self.tick = self.slot = 0

    def remember(self, mine: Any, theirs: Any, prefix: Keys) -> None:
        assert (mine.pages, mine.key) == (theirs.pages, theirs.key) == (len(prefix), prefix[-1] if prefix else "")
        self.anchors.append((mine, theirs, self.model.pages[prefix] if prefix else None))

    def is_live(self, page: Page | None) -> bool:
        return page is None or self.model.pages.get(page.prefix) is page

    @rule(keys=prompts, some=st.integers(0, 63), default=st.booleans(), step=st.integers(0, 2))
    def match(self, keys: Keys, some: int, default: bool, step: int) -> None:
        self.tick += step
        names = [pool.name for pool in self.layout.pools]
        pools = [name for i, name in enumerate(names) if some >> i & 1]
        if default:
            pools = [pool.name for pool in self.layout.required()]
        mine = self.index.match(keys, self.tick, None if default else pools)
        theirs = self.peer.match(keys, self.tick, None if default else pools)
        assert mine.pages == theirs.pages == self.model.match(keys, self.tick, pools)
        pages = [self.model.pages[keys[: i + 1]] for i in range(mine.pages)]
        for name in names:
            owner = self.layout.owner(name)
            expected = [p.slots[owner] if self.model.has(name, p.prefix) else -1 for p in pages]
            assert mine.slots(name).tolist() == expected
            assert mine.slots(name, 1).tolist() == expected[1:] if pages else True
        brought = [source for lo, hi, source in mine.sources for _ in range(lo, hi)]
        assert brought == [page.sources[KV] for page in pages]
        assert mine.sources == theirs.sources
        self.remember(mine.anchor, theirs.anchor, keys[: mine.pages])

    @rule(data=st.data(), more=prompts, source=st.integers(0, 3), step=st.integers(0, 1))
    def insert(self, data: st.DataObject, more: Keys, source: int, step: int) -> None:
        self.tick += step
        mine, theirs, page = data.draw(st.sampled_from(self.anchors[-8:]))
        start = mine.pages
        head = page.prefix if page else ()
        keys = head + tuple((head[-1] if head else "") + key for key in more)
        offer = {KV: (start, len(keys))}
        for pool in self.layout.pools:
            if pool.name != KV and data.draw(st.sampled_from([True, True, False])):
                lo, hi = pool.window(start, len(keys))
                offer[pool.name] = (lo, data.draw(st.sampled_from([hi, hi, (lo + hi) // 2])))
        slots = {}
        for own in self.layout.own:
            lo, hi = offer.get(own.name, (0, 0))
            slots[own.name] = np.arange(self.slot, self.slot + hi - lo, dtype=np.int32)
            self.slot += hi - lo
        plan, digest = self.index.plan_insert(mine, keys, offer), self.index.digest()
        assert self.peer.plan_insert(theirs, keys, offer) == plan
        if not self.is_live(page):
            assert plan is Reason.ANCHOR_LOST
            with pytest.raises(AnchorLost):
                self.index.insert(mine, keys, offer, slots, source, self.tick)
            assert self.index.digest() == digest
            return
        assert not isinstance(plan, Reason)
        assert plan.end_page == len(keys)
        expected = {o.name: runs(self.model.takes(o.name, keys, *offer.get(o.name, (0, 0)))) for o in self.layout.own}
        assert plan.taken == expected
        self.model.insert(keys, offer, slots, source, self.tick)
        end = self.index.insert(mine, keys, offer, slots, source, self.tick)
        shifted = {name: array + SHIFT for name, array in slots.items()}
        self.remember(end, self.peer.insert(theirs, keys, offer, shifted, source, self.tick), keys)

    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        mine, theirs, page = data.draw(st.sampled_from(self.anchors))
        if self.is_live(page):
            self.index.lock(mine)
            self.peer.lock(theirs)
            self.model.locks.append(page)
        else:
            with pytest.raises(AnchorLost):
                self.index.lock(mine)

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        mine, theirs, page = data.draw(st.sampled_from(self.anchors))
        if page in self.model.locks:
            self.index.unlock(mine)
            self.peer.unlock(theirs)
            self.model.locks.remove(page)
        else:
            with pytest.raises(ObligationError):
                self.index.unlock(mine)

    @precondition(lambda self: self.model.locks)
    @rule(data=st.data())
    def unlock_what_is_locked(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.model.locks))
        mine, theirs, _ = next(entry for entry in self.anchors if entry[2] is page)
        self.index.unlock(mine)
        self.peer.unlock(theirs)
        self.model.locks.remove(page)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        need = {own.name: data.draw(st.integers(0, 5)) for own in self.layout.own}
        digest = self.index.digest()
        if any(pages > len(self.model.evictable(name)) for name, pages in need.items()):
            with pytest.raises(HostExhausted):
                self.index.evict(need)
            assert self.index.digest() == digest
            return
        mine, theirs = self.index.evict(need), self.peer.evict(need)
        assert {name: sorted(freed.tolist()) for name, freed in mine.items()} == {
            name: sorted(freed) for name, freed in self.model.evict(need).items()
        }
        assert all((theirs[name] == freed + SHIFT).all() for name, freed in mine.items())

    @invariant()
    def books_add_up(self) -> None:
        self.index.check_integrity()
        self.peer.check_integrity()
        assert self.index.digest() == self.peer.digest()
        assert self.index.lock_count() == len(self.model.locks)
        for own in self.layout.own:
            assert self.index.evictable_pages(own.name) == len(self.model.evictable(own.name))
            assert self.index.resident_pages(own.name) == sum(own.name in p.slots for p in self.model.pages.values())


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_index_does_what_the_model_does(layout: Layout) -> None:
    """Matches, plans, locks, evictions and counts are those of the model after each step, and both ranks agree."""
    machine = type("Walk", (Walk,), {"layout": layout})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )
