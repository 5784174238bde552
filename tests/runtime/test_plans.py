"""Policies and budgets: what is read, what is published, and that the choice is the same on every rank."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.policies import BestEffort, OnShortfall, Pressure
from lifecycle.reasons import Part, Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]


@pytest.mark.parametrize("ranks", [1, 2])
def test_shrink_reads_what_fits(rig_of: RigOf, ranks: int) -> None:
    """Under pressure the plan is the longest length that fits, and says why it is shorter than the hit."""
    rig = rig_of(ranks=ranks, capacity=5)
    end = rig.run(pages=8)
    assert isinstance(end, ev.Committed)
    assert end.usable_page == 5
    plan = rig.events(ev.PlanAgreed)[0]
    assert (plan.hit_page, plan.plan_page, plan.cut) == (8, 5, Reason.HOST_CAPACITY)


@pytest.mark.parametrize("ranks", [1, 2])
def test_revoke_reads_the_hit_or_nothing(rig_of: RigOf, ranks: int) -> None:
    """Under pressure nothing is reserved, and the request need not wait."""
    rig = rig_of(ranks=ranks, capacity=5, pressure=Pressure.REVOKE)
    assert rig.run(pages=8).reason is Reason.HOST_CAPACITY  # type: ignore[union-attr]
    assert not rig.events(ev.HostReserved)
    assert isinstance(rig.run("fits", pages=5), ev.Committed)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hit_below_the_threshold_is_revoked(rig_of: RigOf, ranks: int) -> None:
    """Nothing is reserved or read for a hit that is not worth it."""
    rig = rig_of(ranks=ranks, threshold_pages=4)
    keys = rig.prompt("r", 8)
    rig.stores[-1].show("kv", "11100000", keys)
    assert rig.run().reason is Reason.BELOW_THRESHOLD  # type: ignore[union-attr]
    assert not rig.events(ev.HostReserved)
    assert not rig.stores[0].reads


def test_a_span_below_the_threshold_is_declined(rig_of: RigOf) -> None:
    """Nothing is asked, locked or reserved for a span that is too short."""
    rig = rig_of(threshold_pages=4)
    declined = rig.issue(pages=3)
    assert isinstance(declined, ev.Declined)
    assert (declined.reason, declined.start_page, declined.end_page) == (Reason.TOO_SHORT, 0, 3)
    assert rig.locks() == rig.occupied() == rig.stores[0].queries == 0


def test_room_for_less_than_the_threshold_is_no_room(rig_of: RigOf) -> None:
    """A plan that the budget cuts below the threshold is not made."""
    rig = rig_of(threshold_pages=4, capacity=3)
    assert rig.run().reason is Reason.HOST_CAPACITY  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ("kv:00000000", Reason.FULL_MISS),
        ("kv:01111111", Reason.HEAD_MISSING),
        ("indexer:00000000", Reason.SIDECAR_ABSENT),
        ("kv:10111111", Reason.BELOW_THRESHOLD),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_miss_says_of_what_kind_it_is(rig_of: RigOf, shown: str, reason: Reason, ranks: int) -> None:
    """The reason tells a cold prefix from a lost head and from a sidecar that was never written."""
    rig = rig_of("dsa", ranks, threshold_pages=2)
    pool, flags = shown.split(":")
    rig.stores[-1].show(pool, flags, rig.prompt("r", 8))
    assert rig.run().reason is reason  # type: ignore[union-attr]


def test_spans_are_cut_to_max_pages(rig_of: RigOf) -> None:
    """A longer prompt is prefetched in pieces; each reserves what it asks for."""
    rig = rig_of(max_pages=4)
    end = rig.run("a", 10, prompt="p")
    assert isinstance(end, ev.Committed)
    assert end.usable_page == 4
    assert rig.events(ev.Issued)[0].reserved_tokens == 4 * PAGE_TOKENS
    assert rig.run("b", 10, prompt="p").usable_page == 8  # type: ignore[union-attr]


def test_the_limit_declines_and_lets_in_again(rig_of: RigOf) -> None:
    """A decline names occupancy and limit; when a prefetch ends its tokens are free at the next safe point."""
    rig = rig_of(limit_tokens=16 * PAGE_TOKENS, capacity=64, readers=3)
    rig.stores[0].hold("kv")
    ids = [rig.issue(name) for name in "ab"]
    declined = rig.issue("c")
    assert isinstance(declined, ev.Declined)
    assert (declined.reason, declined.occupied_tokens) == (Reason.RATE_LIMITED, 16 * PAGE_TOKENS)
    assert declined.limit_tokens == 16 * PAGE_TOKENS
    rig.until_held("kv", 2)
    rig.abort("a")  # its read is still out: the tokens are free all the same
    assert rig.occupied() == 8 * PAGE_TOKENS
    rig.stores[0].holding.clear()
    assert isinstance(rig.run("c"), ev.Committed)
    rig.stores[0].open_all()
    rig.until_closed(ids[0])
    rig.until_closed(ids[1])
    assert rig.occupied() == 0


def test_a_span_beyond_the_limit_is_cut_to_it(rig_of: RigOf) -> None:
    """A prompt longer than the limit is not declined for ever."""
    rig = rig_of(limit_tokens=4 * PAGE_TOKENS)
    assert rig.run(pages=8).usable_page == 4  # type: ignore[union-attr]


# --- sidecars -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shortfall", OnShortfall)
def test_a_short_window_discards_or_degrades(rig_of: RigOf, shortfall: OnShortfall, ranks: int) -> None:
    """SWA short: by policy nothing, or kv without it; its pages are released either way."""
    rig = rig_of("swa", ranks, shortfall=shortfall)
    rig.stores[-1].say("swa", "1101", rig.prompt("r", 8), first=4)
    end = rig.run()
    if shortfall is OnShortfall.DISCARD:
        assert isinstance(end, ev.Discarded)
        assert (end.reason, end.pool) == (Reason.SHORTFALL, "swa")
        assert rig.resident() == 0
    else:
        assert isinstance(end, ev.Committed)
        assert (end.usable_page, end.dropped) == (8, ("swa",))
        assert rig.resident() == 8
    assert rig.resident("swa") == 0
    assert rig.free("swa") == 32
    assert rig.covered("swa") == []


@pytest.mark.parametrize("shortfall", OnShortfall)
def test_a_short_mamba_state_discards_under_every_policy(rig_of: RigOf, shortfall: OnShortfall) -> None:
    """Recurrent state cannot be rebuilt, so nothing is published without it."""
    rig = rig_of("mamba", shortfall=shortfall)
    rig.stores[0].say("mamba", "0", rig.prompt("r", 8), first=7)
    end = rig.run()
    assert isinstance(end, ev.Discarded)
    assert (end.reason, end.pool) == (Reason.SHORTFALL, "mamba")
    assert rig.free() == 32


@pytest.mark.parametrize("layout", ["kv_only", "dsa", "swa", "mamba", "deepseek_v4"])
def test_a_draft_pool_never_shortens_the_target(rig_of: RigOf, layout: str) -> None:
    """Missing draft pages: the target has its whole prefix, the draft has none of it to read."""
    rig = rig_of(layout, draft=True)
    rig.stores[0].say("draft", "11101111", rig.prompt("r", 8))
    end = rig.run()
    assert isinstance(end, ev.Committed)
    assert end.dropped == ("draft",)
    assert rig.matched() == 8
    assert rig.matched(pools=["kv", "draft"]) == 0
    assert rig.covered("draft") == []


def test_a_degradable_pool_is_left_out_when_its_budget_is_short(rig_of: RigOf) -> None:
    """It is planned without a hit, and never costs the target a page."""
    rig = rig_of("swa", shortfall=OnShortfall.DEGRADE, capacity={"kv": 8, "swa": 2})
    end = rig.run()
    assert isinstance(end, ev.Committed)
    assert (end.usable_page, end.dropped) == (8, ("swa",))
    assert rig.events(ev.PlanAgreed)[0].left_out == ("swa",)
    assert not rig.stores[0].reads["swa", 7]


def test_a_required_window_limits_the_plan(rig_of: RigOf) -> None:
    """Without room for a whole window only lengths below the window fit."""
    rig = rig_of("swa", capacity={"kv": 32, "swa": 2})
    assert rig.run().usable_page == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(("pool", "usable"), [("kv", 5), ("indexer", 5)])
def test_a_rider_and_its_pool_are_cut_at_the_first_hole(rig_of: RigOf, pool: str, usable: int) -> None:
    """The leading run counts: what arrived after the hole is released."""
    rig = rig_of("dsa")
    rig.stores[0].say(pool, "11111011", rig.prompt("r", 8))
    end = rig.run()
    assert isinstance(end, ev.Clamped)
    assert (end.usable_page, end.reason) == (usable, Reason.READ_FAILED)
    parts = {event.part: event.pages for event in rig.events(ev.HostReleased)}
    assert parts == ({Part.TAIL: ((5, 8),)} if pool == "kv" else {Part.CLAMPED: ((5, 8),)})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("layout", "pool"),
    [
        ("kv_only", "kv"),
        ("kv_only", "draft"),
        ("dsa", "indexer"),
        ("swa", "swa"),
        ("mamba", "mamba"),
        ("deepseek_v4", "c4_state"),
    ],
)
def test_wait_complete_waits_for_every_pool(rig_of: RigOf, layout: str, pool: str, ranks: int) -> None:
    """As long as one pool of one rank is being read the prefetch goes on; then it commits with all of them."""
    rig = rig_of(layout, ranks, draft=True)
    rig.stores[-1].hold(pool)
    id_ = rig.issue()
    last = ranks - 1
    rig.until(lambda: rig.stores[-1].waiting(pool) and (rig.layout.owner(pool) == "kv" or rig.events(ev.ReadEnded, last)))
    rig.tick(3)
    assert rig.state(id_) is State.TRANSFERRING
    rig.stores[-1].open_all()
    rig.until_closed(id_)
    end = rig.outcome()
    assert isinstance(end, ev.Committed)
    assert (end.usable_page, end.dropped) == (8, ())


# --- best effort --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_best_effort_stops_when_admission_asks(rig_of: RigOf, ranks: int) -> None:
    """What has landed by then is published; the reads that are out finish into pages that are released."""
    rig = rig_of(ranks=ranks, stop=BestEffort(), batch_pages=2)
    for store in rig.stores:
        store.hold("kv")
    id_ = rig.issue()
    rig.until_held()
    for store in rig.stores:
        store.let_go("kv", page=0)
    rig.until(lambda: all(rig.events(ev.ReadEnded, rank) for rank in range(ranks)))
    rig.tick(3)
    assert rig.state(id_) is State.TRANSFERRING  # nobody asked yet
    assert not rig.ready()
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert rig.outcome().usable_page == 2  # type: ignore[union-attr]
    assert rig.outcome().reason is Reason.BEST_EFFORT
    assert rig.ready()
    for store in rig.stores:
        store.open_all()
    rig.until_closed(id_)


@pytest.mark.parametrize("ranks", [1, 2])
def test_best_effort_ends_what_is_complete_without_demand(rig_of: RigOf, ranks: int) -> None:
    """Everything has landed: the lock and the tokens are not kept until somebody asks."""
    rig = rig_of(ranks=ranks, stop=BestEffort())
    assert isinstance(rig.run(), ev.Committed)
    assert not rig.events(ev.Wanted)


def test_best_effort_before_the_hit_is_known_publishes_nothing(rig_of: RigOf) -> None:
    """Admission does not wait for an answer that is not there."""
    rig = rig_of(stop=BestEffort())
    rig.stores[0].hold("")
    id_ = rig.issue()
    assert not rig.ready()
    rig.until_closed(id_)
    assert rig.outcome().reason is Reason.BEST_EFFORT


def test_best_effort_needs_the_demand_of_every_rank(rig_of: RigOf) -> None:
    """Demand is local: as long as one rank was not asked, the prefetch goes on, on all of them."""
    rig = rig_of(ranks=2, stop=BestEffort())
    for store in rig.stores:
        store.hold("kv")
    id_ = rig.issue()
    rig.until_held()
    assert not rig.ranks[0].ready("r")
    rig.tick(3)
    assert rig.state(id_) is State.TRANSFERRING
    assert not rig.ranks[1].ready("r")
    rig.until(lambda: rig.prefetch(id_).terminal)


# --- budgets ------------------------------------------------------------------------------------------------------------


def test_the_smallest_rank_sets_every_budget(rig_of: RigOf) -> None:
    """Two ranks with different host memory plan alike and evict alike."""
    rig = rig_of(ranks=2, capacity=[20, 10])
    for turn in range(6):
        end = rig.run(f"r{turn}", 4)
        assert isinstance(end, ev.Committed)
        assert rig.resident() <= 10
    assert [e.pages for e in rig.events(ev.Evicted, 0)] == [e.pages for e in rig.events(ev.Evicted, 1)]
    assert [rig.matched(f"r{turn}") for turn in range(6)].count(4) == 2
    assert rig.free(rank=0) == 20 - rig.resident()
    rig.run("big", 16)
    assert rig.events(ev.PlanAgreed, 0)[-1].plan_page == 10


@pytest.mark.parametrize("layout", ["kv_only", "swa", "deepseek_v4"])
def test_eviction_takes_the_least_recently_used_on_all_ranks(rig_of: RigOf, layout: str) -> None:
    """A match makes a prefix young again; locked prefixes stay."""
    rig = rig_of(layout, 2, capacity=12)
    for name in "abc":
        rig.run(name, 4)
    rig.tick()
    assert rig.matched("a") == 4
    rig.run("d", 4)
    assert [rig.matched(name) for name in "acd"] == [4, 4, 4]
    assert rig.matched("b") == 0


def test_the_anchor_is_not_evicted_under_a_prefetch(rig_of: RigOf) -> None:
    """What a prefetch hangs under stays, whatever needs room meanwhile."""
    rig = rig_of(ranks=2, capacity=12, readers=3)
    rig.run("base", 4, prompt="p")
    for store in rig.stores:
        store.hold("kv")
    id_ = rig.issue("more", 8, prompt="p")
    rig.until_held()
    for store in rig.stores:
        store.holding.clear()
    rig.run("other", 4)
    rig.run("third", 4)
    assert rig.matched("p") == 4
    for store in rig.stores:
        store.open_all()
    rig.until_closed(id_)
    assert rig.matched("p") == 8


def test_rows_rotate_so_that_nobody_starves(rig_of: RigOf) -> None:
    """Two rows for ten prefetches, and the three oldest hang: all the others end."""
    rig = rig_of(ranks=2, row_capacity=2, capacity=100, readers=4, lost_read_s=1000.0)
    rig.stores[0].hold("kv")
    hung = [rig.issue(f"hung{n}", 4) for n in range(3)]
    rig.until(lambda: rig.stores[0].waiting("kv") == 3)
    rig.stores[0].holding.clear()
    others = [rig.issue(f"r{n}", 4) for n in range(7)]
    for id_ in others:
        rig.until_closed(id_)
    assert [rig.state(id_) for id_ in hung] == [State.TRANSFERRING] * 3
    rig.stores[0].open_all()
    for id_ in hung:
        rig.until_closed(id_)
        assert isinstance(rig.outcome(id_), ev.Committed)


def test_sets_rotate_so_that_nobody_starves(rig_of: RigOf) -> None:
    """The same for the exchange of restorable sets: one place for many."""
    rig = rig_of("mamba", 2, mask_capacity=1, row_capacity=3, capacity=100)
    ids = [rig.issue(f"r{n}", 4) for n in range(8)]
    for id_ in ids:
        rig.until_closed(id_)
        assert isinstance(rig.outcome(id_), ev.Committed)


# --- the engine's own pages ---------------------------------------------------------------------------------------------


def adopt(rig: Rig, pages: int, fail: str | None = None) -> int:
    """Let the engine write `pages` pages of prompt `p` on every rank."""
    from kit.store import page_of

    keys = rig.prompt("p", pages)

    def go(rank: int) -> int:
        def fill(pool: str, span: tuple[int, int], slots: Any) -> None:
            if pool == fail:
                raise RuntimeError("scripted: the copy fails")
            for page, buffer in zip(range(*span), rig.memories[rank].buffers(pool, slots), strict=True):
                buffer[:] = page_of(pool, keys[page], rank)
            rig.actives[rank].end()

        match = rig.indexes[rank].match(keys, rig.ranks[rank].tick_number)
        return rig.ranks[rank].adopt("p", keys, match.anchor, pages, fill)

    return int(rig.same(go))


@pytest.mark.parametrize("layout", ["kv_only", "dsa", "swa", "mamba", "deepseek_v4"])
def test_the_engines_own_pages_come_in_under_the_same_budget(rig_of: RigOf, layout: str) -> None:
    """Adopted pages evict, are shortened to what fits, and are served like any other."""
    rig = rig_of(layout, 2, capacity=[12, 20])
    rig.run("old", 8)
    assert adopt(rig, 6) == 6
    assert rig.matched("p") == 6
    assert adopt(rig, 20) == 12
    assert rig.matched("p") == 12
    rig.check()


@pytest.mark.parametrize(("layout", "pool"), [("kv_only", "kv"), ("dsa", "indexer"), ("swa", "swa")])
def test_a_copy_that_fails_leaves_no_page_behind(rig_of: RigOf, layout: str, pool: str) -> None:
    """What was allocated for the engine's pages goes back, nothing is published, and the error is the engine's."""
    rig = rig_of(layout)
    with pytest.raises(RuntimeError, match="the copy fails"):
        adopt(rig, 6, fail=pool)
    assert rig.free() == 32
    assert rig.locks() == rig.resident() == 0
    assert adopt(rig, 6) == 6
