"""Ports that fail: the obligation stays open, is tried again at the next tick, and is discharged once."""

from collections.abc import Callable

import pytest
from kit.rig import PAGE_TOKENS, Rig
from kit.spies import PortDown
from structlog.testing import capture_logs

from lifecycle import events as ev
from lifecycle.errors import RankDivergence, SyncFailed
from lifecycle.layout import PRESETS
from lifecycle.reasons import Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]
STUCK = 4


def script(rig: Rig, how: str) -> None:
    """Make request `r` end in some way."""
    keys = rig.prompt("r", 8)
    for store in rig.stores:
        if how == "clamped":
            store.say("kv", "11111011", keys)
        if how == "duplicate":
            store.hold("kv")
        if how in ("aborted", "quarantined"):
            store.hold("kv")


def spy_of(rig: Rig, verb: str, rank: int = 0) -> Callable[[int], None]:
    """Return what makes the next calls of a verb fail."""
    port = rig.memories[rank] if verb in ("release", "quarantine", "allocate") else rig.indexes[rank]

    def fail(times: int) -> None:
        port.spy.down[verb] = times

    return fail


def ended_by(rig: Rig, how: str, verb: str, times: int, rank: int = 0) -> int:
    """Run request `r` to the moment before its effects, break the port, and let it end."""
    script(rig, how)
    if how == "duplicate":
        rig.issue("twin", 8, prompt="r")
        id_ = rig.issue()
        assert isinstance(id_, int)
        rig.until_held("kv", 2)
        spy_of(rig, verb, rank)(times)  # the first of the two hands everything over, and releases nothing
        for store in rig.stores:
            store.let_go("kv")
            store.holding.clear()
        return id_
    else:
        id_ = rig.issue()
    assert isinstance(id_, int)
    if how in ("aborted", "quarantined"):
        rig.until_held()
    fail = spy_of(rig, verb, rank)
    if how == "aborted":
        fail(times)
        rig.abort()
        for store in rig.stores:
            store.open_all()
    elif how == "quarantined":
        for store in rig.stores:
            store.holding.clear()
        fail(times)
        rig.clock.advance(61)
    elif verb == "lock":
        rig.until_state(id_, State.TRANSFERRING)
        fail(times)
    else:
        fail(times)
    return id_


CASES = [
    ("committed", "insert"),
    ("committed", "lock"),
    ("committed", "unlock"),
    ("clamped", "insert"),
    ("clamped", "lock"),
    ("clamped", "release"),
    ("clamped", "unlock"),
    ("duplicate", "release"),
    ("aborted", "release"),
    ("aborted", "unlock"),
    ("quarantined", "quarantine"),
    ("quarantined", "unlock"),
]


@pytest.mark.parametrize("times", [1, 3, 3 * STUCK])
@pytest.mark.parametrize(
    ("layout", "how", "verb"),
    # Layouts with trailing pools publish all or nothing: they are never clamped.
    [(layout, *case) for layout in PRESETS for case in CASES if layout in ("kv_only", "dsa") or case[0] != "clamped"],
)
def test_a_port_that_fails_is_tried_again(rig_of: RigOf, layout: str, how: str, verb: str, times: int) -> None:
    """Each effect happens once in the end; a failure that lasts is reported as stuck once, and is tried on."""
    rig = rig_of(layout, stuck_after_tries=STUCK, capacity=64, draft=True)
    id_ = ended_by(rig, how, verb, times)
    rig.until(lambda: not rig.ranks[0].book.local)
    port = rig.memories[0] if verb in ("release", "quarantine") else rig.indexes[0]
    assert port.spy.down[verb] == 0, "the port was never called"
    assert bool(rig.events(ev.ObligationStuck)) == (times >= STUCK)
    stuck = [(e.prefetch, e.obligation) for e in rig.events(ev.ObligationStuck)]
    assert len(stuck) == len(set(stuck))
    assert all(e.tries == STUCK and "PortDown" in e.error for e in rig.events(ev.ObligationStuck))
    end = rig.outcome(id_)
    if how in ("aborted", "quarantined"):
        assert isinstance(end, ev.Discarded)
    elif how == "duplicate":
        assert rig.take_loaded() + rig.take_loaded("twin") == 8 * PAGE_TOKENS
    else:
        assert rig.take_loaded() == end.usable_page * PAGE_TOKENS


def test_a_port_that_stays_broken_does_not_flood_the_engines_log(rig_of: RigOf) -> None:
    """It is warned of at tries 1, 2, 4, 8, and so on, not at every tick."""
    rig = rig_of()
    with capture_logs() as logs:
        ended_by(rig, "clamped", "release", 100)
        rig.until(lambda: not rig.ranks[0].book.local)
    assert [entry["tries"] for entry in logs if entry["event"].startswith("a port failed")] == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("times", [1, 3, 3 * STUCK])
@pytest.mark.parametrize(("how", "verb"), [(how, verb) for how, verb in CASES if verb in ("release", "quarantine")])
@pytest.mark.parametrize("layout", ["kv_only", "dsa"])
def test_memory_that_fails_on_one_rank_delays_the_close_on_all(
    rig_of: RigOf, layout: str, how: str, verb: str, times: int
) -> None:
    """The peers keep the prefetch open, with the budget it holds, until the last rank has given its pages back."""
    rig = rig_of(layout, 2, stuck_after_tries=STUCK, capacity=64)
    id_ = ended_by(rig, how, verb, times, rank=1)
    rig.until(lambda: not rig.ranks[0].book.local)
    assert rig.memories[1].spy.down[verb] == 0
    assert bool(rig.events(ev.ObligationStuck, 1)) == (times >= STUCK)
    assert not rig.events(ev.ObligationStuck, 0)
    assert len(rig.events(ev.Settled, 1, id_)) == 1


@pytest.mark.parametrize("verb", ["insert", "lock", "unlock"])
@pytest.mark.parametrize("layout", ["kv_only", "mamba"])
def test_an_index_that_fails_on_one_rank_fails_the_round_on_all(rig_of: RigOf, layout: str, verb: str) -> None:
    """The shape of the index is shared, so a rank whose index differs says so in its next round; all discard, all release."""
    rig = rig_of(layout, 2, stuck_after_tries=STUCK)
    for store in rig.stores:
        store.hold("")
    other = rig.issue("other", prompt="other")
    assert isinstance(other, int)
    rig.until_held("")
    for store in rig.stores:
        store.holding.clear()
    rig.unequal = True
    id_ = ended_by(rig, "committed", verb, 1, rank=1)
    with pytest.raises(SyncFailed, match="error of its own"):
        rig.until_closed(id_)
    assert isinstance(rig.outcome(other), ev.Discarded)
    assert rig.outcome(other).reason is Reason.SYNC_FAILED
    assert isinstance(rig.outcome(id_), ev.Committed)  # decided before, alike on all
    with pytest.raises(SyncFailed):
        rig.tick()


def test_a_lock_that_fails_at_issue_on_one_rank_is_told_in_the_next_round(rig_of: RigOf) -> None:
    """The others have begun what this rank could not: all fail for that reason, and not as if they were commanded unlike."""
    rig = rig_of(ranks=2)
    spy_of(rig, "lock", rank=1)(1)
    keys = rig.prompt("r", 8)
    anchors = [index.match(keys, 0).anchor for index in rig.indexes]
    rig.unequal = True
    assert rig.ranks[0].issue("r", 0, keys, anchors[0]) == 1
    with pytest.raises(PortDown) as down:
        rig.ranks[1].issue("r", 0, keys, anchors[1])
    with pytest.raises(SyncFailed) as failed:
        rig.tick()
    assert not isinstance(failed.value, RankDivergence)
    assert rig.ranks[1].fault is down.value


def test_a_lock_that_fails_at_issue_changes_nothing(rig_of: RigOf) -> None:
    """The error is the port's, the replica and the log are as before, and the same issue works afterwards."""
    rig = rig_of()
    rig.prompt("r", 8)
    spy_of(rig, "lock")(1)
    before, events = rig.ranks[0].book.replica.facts(), len(list(rig.logs[0].records()))
    with pytest.raises(PortDown):
        rig.issue()
    assert rig.ranks[0].book.replica.facts() == before
    assert len(list(rig.logs[0].records())) == events
    assert isinstance(rig.run(), ev.Committed)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", PRESETS)
def test_memory_that_refuses_what_the_budget_allows_ends_the_prefetch(rig_of: RigOf, layout: str, ranks: int) -> None:
    """A reservation that fails on one rank is a local failure, and becomes everyone's by the round."""
    rig = rig_of(layout, ranks)
    spy_of(rig, "allocate", ranks - 1)(1)
    end = rig.run()
    assert isinstance(end, ev.Discarded)
    assert end.reason in (Reason.HOST_CAPACITY, Reason.SHORTFALL)
    assert isinstance(rig.run(attempt=1), ev.Committed)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_evicted_pages_that_memory_does_not_take_back_are_tried_again(rig_of: RigOf, ranks: int, times: int) -> None:
    """Pages that left the index are counted until host memory has them again; nothing is lost."""
    rig = rig_of(ranks=ranks, capacity=12)
    assert isinstance(rig.run("a", 8), ev.Committed)
    spy_of(rig, "release", ranks - 1)(times)
    end = rig.run("b", 8)
    assert end.reason is Reason.HOST_CAPACITY if isinstance(end, ev.Discarded) else end.usable_page == 8
    rig.check()
    assert isinstance(rig.run("b", 8, attempt=1), ev.Committed)
    assert rig.matched("b") == 8


def test_evicted_pages_that_cannot_be_quarantined_are_tried_again(rig_of: RigOf) -> None:
    """A tainted page whose quarantine fails stays counted, and is quarantined at a later tick."""
    rig = rig_of("kv_only", draft=True, capacity=12, lost_read_s=5.0)
    rig.stores[0].hold("draft")
    id_ = rig.issue("a", 8)
    rig.until_held("draft")
    rig.stores[0].holding.clear()
    rig.clock.advance(6)
    rig.until_closed(id_)
    assert isinstance(rig.outcome(id_), ev.Committed)
    assert rig.ranks[0].book.tainted_pages == {"kv": 8}
    spy_of(rig, "quarantine")(2)
    rig.run("b", 4)
    rig.check()
    rig.tick(3)
    assert rig.memories[0].quarantined_pages("kv") == rig.ranks[0].book.quarantined_pages["kv"] > 0
