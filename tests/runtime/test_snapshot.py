"""The snapshot: what waits for what, what is stuck, and that another thread may look while the scheduler goes on."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle.errors import SyncFailed
from lifecycle.events import Record
from lifecycle.runtime.inspection import stuck
from lifecycle.states import State

RigOf = Callable[..., Rig]


def only(rig: Rig, rank: int = 0) -> dict[str, Any]:
    """Return the story of the only prefetch in flight."""
    (story,) = rig.ranks[rank].snapshot()["in_flight"]
    assert isinstance(story, dict)
    return story


def lines(rig: Rig, rank: int = 0) -> list[str]:
    """Return what a rank says is stuck."""
    return list(rig.ranks[rank].snapshot()["stuck"])


def test_an_idle_rank_has_nothing_in_flight_and_nothing_stuck(rig_of: RigOf) -> None:
    """A snapshot before any command is empty, and of one moment."""
    found = rig_of().ranks[0].snapshot()
    assert (found["in_flight"], found["stuck"], found["open_obligations"], found["exact"]) == ([], [], 0, True)


def test_a_snapshot_is_plain_values(rig_of: RigOf) -> None:
    """It goes through JSON unchanged, so that a debug endpoint can serve it."""
    rig = rig_of("deepseek_v4", ranks=2)
    rig.stores[0].hold("kv")
    rig.issue("r")
    rig.until(lambda: rig.stores[0].waiting("kv"))
    found = rig.ranks[0].snapshot()
    assert json.loads(json.dumps(found)) == found


def test_a_query_without_answer_is_named_with_its_age(rig_of: RigOf) -> None:
    """A prefetch in ISSUED whose query hangs says since when."""
    rig = rig_of()
    rig.stores[0].hold("")
    rig.issue("r")
    rig.until(lambda: rig.stores[0].waiting(""))
    rig.clock.advance(31)
    assert only(rig)["for_s"] == pytest.approx(31)
    assert "existence query" in lines(rig)[0]
    assert lines(rig)[0].endswith(", for 31 s")


def test_a_query_that_no_reader_takes_is_told_from_one_that_hangs(rig_of: RigOf) -> None:
    """With the only reader busy, the second query is queued; once it is taken, it is sent."""
    rig = rig_of(readers=1)
    rig.stores[0].hold("")
    rig.issue("a")
    rig.until(lambda: rig.stores[0].waiting(""))
    rig.issue("b")
    rig.clock.advance(1)
    assert rig.ranks[0].snapshot()["in_flight"][-1]["waits_for"] == "existence query queued, no reader is free"
    rig.stores[0].let_go()
    rig.until(lambda: rig.ranks[0].snapshot()["in_flight"][-1]["waits_for"] == "existence query sent, no answer")
    assert rig.ranks[0].snapshot()["in_flight"][-1]["request"] == "b"


def test_a_read_without_answer_is_named_with_its_age(rig_of: RigOf) -> None:
    """The pool, the pages and the time are there; a longer limit says nothing yet."""
    rig = rig_of("dsa", readers=1)
    rig.stores[0].hold("kv")
    id_ = rig.issue("r", 8)
    rig.until_held()
    rig.clock.advance(31)
    assert lines(rig) == [f"prefetch {id_} of request 'r', transferring: read of kv pages [0:8) sent, no answer, for 31 s"]
    assert stuck(rig.ranks[0].snapshot(), after_s=32) == []


def test_a_peer_that_still_reads_is_what_the_other_rank_waits_for(rig_of: RigOf) -> None:
    """Rank 0 has read everything: it waits for the final reports of the others; rank 1 for its own read."""
    rig = rig_of(ranks=2)
    rig.stores[1].hold("kv")
    rig.issue("r", 8)
    rig.until(lambda: rig.stores[1].waiting("kv") and only(rig)["reads_out"] == 0 and only(rig)["state"] == "transferring")
    assert only(rig)["waits_for"] == "waiting for the other ranks' final reports"
    assert only(rig, 1)["waits_for"] == "read of kv pages [0:8) sent, no answer"


def test_a_peer_whose_query_hangs_is_what_the_other_rank_waits_for(rig_of: RigOf) -> None:
    """Rank 0 knows its hit; rank 1 does not answer."""
    rig = rig_of(ranks=2)
    rig.stores[1].hold("")
    rig.issue("r", 8)
    rig.until(lambda: only(rig)["waits_for"] == "waiting for the other ranks' hits")


def test_a_discarded_prefetch_waits_for_the_read_that_may_still_write(rig_of: RigOf) -> None:
    """After an abort the pages stay with the claimed read; the peer that is through waits for this rank to settle."""
    rig = rig_of(ranks=2)
    rig.stores[1].hold("kv")
    id_ = rig.issue("r", 8)
    assert isinstance(id_, int)
    rig.until(lambda: rig.stores[1].waiting("kv") and only(rig)["reads_out"] == 0 and only(rig)["state"] == "transferring")
    rig.abort("r")
    rig.tick()
    assert rig.state(id_) is State.DISCARDED
    assert only(rig)["waits_for"] == "waiting for the other ranks to settle"
    assert only(rig, 1)["waits_for"] == "read of kv pages [0:8) sent, no answer"
    assert only(rig, 1)["open"] == ["pages of kv [0:8)"]


def test_a_port_that_refuses_is_named_with_its_tries(rig_of: RigOf) -> None:
    """Host memory that refuses a release is named whatever the time, and no more once it takes the pages."""
    rig = rig_of(stuck_after_tries=3)
    rig.stores[0].say("kv", "1110", rig.prompt("r", 4))
    rig.memories[0].spy.down["release"] = 3
    rig.issue("r", 4)
    rig.until(lambda: rig.memories[0].spy.calls["release"] >= 3)
    assert only(rig)["refused"] == {"tail of kv": 3}
    assert "host memory refuses (tail of kv): tried 3 times" in lines(rig)[0]
    rig.until(lambda: not rig.ranks[0].snapshot()["in_flight"])
    assert lines(rig) == []


def test_a_round_without_result_is_named(rig_of: RigOf) -> None:
    """A round that was launched and got no result for 31 s: a rank is not ticking."""
    rig = rig_of(ranks=2)
    rounds = [coordinator.begin_tick() for coordinator in rig.ranks]
    rig.clock.advance(31)
    assert lines(rig) == ["round 1 launched 31 s ago, no result: a rank is not ticking"]
    rig._reduce(rounds)
    for coordinator, round_ in zip(rig.ranks, rounds, strict=True):
        assert round_ is not None
        coordinator.end_tick(round_)
    assert lines(rig) == []
    assert rig.ranks[0].snapshot()["last_round"] == {"number": 1, "agreed": 1, "launched_s_ago": 31.0}


def test_a_failed_rank_says_why(rig_of: RigOf) -> None:
    """After a failure the snapshot carries its message."""
    rig = rig_of(ranks=2)
    for coordinator in rig.ranks:
        round_ = coordinator.begin_tick()
        assert round_ is not None
        round_.buffer[6] = -1  # the header's failed flag, negated
        with pytest.raises(SyncFailed):
            coordinator.end_tick(round_)
    found = rig.ranks[0].snapshot()
    assert found["state"] == "failed"
    assert "cannot finish round 1" in found["failure"]
    assert found["stuck"] == [f"rank 0 failed: {found['failure']}"]


def test_a_look_in_the_middle_of_an_event_says_so(rig_of: RigOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an event is being applied, another thread's snapshot comes at once and is not `exact`."""
    rig = rig_of()
    looks: list[bool] = []

    def look() -> None:
        looks.append(rig.ranks[0].snapshot()["exact"])

    keep = rig.logs[0].append

    def append(record: Record) -> None:
        watcher = threading.Thread(target=look)
        watcher.start()
        watcher.join()
        keep(record)

    monkeypatch.setattr(rig.logs[0], "append", append)
    rig.issue("r")
    monkeypatch.undo()
    look()
    assert looks == [False, True]


def check_of_one_moment(found: dict[str, Any]) -> None:
    """Fail if the numbers of an exact snapshot do not belong together."""
    stories = found["in_flight"]
    ids = [story["prefetch"] for story in stories]
    assert len(set(ids)) == len(ids)
    assert found["occupied_tokens"] == sum(story["reserved_tokens"] for story in stories)
    for story in stories:
        if story["state"] == "issued":
            assert story["open"] == ["anchor", "tokens"]
        if story["state"] in ("issued", "transferring", "terminated"):
            assert story["reserved_tokens"] == (story["end_page"] - story["start_page"]) * PAGE_TOKENS


@pytest.fixture
def _switching() -> Iterator[None]:
    """Have the interpreter change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
def test_another_thread_looks_while_the_scheduler_goes_on(rig_of: RigOf) -> None:
    """No look raises or stops the scheduler, and each that says it is of one moment is."""
    rig = rig_of("dsa", capacity=256, readers=3)
    coordinator = rig.ranks[0]
    seen, errors, done = [0, 0], list[Exception](), threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                found = coordinator.snapshot()
                seen[0] += 1
                seen[1] += bool(found["exact"] and found["in_flight"])
                if found["exact"]:
                    check_of_one_moment(found)
            except Exception as error:
                errors.append(error)
                return

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    number = 0
    while not errors and (number < 200 or (seen[1] < 200 and number < 5_000)):
        number += 1
        name = f"r{number % 8}"
        if number > 8:
            rig.finish(name)
        rig.issue(name, 8 + number % 5, prompt=f"p{number % 40}")
        rig.tick()
        if number % 7 == 0:
            rig.abort(name)
    done.set()
    for watcher in watchers:
        watcher.join()
    assert errors == []
    assert seen[1] >= 200, f"of {seen[0]} looks only {seen[1]} saw one moment of something in flight"
    assert coordinator.snapshot()["exact"]
