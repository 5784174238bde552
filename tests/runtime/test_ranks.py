"""Several ranks: what they agree on, and that they all find out at once when they cannot."""

from collections.abc import Callable

import pytest
from kit.rig import Rig

from lifecycle import events as ev
from lifecycle.errors import ConfigError, CoordinatorClosed, RankDivergence, SyncFailed
from lifecycle.layout import PRESETS, Layout, Need, Pool, TrailingPages
from lifecycle.policies import Policies, Timeout, WaitComplete
from lifecycle.reasons import Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]


def test_sets_are_intersected_and_not_their_maxima(rig_of: RigOf) -> None:
    """{1, 3} and {1, 2} share 1: the MIN of the maxima would be a length that one rank lacks."""
    rig = rig_of("mamba", 2)
    keys = rig.prompt("r", 3)
    rig.stores[0].show("mamba", "101", keys)
    rig.stores[1].show("mamba", "110", keys)
    end = rig.run(pages=3)
    assert isinstance(end, ev.Committed)
    assert end.usable_page == 1
    assert [e.hit_page for rank in range(2) for e in rig.events(ev.HitResolved, rank)] == [3, 2]
    assert rig.matched() == 1


def test_sets_without_a_common_length_revoke(rig_of: RigOf) -> None:
    """{2} and {3} share nothing."""
    rig = rig_of("mamba", 2)
    keys = rig.prompt("r", 3)
    rig.stores[0].show("mamba", "010", keys)
    rig.stores[1].show("mamba", "001", keys)
    assert rig.run(pages=3).reason is Reason.BELOW_THRESHOLD  # type: ignore[union-attr]


def test_the_shortest_pool_of_any_rank_counts(rig_of: RigOf) -> None:
    """kv 8 idx 7 on one rank, kv 6 idx 8 on the other: 6 usable, and each rank releases the rest once."""
    rig = rig_of("dsa", 2)
    keys = rig.prompt("r", 8)
    rig.stores[0].say("indexer", "11111110", keys)
    rig.stores[1].say("kv", "11111100", keys)
    end = rig.run()
    assert isinstance(end, ev.Clamped)
    assert end.usable_page == 6
    assert [rig.free(rank=rank) for rank in range(2)] == [26, 26]
    assert rig.matched() == 6
    for rank in range(2):
        assert rig.events(ev.Synced, rank)[0].agreed == {"kv": 6, "indexer": min(7, 8)}


@pytest.mark.parametrize("layout", PRESETS)
def test_a_peer_that_gets_less_shortens_everyone_or_no_one_gets_any(rig_of: RigOf, layout: str) -> None:
    """One rank loses page 5: the others publish what all have, or nothing where a layout is all or nothing."""
    rig = rig_of(layout, 3)
    rig.stores[1].say("kv", "11111011", rig.prompt("r", 8))
    end = rig.run()
    if layout in ("kv_only", "dsa"):
        assert isinstance(end, ev.Clamped)
        assert end.usable_page == 5
    else:
        assert isinstance(end, ev.Discarded)
        assert (end.reason, end.pool) == (Reason.SHORTFALL, "kv")
    assert rig.free() == 32 - rig.resident()


def test_nobody_claims_reads_beyond_the_agreed_cap(rig_of: RigOf) -> None:
    """A failed page on one rank caps the plan: the other goes on below it and withdraws what lies beyond."""
    rig = rig_of("kv_only", 2, batch_pages=2, readers=2)
    rig.stores[0].say("kv", "11110000", rig.prompt("r", 8))
    rig.stores[1].hold("kv")
    id_ = rig.issue()
    rig.until(lambda: rig.events(ev.Capped, 1))
    rig.stores[1].let_go("kv", page=0)
    rig.until(lambda: rig.stores[1].waiting("kv"))
    rig.stores[1].open_all()
    rig.until_closed(id_)
    assert rig.outcome().usable_page == 4  # type: ignore[union-attr]
    assert not rig.stores[1].reads["kv", 6]
    assert rig.stores[1].reads["kv", 2] == 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_must_stop_of_one_rank_terminates_all_at_the_same_tick(rig_of: RigOf, ranks: int) -> None:
    """The vote of one is enough, and no rank moves alone."""
    rig = rig_of(ranks=ranks, stop=Timeout(5, 0, 5))
    rig.stores[-1].hold("kv")
    id_ = rig.issue()
    rig.until(lambda: rig.stores[-1].waiting("kv") and rig.events(ev.ReadClaimed, ranks - 1))
    rig.until(lambda: all(rig.events(ev.ReadEnded, rank) for rank in range(ranks - 1)))
    assert [rig.state(id_, rank) for rank in range(ranks)] == [State.TRANSFERRING] * ranks
    rig.clock.advance(6)
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert rig.outcome().reason is Reason.TIMEOUT
    assert rig.resident() == 0


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("layout", ["kv_only", "mamba"])
@pytest.mark.parametrize("skipped", ["issue", "abort", "finish"])
def test_a_command_that_one_rank_was_not_given_is_found_at_once(
    rig_of: RigOf, skipped: str, layout: str, ranks: int
) -> None:
    """All ranks raise in the same round, publish nothing more, and give everything back."""
    rig = rig_of(layout, ranks)
    for store in rig.stores:
        store.hold("kv")
    rig.issue()
    rig.until_held()
    if skipped == "issue":
        keys = rig.prompt("x", 8)
        for rank in range(ranks - 1):
            rig.ranks[rank].issue("x", 0, keys, rig.indexes[rank].match(keys, 1).anchor)
    else:
        for rank in range(ranks - 1):
            getattr(rig.ranks[rank], skipped)("r")
    with pytest.raises(RankDivergence) as raised:
        rig.tick()
    assert {"issue": "issued", "abort": "discarded", "finish": "discarded"}[skipped] in str(raised.value)
    for store in rig.stores:
        store.open_all()
    for rank in range(ranks):
        assert not rig.events(ev.HostHandedOver, rank)
        assert not rig.events(ev.TokensCredited, rank)
        assert rig.ranks[rank].book.replica.occupied_tokens == 0
        with pytest.raises(CoordinatorClosed):
            rig.ranks[rank].issue("y", 0, rig.prompt("y", 8), rig.indexes[rank].root)


def test_an_index_of_another_shape_is_a_divergence(rig_of: RigOf) -> None:
    """The digest of the index travels with the round: what an engine does to one index alone is found."""
    rig = rig_of(ranks=2)
    rig.run()
    rig.unequal = True
    rig.indexes[1].evict({"kv": 1})
    with pytest.raises(RankDivergence, match="their prefix indexes are not"):
        rig.tick()
    rig.expect_leak = True  # the test itself took pages out of the index
    for coordinator in rig.ranks:
        coordinator.close()
    rig.ranks.clear()


@pytest.mark.parametrize("where", ["drain", "report", "plan", "outcome"])
@pytest.mark.parametrize("layout", ["kv_only", "mamba"])
def test_an_error_of_one_rank_fails_the_round_on_all(
    rig_of: RigOf, layout: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank launches its round as failed before it raises, so that no peer hangs; everything is discarded and released."""
    rig = rig_of(layout, 3)
    for store in rig.stores:
        store.hold("kv")
    first = rig.issue()
    rig.until_held()
    rig.issue("second", 4)
    broken = rig.ranks[1]._rank
    rig.unequal = True
    target, name = {
        "drain": (broken.transfers, "drain"),
        "report": (broken.transfers.of[first].local, "ceiling"),
        "plan": (broken.residency, "room"),
        "outcome": (broken.index, "plan_insert"),
    }[where]

    def fail(*_: object) -> None:
        raise ValueError("injected")

    if where == "report":
        monkeypatch.setattr(type(target), name, lambda self: fail() if self is target else 8)
    else:
        monkeypatch.setattr(target, name, fail)
    for store in rig.stores:
        store.open_all()
    with pytest.raises(SyncFailed, match="error of its own"):
        rig.until_closed(first)
    monkeypatch.undo()
    for rank in range(3):
        ends = [e.reason for e in rig.events(ev.Discarded, rank)]
        assert ends
        assert set(ends) == {Reason.SYNC_FAILED}
        assert rig.ranks[rank].book.replica.occupied_tokens == 0
        with pytest.raises(SyncFailed):
            rig.ranks[rank].begin_tick()


def test_an_error_while_the_peers_exchange_sets_does_not_change_who_takes_part(rig_of: RigOf) -> None:
    """The rank whose decision failed still joins the second exchange of the round; the rig fails if it does not."""
    rig = rig_of("mamba", 2)
    rig.unequal = True
    other = rig.issue("a", 4)
    assert isinstance(other, int)
    rig.until(lambda: all(rig.events(ev.Settled, rank) for rank in range(2)) or rig.events(ev.PlanAgreed, 1))
    rig.indexes[1].spy.down["plan_insert"] = 100

    def go_on() -> None:
        for turn in range(50):
            rig.issue(f"b{turn}", 4)
            rig.until(lambda turn=turn: len(rig.events(ev.HitResolved, 1)) > turn)

    with pytest.raises(SyncFailed):
        go_on()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_pages": 17}, "policy max_pages"),
        ({"row_capacity": 3}, "policy row_capacity"),
        ({"mask_capacity": 3}, "policy mask_capacity"),
        ({"threshold_pages": 2}, "policy threshold_pages"),
        ({"stop": Timeout()}, "policy stop"),
    ],
)
def test_a_different_configuration_is_refused_on_all_ranks(rig_of: RigOf, change: dict[str, object], named: str) -> None:
    """Before any shape depends on it, every rank raises and names what differs."""
    same = Policies(stop=WaitComplete())
    other = Policies(**{"stop": WaitComplete(), **change})  # type: ignore[arg-type]
    rig = rig_of(ranks=3, policies=[same, same, other])
    assert len(rig.errors) == 3
    assert all(isinstance(error, ConfigError) and named in str(error) for error in rig.errors)


def test_budgets_are_those_of_the_smallest_rank(rig_of: RigOf) -> None:
    """Capacities are reduced by MIN, pool by pool."""
    layout = Layout("two", (Pool("kv"), Pool("side", TrailingPages(2), need=Need.REBUILDABLE)))
    rig = rig_of(layout, 3, capacity=[9, 5, 7])
    for coordinator in rig.ranks:
        assert dict(coordinator.book.replica.budget_pages) == {"kv": 5, "side": 5}


@pytest.mark.parametrize("layout", PRESETS)
def test_a_round_over_one_rank_is_no_different(rig_of: RigOf, layout: str) -> None:
    """`force_round` runs the rounds for one rank: the same outcome as without any."""
    ends = [rig_of(layout, 1, force_round=force).run() for force in (False, True)]
    assert ends[0] == ends[1]


def test_a_rank_that_quarantines_lowers_the_budget_of_all(rig_of: RigOf) -> None:
    """The pages are off every budget from one agreed round on, so that no rank plans what another cannot hold."""
    rig = rig_of(ranks=2, capacity=8, lost_read_s=5.0, readers=3)
    rig.stores[1].hold("kv")
    lost = rig.issue("a", 6)
    rig.until(lambda: rig.events(ev.ReadClaimed, 1))
    rig.stores[1].holding.clear()
    rig.clock.advance(6)
    rig.until_closed(lost)
    rig.tick(2)
    for rank in range(2):
        assert [e.pages for e in rig.events(ev.QuarantineAgreed, rank)][-1] == 6
    end = rig.run("b", 8)
    assert end.usable_page == 2  # type: ignore[union-attr]
