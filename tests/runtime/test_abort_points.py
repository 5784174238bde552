"""Aborts, finishes, newer attempts and closes at every point of a prefetch's life: every effect happens exactly once.

The laws themselves (each effect once, each page in one part, nothing leaked) are checked by the rig when a test ends.
"""

from collections.abc import Callable

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.errors import CoordinatorClosed
from lifecycle.layout import PRESETS
from lifecycle.policies import Timeout
from lifecycle.reasons import Part, Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]

# --- how to get there ---------------------------------------------------------------------------------------------------


def issued_before_hit(rig: Rig) -> None:
    """ISSUED: the query is out."""
    for store in rig.stores:
        store.hold("")
    rig.issue()
    rig.until_held("")


def issued_after_hit(rig: Rig) -> None:
    """ISSUED: one rank knows its hit (with one rank: its answer has come and is not drained)."""
    for store in rig.stores[1:]:
        store.hold("")
    rig.issue()
    if len(rig.ranks) > 1:
        rig.until(lambda: rig.events(ev.HitResolved))
    else:
        rig.until(lambda: rig.stores[0].answered, tick=False)


def transferring_none_claimed(rig: Rig) -> None:
    """TRANSFERRING: all three readers are busy with others, so no read of this one is claimed."""
    for store in rig.stores:
        store.hold("kv")
    rig.issue("hog", 8, prompt="hog")
    rig.until_held("kv", 2)
    id_ = rig.issue()
    rig.until(lambda: all(store.answered == 2 for store in rig.stores), tick=False)  # and not drained
    for store in rig.stores:
        store.hold("")
    rig.issue("plug", 8, prompt="plug")
    rig.until(lambda: all(store.waiting("") for store in rig.stores), tick=False)
    rig.until_state(id_, State.TRANSFERRING)
    assert not rig.events(ev.ReadClaimed, prefetch=id_)


def transferring_some_claimed(rig: Rig) -> None:
    """TRANSFERRING: one read is claimed and held, others wait."""
    for store in rig.stores:
        store.hold("kv")
    rig.issue()
    rig.until_held("kv")
    rig.until(lambda: rig.events(ev.ReadClaimed))


def transferring_some_answered(rig: Rig) -> None:
    """TRANSFERRING: the first batch is in, the second is held."""
    transferring_some_claimed(rig)
    for store in rig.stores:
        store.let_go("kv", page=0)
    rig.until(lambda: all(rig.events(ev.ReadEnded, rank) for rank in range(len(rig.ranks))))
    rig.until_held("kv")


def transferring_all_answered(rig: Rig) -> None:
    """TRANSFERRING: everything is read here and no tick has seen it yet."""
    for store in rig.stores:
        store.hold("kv")
    rig.issue()
    rig.until_held("kv")
    for store in rig.stores:
        store.open_all()
    rig.until(lambda: all(store.reads["kv", 7] and not store.active.busy for store in rig.stores), tick=False)


def committed_unsettled(rig: Rig) -> None:
    """COMMITTED: published; a read of the optional pool is still out."""
    for store in rig.stores:
        store.hold("draft")
    rig.issue()
    rig.until_held("draft")
    rig.clock.advance(31)
    rig.until(lambda: rig.events(ev.Committed) or rig.events(ev.Clamped) or rig.events(ev.Discarded))


def closed(rig: Rig) -> None:
    """Closed: nothing is left of it."""
    id_ = rig.issue()
    rig.until_closed(id_)


POINTS = [
    issued_before_hit,
    issued_after_hit,
    transferring_none_claimed,
    transferring_some_claimed,
    transferring_some_answered,
    transferring_all_answered,
]
LIVE = [point.__name__ for point in POINTS]
BY_NAME = {point.__name__: point for point in (*POINTS, committed_unsettled, closed)}


def at(rig_of: RigOf, layout: str, ranks: int, point: str, **more: object) -> Rig:
    """Return a rig whose request `r` is at a point."""
    readers = 3 if point == "transferring_none_claimed" else 2
    rig = rig_of(layout, ranks, **{"batch_pages": 4, "capacity": 64, "draft": True, "readers": readers, **more})
    BY_NAME[point](rig)
    return rig


def the_prefetch(rig: Rig) -> int:
    """Return the id of the newest prefetch of request `r`."""
    return [event.prefetch for event in rig.events(ev.Issued) if event.request == "r"][-1]


# --- what is done there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", PRESETS)
@pytest.mark.parametrize("point", LIVE)
def test_an_abort_discards_and_gives_everything_back(rig_of: RigOf, layout: str, point: str, ranks: int) -> None:
    """The tokens go back at once, the anchor at once, the pages when nobody writes them; nothing is published or credited."""
    rig = at(rig_of, layout, ranks, point)
    id_ = the_prefetch(rig)
    others = rig.occupied() - 8 * PAGE_TOKENS
    assert rig.abort()
    assert rig.state(id_) is State.DISCARDED
    assert rig.occupied() == others
    assert len(rig.events(ev.AnchorUnlocked, prefetch=id_)) == 1
    assert not rig.abort()
    rig.check()
    for store in rig.stores:
        store.open_all()
    rig.until_closed(id_)
    assert rig.outcome(id_).reason is Reason.ABORTED
    assert not rig.events(ev.TokensCredited, prefetch=id_)
    assert rig.matched() == 0
    assert rig.take_loaded() == 0


@pytest.mark.parametrize("point", ["committed_unsettled", "closed"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", PRESETS)
def test_an_abort_after_the_end_changes_nothing(rig_of: RigOf, layout: str, ranks: int, point: str) -> None:
    """A terminal or closed prefetch stays what it is: abort says that there was nothing to discard."""
    rig = at(rig_of, layout, ranks, point, stop=Timeout(30, 0, 30))
    id_ = the_prefetch(rig)
    before = rig.outcome(id_)
    events = len(list(rig.logs[0].records()))
    assert not rig.abort()
    assert len(list(rig.logs[0].records())) == events
    for store in rig.stores:
        store.open_all()
    rig.until_closed(id_)
    assert rig.outcome(id_) == before


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", ["kv_only", "dsa", "deepseek_v4"])
@pytest.mark.parametrize("point", [*LIVE, "closed"])
def test_a_newer_attempt_takes_over_at_any_point(rig_of: RigOf, layout: str, point: str, ranks: int) -> None:
    """The older attempt is superseded, the newer one commits, and what answers the older one touches the newer one nowhere."""
    rig = at(rig_of, layout, ranks, point)
    old = the_prefetch(rig)
    for store in rig.stores:
        store.holding.clear()
    new = rig.issue(attempt=1, pages=12)
    assert isinstance(new, int)
    if point != "closed":
        assert rig.state(old) is State.DISCARDED
    for store in rig.stores:
        store.open_all()
    rig.until_closed(new)
    rig.until_closed(old)
    if point != "closed":
        assert rig.outcome(old).reason is Reason.SUPERSEDED
    assert isinstance(rig.outcome(new), ev.Committed)
    credited = rig.events(ev.TokensCredited, prefetch=new)[0].tokens
    assert credited == (12 if point != "closed" else 4) * PAGE_TOKENS
    assert rig.take_loaded() == credited
    assert rig.take_loaded() == 0
    assert rig.matched() == 12


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", ["kv_only", "mamba"])
@pytest.mark.parametrize("point", [*LIVE, "committed_unsettled", "closed"])
def test_finish_forgets_the_request_at_any_point(rig_of: RigOf, layout: str, point: str, ranks: int) -> None:
    """What is in flight is aborted; the request is unknown afterwards, and may begin again from attempt 0."""
    rig = at(rig_of, layout, ranks, point, stop=Timeout(30, 0, 30))
    old = the_prefetch(rig)
    rig.finish()
    assert "r" not in rig.ranks[0].book.replica.requests
    assert rig.ready()
    again = rig.issue()
    for store in rig.stores:
        store.open_all()
    rig.until_closed(old)
    if isinstance(again, int):
        rig.until_closed(again)
    assert rig.matched() == 8


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", PRESETS)
@pytest.mark.parametrize("point", [*LIVE, "committed_unsettled", "closed"])
def test_close_settles_at_any_point(rig_of: RigOf, layout: str, point: str, ranks: int) -> None:
    """Reads that come back in time are released, those that do not are quarantined; nothing else is left, twice over."""
    rig = at(rig_of, layout, ranks, point, stop=Timeout(30, 0, 30))
    for coordinator in rig.ranks:
        coordinator.close(timeout_s=0)
        coordinator.close(timeout_s=0)
    for rank, coordinator in enumerate(rig.ranks):
        assert len(rig.events(ev.CoordinatorStopped, rank)) == 1
        assert rig.events(ev.CoordinatorStopped, rank)[0].open_obligations == 0
        out = sum(coordinator.book.quarantined_pages.values()) + sum(coordinator.book.tainted_pages.values())
        assert bool(out) == bool(rig.events(ev.ReadLost, rank))
    for call in (rig.tick, rig.abort, rig.ready, rig.take_loaded, rig.issue):
        with pytest.raises(CoordinatorClosed):
            call()


@pytest.mark.parametrize("layout", PRESETS)
def test_an_abort_while_a_peer_is_still_reading(rig_of: RigOf, layout: str) -> None:
    """TERMINATED, waiting: one rank must stop, all are terminated at the same tick, and an abort still discards."""
    rig = rig_of(layout, 2, stop=Timeout(5, 0, 5), batch_pages=4)
    seen: list[State | None] = []
    for store in rig.stores:
        store.hold("kv")
    id_ = rig.issue()
    rig.until_held("kv")
    rig.clock.advance(6)
    rig.tick()
    seen.append(rig.state(id_))
    assert seen == [State.TERMINATED]
    rig.abort()
    assert rig.state(id_) is State.DISCARDED
    rig.stores[0].open_all()
    rig.until(lambda: rig.ranks[0].book.local[id_].settled)
    assert not rig.ranks[1].book.local[id_].settled
    assert rig.state(id_) is State.DISCARDED  # closed on both ranks or on none
    rig.stores[1].open_all()
    rig.until_closed(id_)
    assert {e.part for e in rig.events(ev.HostReleased)} <= {Part.TAIL, Part.CLAMPED}


def test_a_page_is_released_when_its_read_answers_and_not_before(rig_of: RigOf) -> None:
    """After an abort the pages that nobody writes go at once, the others with their read, each once."""
    rig = at(rig_of, "kv_only", 1, "transferring_some_claimed", draft=False)
    assert rig.free() == 64 - 8
    rig.abort()
    assert rig.free() == 64 - 4  # pages 4 to 7 were never claimed
    rig.tick(5)
    assert rig.free() == 64 - 4
    rig.stores[0].open_all()
    rig.until(lambda: rig.free() == 64)
    assert [e.pages for e in rig.events(ev.HostReleased)] == [((4, 8),), ((0, 4),)]


def test_late_answers_after_the_end_only_discharge(rig_of: RigOf) -> None:
    """An answer that comes after an abort lands nothing, credits nothing and unlocks nothing."""
    rig = at(rig_of, "dsa", 1, "transferring_some_claimed")
    rig.abort()
    before = rig.ranks[0].book.replica.facts()
    rig.stores[0].open_all()
    rig.until(lambda: rig.events(ev.ReadEnded))
    after = {type(r.event).__name__ for r in rig.logs[0].records()}
    assert "PagesLanded" not in after
    rig.until_closed(1)
    assert before["occupied_tokens"] == 0
    assert [e.tokens for e in rig.events(ev.TokensReturned)] == [8 * PAGE_TOKENS]
