"""`prefetch-audit diff`, `stats`, `redecide`."""

from pathlib import Path

import pytest
from audit_stories import STORIES, Tape, run, tape
from logs import folder, json_of, write

from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main
from lifecycle.audit.differ import difference
from lifecycle.audit.gauges import Curve, Histogram
from lifecycle.audit.redecide import redecide
from lifecycle.audit.stats import stats
from lifecycle.audit.terms import terms_of
from lifecycle.events import Clamped, EventsLost, LogOpened, PagesLanded, PlanAgreed, Synced, Terminated, TokensCredited


def test_ranks_that_agree_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is this rank's own is no difference."""
    logs = [write(tmp_path / f"rank{rank}.jsonl", run("ranked")[rank]) for rank in (0, 1)]
    (found,) = json_of(capsys, "diff", *logs, status=CLEAN)
    assert found["left"] is None
    assert main(["diff", *logs]) == CLEAN
    assert "no difference" in capsys.readouterr().out


def test_the_first_difference_has_its_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first event that differs is shown on both sides, with what stood around it, and which fact differs."""
    first, second = tape("ranked", 0), tape("ranked", 1)
    second.change(PlanAgreed, new={"plan_page": 7}, prefetch=2)
    second.change(TokensCredited, new={"tokens": 0}, prefetch=2)
    logs = [write(tmp_path / f"rank{rank}.jsonl", log.records()) for rank, log in enumerate((first, second))]
    (found,) = json_of(capsys, "diff", *logs, "--context", "2", status=VIOLATED)
    assert found["facts"] == ["plan_page"]
    assert "plan_page 8" in found["left"]["here"]  # type: ignore[index]
    assert "plan_page 7" in found["right"]["here"]  # type: ignore[index]
    assert len(found["right"]["before"]) == 2  # type: ignore[index]
    assert main(["diff", *logs]) == VIOLATED
    assert "in plan_page" in capsys.readouterr().out


def test_a_log_that_ends_early_differs() -> None:
    """Where one log ends, the other's next event is the difference."""
    log = run("plain")[0]
    found = difference(log, log[:10])
    assert found.right is not None
    assert found.right.here is None
    assert not difference(log, log, every=True).found


def test_every_event_is_compared_on_demand() -> None:
    """`--every` finds a difference in what one rank alone knows."""
    first, second = tape("ranked", 0), tape("ranked", 1)
    assert not difference(first.records(), second.records()).found
    found = difference(first.records(), second.records(), every=True)
    assert found.found


def test_stats_count_outcomes_and_waste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outcomes, read and thrown away pages by cause, and tokens that come back to nothing."""
    (counted,) = json_of(capsys, "stats", write(tmp_path / "rank0.jsonl", run("short")[0]), status=CLEAN)
    assert counted["reasons"] == {"clamped read_failed": 1}
    assert counted["failed_pages"] == {"kv missing": 2, "indexer missing": 1}
    assert counted["wasted_pages"] == {"kv: read_failed": 4, "indexer: read_failed": 5}
    assert counted["occupied_tokens"]["last"] == 0  # type: ignore[index]
    assert counted["occupied_tokens"]["peak"] == 40  # type: ignore[index]
    assert counted["waits_ns"]["queue_wait"]["count"] == 1  # type: ignore[index]


def test_stats_count_what_the_index_had_already() -> None:
    """Pages that the index had already are waste as duplicates."""
    assert stats(run("twice")[0]).wasted == {"kv: duplicate": 6}


@pytest.mark.parametrize("story", STORIES)
def test_stats_are_printed_of_every_story(story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However its prefetches end, a run has its table, and no prefetch is left over."""
    assert main(["stats", write(tmp_path / "rank0.jsonl", run(story)[0])]) == CLEAN
    assert "0 not over" in capsys.readouterr().out


@pytest.mark.parametrize("story", STORIES)
def test_today_s_rule_changes_nothing_of_today_s_runs(story: str) -> None:
    """Deciding again by the rule that decided finds no difference."""
    logs = run(story)
    opened = logs[0][0].event
    assert isinstance(opened, LogOpened)
    found = redecide(terms_of(opened), logs, "today")
    assert found.changed == ()
    assert found.partial == 0


def summed(rank: int) -> Tape:
    """A log that a version wrote which counted successes: kv of rank 1 landed [0:4) and says 7."""
    log = tape("ranked", rank)
    if rank == 1:
        log.change(Terminated, new={"landed": {"kv": 7, "indexer": 8}}, prefetch=2)
    log.change(Synced, new={"agreed": {"kv": 7, "indexer": 8}}, prefetch=2)
    log.change(Clamped, new={"usable_page": 7, "taken": {"kv": ((0, 7),)}}, prefetch=2)
    return log


def test_a_wrong_count_is_found_from_what_landed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rule starts from the pages that landed, not from what the rank said of itself."""
    path = folder(tmp_path, summed(0), summed(1))
    (found,) = json_of(capsys, "redecide", path, "--rule", "today", status=VIOLATED)
    (changed,) = found["changed"]  # type: ignore[misc]
    assert (changed["prefetch"], changed["was_page"], changed["now_page"], changed["short"]) == (2, 7, 4, "kv")
    assert main(["redecide", path]) == VIOLATED
    assert "3 lost" in capsys.readouterr().out


def test_a_prefetch_whose_events_were_lost_is_not_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was lost may have been the landing: the prefetch is left open, not told to have ended otherwise."""
    log = tape("ranked", 0)
    place = log.find(PagesLanded, prefetch=1, pool="kv")
    log.events[place] = EventsLost(1, place, "full disk")
    (found,) = json_of(capsys, "redecide", folder(tmp_path, log, tape("ranked", 1)), status=CLEAN)
    assert (found["changed"], found["unknown"], found["decided"]) == ([], 1, 1)


def test_another_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All or nothing would have published nothing of a short prefetch; a spared sidecar costs nothing."""
    (found,) = json_of(capsys, "redecide", folder(tmp_path, tape("short")), "--rule", "all_or_nothing", status=VIOLATED)
    assert found["lost_pages"] == 4
    (found,) = json_of(capsys, "redecide", folder(tmp_path, tape("degraded")), "--rule", "discard", status=VIOLATED)
    assert found["changed"][0]["short"] == "swa"  # type: ignore[index]


def test_a_log_without_a_header_is_not_decided_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layout and policy are not guessed."""
    path = write(tmp_path / "rank0.jsonl", run("plain")[0][3:])
    assert main(["redecide", path]) == UNREADABLE
    assert "no header" in capsys.readouterr().err


def test_percentiles_are_within_their_error() -> None:
    """A percentile is at most 4.5 % over the value, never under it, and the greatest is exact."""
    gauge = Histogram()
    for value in range(1, 10_001):
        gauge.add(value)
    for share in (0.5, 0.9, 0.99):
        assert share * 10_000 <= (gauge.percentile(share) or 0) <= share * 10_000 * 1.045 + 1
    assert gauge.summary()["max"] == 10_000


def test_a_curve_keeps_its_peak_in_bounded_memory() -> None:
    """However long the run, a curve has at most 512 points, and the peak is among them."""
    curve = Curve()
    for second in range(100_000):
        curve.add(second * 1_000_000_000, 7 if second == 777 else 1)
    points = curve.points()
    assert len(points) <= 512
    assert max(value for _, value in points) == curve.peak == 7
