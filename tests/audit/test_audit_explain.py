"""`prefetch-audit explain`, `blast-radius`: from a request to the page, from a prefetch to the requests."""

from pathlib import Path

import msgspec
import pytest
from audit_stories import tape
from logs import folder, json_of, served_clean, served_too_much, write

from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main
from lifecycle.events import Adopted, Closed, EventsLost, HostReserved, PagesLanded, PrefixServed, ReadEnded, RequestFinished


def test_a_page_that_never_landed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict names the pages, the pool, the rank and the prefetch, and why the first of them is bad."""
    logs = folder(tmp_path, *served_too_much())
    (story,) = json_of(capsys, "explain", logs, "--request", "b", status=VIOLATED)
    assert story["verdict"] == "garbled"
    kv = next(bad for bad in story["bad"] if bad["pool"] == "kv")  # type: ignore[attr-defined]
    assert (kv["rank"], kv["pages"], kv["prefetch"]) == (1, [[4, 5]], 2)
    assert "missing" in kv["why"]
    assert {v["law"] for v in story["violations"]} == {"served"}  # type: ignore[attr-defined]
    assert main(["explain", logs, "--request", "b"]) == VIOLATED
    out = capsys.readouterr().out
    assert "GARBLED - b was served page 4 of kv on rank 1, from prefetch 2" in out
    assert "rule clamp" in out


def test_a_clean_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Served what was published: clean, with what every pool had on each rank."""
    logs = folder(tmp_path, *served_clean())
    (story,) = json_of(capsys, "explain", logs, "--request", "b", status=CLEAN)
    assert story["verdict"] == "clean"
    assert story["bad"] == []
    (prefetch,) = story["prefetches"]  # type: ignore[misc]
    assert prefetch["outcome"] == "clamped"
    assert [(row["rank"], row["pool"], row["run_page"], row["agreed_page"]) for row in prefetch["pools"]] == [
        (0, "kv", 8, 4), (0, "indexer", 8, 8), (1, "kv", 4, 4), (1, "indexer", 8, 8),
    ]  # fmt: skip
    assert main(["explain", logs, "--request", "b"]) == CLEAN
    assert "verdict   CLEAN" in capsys.readouterr().out


def test_a_source_of_another_request_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that was served from another's prefetch is explained by that one."""
    logs = served_too_much()
    for log in logs:
        log.put(PrefixServed("a", 0, 6, ((0, 6, 2),)), RequestFinished, after=False, request="a")
    (story,) = json_of(capsys, "explain", folder(tmp_path, *logs), "--request", "a", status=VIOLATED)
    assert [(source["prefetch"], source["request"]) for source in story["sources"]] == [(2, "b")]  # type: ignore[attr-defined]
    assert {bad["rank"] for bad in story["bad"]} == {1}  # type: ignore[attr-defined]


def test_missing_ranks_and_gaps_leave_it_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the log of a rank, or with lost events, no verdict is given as clean."""
    first, second = served_clean()
    alone = folder(tmp_path, first)
    (story,) = json_of(capsys, "explain", alone, "--request", "b", status=CLEAN)
    assert story["verdict"] == "cannot tell"
    assert any("rank 1" in why for why in story["unknown"])  # type: ignore[attr-defined]
    second.put(EventsLost(1, second.find(Closed, prefetch=2), "full disk"), Closed, after=False, prefetch=2)
    second.drop(Closed, prefetch=2)
    (story,) = json_of(capsys, "explain", folder(tmp_path, first, second), "--request", "b", status=CLEAN)
    assert story["verdict"] == "cannot tell"
    assert any("lost" in why for why in story["unknown"])  # type: ignore[attr-defined]


def test_a_page_whose_landing_was_lost_from_the_log_is_not_called_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where events were lost, a page that is not seen to land leaves it open."""
    first, second = served_clean()
    place = second.find(PagesLanded, prefetch=2, pool="indexer")
    second.events[place] = EventsLost(1, place, "full disk")
    (story,) = json_of(capsys, "explain", folder(tmp_path, first, second), "--request", "b", status=CLEAN)
    assert (story["verdict"], story["bad"]) == ("cannot tell", [])
    assert any("not seen to land" in why for why in story["unknown"])  # type: ignore[attr-defined]


def test_a_slot_given_away_under_a_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page whose slot another prefetch's read may still write is garbled though its own read was good."""
    log = tape("aborted")
    other = log.find(HostReserved, prefetch=2)
    ended = log.events[log.find(ReadEnded, prefetch=1)]
    del log.events[log.find(ReadEnded, prefetch=1)]
    log.events.insert(other, ended)  # over only after its slots had gone to the next
    reserved = log.events.index(log.get(HostReserved, prefetch=2))
    log.events[reserved - 1], log.events[reserved] = log.events[reserved], log.events[reserved - 1]
    assert log.find(HostReserved, prefetch=2) < log.find(ReadEnded, prefetch=1, pages=ended.pages)
    (story,) = json_of(capsys, "explain", folder(tmp_path, log), "--request", "other", status=VIOLATED)
    assert story["verdict"] == "garbled"
    assert "a read of prefetch 1" in story["bad"][0]["why"]  # type: ignore[index]


def test_an_unknown_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that no log knows is an error that names some that are known."""
    logs = folder(tmp_path, *served_clean())
    assert main(["explain", logs, "--request", "zzz"]) == UNREADABLE
    assert "cannot explain request zzz: these logs know a, b" in capsys.readouterr().err


def test_blast_radius(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every request that was served from the prefetch is told, with what it computed on top; `--pages` narrows it."""
    logs = served_too_much(4)
    for log in logs:
        log.put(PrefixServed("a", 0, 6, ((0, 2, 1), (2, 6, 2))), RequestFinished, after=False, request="a")
        log.put(Adopted("a", {"kv": 2}, 8, {"kv": ((20, 22),)}), RequestFinished, after=False, request="a")
    path = folder(tmp_path, *logs)
    (found,) = json_of(capsys, "blast-radius", path, "--prefetch", "2", status=CLEAN)
    assert {(hit["request"], str(hit["pages"]), hit["adopted_pages"]) for hit in found["hits"]} == {  # type: ignore[attr-defined]
        ("b", "[[0, 4]]", 0), ("a", "[[2, 6]]", 2),
    }  # fmt: skip
    (found,) = json_of(capsys, "blast-radius", path, "--prefetch", "2", "--pages", "5-9", status=CLEAN)
    assert [(hit["request"], hit["pages"]) for hit in found["hits"]] == [("a", [[5, 6]])]  # type: ignore[attr-defined]
    assert main(["blast-radius", path, "--prefetch", "2"]) == CLEAN
    assert "served to 2 requests" in capsys.readouterr().out
    assert main(["blast-radius", path, "--prefetch", "9"]) == UNREADABLE


def test_explain_needs_no_terminal_and_breaks_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the output is a file, the table has a line for each pool and rank, and nothing is coloured."""
    assert main(["explain", folder(tmp_path, *served_clean()), "--request", "b"]) == CLEAN
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert sum(line.strip().startswith(("0  ", "1  ")) for line in out.splitlines()) == 4


def test_a_named_run_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--run` picks one of the runs of a file; another name is an error that lists them."""
    first, second = tape("plain"), tape("short")
    path = write(tmp_path / "rank0.jsonl", first.records(), second.records())
    run = second.events[0].run  # type: ignore[union-attr]
    (checked,) = json_of(capsys, "verify", path, "--run", run, status=CLEAN)
    assert checked["run"] == run
    assert main(["verify", path, "--run", "none"]) == UNREADABLE
    assert run in capsys.readouterr().err
    assert msgspec.json.encode(checked)
