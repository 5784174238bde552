"""The prefix index, told as traces: what matches and what is taken."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from prefix_prompts import prompt, put

from lifecycle.errors import ConfigError, LayoutError
from lifecycle.keys import page_keys
from lifecycle.layout import KV, Layout, deepseek_v4, dsa, kv_only, mamba, swa
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import PrefixIndex
from stores.prefix import RadixIndex

Build = Callable[..., RadixIndex]


@pytest.fixture
def build() -> Iterator[Build]:
    """Build indexes and check the books of each at the end."""
    built: list[RadixIndex] = []

    def make(layout: Layout | None = None, degrade: bool = False) -> RadixIndex:
        built.append(RadixIndex(layout or kv_only(), degrade))
        return built[-1]

    yield make
    for index in built:
        index.check_integrity()


def test_it_satisfies_the_port(build: Build) -> None:
    """`RadixIndex` is a `PrefixIndex`."""
    index: PrefixIndex = build()
    assert index.lock_count() == 0


def test_an_empty_index_matches_nothing(build: Build) -> None:
    """The root is the place of a prefix of no pages."""
    index = build()
    match = index.match(prompt(3), tick=1)
    assert (match.pages, match.anchor, match.sources) == (0, index.root, ())
    assert (match.anchor.pages, match.anchor.key) == (0, "")
    assert match.slots(KV).tolist() == []


def test_a_match_is_the_longest_common_prefix(build: Build) -> None:
    """A prompt that leaves another one after 3 pages matches 3."""
    index = build()
    put(index, prompt(8, branch=1, shared=3), first=100)
    keys = prompt(6, branch=2, shared=3)
    match = index.match(keys, tick=1)
    assert (match.pages, match.anchor.pages, match.anchor.key) == (3, 3, keys[2])
    assert match.slots(KV).tolist() == [100, 101, 102]
    assert match.slots(KV, 1, 2).tolist() == [101]


def test_a_prompt_shorter_than_what_is_held_matches_whole(build: Build) -> None:
    """The end of a match may lie inside of what was inserted at once."""
    index = build()
    put(index, prompt(8))
    assert index.match(prompt(5), tick=1).anchor.key == prompt(5)[-1]
    assert index.match(prompt(8), tick=1).pages == 8


def test_a_match_says_which_prefetch_brought_which_pages(build: Build) -> None:
    """Sources are runs of pages in order, over splits and inserts."""
    index = build()
    end = put(index, prompt(4), source=7)
    put(index, prompt(9), under=end, first=50, source=9)
    index.match(prompt(2), tick=1)
    assert index.match(prompt(8), tick=1).sources == ((0, 4, 7), (4, 8, 9))


def test_slots_of_pages_outside_the_match_are_refused(build: Build) -> None:
    """A match answers only for its own pages."""
    index = build()
    put(index, prompt(4))
    with pytest.raises(ConfigError, match=r"pages \[2, 5\): the match has 4 pages"):
        index.match(prompt(4), tick=1).slots(KV, 2, 5)


def test_a_match_is_not_changed_by_what_comes_after(build: Build) -> None:
    """Slots and sources stay what they were when the prompt was matched."""
    index = build()
    put(index, prompt(4), source=3)
    match = index.match(prompt(4), tick=1)
    index.evict({KV: 4})
    assert match.slots(KV).tolist() == [0, 1, 2, 3]
    assert match.sources == ((0, 4, 3),)


def test_a_required_rider_shortens_the_match(build: Build) -> None:
    """KV without its indexer is not served (sglang#30057); with indexer pages 0 to 4 the match is 5 pages."""
    index = build(dsa())
    put(index, prompt(8), indexer=(0, 5))
    assert index.match(prompt(8), tick=1).pages == 5
    assert index.match(prompt(8), tick=1, pools=[KV]).pages == 8


def test_an_optional_pool_limits_only_who_asks_for_it(build: Build) -> None:
    """Draft pages that were never brought are not readable, and the target does not miss them (sglang#28896)."""
    index = build(dsa(draft=True))
    end = put(index, prompt(3), first=10)
    put(index, prompt(8), under=end, first=10, draft=None)
    match = index.match(prompt(8), tick=1)
    assert match.pages == 8
    assert match.slots("indexer").tolist() == list(range(10, 18))
    assert match.slots("draft").tolist() == [10, 11, 12, -1, -1, -1, -1, -1]
    assert match.sources_of("draft") == ((0, 3, 0),)
    assert index.match(prompt(8), tick=1, pools=[KV, "indexer", "draft"]).pages == 3


def test_a_trailing_pool_must_hold_the_window_before_the_end(build: Build) -> None:
    """With a window of 2 and swa pages 2, 3, 6, 7 the restorable lengths up to 8 are 4 and 8; of 7 pages it is 4."""
    index = build(swa(window_pages=2))
    end = put(index, prompt(4))
    put(index, prompt(8), under=end)
    assert index.match(prompt(8), tick=1).pages == 8
    assert index.match(prompt(7), tick=1).pages == 4
    assert index.match(prompt(3), tick=1).pages == 0
    assert index.match(prompt(7), tick=1, pools=[KV]).pages == 7


def test_a_rebuildable_pool_is_spared_by_degrade(build: Build) -> None:
    """Under degrade a missing window doesn't shorten the match (sglang#38348); a recurrent state always does."""
    index = build(swa(), degrade=True)
    put(index, prompt(8), swa=None)
    assert index.match(prompt(8), tick=1).pages == 8
    assert index.match(prompt(8), tick=1).slots("swa").tolist() == [-1] * 8
    state = build(mamba(), degrade=True)
    put(state, prompt(8), mamba=None)
    assert state.match(prompt(8), tick=1).pages == 0


def test_a_pool_that_is_not_declared_is_refused(build: Build) -> None:
    """A match, an offer and a count name pools of the layout."""
    index = build()
    with pytest.raises(LayoutError, match="no such pool"):
        index.match(prompt(1), tick=1, pools=["indexer"])
    with pytest.raises(LayoutError, match="no such pool"):
        put(index, prompt(1), indexer=(0, 1))
    with pytest.raises(LayoutError, match="no such pool"):
        index.resident_pages("indexer")


def test_pages_that_are_there_are_not_taken(build: Build) -> None:
    """Of an offer [0, 8) where 2 pages are there, [2, 8) is taken; the index owns those slots and not the others."""
    index = build()
    put(index, prompt(2), first=90)
    plan = index.plan_insert(index.root, prompt(8), {KV: (0, 8)})
    assert not isinstance(plan, Reason)
    assert (plan.end_page, plan.taken) == (8, {KV: ((2, 8),)})
    put(index, prompt(8))
    assert index.match(prompt(8), tick=1).slots(KV).tolist() == [90, 91, 2, 3, 4, 5, 6, 7]
    assert index.resident_pages(KV) == 8


def test_a_plan_changes_nothing(build: Build) -> None:
    """Asked twice, the answer is the same, and neither the digest nor a count moves."""
    index = build(swa())
    put(index, prompt(6))
    before = (index.digest(), index.resident_pages(KV), index.evictable_pages(KV))
    offer = {KV: (0, 9), "swa": (5, 9)}
    assert index.plan_insert(index.root, prompt(9), offer) == index.plan_insert(index.root, prompt(9), offer)
    assert (index.digest(), index.resident_pages(KV), index.evictable_pages(KV)) == before


def test_a_missing_window_is_filled_under_kv_that_is_there(build: Build) -> None:
    """Of duplicate kv nothing is taken, of swa just the pages that hold none; the prefix is restorable again."""
    index = build(swa(window_pages=3))
    put(index, prompt(6), swa=(4, 5))
    plan = index.plan_insert(index.root, prompt(6), {KV: (0, 6), "swa": (3, 6)})
    assert not isinstance(plan, Reason)
    assert plan.taken == {KV: (), "swa": ((3, 4), (5, 6))}
    put(index, prompt(6), first=70, source=2)
    match = index.match(prompt(6), tick=1)
    assert match.pages == 6
    assert match.slots("swa").tolist() == [-1, -1, -1, 73, 4, 75]
    assert match.sources_of("swa") == ((3, 4, 2), (4, 5, 0), (5, 6, 2))
    assert match.sources == ((0, 6, 0),)


def test_a_duplicate_page_keeps_the_coverage_it_has(build: Build) -> None:
    """What rides on a page that is not taken stays with the caller's slot, so the index does not claim it."""
    index = build(dsa(draft=True))
    put(index, prompt(4), draft=None)
    put(index, prompt(6), first=50)
    match = index.match(prompt(6), tick=1)
    assert match.slots("draft").tolist() == [-1, -1, -1, -1, 54, 55]


def test_riders_of_a_trailing_pool_follow_its_pages(build: Build) -> None:
    """DeepSeek-V4 window states ride on swa: with swa evicted from a page, their coverage is gone too."""
    index = build(deepseek_v4(window_pages=2))
    put(index, prompt(4))
    assert index.match(prompt(4), tick=1).slots("c128_state").tolist() == [-1, -1, 2, 3]
    assert index.evict({"swa": 1})["swa"].tolist() == [2]
    assert index.match(prompt(4), tick=1, pools=[KV]).slots("c128_state").tolist() == [-1, -1, -1, 3]
    assert index.match(prompt(4), tick=1).pages == 0


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        ({}, "kv offers None"),
        ({KV: (1, 4)}, r"kv offers \(1, 4\), the anchor is at 0"),
        ({KV: (0, -1)}, "kv offers"),
        ({KV: (0, 5)}, "there are 4 keys"),
        ({KV: (0, 3), "swa": (2, 4)}, r"swa offers \[2, 4\), which is not within kv's \[0, 3\)"),
        ({KV: (0, 3), "swa": (2, 1)}, r"swa offers \[2, 1\)"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(build: Build, offer: dict[str, tuple[int, int]], why: str) -> None:
    """Offers start at the anchor, end where kv ends, and have keys; nothing is inserted otherwise."""
    index = build(swa())
    with pytest.raises(ConfigError, match=why):
        index.plan_insert(index.root, prompt(4), offer)
    with pytest.raises(ConfigError, match=why):
        index.insert(index.root, prompt(4), offer, {}, 0, 0)
    assert index.resident_pages(KV) == 0


@pytest.mark.parametrize("slots", [{}, {KV: [0, 1, 2]}, {KV: [0, 1, 2, -1]}, {KV: [[0, 1, 2, 3]]}])
def test_an_offer_needs_a_slot_for_each_page(build: Build, slots: dict[str, list[int]]) -> None:
    """Missing, short or negative slots are refused and nothing is taken."""
    index = build()
    with pytest.raises(ConfigError, match="cannot insert: kv offers"):
        index.insert(index.root, prompt(4), {KV: (0, 4)}, {k: np.array(v, np.int32) for k, v in slots.items()}, 0, 0)
    assert index.resident_pages(KV) == 0


def test_pages_that_are_not_taken_need_no_slot(build: Build) -> None:
    """What stands beside a duplicate page is not looked at."""
    index = build()
    put(index, prompt(2))
    index.insert(index.root, prompt(4), {KV: (0, 4)}, {KV: np.array([-1, -1, 8, 9], np.int32)}, 0, 0)
    assert index.match(prompt(4), tick=1).slots(KV).tolist() == [0, 1, 8, 9]


def test_keys_of_another_prompt_are_dropped(build: Build) -> None:
    """Pages can't hang under an anchor that their keys do not pass: planned, insert_dropped; inserted, an error."""
    index = build()
    anchor = put(index, prompt(3, branch=1))
    digest = index.digest()
    assert index.plan_insert(anchor, prompt(5, branch=2), {KV: (3, 5)}) is Reason.INSERT_DROPPED
    with pytest.raises(ConfigError, match="the keys do not pass the anchor"):
        put(index, prompt(5, branch=2), under=anchor)
    assert index.digest() == digest


def test_an_offer_of_no_pages_ends_at_the_anchor(build: Build) -> None:
    """An empty offer is taken whole: nothing."""
    index = build()
    anchor = put(index, prompt(3))
    assert put(index, prompt(3), under=anchor) == anchor
    assert index.resident_pages(KV) == 3


@pytest.mark.parametrize(("start", "shared"), [(0, True), (4, True), (6, False)])
def test_a_node_keeps_a_prompt_alive_only_where_it_is_most_of_it(start: int, shared: bool) -> None:
    """Keys are taken in place, without a copy, unless a short tail would hold the keys of the whole prompt."""
    index = RadixIndex(kv_only())
    keys = page_keys(range(8 * 4), 4)
    if start:
        slots = {"kv": np.arange(start, dtype=np.int32)}
        index.insert(index.match((), 0).anchor, page_keys(range(start * 4), 4), {"kv": (0, start)}, slots, 1, 0)
    anchor = index.match(keys, 0).anchor
    assert anchor.pages == start
    end = index.insert(anchor, keys, {"kv": (start, 8)}, {"kv": np.arange(start, 8, dtype=np.int32)}, 2, 1)
    assert (end.node._chain is keys) is shared
    assert end.node.keys == keys[start:]
    assert index.match(keys, 2).sources == (((0, start, 1), (start, 8, 2)) if start else ((0, 8, 2),))
    index.check_integrity()
