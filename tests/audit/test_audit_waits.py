"""Requests that wait, in the audit: a sound log is clean, each fault is told under its law, and people can read the story."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest
from audit_stories import Tape, verify
from logs import folder, json_of

from lifecycle.audit import Law, verify_log
from lifecycle.audit.cli import CLEAN, main
from lifecycle.events import Declined, Discarded, EventsLost, Issued, LogOpened, PrefixServed, Record, WaitBegan, WaitEnded
from lifecycle.keys import page_keys
from lifecycle.policies import Policies, Retry, WaitComplete
from lifecycle.reasons import Reason
from tests.sync.board import Seat, seats

Spoil = Callable[[Tape], None]
EVERY, GIVE_UP = 3, 6
FAULTS: list[tuple[Law, Spoil]] = []


@cache
def run() -> tuple[Record, ...]:
    """Return a log: `m` misses twice; `a` fills the limit, so that `b`, `c`, `d` wait in line; `c` is aborted; `g` gives up."""
    retry = Retry(every_ticks=EVERY, max_queries=2, max_waiting=3, give_up_ticks=GIVE_UP)
    (seat,) = seats((1,), policies=Policies(stop=WaitComplete(), limit_tokens=32, retry=retry), capacity=64)
    prompts = {name: page_keys(range(1000 * place, 1000 * place + 32), 4) for place, name in enumerate("mabcdfg")}
    seat.store.lacks.update(("kv", key) for key in prompts["m"])
    seat.issue("m", prompts["m"])
    go(seat, 2 * EVERY)
    for name in "abcd":
        seat.issue(name, prompts[name])
    seat.coordinator.abort("c")
    seat.coordinator.abort("a")
    go(seat, 8)
    seat.issue("f", prompts["f"])
    seat.issue("g", prompts["g"])
    for _ in range(GIVE_UP + 1):
        seat.coordinator.tick()
    seat.coordinator.close()
    return tuple(seat.log.records())


def go(seat: Seat, ticks: int) -> None:
    """Answer everything and tick, some times."""
    for _ in range(ticks):
        seat.read_all()
        seat.coordinator.tick()


def test_the_log_has_every_kind_of_wait_and_is_clean() -> None:
    """Misses, room, an abort, and one that is given up."""
    tape = Tape(run())
    began = [(event.request, event.reason.value) for event in tape.events if isinstance(event, WaitBegan)]
    assert began == [("m", "full_miss"), *((name, "rate_limited") for name in "bcdg")]
    over = [(event.request, event.reason) for event in tape.events if isinstance(event, WaitEnded)]
    assert over == [("m", None), ("c", Reason.ABORTED), ("b", None), ("d", None), ("g", Reason.RATE_LIMITED)]
    assert verify(tape) == []


def spoilt(law: Law) -> Callable[[Spoil], Spoil]:
    """Note a way to spoil the log, and the law that it breaks."""

    def note(spoil: Spoil) -> Spoil:
        FAULTS.append((law, spoil))
        return spoil

    return note


@spoilt(Law.WAITING)
def waits_without_the_policy(t: Tape) -> None:
    t.change(LogOpened, new={"policies": {**t.get(LogOpened).policies, "retry": None}})
    for event in [event for event in t.events if isinstance(event, WaitBegan)][1:]:
        t.events.remove(event)


@spoilt(Law.WAITING)
def lets_another_out_of_the_line(t: Tape) -> None:
    first, last = t.find(Declined, request="b"), t.find(Declined, request="d")
    t.events[first : first + 2], t.events[last : last + 2] = t.events[last : last + 2], t.events[first : first + 2]


@spoilt(Law.WAITING)
def issues_past_one_that_waits(t: Tape) -> None:
    t.drop(WaitEnded, request="b")
    t.change(Issued, request="b", new={"request": "new"})


@spoilt(Law.ADMISSION)
def issues_again_what_was_not_tried(t: Tape) -> None:
    t.drop(WaitEnded, request="m")


@spoilt(Law.WAITING)
def tries_too_early(t: Tape) -> None:
    t.change(WaitEnded, request="m", new={"tick": t.get(WaitBegan, request="m").due_tick - 1})


@spoilt(Law.WAITING)
def is_due_at_another_pace(t: Tape) -> None:
    t.change(WaitBegan, request="m", new={"due_tick": t.get(WaitBegan, request="m").due_tick - 1})


@spoilt(Law.WAITING)
def tells_another_miss(t: Tape) -> None:
    t.change(WaitBegan, request="m", new={"reason": Reason.HEAD_MISSING})


@spoilt(Law.WAITING)
def waits_after_what_is_no_miss(t: Tape) -> None:
    t.change(Discarded, new={"reason": Reason.ABORTED})


@spoilt(Law.WAITING)
def waits_as_too_short_without_a_try(t: Tape) -> None:
    t.change(WaitBegan, request="g", new={"reason": Reason.TOO_SHORT})


@spoilt(Law.WAITING)
def waits_for_room_undeclined(t: Tape) -> None:
    t.change(Declined, request="g", new={"request": "other"})


@spoilt(Law.WAITING)
def waits_for_room_in_silence(t: Tape) -> None:
    t.drop(Declined, request="g")


@spoilt(Law.WAITING)
def counts_queries_that_were_none(t: Tape) -> None:
    t.change(WaitBegan, request="m", new={"queries": 0})


@spoilt(Law.WAITING)
def asks_too_often(t: Tape) -> None:
    first = t.get(WaitBegan, request="m")
    tick = t.get(WaitEnded, request="m").tick + 1
    again = msgspec.structs.replace(first, tick=tick, due_tick=tick + EVERY, queries=2)
    t.events.insert(t.find(Discarded, 1) + 2, again)


@spoilt(Law.WAITING)
def waits_for_other_tokens(t: Tape) -> None:
    t.change(WaitBegan, request="b", new={"tokens": 16})


@spoilt(Law.WAITING)
def waits_once_more_for_no_more(t: Tape) -> None:
    t.double(WaitBegan, request="d")


@spoilt(Law.WAITING)
def waits_though_it_was_served(t: Tape) -> None:
    t.put(PrefixServed("m", 0, 0, ()), Issued, request="m")


@spoilt(Law.WAITING)
def ends_a_wait_twice(t: Tape) -> None:
    t.double(WaitEnded, request="c")


@spoilt(Law.WAITING)
def ends_for_another_reason(t: Tape) -> None:
    t.change(WaitEnded, request="c", new={"reason": Reason.TIMEOUT})


@spoilt(Law.WAITING)
def tries_to_no_avail(t: Tape) -> None:
    t.put(t.drop(WaitEnded, request="b"), WaitEnded, request="c", after=False)


@spoilt(Law.WAITING)
def gives_up_too_early(t: Tape) -> None:
    t.change(WaitEnded, request="g", new={"tick": t.get(WaitBegan, request="g").tick + GIVE_UP})


@spoilt(Law.WAITING)
def gives_up_too_late(t: Tape) -> None:
    t.change(WaitEnded, request="g", new={"tick": t.get(WaitBegan, request="g").tick + GIVE_UP + 2})


@spoilt(Law.WAITING)
def does_not_wait_after_a_miss(t: Tape) -> None:
    t.drop(WaitBegan, request="m")
    t.drop(WaitEnded, request="m")


@spoilt(Law.WAITING)
def does_not_wait_for_room(t: Tape) -> None:
    t.drop(WaitBegan, request="d")
    t.drop(WaitEnded, request="d")


@spoilt(Law.WAITING)
def goes_back_in_ticks(t: Tape) -> None:
    t.change(WaitEnded, request="c", new={"tick": 0})


@spoilt(Law.WAITING)
def still_waits_at_the_stop(t: Tape) -> None:
    t.drop(WaitEnded, request="g")


@spoilt(Law.WAITING)
def lets_too_many_wait(t: Tape) -> None:
    retry = {**t.get(LogOpened).policies["retry"], "max_waiting": 2}  # type: ignore[dict-item]
    t.change(LogOpened, new={"policies": {**t.get(LogOpened).policies, "retry": retry}})


@spoilt(Law.ADMISSION)
def declines_for_want_of_room_that_is_there(t: Tape) -> None:
    t.change(Declined, request="b", new={"end_page": t.get(Declined, request="b").start_page})


@spoilt(Law.HEADER)
def has_a_policy_that_is_none(t: Tape) -> None:
    t.change(LogOpened, new={"policies": {**t.get(LogOpened).policies, "retry": [3, 2]}})


@pytest.mark.parametrize(("law", "spoil"), FAULTS, ids=[spoil.__name__ for _, spoil in FAULTS])
def test_a_log_that(law: Law, spoil: Spoil) -> None:
    """Each fault is caught, and what is said first is the law that was broken."""
    faulty = Tape(run())
    spoil(faulty)
    found = verify(faulty)
    assert found, "nothing was said"
    assert found[0].law is law, "\n".join(map(str, found))
    assert len(found) <= 10, "one fault is told too often:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("place", range(3, 60, 7))
def test_a_gap_anywhere_makes_nobody_guilty(place: int) -> None:
    """What was lost may have begun or ended any wait, so what comes after it is held against nobody."""
    records = list(run())
    assert place + 3 < len(records)
    lost = Record(place, records[place].at_ns, EventsLost(3, place, "disk full"))
    found = [each for each in verify_log([*records[:place], lost, *records[place + 3 :]]) if each.law is Law.WAITING]
    assert found == []


def test_a_log_without_the_policy_reads_as_before() -> None:
    """Logs of older versions say nothing of retries."""
    (seat,) = seats((1,), capacity=64)
    seat.issue("r", page_keys(range(32), 4))
    go(seat, 4)
    seat.coordinator.close()
    tape = Tape(seat.log.records())
    policies = {name: value for name, value in tape.get(LogOpened).policies.items() if name != "retry"}
    tape.change(LogOpened, new={"policies": policies})
    assert verify(tape) == []


def test_explain_tells_the_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its reason, its ticks and its end, for programs and for people."""
    logs = folder(tmp_path, Tape(run()))
    (miss,) = json_of(capsys, "explain", logs, "--request", "m", status=CLEAN)
    (wait,) = miss["waits"]  # type: ignore[misc]
    assert (wait["reason"], wait["end"], wait["queries"]) == ("full_miss", "tried", 1)
    assert wait["to_tick"] - wait["from_tick"] == EVERY
    assert len(miss["prefetches"]) == 2  # type: ignore[arg-type]
    told = {}
    for request in "mcg":
        assert main(["explain", logs, "--request", request]) == CLEAN
        told[request] = capsys.readouterr().out
    again = "waited    attempt 0 to ask L3 again (full_miss), 32 tokens, asked 1 time so far, from tick 1 to 4, then tried"
    assert again in told["m"]
    assert "waited    attempt 0 for room, 32 tokens, from tick 6 to 6, then over: aborted" in told["c"]
    assert "then over: rate_limited" in told["g"]


def test_stats_counts_waits_and_how_they_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside what was declined."""
    logs = folder(tmp_path, Tape(run()))
    (told,) = json_of(capsys, "stats", logs, status=CLEAN)
    waited = told["waited"] if "waited" in told else told["ranks"][0]["waited"]  # type: ignore[index]
    assert waited == {
        "for full_miss": 1, "for rate_limited": 4, "tried": 3, "over: aborted": 1, "over: rate_limited": 1,
    }  # fmt: skip
    assert main(["stats", logs]) == CLEAN
    assert "waited to be tried again" in capsys.readouterr().out


def test_who_waits_behind_a_gap_and_is_served_waits_no_more() -> None:
    """Where its decline was lost, the request is not known, and its wait is: being served ends that all the same."""
    tape = Tape(run())
    place = tape.find(Declined, request="g")
    tape.events[place:] = [
        EventsLost(1, place, "a full disk"), tape.get(WaitBegan, request="g"), PrefixServed("g", 0, 0, ()), tape.events[-1],
    ]  # fmt: skip
    assert verify_log(tape.records()) == []
    del tape.events[place + 2]
    assert [each.what for each in verify_log(tape.records())] == ["attempt 0 waits at the stop"]


def test_who_is_first_in_line_and_since_when_may_be_in_a_gap() -> None:
    """A wait that began before events were lost is told again when it needs more room: its place and its age are not known."""
    tape = Tape(run())
    place = tape.find(Declined, request="g")
    again = tape.get(WaitBegan, request="g")
    tape.events[place:] = [
        EventsLost(1, place, "a full disk"), msgspec.structs.replace(again, request="h"), again,
        WaitEnded("g", 0, again.tick, Reason.RATE_LIMITED), WaitEnded("h", 0, again.tick, Reason.ABORTED), tape.events[-1],
    ]  # fmt: skip
    assert verify_log(tape.records()) == []


def test_nobody_is_tried_after_the_run_was_ended() -> None:
    """A wait that ended by the shutdown was the last word: the next try is what is told, and once."""
    tape = Tape(run())
    tape.change(WaitEnded, request="c", new={"reason": Reason.SHUTDOWN})
    (found,) = verify(tape)
    assert (found.law, found.what, found.request) == (Law.LATE, "tried after the run was ended", "b")
    assert found.seqs == (tape.find(WaitEnded, request="c"), tape.find(WaitEnded, request="b"))
