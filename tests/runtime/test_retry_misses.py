"""After a miss L3 is asked again: at its pace, within its bounds, and at no cost where no query is made."""

import pytest
from kit.waits import EVERY, GIVE_UP, RETRY, ROOM, RigOf, ask_in_vain, check, missing, story, waiters

from lifecycle import events as ev
from lifecycle.audit import verify_logs
from lifecycle.keys import page_keys
from lifecycle.policies import Policies, Retry, WaitComplete
from lifecycle.reasons import Reason
from tests.sync.board import Seat, seats


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_miss_is_asked_again_and_then_hit(rig_of: RigOf, ranks: int) -> None:
    """Another server has written the pages meanwhile: the same attempt is issued anew, published and credited once."""
    rig = rig_of(ranks=ranks, retry=RETRY)
    ask_in_vain(rig)
    assert waiters(rig) == [("r", 0, "full_miss")]
    assert rig.ready()
    missing(rig, "r", "1" * 8)
    rig.until(lambda: rig.events(ev.Committed))
    assert story(rig, "r") == ["issued 0", "waits full_miss", "tried", "issued 0"]
    assert rig.take_loaded() == ROOM
    assert rig.take_loaded() == 0
    check(rig)


@pytest.mark.parametrize(
    ("layout", "script", "reason"),
    [
        ("kv_only", {"query": "raise"}, "query_failed"),
        ("dsa", {"indexer": "0" * 8}, "sidecar_absent"),
        ("kv_only", {"kv": "01111111"}, "head_missing"),
        ("kv_only", {"kv": "0" * 8}, "full_miss"),
        ("kv_only", {"kv": "10000000"}, "below_threshold"),
    ],
)
def test_every_kind_of_miss_is_asked_again(rig_of: RigOf, layout: str, script: dict[str, str], reason: str) -> None:
    """Whatever L3 lacked, and where it could not even be asked."""
    rig = rig_of(layout, retry=RETRY, threshold_pages=2)
    keys = rig.prompt("r", 8)
    rig.stores[0].query = script.get("query", "")
    for pool, flags in script.items():
        rig.stores[0].show(pool, flags, keys)
    end = rig.run()
    assert isinstance(end, ev.Discarded)
    assert waiters(rig) == [("r", 0, reason)]
    check(rig)


@pytest.mark.parametrize("why", ["host_capacity", "shortfall", "aborted", "read_failed"])
def test_what_is_no_miss_is_not_asked_again(rig_of: RigOf, why: str) -> None:
    """L3 had it: asking once more would change nothing."""
    rig = rig_of("mamba" if why == "shortfall" else "kv_only", retry=RETRY, capacity=4 if why == "host_capacity" else 32)
    keys = rig.prompt("r", 8)
    if why == "host_capacity":
        rig.stores[0].hold("kv")
        rig.issue("other", 4)
        rig.until_held()
    if why == "shortfall":
        rig.stores[0].say("kv", "11110000", keys)
    if why == "read_failed":
        rig.stores[0].say("kv", "0" * 8, keys)
    if why == "aborted":
        rig.stores[0].hold("")
    id_ = rig.issue()
    assert isinstance(id_, int)
    if why == "aborted":
        rig.abort()
        rig.stores[0].open_all()
    rig.until(lambda: rig.events(ev.Discarded, prefetch=id_))
    rig.stores[0].open_all()
    rig.tick(2 * EVERY)
    assert story(rig, "r") == ["issued 0"]
    check(rig)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_pace_is_kept_to_the_tick(rig_of: RigOf, ranks: int) -> None:
    """Not one tick earlier than `every_ticks` after the miss, and not one later."""
    rig = rig_of(ranks=ranks, retry=RETRY)
    ask_in_vain(rig)
    began = rig.events(ev.WaitBegan)[0]
    assert began.due_tick == began.tick + EVERY
    rig.until(lambda: rig.ranks[0].tick_number == began.due_tick - 1, patience=EVERY)
    assert len(rig.events(ev.Issued)) == 1
    rig.tick()
    assert len(rig.events(ev.Issued)) == 2
    assert rig.events(ev.WaitEnded)[0].tick == began.due_tick
    check(rig)


def test_queries_of_one_attempt_are_bounded(rig_of: RigOf) -> None:
    """`max_queries` in all, the first one included; then the miss stands."""
    rig = rig_of(retry=RETRY)
    ask_in_vain(rig)
    rig.until(lambda: len(rig.events(ev.Discarded)) == 3)
    rig.tick(3 * EVERY)
    assert story(rig, "r") == ["issued 0", *("waits full_miss", "tried", "issued 0") * 2]
    assert [e.queries for e in rig.events(ev.WaitBegan)] == [1, 2]
    assert rig.stores[0].queries == 3
    check(rig)


def test_a_newer_attempt_counts_its_queries_anew(rig_of: RigOf) -> None:
    """The bound is one attempt's."""
    rig = rig_of(retry=Retry(every_ticks=EVERY, max_queries=1))
    ask_in_vain(rig)
    assert not waiters(rig)
    ask_in_vain(rig, attempt=1)
    assert [state.queries for state in rig.ranks[0].book.replica.requests.values()] == [1]
    check(rig)


def alone(retry: Retry, capacity: int) -> Seat:
    """Return one rank, read by hand, on which `r` waits to ask for a prompt that another request then brings."""
    (seat,) = seats((1,), policies=Policies(stop=WaitComplete(), retry=retry), capacity=capacity)
    keys = page_keys(range(32), 4)
    seat.store.lacks.update(("kv", key) for key in keys)
    seat.issue("r", keys)
    go(seat)
    seat.store.lacks.clear()
    assert [waiter.reason for waiter in seat.coordinator.book.replica.waiting] == [Reason.FULL_MISS]
    seat.issue("other", keys)
    go(seat, 2)
    assert seat.index.match(keys, 0).pages == 8
    return seat


def go(seat: Seat, ticks: int = 1) -> None:
    """Answer everything, then tick."""
    for _ in range(ticks):
        seat.read_all()
        seat.coordinator.tick()


def last_of(seat: Seat, request: str, count: int) -> list[str]:
    """Return the last words of a log about a request."""
    kinds = (ev.Issued, ev.Declined, ev.WaitBegan, ev.WaitEnded)
    found = [event for event in seat.events(*kinds) if event.request == request]
    return [" ".join(filter(None, (type(event).__name__, getattr(event, "reason", None)))) for event in found[-count:]]


def test_what_is_too_short_by_now_costs_no_query() -> None:
    """The index has it all when it is tried: no query is spent, and the one that helps comes once the pages are gone again."""
    every = 6
    seat = alone(Retry(every_ticks=every, max_queries=2), capacity=8)
    go(seat, every)
    assert last_of(seat, "r", 3) == ["WaitEnded", "Declined too_short", "WaitBegan too_short"]
    assert seat.events(ev.WaitBegan)[-1].queries == 1
    seat.issue("third", page_keys(range(1000, 1032), 4))  # takes the other's place in host memory
    go(seat, every + 4)
    assert last_of(seat, "r", 2) == ["WaitEnded", "Issued"]
    assert len(seat.events(ev.Committed)) == 3
    assert seat.coordinator.book.replica.requests["r"].queries == 2
    finish_alone(seat)


def test_what_stays_too_short_is_given_up() -> None:
    """Tries without a query are bounded by `give_up_ticks` since the attempt last asked."""
    seat = alone(Retry(every_ticks=EVERY, give_up_ticks=GIVE_UP), capacity=64)
    first = seat.events(ev.WaitBegan)[0].tick
    go(seat, GIVE_UP + 3 * EVERY)
    last = seat.events(ev.WaitEnded)[-1]
    assert last.reason is None
    assert GIVE_UP < last.tick - first <= GIVE_UP + EVERY
    assert last_of(seat, "r", 2) == ["WaitEnded", "Declined too_short"]
    assert not seat.coordinator.waiting("r")
    finish_alone(seat)


def finish_alone(seat: Seat) -> None:
    """Close, and check the books and the log."""
    seat.coordinator.close()
    seat.coordinator.check_integrity()
    found = verify_logs([seat.log.records()])
    assert not found, "\n".join(map(str, found))
