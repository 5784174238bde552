"""What depends on time: limits, lost reads and queries, late answers, readers replaced and given up.

No clock moves but the test's.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest
from freezegun import freeze_time
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.layout import PRESETS
from lifecycle.policies import BestEffort, Timeout, WaitComplete
from lifecycle.reasons import Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]
LIMIT = Timeout(base_s=5, per_ki_token_s=0, max_s=5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_queue_limit_runs_from_issue_to_the_first_claim(rig_of: RigOf, ranks: int) -> None:
    """A prefetch of which no read was claimed in time ends with `queue_timeout`; nothing was reserved for it."""
    rig = rig_of(ranks=ranks, stop=LIMIT)
    for store in rig.stores:
        store.hold("")
    id_ = rig.issue()
    rig.until_held("")
    rig.clock.advance(4.999)
    rig.tick(3)
    assert rig.state(id_) is State.ISSUED
    rig.clock.advance(0.001)
    rig.until_closed(id_)
    assert rig.outcome().reason is Reason.QUEUE_TIMEOUT
    assert not rig.events(ev.HostReserved)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_transfer_limit_runs_from_the_first_claim(rig_of: RigOf, ranks: int) -> None:
    """Time in the queue is not counted against the transfer, and what landed as a leading run is published."""
    rig = rig_of(ranks=ranks, stop=LIMIT, batch_pages=2)
    for store in rig.stores:
        store.hold("", "kv")
    id_ = rig.issue()
    rig.until_held("")
    rig.clock.advance(4)
    for store in rig.stores:
        store.let_go("")
        store.holding.discard("")
    rig.until_held("kv")
    for store in rig.stores:
        store.let_go("kv", page=0)
    rig.until(lambda: all(rig.events(ev.ReadEnded, rank) for rank in range(ranks)))
    rig.clock.advance(4.9)
    rig.tick(3)
    assert rig.state(id_) is State.TRANSFERRING
    rig.clock.advance(0.2)
    rig.until(lambda: rig.events(ev.Clamped))
    assert rig.outcome().reason is Reason.TIMEOUT
    assert rig.outcome().usable_page == 2
    assert rig.events(ev.TransferStarted)[0].queued_ns == 4_000_000_000


@pytest.mark.parametrize("pool", ["indexer", "draft", "kv"])
def test_a_pending_pool_does_not_stop_the_clock(rig_of: RigOf, pool: str) -> None:
    """At the limit the prefetch ends, whichever pool is still out; the slots stay until the read is back."""
    rig = rig_of("dsa", draft=True, stop=LIMIT)
    rig.stores[0].hold(pool)
    id_ = rig.issue()
    rig.until_held(pool)
    rig.clock.advance(5)
    rig.until(lambda: rig.state(id_) in (State.COMMITTED, State.DISCARDED))
    if pool == "draft":
        assert rig.outcome().usable_page == 8
        assert rig.outcome().dropped == ("draft",)
        assert rig.resident() == 8
    else:
        assert rig.outcome().reason is Reason.TIMEOUT
    assert rig.occupied() == 0
    rig.tick(3)
    assert rig.free() == 32 - 8
    rig.stores[0].open_all()
    rig.until_closed(id_)


def test_a_limit_of_nothing_ends_at_once(rig_of: RigOf) -> None:
    """With a limit of 0 s a prefetch that no reader ever looks at ends all the same."""
    rig = rig_of(stop=Timeout(0, 0, 1), readers=1)
    rig.stores[0].hold("")
    rig.issue("plug")
    rig.until(lambda: rig.stores[0].waiting(""), tick=False)
    id_ = rig.issue()
    assert isinstance(id_, int)
    rig.until_closed(id_)
    assert rig.clock.ns == 1_000_000_000
    assert rig.outcome(id_).reason is Reason.QUEUE_TIMEOUT


def test_the_limit_grows_with_the_tokens_up_to_its_maximum(rig_of: RigOf) -> None:
    """min(max, base + per_ki_token x tokens / 1024): 256 tokens at 8 s a Ki are 2 s more."""
    rig = rig_of(stop=Timeout(1, 8, 100), capacity=200)
    rig.stores[0].hold("")
    id_ = rig.issue(pages=256 // PAGE_TOKENS)
    rig.tick()
    rig.clock.advance(2.99)
    rig.tick(2)
    assert rig.state(id_) is State.ISSUED
    rig.clock.advance(0.02)
    rig.until_closed(id_)


@pytest.mark.parametrize("stop", [WaitComplete(), BestEffort(), Timeout(100, 0, 100)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lost_read_fails_under_every_policy(rig_of: RigOf, stop: object, ranks: int) -> None:
    """After `lost_read_s` the read counts as failed, its pages are quarantined and leave the budget on all ranks."""
    rig = rig_of(ranks=ranks, stop=stop, lost_read_s=10.0, batch_pages=2)
    rig.stores[-1].hold("kv")
    id_ = rig.issue()
    rig.until(lambda: rig.stores[-1].waiting("kv") and rig.events(ev.ReadClaimed, ranks - 1))
    rig.stores[-1].holding.clear()
    rig.clock.advance(9.9)
    rig.tick(2)
    assert rig.state(id_) is State.TRANSFERRING
    rig.clock.advance(0.2)
    rig.until_closed(id_)
    assert rig.outcome().reason is Reason.LOST_READ
    assert rig.memories[-1].quarantined_pages("kv") == 2
    rig.tick(2)
    for coordinator in rig.ranks:
        assert coordinator.book.replica.budget("kv") == 30
    if ranks == 2:
        assert rig.memories[0].quarantined_pages("kv") == 0
    rig.stores[-1].open_all()
    rig.tick(3)
    assert rig.free("kv", ranks - 1) == 30  # the late answer changes nothing


def test_a_lost_read_of_an_optional_pool_does_not_stop_the_target(rig_of: RigOf) -> None:
    """The kv pages are published; the slots that the draft read may still write are quarantined when they are evicted."""
    rig = rig_of("kv_only", draft=True, capacity=12, lost_read_s=5.0)
    rig.stores[0].hold("draft")
    id_ = rig.issue("a")
    rig.until_held("draft")
    rig.stores[0].holding.clear()
    rig.clock.advance(6)
    rig.until_closed(id_)
    assert isinstance(rig.outcome(id_), ev.Committed)
    assert rig.outcome(id_).dropped == ("draft",)
    book = rig.ranks[0].book
    assert book.tainted_pages == {"kv": 8}
    assert book.replica.budget("kv") == 12 - 8 - 8  # resident, and off the budget once they are evicted
    rig.run("b", 4)
    assert isinstance(rig.outcome(2), ev.Committed)
    rig.run("c", 4)
    assert rig.memories[0].quarantined_pages("kv") == 8
    rig.stores[0].open_all()
    rig.tick(3)
    assert rig.matched("c") == 4


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lost_query_counts_as_a_hit_of_nothing(rig_of: RigOf, ranks: int) -> None:
    """An existence query that nobody answers ends the prefetch; an answer that comes afterwards is dropped."""
    rig = rig_of(ranks=ranks, lost_read_s=10.0)
    rig.stores[0].hold("")
    id_ = rig.issue()
    rig.until(lambda: rig.stores[0].waiting(""))
    rig.clock.advance(11)
    rig.until_closed(id_)
    assert rig.outcome().reason is Reason.QUERY_FAILED
    rig.stores[0].open_all()
    rig.tick(3)
    assert len(rig.events(ev.HitResolved)) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_query_that_no_reader_takes_is_lost_in_time(rig_of: RigOf, ranks: int) -> None:
    """Behind one that was taken late, and hangs, too: each waits for `lost_read_s` at most, and not for the other."""
    rig = rig_of(ranks=ranks, readers=1, lost_read_s=10.0)
    rig.stores[0].hold("")
    rig.issue("a")
    rig.until(lambda: rig.stores[0].waiting(""))
    rig.clock.advance(5)
    late = rig.issue("b")
    rig.clock.advance(1)
    never = rig.issue("c")
    rig.clock.advance(5)
    rig.until(lambda: rig.stores[0].waiting("") == 2)  # the first is lost by now: its reader is replaced, and takes the second
    rig.clock.advance(5)
    rig.until_closed(never)
    assert rig.outcome(never).reason is Reason.QUERY_FAILED
    assert rig.state(late) is State.ISSUED
    rig.clock.advance(5)
    rig.until_closed(late)
    assert rig.outcome(late).reason is Reason.QUERY_FAILED
    rig.stores[0].open_all()


@pytest.mark.parametrize("what", ["read", "query", "query of an aborted prefetch"])
def test_a_reader_that_hangs_is_replaced(rig_of: RigOf, what: str) -> None:
    """One reader, lost again and again up to the limit: there is always one that goes on."""
    rig = rig_of(readers=1, lost_read_s=10.0, max_lost_reads=3, capacity=64)
    pool = "kv" if what == "read" else ""
    for lost in range(3):
        rig.stores[0].hold(pool)
        id_ = rig.issue(f"r{lost}", 4)
        rig.until_held(pool, lost + 1)
        rig.stores[0].holding.clear()
        if what == "query of an aborted prefetch":
            rig.abort(f"r{lost}")
            rig.until_closed(id_)
        rig.clock.advance(11)
        rig.tick()
        rig.until_closed(id_)
        assert rig.ranks[0].snapshot()["lost_reads"] == lost + 1
        assert isinstance(rig.run(f"good{lost}", 4), ev.Committed)


@pytest.mark.parametrize("ranks", [1, 2])
def test_beyond_the_limit_of_lost_reads_issue_declines_on_all_ranks(rig_of: RigOf, ranks: int) -> None:
    """Readers are not replaced any more: what waits fails at once, and new prefetches are declined alike everywhere."""
    rig = rig_of(ranks=ranks, readers=1, lost_read_s=10.0, max_lost_reads=0, capacity=64)
    rig.stores[-1].hold("kv")
    first = rig.issue("a", 4)
    rig.until(lambda: rig.stores[-1].waiting("kv"))
    waits = rig.issue("b", 4)
    rig.clock.advance(11)
    rig.until_closed(first)
    rig.until_closed(waits)
    assert rig.outcome(first).reason is Reason.LOST_READ
    assert rig.outcome(waits).reason is Reason.QUERY_FAILED
    rig.tick(2)
    declined = rig.issue("c", 4)
    assert isinstance(declined, ev.Declined)
    assert declined.reason is Reason.READERS_LOST
    assert rig.ready("c")
    assert rig.take_loaded("c") == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_prefetching_goes_on_once_the_reader_that_hung_has_come_back(rig_of: RigOf, ranks: int) -> None:
    """What counts is how many readers hang now: nothing has to be restarted."""
    rig = rig_of(ranks=ranks, readers=1, lost_read_s=10.0, max_lost_reads=0, capacity=64)
    rig.stores[-1].hold("kv")
    first = rig.issue("a", 4)
    rig.until(lambda: rig.stores[-1].waiting("kv"))
    rig.clock.advance(11)
    rig.until_closed(first)
    rig.tick(2)
    assert isinstance(rig.issue("b", 4), ev.Declined)
    rig.stores[-1].open_all()
    rig.until(lambda: rig.ranks[-1].snapshot()["lost_reads"] == 1 and not rig.ranks[-1]._rank.agreement.declining)
    assert isinstance(rig.run("c", 4), ev.Committed)


@pytest.mark.parametrize("how", ["committed", "discarded", "lost", "aborted"])
@pytest.mark.parametrize("layout", PRESETS)
def test_a_late_answer_only_discharges(rig_of: RigOf, layout: str, how: str) -> None:
    """After every end, an answer that was out may end its read; it never lands, credits, unlocks or returns anything."""
    rig = rig_of(layout, draft=True, stop=LIMIT, lost_read_s=20.0)
    rig.stores[0].hold("draft" if how in ("committed", "lost") else "kv")
    id_ = rig.issue()
    rig.until_held("draft" if how in ("committed", "lost") else "kv")
    rig.stores[0].holding.clear()
    if how == "aborted":
        rig.abort()
    else:
        rig.clock.advance(5)
    rig.until(lambda: id_ not in rig.ranks[0].book.replica.in_flight or rig.prefetch(id_).terminal)
    if how == "lost":
        rig.clock.advance(21)
        rig.until_closed(id_)
    rig.tick()
    before = [record.event for record in rig.logs[0].records()]
    facts = rig.ranks[0].book.replica.facts()
    rig.stores[0].open_all()
    rig.until(lambda: not rig.stores[0].active.busy, tick=False)
    if how == "lost":
        rig.tick(5)
        assert [record.event for record in rig.logs[0].records()] == before
        return
    rig.until_closed(id_)
    after = [record.event for record in rig.logs[0].records()][len(before) :]
    allowed = (ev.ReadEnded, ev.HostReleased, ev.LateWriteEnded, ev.Settled, ev.Closed, ev.PagesUnlocked, ev.ReadClaimed)
    assert all(isinstance(event, allowed) for event in after), after
    assert rig.ranks[0].book.replica.facts()["occupied_tokens"] == facts["occupied_tokens"] == 0


def test_the_default_clock_is_read_late(rig_of: RigOf) -> None:
    """Without a clock of its own the coordinator reads `time.monotonic_ns` when it needs it, so that it can be frozen."""
    with freeze_time("2026-01-01") as frozen:
        rig = rig_of(stop=LIMIT, frozen=True)
        rig.stores[0].hold("")
        id_ = rig.issue()
        rig.until_held("")
        frozen.tick(timedelta(seconds=4.9))
        rig.tick(2)
        assert rig.state(id_) is State.ISSUED
        frozen.tick(timedelta(seconds=0.2))
        rig.until_closed(id_)
        assert rig.outcome().reason is Reason.QUEUE_TIMEOUT
        assert rig.logs[0].records()[-1].at_ns - rig.logs[0].records()[0].at_ns == 5_100_000_000
        rig.tear_down()
