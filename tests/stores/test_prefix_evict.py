"""The prefix index, told as traces: which places are lost, what is locked, what goes first."""

from collections.abc import Callable, Iterator

import pytest
from prefix_prompts import prompt, put

from lifecycle.errors import AnchorLost, ConfigError, HostExhausted, IntegrityError, ObligationError
from lifecycle.layout import KV, Layout, dsa, kv_only, swa
from lifecycle.reasons import Reason
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


def test_an_anchor_survives_splits_above_it(build: Build) -> None:
    """A prompt that ends or leaves halfway does not move the end of the longer one."""
    index = build()
    anchor = put(index, prompt(8, shared=8))
    put(index, prompt(6, branch=1, shared=3), first=50)
    index.match(prompt(5), tick=1)
    assert index.match(prompt(8), tick=1).anchor == anchor
    index.lock(anchor)
    assert put(index, prompt(9), under=anchor, first=70).pages == 9
    index.unlock(anchor)


def test_an_evicted_anchor_is_lost(build: Build) -> None:
    """Locking, planning and inserting under an evicted page say so and change nothing (sglang#36834)."""
    index = build()
    anchor = put(index, prompt(4))
    index.evict({KV: 1})
    digest = index.digest()
    with pytest.raises(AnchorLost, match="cannot lock the anchor at page 4"):
        index.lock(anchor)
    assert index.plan_insert(anchor, prompt(6), {KV: (4, 6)}) is Reason.ANCHOR_LOST
    with pytest.raises(AnchorLost, match="cannot insert under the anchor at page 4"):
        put(index, prompt(6), under=anchor)
    assert (index.digest(), index.lock_count(), index.resident_pages(KV)) == (digest, 0, 3)


def test_a_page_that_comes_back_is_another_place(build: Build) -> None:
    """A handle from before an eviction is not revived by the same prefix, so it can't drop somebody else's lock."""
    index = build()
    old = put(index, prompt(4))
    index.evict({KV: 2})
    new = put(index, prompt(4), first=50)
    assert (old.pages, old.key) == (new.pages, new.key)
    assert old != new
    index.lock(new)
    with pytest.raises(ObligationError):
        index.unlock(old)
    index.unlock(new)


def test_an_anchor_of_another_index_is_lost(build: Build) -> None:
    """Handles are good in the index that made them."""
    ours, theirs = build(), build()
    anchor = put(theirs, prompt(4))
    put(ours, prompt(4))
    with pytest.raises(AnchorLost):
        ours.lock(anchor)
    with pytest.raises(AnchorLost):
        ours.lock(theirs.root)


def test_a_reset_drops_all_and_loses_every_anchor(build: Build) -> None:
    """After a reset nothing is resident, the slots are returned by pool, and no old handle is good."""
    index = build(swa(window_pages=2))
    root, anchor = index.root, put(index, prompt(4))
    index.lock(anchor)
    freed = index.reset()
    assert {name: sorted(slots.tolist()) for name, slots in freed.items()} == {KV: [0, 1, 2, 3], "swa": [2, 3]}
    assert (index.resident_pages(KV), index.resident_pages("swa"), index.lock_count()) == (0, 0, 0)
    assert index.match(prompt(4), tick=9).pages == 0
    put(index, prompt(4))
    for old in (root, anchor):
        with pytest.raises(AnchorLost):
            index.lock(old)
        with pytest.raises(ObligationError):
            index.unlock(old)


def test_locked_pages_are_never_evicted(build: Build) -> None:
    """With an anchor locked at page 3 of 5, just 2 pages can go, and asking for 3 drops nothing."""
    index = build()
    put(index, prompt(5))
    anchor = index.match(prompt(3), tick=1).anchor
    index.lock(anchor)
    assert index.evictable_pages(KV) == 2
    with pytest.raises(HostExhausted) as caught:
        index.evict({KV: 3})
    assert (caught.value.pool, caught.value.asked_pages, caught.value.free_pages) == (KV, 3, 2)
    assert index.evict({KV: 2})[KV].tolist() == [3, 4]
    assert index.match(prompt(5), tick=2).pages == 3
    index.unlock(anchor)
    assert index.evictable_pages(KV) == 3


def test_two_locks_need_two_unlocks(build: Build) -> None:
    """One request's unlock never drops another's lock, and a third unlock raises (LMCache#2954)."""
    index = build()
    anchor = put(index, prompt(4))
    index.lock(anchor)
    index.lock(anchor)
    index.unlock(anchor)
    assert (index.evictable_pages(KV), index.lock_count()) == (0, 1)
    index.unlock(anchor)
    assert (index.evictable_pages(KV), index.lock_count()) == (4, 0)
    digest = index.digest()
    with pytest.raises(ObligationError, match="cannot unlock the anchor at page 4: it is not locked"):
        index.unlock(anchor)
    assert (index.evictable_pages(KV), index.lock_count(), index.digest()) == (4, 0, digest)


def test_an_anchor_below_a_locked_one_is_not_itself_locked(build: Build) -> None:
    """A place that is only kept by a lock further on can't be unlocked."""
    index = build()
    end = put(index, prompt(4))
    index.lock(end)
    with pytest.raises(ObligationError):
        index.unlock(index.match(prompt(2), tick=1).anchor)
    index.unlock(end)


def test_a_lock_keeps_the_window_of_a_trailing_pool_and_no_more(build: Build) -> None:
    """swa pages before the window of a locked anchor can be evicted, those in it can't."""
    index = build(swa(window_pages=2))
    anchor = put(index, prompt(6), swa=(0, 6))
    index.lock(anchor)
    assert (index.evictable_pages(KV), index.evictable_pages("swa")) == (0, 4)
    with pytest.raises(HostExhausted, match="'swa'"):
        index.evict({"swa": 5})
    assert index.evict({"swa": 4})["swa"].tolist() == [0, 1, 2, 3]
    assert index.match(prompt(6), tick=1).pages == 6
    index.unlock(anchor)
    assert index.evictable_pages("swa") == 2


def test_a_lock_survives_splits_in_its_window(build: Build) -> None:
    """Prompts that split a locked window leave both parts locked; the unlock undoes just what the lock did."""
    index = build(swa(window_pages=3))
    end = put(index, prompt(8, shared=8), swa=(0, 8))
    middle = index.match(prompt(4), tick=1).anchor
    index.lock(end)
    index.lock(middle)
    put(index, prompt(9, branch=1, shared=6), first=50, swa=None)
    index.match(prompt(2), tick=1)
    assert index.evictable_pages("swa") == 2  # 1 2 3 by the middle, 5 6 7 by the end
    index.unlock(end)
    assert index.evictable_pages("swa") == 5
    assert index.evictable_pages(KV) == 7  # 4 to 7 and the branch's 3
    index.unlock(middle)
    assert (index.evictable_pages("swa"), index.evictable_pages(KV)) == (8, 11)


def test_a_hole_filled_in_a_locked_window_is_locked(build: Build) -> None:
    """A slot that comes into a locked window later can't be evicted before the unlock."""
    index = build(swa(window_pages=2))
    anchor = put(index, prompt(4), swa=None)
    index.lock(anchor)
    put(index, prompt(4), first=50)
    assert (index.resident_pages("swa"), index.evictable_pages("swa")) == (2, 0)
    index.unlock(anchor)
    assert index.evict({"swa": 2})["swa"].tolist() == [52, 53]


def test_the_root_can_be_locked(build: Build) -> None:
    """A prefetch of a prompt that shares nothing hangs under the root; its lock keeps no page."""
    index = build()
    put(index, prompt(3))
    index.lock(index.root)
    assert (index.lock_count(), index.evictable_pages(KV)) == (1, 3)
    index.unlock(index.root)


def test_the_least_recently_used_leaf_goes_first_from_its_end(build: Build) -> None:
    """Pages go from the end of the leaf used longest ago; its parent is next when it is gone and not used since."""
    index = build()
    put(index, prompt(4, branch=1, shared=2), tick=1)
    put(index, prompt(5, branch=2, shared=2), first=20, tick=2)
    put(index, prompt(3, branch=3), first=40, tick=3)
    assert index.evict({KV: 1})[KV].tolist() == [3]
    index.match(prompt(3, branch=1, shared=2), tick=4)
    assert index.evict({KV: 2})[KV].tolist() == [23, 24]
    assert index.evict({KV: 3})[KV].tolist() == [22, 41, 42]
    assert index.match(prompt(4, branch=1, shared=2), tick=4).pages == 3


def test_ties_go_by_insertion(build: Build) -> None:
    """Of leaves used at the same tick, the one inserted first goes first."""
    index = build()
    for branch in (3, 1, 2):
        put(index, prompt(1, branch=branch), first=branch, tick=5)
    assert index.evict({KV: 3})[KV].tolist() == [3, 1, 2]


def test_a_match_in_the_past_does_not_make_a_page_older(build: Build) -> None:
    """The last use is the largest tick seen, so a prefix is never older than what hangs under it."""
    index = build()
    put(index, prompt(2, branch=1, shared=2), tick=5)
    put(index, prompt(1, branch=2), first=50, tick=4)
    assert index.match(prompt(1), tick=3).pages == 1
    index.check_integrity()
    assert index.evict({KV: 3})[KV].tolist() == [50, 1, 0]


def test_evicting_kv_drops_what_other_pools_hold_there(build: Build) -> None:
    """The swa slots of evicted kv pages come back in the same answer and count towards what was asked of swa."""
    index = build(swa(window_pages=2))
    put(index, prompt(4, branch=1), tick=1)
    put(index, prompt(4, branch=2), first=20, tick=2)
    freed = index.evict({KV: 1, "swa": 2})
    assert freed[KV].tolist() == [3]
    assert freed["swa"].tolist() == [3, 2]
    assert (index.resident_pages(KV), index.resident_pages("swa")) == (7, 2)


def test_a_trailing_pool_is_evicted_alone_and_leaves_a_hole(build: Build) -> None:
    """Without its window a prefix is not restorable, and its kv stays for who can do without."""
    index = build(swa(window_pages=2))
    put(index, prompt(4), tick=1)
    assert {name: slots.tolist() for name, slots in index.evict({"swa": 1}).items()} == {KV: [], "swa": [2]}
    assert index.match(prompt(4), tick=2).pages == 0
    assert index.match(prompt(4), tick=2, pools=[KV]).pages == 4


@pytest.mark.parametrize("need", [{KV: 5}, {KV: 1, "swa": 3}])
def test_an_eviction_that_falls_short_drops_nothing(build: Build, need: dict[str, int]) -> None:
    """If one pool can't give enough, no pool gives anything."""
    index = build(swa(window_pages=2))
    put(index, prompt(4))
    digest = index.digest()
    with pytest.raises(HostExhausted):
        index.evict(need)
    assert (index.resident_pages(KV), index.resident_pages("swa"), index.digest()) == (4, 2, digest)


@pytest.mark.parametrize("need", [{"indexer": 1}, {KV: -1}, {"gpu": 1}])
def test_only_pools_with_own_slots_are_evicted(build: Build, need: dict[str, int]) -> None:
    """A pool that rides on another has nothing of its own to give (sglang#22767)."""
    index = build(dsa())
    put(index, prompt(2))
    with pytest.raises(ConfigError, match="cannot evict"):
        index.evict(need)
    assert index.resident_pages(KV) == 2
    assert index.evictable_pages("indexer") == 2


def test_queues_do_not_grow_with_what_is_gone(build: Build) -> None:
    """Kv that comes and goes for ever leaves no entries behind in the queue of a pool that is never evicted alone."""
    index = build(swa(window_pages=2))
    put(index, prompt(2), tick=10**6)
    for turn in range(1, 500):
        put(index, prompt(2, branch=turn), first=2 * turn, tick=turn)
        index.evict({KV: 2})
    assert all(len(queue._heap) < 200 for queue in index._tree.queues)
    assert index.evict({"swa": 2})["swa"].tolist() == [0, 1]


def test_the_digest_is_of_the_shape_and_not_of_the_slots(build: Build) -> None:
    """Two ranks that did the same have the same 62 bits; each change moves them."""
    ours, theirs, other = build(swa()), build(swa()), build(swa())
    seen = {ours.digest()}
    ends = put(ours, prompt(4)), put(theirs, prompt(4), first=300), put(other, prompt(4), swa=(1, 4))
    assert ours.digest() == theirs.digest() != other.digest()
    seen.add(ours.digest())
    for step in (
        lambda index, end: index.lock(end),
        lambda index, end: index.unlock(end),
        lambda index, end: index.evict({"swa": 1}),
        lambda index, end: index.evict({KV: 1}),
        lambda index, end: index.reset(),
    ):
        step(ours, ends[0])
        step(theirs, ends[1])
        assert ours.digest() == theirs.digest()
        assert ours.digest() not in seen
        assert ours.digest() >> 62 == 0
        seen.add(ours.digest())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda tree, node: tree.resident.__setitem__(0, 5), "4 slots are resident, the books say 5"),
        (lambda tree, node: tree.evictable.__setitem__(1, 0), "pool swa: 2 pages are evictable, the books say 0"),
        (lambda tree, node: node.slots.__setitem__((0, 1), 0), "pool kv: a slot is owned twice"),
        (lambda tree, node: node.slots.__setitem__((0, 1), -1), "has pages without kv"),
        (lambda tree, node: node.locks.__setitem__((0, 3), 1), "has locks that no anchor accounts for"),
        (lambda tree, node: setattr(node, "kv_locks", 1), "has locks that no anchor accounts for"),
        (lambda tree, node: setattr(node, "anchored", 1), "1 locks stand on anchors, the books say 0"),
        (lambda tree, node: setattr(node, "parent", node), "do not fit together"),
        (lambda tree, node: setattr(node, "queued", 0), "may give pages and is not queued"),
        (lambda tree, node: setattr(node, "alive", False), "is dead and still in the tree"),
        (lambda tree, node: setattr(node, "keys", node.keys[:3]), "has 3 keys and arrays of"),
    ],
)
def test_check_integrity_sees_what_does_not_add_up(wrong: Callable[..., None], why: str) -> None:
    """Each kind of damage is found by a recount and said in words."""
    index = RadixIndex(swa(window_pages=2))
    end = put(index, prompt(4))
    index.check_integrity()
    wrong(index._tree, end.node)
    with pytest.raises(IntegrityError, match=why):
        index.check_integrity()
