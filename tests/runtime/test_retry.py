"""Requests that wait to be tried again: how a wait ends, what is seen of it, and that all ranks wait and try alike."""

from typing import Any

import pytest
from kit.waits import (
    EVERY,
    GIVE_UP,
    RETRY,
    ROOM,
    RigOf,
    ask_in_vain,
    check,
    full,
    is_over,
    missing,
    served,
    story,
    waiters,
    waiting_rig,
)
from structlog.testing import capture_logs

from lifecycle import events as ev
from lifecycle.audit import verify_logs
from lifecycle.errors import DuplicateAttempt, RankDivergence, SyncFailed
from lifecycle.keys import page_keys
from lifecycle.policies import Policies, Retry, WaitComplete
from lifecycle.reasons import Reason
from tests.sync.board import Seat, finish, seats, tick

# --- how a wait ends -----------------------------------------------------------------------------------------------------


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


def test_an_index_that_stays_broken_does_not_flood_the_engines_log(rig_of: RigOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is warned of at tries 1, 2, 4, 8, and so on, not at every tick; the request waits on, and begins once it can."""
    rig = waiting_rig(rig_of, "to ask")
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(rig.indexes[0], "match", None)
        rig.tick(20 + EVERY)
    tries = [entry["tries"] for entry in logs if entry["event"].startswith("a port failed")]
    assert tries == [1, 2, 4, 8, 16]
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
    with pytest.raises(SyncFailed, match=r"of its own|of this rank's own") as failed:
        rig.tick(2 * EVERY)
    assert not isinstance(failed.value, RankDivergence)


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
