"""Requests that wait: in line for room, or to ask L3 again after a miss. Order, pace, bounds, ends; alike on all ranks."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.audit import verify_logs
from lifecycle.errors import DuplicateAttempt, SyncFailed
from lifecycle.keys import page_keys
from lifecycle.policies import Policies, Retry, WaitComplete
from lifecycle.reasons import Reason
from tests.sync.board import Seat, finish, seats, tick

RigOf = Callable[..., Rig]
EVERY, GIVE_UP = 3, 12
RETRY = Retry(every_ticks=EVERY, max_queries=3, max_waiting=4, give_up_ticks=GIVE_UP)
ROOM = 8 * PAGE_TOKENS


def waiters(rig: Rig) -> list[tuple[str, int, str]]:
    """Return who waits on every rank, in order, with the attempt and the reason."""
    return [(w["request"], w["attempt"], w["reason"]) for w in rig.same(lambda rank: rig.ranks[rank].snapshot()["waiting"])]


def story(rig: Rig, request: str) -> list[str]:
    """Return what the log says of a request's tries: issued, declined and why, and its waits."""
    told = []
    for record in rig.logs[0].records():
        match record.event:
            case ev.Issued(request=who, attempt=attempt) if who == request:
                told.append(f"issued {attempt}")
            case ev.Declined(request=who, reason=reason) if who == request:
                told.append(f"declined {reason}")
            case ev.WaitBegan(request=who, reason=reason) if who == request:
                told.append(f"waits {reason}")
            case ev.WaitEnded(request=who, reason=reason) if who == request:
                told.append(f"over {reason}" if reason else "tried")
    return told


def check(rig: Rig) -> None:
    """Check the books, that the logs fold to them, and the logs against the laws."""
    rig.check_equal()
    rig.check()
    found = verify_logs([log.records() for log in rig.logs])
    assert not found, "\n".join(map(str, found))


def served(rig: Rig, request: str) -> None:
    """Serve a request on every rank."""
    prompt = rig.prompts[request]
    rig.same(lambda rank: rig.ranks[rank].served(request, rig.indexes[rank].match(prompt, rig.ranks[rank].tick_number)))


def missing(rig: Rig, request: str, flags: str = "0" * 8) -> None:
    """Let L3 have these pages of a prompt."""
    for store in rig.stores:
        store.show("kv", flags, rig.prompt(request, 8))


def ask_in_vain(rig: Rig, request: str = "r", **more: Any) -> int:
    """Issue a request of which L3 has nothing, up to its end."""
    missing(rig, request)
    id_ = rig.issue(request, **more)
    assert isinstance(id_, int)
    rig.until_closed(id_)
    return id_


def full(rig_of: RigOf, ranks: int = 1, pages: int = 8, **more: Any) -> Rig:
    """Return ranks whose limit one prefetch, of `a`, takes up; its query is held."""
    rig = rig_of(ranks=ranks, limit_tokens=pages * PAGE_TOKENS, **{"retry": RETRY, **more})
    for store in rig.stores:
        store.hold("")
    rig.issue("a")
    return rig


# --- in line for room ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fourth_request_is_prefetched_once_there_is_room(rig_of: RigOf, ranks: int) -> None:
    """It is declined with the numbers, waits, is tried when the first are through, and is published; nothing stays occupied."""
    rig = rig_of(ranks=ranks, limit_tokens=3 * ROOM, retry=RETRY, capacity=64)
    for store in rig.stores:
        store.hold("")
    for request in "abc":
        rig.issue(request)
    declined = rig.issue("d")
    assert isinstance(declined, ev.Declined)
    assert (declined.reason, declined.occupied_tokens, declined.limit_tokens) == (Reason.RATE_LIMITED, 3 * ROOM, 3 * ROOM)
    assert rig.same(lambda rank: rig.ranks[rank].waiting("d"))
    check(rig)
    for store in rig.stores:
        store.open_all()
    rig.until(lambda: rig.events(ev.Committed, prefetch=4))
    rig.until_closed(4)
    assert story(rig, "d") == ["declined rate_limited", "waits rate_limited", "tried", "issued 0"]
    assert not rig.same(lambda rank: rig.ranks[rank].waiting("d"))
    assert (rig.take_loaded("d"), rig.occupied()) == (ROOM, 0)
    check(rig)


def test_without_the_policy_a_decline_is_the_last_word(rig_of: RigOf) -> None:
    """Nothing waits, nothing is tried again, and no event says so."""
    rig = full(rig_of, retry=None)
    assert isinstance(rig.issue("b"), ev.Declined)
    rig.abort("a")
    missing(rig, "m")
    rig.stores[0].open_all()
    rig.run("m")
    rig.tick(2 * EVERY)
    assert [story(rig, request) for request in "bm"] == [["declined rate_limited"], ["issued 0"]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_line_is_served_in_order(rig_of: RigOf, ranks: int) -> None:
    """Each time there is room, the one that waits for longest begins, and only that one."""
    rig = full(rig_of, ranks)
    for request in "bcd":
        rig.issue(request)
    order = []
    for request in "abc":
        assert rig.abort(request)
        rig.tick()
        order.append([w[0] for w in waiters(rig)])
        check(rig)
    assert order == [["c", "d"], ["d"], []]
    assert [e.request for e in rig.events(ev.Issued)] == ["a", "b", "c", "d"]


def test_nobody_overtakes_who_waits_for_room(rig_of: RigOf) -> None:
    """A newcomer that would fit beside what is in flight is declined while somebody waits, and begins after that one."""
    rig = full(rig_of, pages=12)
    rig.issue("big")
    small = rig.issue("small", 4)
    assert isinstance(small, ev.Declined)
    assert small.reason is Reason.RATE_LIMITED
    assert small.occupied_tokens + 4 * PAGE_TOKENS <= small.limit_tokens
    rig.tick(2)
    assert [w[0] for w in waiters(rig)] == ["big", "small"]
    rig.abort("a")
    rig.tick()
    assert [e.request for e in rig.events(ev.Issued)] == ["a", "big", "small"]
    check(rig)


def test_who_asks_again_does_not_overtake_either(rig_of: RigOf) -> None:
    """A request whose next query is due stands in line behind those who wait for room."""
    rig = rig_of(limit_tokens=12 * PAGE_TOKENS, retry=RETRY)
    ask_in_vain(rig, "m")
    rig.stores[0].hold("")
    rig.issue("a")
    rig.issue("big")
    rig.tick(EVERY)
    assert story(rig, "m") == ["issued 0", "waits full_miss", "tried", "declined rate_limited", "waits rate_limited"]
    assert [w[0] for w in waiters(rig)] == ["big", "m"]
    rig.abort("a")
    rig.tick()
    assert [w[0] for w in waiters(rig)] == ["m"]
    check(rig)


def test_issued_once_more_it_keeps_its_place(rig_of: RigOf) -> None:
    """The same attempt, issued while it waits in line, is decided anew and stands where it stood."""
    rig = full(rig_of)
    rig.issue("b")
    rig.issue("c")
    again = rig.issue("b", 6)
    assert isinstance(again, ev.Declined)
    assert [(w["request"], w["tokens"]) for w in rig.ranks[0].snapshot()["waiting"]] == [("b", 6 * PAGE_TOKENS), ("c", ROOM)]
    rig.abort("a")
    assert isinstance(rig.issue("c"), ev.Declined)  # b is first
    assert isinstance(rig.issue("b", 6), int)
    assert [w[0] for w in waiters(rig)] == ["c"]
    check(rig)


def test_one_that_needs_more_by_now_waits_on_in_its_place(rig_of: RigOf) -> None:
    """Pages that the index had when it was declined are gone: it waits for what it needs now, still first in line."""
    rig = rig_of(limit_tokens=12 * PAGE_TOKENS, retry=RETRY, capacity=12)
    rig.run("b4", 4, prompt="b")
    rig.stores[0].hold("")
    rig.issue("a")
    assert isinstance(rig.issue("b", prompt="b"), int)  # 4 pages are there, 4 fit
    declined = rig.issue("c", prompt="b")
    assert isinstance(declined, ev.Declined)
    assert [(w["tokens"], w["place"]) for w in rig.ranks[0].snapshot()["waiting"]] == [(4 * PAGE_TOKENS, 1)]
    rig.issue("d", 4)
    rig.abort("b")
    rig.ranks[0]._rank.residency.make_room({"kv": 12})  # as another prefetch's plan would
    rig.tick()
    told = rig.ranks[0].snapshot()["waiting"]
    assert (told[0]["request"], told[0]["tokens"], told[0]["since_tick"]) == ("c", ROOM, told[1]["since_tick"])
    assert story(rig, "c") == ["declined rate_limited", "waits rate_limited", "waits rate_limited"]
    rig.tick(3)
    assert len(rig.events(ev.WaitBegan)) == 3  # told once, and not looked at while it does not fit
    rig.abort("a")
    rig.tick()
    assert [e.request for e in rig.events(ev.Issued)] == ["b4", "a", "b", "c", "d"]
    check(rig)


def test_who_comes_when_the_list_is_full_is_declined_for_good(rig_of: RigOf) -> None:
    """At most `max_waiting` requests wait; what comes then is told no, and told only once."""
    rig = full(rig_of)
    for request in "bcdefg":
        rig.issue(request)
    assert [w[0] for w in waiters(rig)] == ["b", "c", "d", "e"]
    assert story(rig, "f") == ["declined rate_limited"]
    assert not rig.ranks[0].waiting("f")
    check(rig)


def test_a_wait_for_room_is_given_up_at_last(rig_of: RigOf) -> None:
    """After `give_up_ticks` it is over, with a reason, and the next one is first in line."""
    rig = full(rig_of)
    rig.issue("b")
    rig.tick()
    rig.issue("c")
    rig.tick(GIVE_UP - 1)
    assert [w[0] for w in waiters(rig)] == ["b", "c"]
    rig.tick()
    assert story(rig, "b") == ["declined rate_limited", "waits rate_limited", "over rate_limited"]
    assert [w[0] for w in waiters(rig)] == ["c"]
    check(rig)


# --- after a miss --------------------------------------------------------------------------------------------------------


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


# --- how a wait ends -----------------------------------------------------------------------------------------------------


def waiting_rig(rig_of: RigOf, kind: str, **more: Any) -> Rig:
    """Return ranks on which `r` waits, for room or to ask again."""
    if kind == "to ask":
        rig = rig_of(retry=RETRY, **more)
        ask_in_vain(rig)
    else:
        rig = full(rig_of, **more)
        rig.issue()
    return rig


def is_over(rig: Rig) -> None:
    """Nothing waits, nothing of it is kept, and nothing comes of it."""
    assert not waiters(rig)
    assert all(not sizes["waiting_keys"] for sizes in rig.sizes())
    check(rig)
    for store in rig.stores:
        store.open_all()
    rig.until(lambda: not any(c.book.local for c in rig.ranks))
    rig.tick(2 * EVERY)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["for room", "to ask"])
@pytest.mark.parametrize("verb", ["served", "abort", "finish"])
def test_a_command_ends_the_wait(rig_of: RigOf, verb: str, kind: str, ranks: int) -> None:
    """Admitted, aborted or forgotten, the request is not tried again."""
    rig = waiting_rig(rig_of, kind, ranks=ranks)
    before = len(rig.events(ev.Issued))
    if verb == "served":
        served(rig, "r")
    elif verb == "abort":
        assert rig.abort() is True
        assert rig.abort() is False
        assert story(rig, "r")[-1] == "over aborted"
    else:
        rig.finish()
        assert not rig.ranks[0].waiting("r")
    is_over(rig)
    assert len(rig.events(ev.Issued)) == before


@pytest.mark.parametrize("kind", ["for room", "to ask"])
def test_a_newer_attempt_ends_the_wait(rig_of: RigOf, kind: str) -> None:
    """The older attempt is superseded; the newer one is a newcomer, behind those who wait."""
    rig = waiting_rig(rig_of, kind)
    if kind == "for room":
        rig.issue("behind")
    rig.issue(attempt=1)
    assert "over superseded" in story(rig, "r")
    expected = [("behind", 0, "rate_limited"), ("r", 1, "rate_limited")] if kind == "for room" else []
    assert waiters(rig) == expected
    check(rig)


def test_the_same_attempt_is_a_duplicate_while_it_waits_to_ask(rig_of: RigOf) -> None:
    """It was issued, and is going to be again; the refusal changes nothing."""
    rig = waiting_rig(rig_of, "to ask")
    with pytest.raises(DuplicateAttempt):
        rig.issue()
    assert waiters(rig) == [("r", 0, "full_miss")]
    check(rig)


def test_a_miss_after_the_request_was_served_is_not_asked_again(rig_of: RigOf) -> None:
    """It was admitted before the answer came."""
    rig = rig_of(retry=RETRY)
    missing(rig, "r")
    rig.stores[0].hold("")
    id_ = rig.issue()
    rig.until_held("")
    served(rig, "r")
    rig.stores[0].open_all()
    rig.until_closed(id_)
    is_over(rig)
    assert story(rig, "r") == ["issued 0"]


def test_a_miss_of_a_request_that_began_anew_is_not_asked_again(rig_of: RigOf) -> None:
    """What is discarded belongs to an attempt that is forgotten."""
    rig = rig_of(retry=RETRY, readers=3)
    missing(rig, "r")
    rig.stores[0].hold("")
    rig.issue()
    rig.until_held("")
    rig.finish()
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    is_over(rig)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["for room", "to ask"])
def test_nothing_waits_in_a_closed_log(rig_of: RigOf, kind: str, ranks: int) -> None:
    """Closing ends every wait, with its reason."""
    rig = waiting_rig(rig_of, kind, ranks=ranks)
    for coordinator in rig.ranks:
        coordinator.close()
    assert story(rig, "r")[-1] == "over shutdown"
    assert not rig.ranks[0].book.replica.waiting
    check(rig)


def test_nothing_waits_once_a_round_has_failed(rig_of: RigOf) -> None:
    """A rank's own error fails the round of all, and every wait with it."""
    rig = waiting_rig(rig_of, "to ask", ranks=2)
    rig.ranks[1]._ticks.note_fault(RuntimeError("of this rank"))
    with pytest.raises(SyncFailed):
        rig.tick()
    for rank in (0, 1):
        assert rig.events(ev.WaitEnded, rank)[-1].reason is Reason.SYNC_FAILED
        assert not rig.ranks[rank].book.replica.waiting


def test_a_try_with_too_many_readers_lost_is_the_last(rig_of: RigOf) -> None:
    """The wait is over: it would begin what nobody may read."""
    rig = waiting_rig(rig_of, "to ask")
    rig.ranks[0]._rank.transfers.hung_readers = 1000
    rig.tick(EVERY)
    rig.ranks[0]._rank.transfers.hung_readers = 0
    assert story(rig, "r")[-2:] == ["tried", "declined readers_lost"]
    is_over(rig)


# --- beside it -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["for room", "to ask"])
def test_a_wait_holds_up_nobody(rig_of: RigOf, kind: str) -> None:
    """`ready` is True and `waiting` says why one might hold back; taking the loaded tokens takes nothing yet."""
    rig = waiting_rig(rig_of, kind)
    assert rig.ready()
    assert rig.ranks[0].waiting("r")
    assert not rig.ranks[0].waiting("never")
    assert rig.take_loaded() == 0
    assert not rig.events(ev.LoadedTaken)


def test_the_snapshot_lists_who_waits(rig_of: RigOf) -> None:
    """Those in line by their place, then those who ask again, by when they are due."""
    rig = rig_of(limit_tokens=ROOM, retry=RETRY)
    ask_in_vain(rig, "m")
    rig.stores[0].hold("")
    rig.issue("a")
    rig.issue("b")
    now, miss = rig.ranks[0].tick_number, rig.events(ev.WaitBegan)[0]
    line = {"request": "b", "attempt": 0, "reason": "rate_limited", "since_tick": now, "due_tick": now, "place": 1,
            "tokens": ROOM, "queries": 0}  # fmt: skip
    again = {"request": "m", "attempt": 0, "reason": "full_miss", "since_tick": miss.tick, "due_tick": miss.tick + EVERY,
             "place": None, "tokens": ROOM, "queries": 1}  # fmt: skip
    assert rig.ranks[0].snapshot()["waiting"] == [line, again]


def test_a_tick_with_nothing_due_asks_the_index_nothing(rig_of: RigOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, only who may be tried is looked at."""
    rig = full(rig_of)
    for request in "bcd":
        rig.issue(request)
    asked: list[int] = []
    match = rig.indexes[0].match
    monkeypatch.setattr(rig.indexes[0], "match", lambda *args: asked.append(1) or match(*args))
    rig.tick(GIVE_UP - 1)
    assert not asked
    rig.abort("a")
    rig.tick()
    assert len(asked) == 1


def test_a_port_that_fails_is_tried_again(rig_of: RigOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one rank nothing has happened: the request waits on, reads go on, and the next tick tries it."""
    rig = waiting_rig(rig_of, "to ask")
    lock, broken = rig.indexes[0].lock, [True]

    def flaky(anchor: Any) -> None:
        if broken.pop() if broken else False:
            raise OSError("the index is busy")
        lock(anchor)

    monkeypatch.setattr(rig.indexes[0], "lock", flaky)
    rig.until(lambda: not broken, patience=EVERY)
    assert waiters(rig) == [("r", 0, "full_miss")]
    rig.tick()
    assert story(rig, "r") == ["issued 0", "waits full_miss", "tried", "issued 0"]
    check(rig)


def test_a_port_that_fails_on_one_rank_of_several_fails_the_round(rig_of: RigOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have begun what this rank could not: all learn it in the next round."""
    rig = waiting_rig(rig_of, "to ask", ranks=2)

    def broken(anchor: Any) -> None:
        raise OSError("the index is gone")

    monkeypatch.setattr(rig.indexes[1], "lock", broken)
    rig.unequal = True
    with pytest.raises(SyncFailed):
        rig.tick(2 * EVERY)


# --- ranks that get less, and late ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_unequal_ranks_wait_and_try_alike(lag: int) -> None:
    """Two ranks of which one lacks pages at first, rounds used later: the same events in the same order."""
    retry = Retry(every_ticks=EVERY, max_queries=4)
    policies = Policies(stop=WaitComplete(), lag_ticks=lag, limit_tokens=2 * 8 * 4, retry=retry)
    ranks: list[Seat] = seats((2,), policies=policies)
    prompts = {f"r{n}": page_keys(range(1000 * n, 1000 * n + 32), 4) for n in range(5)}
    for key in prompts["r0"]:
        ranks[1].store.lacks.add(("kv", key))
    for request, keys in prompts.items():
        for seat in ranks:
            seat.issue(request, keys)
    for step in range(60):
        for place, seat in enumerate(ranks):
            if (step + place) % 2:
                seat.read_all()
        if step == 8:
            ranks[1].store.lacks.clear()
        tick(ranks)
        first, second = (seat.coordinator.book.replica.facts() for seat in ranks)
        assert first == second
    finish(ranks)
    assert ranks[0].events() == ranks[1].events()
    request_of = {event.prefetch: event.request for event in ranks[0].events(ev.Issued)}
    assert sorted(request_of[event.prefetch] for event in ranks[0].events(ev.Committed)) == sorted(prompts)
    assert not verify_logs([seat.log.records() for seat in ranks])
