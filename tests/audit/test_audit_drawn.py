"""`prefetch-audit trace` and `report`: files that a viewer opens, and that carry nothing dangerous from a log."""

import re
import stat
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from audit_stories import STORIES, run, tape
from logs import folder, json_of, served_clean, served_too_much, write

from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main
from lifecycle.audit.drawings import occupancy
from lifecycle.events import Closed, ReadEnded

VOID = {"meta", "rect", "line", "polyline"}


def trace_of(tmp_path: Path, logs: str) -> list[dict[str, Any]]:
    """Return the events of a trace, having checked what every viewer relies on."""
    target = tmp_path / "trace.json"
    assert main(["trace", logs, "-o", str(target)]) == CLEAN
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    events: list[dict[str, Any]] = msgspec.json.decode(target.read_bytes())["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    begun = Counter[tuple[Any, ...]]()
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    flows: dict[str, list[str]] = {}
    for e in events:
        if e["ph"] == "M":
            continue
        assert e["ts"] >= 0
        assert e["ph"] == "C" or (e["pid"], e["tid"]) in named, "a track without a name"
        key = (e["pid"], e.get("cat"), e.get("id"), e["name"])
        if e["ph"] == "b":
            begun[key] += 1
        elif e["ph"] == "e":
            assert begun[key] > 0, f"{key} ends before it begins"
            begun[key] -= 1
        elif e["ph"] in "sf":
            assert (e["pid"], e["tid"], e["ts"]) in slices, "an arrow that hangs on no slice"
            flows.setdefault(e["id"], []).append(e["ph"])
    assert not +begun, f"slices that never end: {+begun}"
    assert all(ends == ["s", "f"] for ends in flows.values())
    return events


@pytest.mark.parametrize("story", STORIES)
def test_a_trace_of_every_story_is_whole(story: str, tmp_path: Path) -> None:
    """Every slice that begins ends, every track has a name, times are not negative."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank, records in enumerate(run(story)):
        write(logs / f"rank{rank}.jsonl", records)
    events = trace_of(tmp_path, str(logs))
    assert {e["pid"] for e in events} == set(range(1, len(run(story)) + 1))


def test_arrows_lead_from_a_prefetch_to_what_it_served(tmp_path: Path) -> None:
    """There is an arrow for each source of each served request, on each rank."""
    events = trace_of(tmp_path, folder(tmp_path, *served_clean()))
    assert sum(e["ph"] == "s" for e in events) == 4


def test_a_log_that_ends_early_has_its_slices_closed(tmp_path: Path) -> None:
    """What is open at the end of a log is closed there, and says so."""
    log = tape("plain")
    del log.events[log.find(ReadEnded) :]
    events = trace_of(tmp_path, folder(tmp_path, log))
    assert any(e.get("args", {}).get("open") for e in events if e["ph"] == "e")


class Page(HTMLParser):
    """Checks that tags nest, and collects them and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: set[tuple[str, str | None]] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags[tag] += 1
        self.attributes |= set(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag without content."""
        self.tags[tag] += 1
        self.attributes |= set(attrs)

    def handle_endtag(self, tag: str) -> None:
        """Close the tag that is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words += data


def page_of(tmp_path: Path, logs: str, status: int) -> Page:
    """Return a parsed report."""
    target = tmp_path / "report.html"
    assert main(["report", logs, "-o", str(target)]) == status
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    page = Page()
    page.feed(target.read_text())
    assert page.open == []
    assert "script" not in page.tags
    assert not {name for name, _ in page.attributes} & {"src", "href", "onload", "onclick", "onerror"}
    return page


def test_a_report_tells_violations_first(tmp_path: Path) -> None:
    """What is wrong stands before what happened; the page asks for nothing from a network."""
    page = page_of(tmp_path, folder(tmp_path, *served_too_much()), VIOLATED)
    assert page.words.index("served") < page.words.index("outcome and reason")
    assert page.tags["svg"] >= 1


@pytest.mark.parametrize("story", STORIES)
def test_a_report_of_every_story(story: str, tmp_path: Path) -> None:
    """A clean run has a page that says so."""
    page = page_of(tmp_path, write(tmp_path / "rank0.jsonl", run(story)[0]), CLEAN)
    assert "No violations" in page.words


@pytest.mark.parametrize("command", ["trace", "report"])
def test_an_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """A folder that is not there is an error; a log is never written over."""
    path = write(tmp_path / "rank0.jsonl", run("plain")[0])
    before = Path(path).read_bytes()
    assert main([command, path, "-o", str(tmp_path / "none" / "x")]) == UNREADABLE
    assert main([command, path, "-o", path]) == UNREADABLE
    assert "it is one of the files that are read" in capsys.readouterr().err
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("command", ["trace", "report"])
def test_a_log_that_breaks_off_leaves_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """A page or a trace is there whole or not at all: a line that cannot be read leaves what was there before."""
    path = Path(write(tmp_path / "rank0.jsonl", run("plain")[0]))
    path.write_bytes(path.read_bytes() + b"broken\n")
    target = tmp_path / "out"
    target.write_text("before")
    assert main([command, str(path), "-o", str(target)]) == UNREADABLE
    assert "line" in capsys.readouterr().err
    assert target.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "rank0.jsonl"]


def test_a_faulty_prefetch_is_drawn_red(tmp_path: Path) -> None:
    """Prefetches with violations stand out in the timeline."""
    log = tape("plain")
    log.double(Closed, prefetch=1)
    page = page_of(tmp_path, folder(tmp_path, log), VIOLATED)
    assert ("fill", "#c0392b") in page.attributes


def test_occupancy_is_a_curve_of_many_points() -> None:
    """A run of some length has a curve within its frame; one too short says so."""
    drawn = occupancy([(0, 5), (1000, 10), (2000, 0)], 10, 0)
    (points,) = re.findall(r'points="([^"]+)"', drawn)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert len(places) == 3
    assert all(0 <= x <= 1060 and 0 <= y <= 90 for x, y in places)
    assert "too short" in occupancy([(0, 5)], 5, 0)


def test_what_was_written_is_told_to_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--json`, trace and report say in one object what they wrote and where."""
    logs, page = folder(tmp_path, *served_too_much()), str(tmp_path / "out.html")
    assert json_of(capsys, "trace", logs, "-o", page, status=CLEAN)[0]["output"] == page
    (said,) = json_of(capsys, "report", logs, "-o", page, status=VIOLATED)
    assert said["output"] == page
    assert said["violations"]
