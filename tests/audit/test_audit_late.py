"""What comes too late, and what does not follow: told where rounds prove that a rank went on, and nowhere else."""

from typing import Any

import pytest
from audit_stories import Tape, tape, verify
from mutant_logs import policy, rounds
from test_audit_waits import EVERY, GIVE_UP
from test_audit_waits import run as waits

from lifecycle.audit import Law
from lifecycle.events import (
    AnyEvent,
    Capped,
    Discarded,
    Event,
    HitResolved,
    Issued,
    LogOpened,
    PagesLanded,
    PlanAgreed,
    ReadClaimed,
    ReadEnded,
    ReadLost,
    RoundDone,
    Synced,
    Terminated,
    TransferStarted,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.reasons import Reason

LIMIT = {"name": "timeout", "base_s": 1.0, "per_ki_token_s": 0.0, "max_s": 1.0}


def said(law: Law, *tapes: Tape) -> list[str]:
    """Return what is found under a law."""
    return [each.what for each in verify(*tapes) if each.law is law]


def slow(count: int, **policies: object) -> tuple[Tape, Tape]:
    """Return the logs of two ranks whose first read takes so many rounds, a second each."""
    tapes = tape("ranked", 0), tape("ranked", 1)
    policy(*tapes, **policies)
    for log in tapes:
        rounds(log, count, TransferStarted, prefetch=1)
    return tapes


def test_a_limit_is_missed_once_a_whole_round_was_built_after_it() -> None:
    """With one round after the limit ran out its rows may have been built before; each rank tells it once a prefetch."""
    assert said(Law.OUTCOME, *slow(2, stop=LIMIT)) == []
    assert said(Law.OUTCOME, *slow(5, stop=LIMIT)) == ["it is transferring 8 s after its first read"] * 2


@pytest.mark.parametrize("policies", [{"row_capacity": 1}, {"lag_ticks": 1}, {"row_capacity": None}, {"observed": "sglang"}])
def test_a_limit_that_may_have_been_kept(policies: dict[str, object]) -> None:
    """Where a round had no room for all rows, or its rows are older than it, or the log does not say, nobody is late."""
    assert said(Law.OUTCOME, *slow(5, stop=LIMIT, **policies)) == []


def test_a_rank_that_is_alone_is_never_late() -> None:
    """Its log does not say when it ticked: the scheduler may have stood still."""
    log = tape("plain")
    policy(log, stop=LIMIT, lost_read_s=1.0)
    assert verify(log) == []


def test_a_read_is_overdue_once_two_rounds_ended_after_its_time() -> None:
    """Each tick looks for lost reads before its round, with a lag as without."""
    for lag in (0, 2):
        assert said(Law.CLAIM, *slow(1, lost_read_s=4.0, lag_ticks=lag)) == []
        found = said(Law.CLAIM, *slow(5, lost_read_s=4.0, lag_ticks=lag))
        assert found == ["the read of [0:8) of kv is over 9 s after its claim"] * 2


def test_a_round_that_ended_after_its_time_may_have_begun_before() -> None:
    """The read is claimed two seconds before the first of the rounds ends: with one nothing is proved, with two it is."""
    assert said(Law.CLAIM, *slow(1, lost_read_s=2.0)) == []
    assert len(said(Law.CLAIM, *slow(2, lost_read_s=2.0))) == 2


def test_a_missed_limit_is_told_once_a_prefetch() -> None:
    """Two reads that end after it are one fault."""
    log = tape("aborted")
    policy(log, stop=LIMIT)
    late: list[AnyEvent] = []
    for pages in ((0, 3), (3, 6)):
        late += [PagesLanded(1, "kv", pages, 48), log.drop(ReadEnded, prefetch=1, pages=pages)]
    place = log.find(Discarded)
    log.events[place:place] = late
    rounds(log, 4, ReadClaimed, prefetch=1, pages=(3, 6))
    told = [what for what in said(Law.OUTCOME, log) if "after its first read" in what]
    assert told == ["it is transferring 7 s after its first read"]


def test_a_loss_is_not_heard_of_by_rounds_that_were_on_their_way() -> None:
    """With a lag of two, the third round after the loss was built after it, and no earlier one need have been."""
    for between, told in ((2, []), (3, ["terminated as timeout"])):
        log = tape("lost")
        policy(log, stop=LIMIT, lag_ticks=2)
        log.change(Terminated, new={"reason": Reason.TIMEOUT})
        rounds(log, 1, HitResolved)
        rounds(log, between, ReadLost)
        assert said(Law.OUTCOME, log)[: len(told)] == told, between
        assert bool(told) or "lost_read" not in str([each.right for each in verify(log)])


def test_a_cap_is_to_a_page_that_failed() -> None:
    """One rank alone has nobody else to hear of it from."""
    log = tape("short")
    log.put(Capped(1, 7), Capped, after=False)
    assert said(Law.PLAN, log) == ["capped to page 7"]
    log = tape("short")
    log.change(Terminated, new={"reason": Reason.COMPLETED})
    assert "terminated as completed" in said(Law.OUTCOME, log)


def test_a_hit_is_not_shorter_than_what_every_pool_has() -> None:
    """Also where a window may make it longer."""
    log = tape("plain")
    log.change(HitResolved, prefetch=1, new={"hit_page": 5})
    assert said(Law.PLAN, log)[0] == "a hit of 5 pages"
    log = tape("plain")
    log.change(HitResolved, prefetch=1, new={"miss": Reason.QUERY_FAILED})
    assert said(Law.PLAN, log) == ["a hit of 8 pages though the query failed"]


@pytest.mark.parametrize(("run", "fine"), [(3, True), (4, False), (6, False), (7, False), (8, True)])
def test_the_page_at_which_a_leading_run_ends_is_missing(run: int, fine: bool) -> None:
    """No window that a hit needs has it: [4, 8) of a hit of 8; a run of 8 ends at the end of the span."""
    log = tape("plain")
    log.change(HitResolved, prefetch=1, new={"leading": {"kv": 8, "swa": run}})
    assert (said(Law.PLAN, log) == []) is fine


def test_rounds_have_room_for_so_many_rows() -> None:
    """More rows than the header allows are no round of this run."""
    tapes = tape("ranked", 0), tape("ranked", 1)
    for log in tapes:
        log.change(RoundDone, number=2, new={"rows": 65})
    assert said(Law.RANKS, *tapes) == ["round 2 called for 65 rows"] * 2


# --- those who wait -----------------------------------------------------------------------------------------------------


def many(log: Tape, **policies: object) -> Tape:
    """Say that the log is one of two ranks."""
    log.change(LogOpened, new={"ranks": 2})
    policy(log, **policies)
    return log


def put_rounds(log: Tape, count: int, kind: type[Event], **facts: Any) -> None:
    """Put rounds after an event; the log has no others."""
    place = log.find(kind, **facts) + 1
    log.events[place:place] = [RoundDone(number, 1, 0, 2, 1) for number in range(1, count + 1)]
    for at, event in enumerate(log.events):
        if isinstance(event, Synced):
            log.events[at] = Synced(event.prefetch, event.agreed, 2, count)


def test_a_newer_attempt_follows_a_wait_that_it_ended() -> None:
    """Told once rounds prove that no port had kept it out: one more with a lag; a rank that is alone may not know."""
    said_so = ["the wait of attempt 0 was over as superseded, and no newer one came"]
    for lag, count, told in ((0, 1, []), (0, 2, said_so), (1, 2, []), (1, 3, said_so)):
        log = many(Tape(waits()), lag_ticks=lag)
        log.change(WaitEnded, request="c", new={"reason": Reason.SUPERSEDED})
        put_rounds(log, count, WaitEnded, request="c")
        assert said(Law.WAITING, log) == told
    log = Tape(waits())
    log.change(WaitEnded, request="c", new={"reason": Reason.SUPERSEDED})
    assert said(Law.WAITING, log) == []


def test_a_newer_attempt_that_followed() -> None:
    """It is issued next, has asked once, and misses as well: so it waits, too."""
    log = many(Tape(waits()))
    log.change(WaitEnded, request="m", new={"reason": Reason.SUPERSEDED})
    log.change(Issued, 1, request="m", new={"attempt": 1})
    put_rounds(log, 3, WaitEnded, request="m")
    assert said(Law.WAITING, log) == ["attempt 1 does not wait after full_miss"]


@pytest.mark.parametrize(("late", "told"), [(0, False), (2, False), (3, True)])
def test_who_is_due_is_asked_again_within_the_ticks_of_a_round(late: int, told: bool) -> None:
    """Among several ranks an index that refuses fails the next round: `lag_ticks` + `round_every_ticks` after."""
    log = many(Tape(waits()), lag_ticks=1)
    begun = log.get(WaitBegan, request="m")
    log.change(WaitEnded, request="m", new={"tick": begun.tick + EVERY + late})
    log.events = log.events[: log.find(WaitEnded, request="m") + 2]
    assert said(Law.WAITING, log) == ["it waited to ask again until tick 7"] * told


def test_an_index_that_refuses_may_hold_up_a_rank_that_is_alone() -> None:
    """Something was published meanwhile, and nobody counts the ticks that the index took for it."""
    log = Tape(waits())
    log.change(WaitEnded, request="g", new={"tick": log.get(WaitBegan, request="g").tick + GIVE_UP + 9})
    assert said(Law.WAITING, log) == [f"it waited for room for {GIVE_UP + 9} ticks"]
    began = log.find(WaitBegan, request="g")
    place = log.find(PlanAgreed)
    log.events[place:place] = [log.events.pop(began)]
    assert not any("waited for room" in what for what in said(Law.WAITING, log))
