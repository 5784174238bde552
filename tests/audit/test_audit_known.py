"""Logs of an engine that is observed: what it does otherwise by design is set apart by name, and a fault stays a fault."""

from pathlib import Path

import pytest
from audit_stories import Tape, tape
from logs import folder, json_of

from lifecycle.audit.cli import CLEAN, VIOLATED, main
from lifecycle.events import AnchorUnlocked, Discarded, LogOpened, ReadClaimed, ReadEnded, TransferStarted


def read_after_end(observed: bool) -> Tape:
    """A prefetch that was stopped before its first read is read all the same."""
    log = tape("aborted")
    if observed:
        log.change(LogOpened, new={"policies": {**log.get(LogOpened).policies, "observed": "sglang"}})
    claims = [place for place in range(log.find(Discarded)) if type(log.events[place]) in (ReadClaimed, TransferStarted)]
    moved = [log.events.pop(at) for at in reversed(claims)][::-1]
    first, *others = [each for each in moved if type(each) is ReadClaimed]
    for each in others:  # one batch is read after the end, no more
        log.drop(ReadEnded, prefetch=1, pages=each.pages)
    log.events.insert(log.find(ReadEnded, prefetch=1), first)
    return log


def test_a_known_difference_is_no_violation_of_an_observed_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is counted by name, and the log is clean; in a log of our own the same is at fault."""
    (told,) = json_of(capsys, "verify", folder(tmp_path, read_after_end(observed=True)), status=CLEAN)
    assert told["violations"] == 0
    assert set(told["known_differences"]) == {"read_after_end"}
    (told,) = json_of(capsys, "verify", folder(tmp_path, read_after_end(observed=False)), status=VIOLATED)
    assert told["known_differences"] == {}
    assert {each["law"] for each in told["found"]} == {"claim"}


def test_every_command_says_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text names it, the page of HTML shows it beside no violation, and explain blames nobody."""
    logs = folder(tmp_path, read_after_end(observed=True))
    assert main(["verify", logs]) == CLEAN
    said = capsys.readouterr().out
    assert "known difference of SGLang, no violation: read_after_end, 1 time" in said
    assert said.endswith("no violations\n")
    assert main(["report", logs, "-o", str(tmp_path / "page.html")]) == CLEAN
    assert "no violation: read_after_end" in (tmp_path / "page.html").read_text()
    assert main(["explain", logs, "--request", "r"]) == CLEAN


def test_a_fault_of_an_observed_engine_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not by design is a violation, beside what is."""
    log = read_after_end(observed=True)
    log.double(AnchorUnlocked, prefetch=1)
    (told,) = json_of(capsys, "verify", folder(tmp_path, log), status=VIOLATED)
    assert [each["law"] for each in told["found"]] == ["exactly_once"]
    assert told["known_differences"]
