"""What is restorable, planned and usable, each against the words of its definition, over every small case."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from lifecycle import coverage
from lifecycle.layout import KV, AllPages, Layout, Need, Pool, TrailingPages, dsa, mamba, swa
from lifecycle.policies import OnShortfall, Policies, Pressure
from lifecycle.reasons import Reason

START = 3  # no length may be taken for an absolute page


def covers(pool: Pool, held: set[int], prefix: int, start: int) -> bool:
    """Say whether `held`, with all below `start`, is what a prefix of `prefix` pages needs of the pool."""
    lo = 0 if isinstance(pool.coverage, AllPages) else max(0, prefix - pool.coverage.window_pages)
    return all(page in held for page in range(max(lo, start), prefix))


@pytest.mark.parametrize("layout", [dsa(), swa(2), mamba()], ids=lambda layout: layout.name)
def test_restorable_lengths_are_those_that_every_required_pool_covers(layout: Layout) -> None:
    """Every combination of four pages in two pools: a length is restorable if each pool holds what it needs of it."""
    names = [pool.name for pool in layout.pools]
    for flags in product((False, True), repeat=8):
        present = {name: np.array(flags[4 * at : 4 * at + 4]) for at, name in enumerate(names)}
        found = coverage.restorable(layout, False, present).tolist()
        held = {name: set(np.flatnonzero(present[name]).tolist()) for name in names}
        assert found == [all(covers(pool, held[pool.name], p, 0) for pool in layout.pools) for p in range(1, 5)], present


@pytest.mark.parametrize("pressure", Pressure)
@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("layout", [dsa(), swa(2)], ids=lambda layout: layout.name)
def test_the_plan_is_the_longest_length_that_fits(layout: Layout, threshold: int, pressure: Pressure) -> None:
    """Every set of lengths and every room: the longest restorable one that fits, the hit or nothing under `revoke`."""
    policies = Policies(pressure=pressure, threshold_pages=threshold)
    for flags in product((False, True), repeat=4):
        for kv, window in product(range(-1, 5), range(3)):
            room = {pool.name: kv if pool.name == KV else window for pool in layout.own}
            lengths = [pages for pages in range(1, 5) if flags[pages - 1]]
            hit = max(lengths, default=0)
            fits = [p for p in lengths if p <= kv and (len(room) == 1 or min(p, 2) <= window)]
            best = max(fits, default=0)
            made = coverage.plan(layout, policies, START, np.array(flags), room)
            if hit < threshold:
                assert made is Reason.BELOW_THRESHOLD
            elif best < threshold or (best < hit and pressure is Pressure.REVOKE):
                assert made is Reason.HOST_CAPACITY
            else:
                assert isinstance(made, coverage.Plan)
                assert (made.hit_page, made.plan_page) == (START + hit, START + best)
                assert made.reserved[KV] == (START, START + best)
                assert made.cut is (Reason.HOST_CAPACITY if best < hit else None)


def test_what_nobody_needs_is_left_out_when_its_room_is_short() -> None:
    """An optional pool, and what rides on it, is planned only where all of it fits, and never shortens the plan."""
    layout = Layout(
        "odd", (Pool(KV), Pool("draft", need=Need.OPTIONAL), Pool("draft_indexer", rides_on="draft", need=Need.OPTIONAL))
    )
    for room in range(5):
        made = coverage.plan(layout, Policies(), START, np.ones(3, dtype=np.bool_), {KV: 9, "draft": room})
        assert isinstance(made, coverage.Plan)
        assert made.plan_page == START + 3
        assert made.left_out == (("draft", "draft_indexer") if room < 3 else ())
        assert ("draft" in made.reserved) is (room >= 3)


def agreed(layout: Layout, kv: int, other: int) -> Mapping[str, int]:
    """Return agreed values: pages from the start, for a trailing pool keys."""
    trailing = {p.name: isinstance(p.coverage, TrailingPages) for p in layout.pools}
    return {name: START + kv if name == KV else other if trailing[name] else START + other for name in trailing}


def test_all_pages_riders_clamp_to_the_shortest() -> None:
    """With an indexer that rides on kv the shorter of the two is usable, and the pool that was short is named."""
    for kv, indexer in product(range(5), repeat=2):
        found = coverage.outcome(dsa(), False, START, START + 4, (), agreed(dsa(), kv, indexer))
        assert found.usable_page == START + min(kv, indexer)
        assert found.short == (None if min(kv, indexer) == 4 else KV if kv <= indexer else "indexer")


@pytest.mark.parametrize("degrade", [False, True])
def test_a_window_is_all_or_nothing_unless_it_can_be_spared(degrade: bool) -> None:
    """A short window discards; under `degrade` kv alone is published, and the window with it only where it covers that."""
    layout = swa(2)
    for kv, keys in product(range(5), range(3)):
        found = coverage.outcome(layout, degrade, START, START + 4, (), agreed(layout, kv, keys))
        if not degrade:
            assert found.usable_page == (START + 4 if kv == 4 and keys == 2 else START)
            continue
        assert found.usable_page == START + kv
        need, held = set(range(max(0, kv - 2), kv)), set(range(2, 2 + keys))
        assert ("swa" in found.dropped) is not (need <= held)


def test_what_rides_on_a_dropped_pool_is_dropped_with_it() -> None:
    """A rider that landed whole is not published without the pool whose slots it uses."""
    layout = Layout(
        "odd", (Pool(KV), Pool("draft", need=Need.OPTIONAL), Pool("draft_indexer", rides_on="draft", need=Need.OPTIONAL))
    )
    values = {KV: START + 4, "draft": START + 1, "draft_indexer": START + 4}
    assert coverage.outcome(layout, False, START, START + 4, (), values).dropped == ("draft", "draft_indexer")


def test_landed_values_stand_for_pages() -> None:
    """An absolute end for pools that need every page, a count of keys for trailing ones."""
    window = Pool("swa", TrailingPages(2))
    assert coverage.landed_pages(Pool(KV), START, START + 4, START + 2) == ((3, 5),)
    assert coverage.landed_pages(window, START, START + 4, 1) == ((5, 6),)


@pytest.mark.parametrize(
    ("kv", "indexer", "reason"),
    [("0000", "1111", Reason.FULL_MISS), ("0111", "1111", Reason.HEAD_MISSING), ("1111", "0111", Reason.SIDECAR_ABSENT),
     ("1011", "1111", Reason.BELOW_THRESHOLD), ("1100", "1100", None)],
)  # fmt: skip
def test_a_miss_is_told_by_its_kind(kv: str, indexer: str, reason: Reason | None) -> None:
    """Nothing there, no head, no sidecar, or too little; with two pages as the threshold."""
    present = {name: np.array([flag == "1" for flag in flags]) for name, flags in ((KV, kv), ("indexer", indexer))}
    hit = coverage.longest(coverage.restorable(dsa(), False, present), 0)
    assert coverage.miss_reason(present, hit, 2) is reason


def test_degrade_is_what_the_policy_says() -> None:
    """The policy decides whether a rebuildable pool is spared."""
    assert Policies(shortfall=OnShortfall.DEGRADE).degrade
    assert not Policies().degrade
