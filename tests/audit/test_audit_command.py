"""`prefetch-audit verify LOG...`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from audit_stories import run, tape

from lifecycle.audit import runs
from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main
from lifecycle.codec import encode
from lifecycle.events import AnchorUnlocked, EventsLost, LogOpened, Record, RequestFinished
from stores.events import SqliteEventLog


def write(path: Path, *logs: list[Record] | tuple[Record, ...]) -> str:
    """Write runs into one file of JSON lines."""
    path.write_bytes(b"".join(encode(record) + b"\n" for log in logs for record in log))
    return str(path)


def spoilt_records(story: str = "plain") -> list[Record]:
    """Return a log that unlocks an anchor twice."""
    log = tape(story)
    log.double(AnchorUnlocked, prefetch=1)
    return log.records()


def test_a_clean_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clean log says so, and exits with 0."""
    assert main(["verify", write(tmp_path / "rank0.jsonl", run("plain")[0])]) == CLEAN
    assert "no violations" in capsys.readouterr().out


def test_what_was_lost_is_no_clean_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a log says that events were lost, or has no header, verify says what it cannot tell, and no more is wrong."""
    first, *rest = run("plain")[0]
    lost = Record(first.seq, first.at_ns, EventsLost(1, first.seq, "a full disk"))
    log = write(tmp_path / "rank0.jsonl", [lost, *rest])
    assert main(["verify", log]) == CLEAN
    out = capsys.readouterr().out
    assert "cannot tell: rank ? lost 1 event:" in out
    assert "cannot tell: no log has a header" in out
    main(["verify", "--json", log])
    assert len(json.loads(capsys.readouterr().out)["unknown"]) == 2


def test_violations_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each violation is a line, and the status is 1."""
    assert main(["verify", write(tmp_path / "rank0.jsonl", spoilt_records())]) == VIOLATED
    out = capsys.readouterr().out
    assert "exactly_once" in out
    assert "1 violation\n" in out


def test_both_formats_of_both_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ranks of a run are found by its name, in whatever format and order they are given."""
    first, second = run("ranked")
    log = SqliteEventLog(tmp_path / "rank1.sqlite")
    for record in second:
        log.append(record)
    log.close()
    assert main(["verify", str(tmp_path / "rank1.sqlite"), write(tmp_path / "rank0.jsonl", first)]) == CLEAN
    assert "ranks 0, 1: no violations" in capsys.readouterr().out


def test_ranks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A difference between two files of one run is found."""
    first, second = tape("ranked", 0), tape("ranked", 1)
    second.drop(AnchorUnlocked, prefetch=2)
    second.change(LogOpened, new={"page_size_tokens": 8})
    paths = [write(tmp_path / f"rank{rank}.jsonl", log.records()) for rank, log in enumerate((first, second))]
    assert main(["verify", *paths]) == VIOLATED
    assert "ranks:" in capsys.readouterr().out


def test_a_file_with_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that were appended to one file are checked apart."""
    assert main(["verify", write(tmp_path / "rank0.jsonl", run("plain")[0], spoilt_records("short"))]) == VIOLATED
    out = capsys.readouterr().out
    assert out.count("run ") == 2
    assert "no violations" in out


def test_a_torn_tail_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a killed writer left is noted, and the rest is clean."""
    path = tmp_path / "rank0.jsonl"
    write(path, run("plain")[0][:20])
    path.write_bytes(path.read_bytes() + b'{"seq":20,"at')
    assert main(["verify", str(path)]) == CLEAN
    assert "note:" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\x00\x01garbage\nmore\n", b'{"seq":0,"at_ns":0,"event":"from_the_future.1"}\n'])
def test_a_log_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    """What is no log, or too new, is an error, and the status is 2."""
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(content)
    assert main(["verify", str(path)]) == UNREADABLE
    assert "error:" in capsys.readouterr().err


def test_a_log_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is an error, and the status is 2."""
    assert main(["verify", str(tmp_path / "none.jsonl")]) == UNREADABLE
    assert "none.jsonl" in capsys.readouterr().err


def test_records_without_a_header_are_told(tmp_path: Path) -> None:
    """A file that lost its beginning is at fault, not unreadable."""
    assert main(["verify", write(tmp_path / "rank0.jsonl", run("plain")[0][3:])]) == VIOLATED


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m lifecycle.audit` exits with what it found."""
    path = write(tmp_path / "rank0.jsonl", spoilt_records())
    command = [sys.executable, "-m", "lifecycle.audit", "verify", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == VIOLATED, done.stderr
    assert "AnchorUnlocked came a second time" in done.stdout


@pytest.mark.parametrize("block", [64, 300, 1 << 20])
def test_runs_are_found_whatever_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """The quick look for headers finds the runs that reading every record finds, also across blocks."""
    monkeypatch.setattr(runs, "_BLOCK_BYTES", block)
    path = write(tmp_path / "rank0.jsonl", run("plain")[0], run("short")[0], run("plain")[0])
    quick = runs.scan([path])
    monkeypatch.setattr(runs, "_headers", lambda path: None)
    slow = runs.scan([path])
    assert [(r.id, [(s.place, s.rank) for s in r.segments]) for r in quick.runs] == [
        (r.id, [(s.place, s.rank) for s in r.segments]) for r in slow.runs
    ]
    assert len(quick.runs) == 2


def test_a_request_that_looks_like_a_header_is_none(tmp_path: Path) -> None:
    """An id with the words of a header in it begins no run."""
    log = tape("plain")
    log.put(RequestFinished('x","event":"log_opened.1","y":"'), RequestFinished)
    path = write(tmp_path / "rank0.jsonl", log.records())
    (found,) = runs.scan([path]).runs
    assert len(found.segments) == 1
    assert found.segments[0].whole


@pytest.mark.parametrize("command", ["lifecycle.audit stats LOG", "lifecycle.audit verify LOG", "lifecycle.docs"])
def test_whoever_has_read_enough_is_not_told_of_a_closed_pipe(tmp_path: Path, command: str) -> None:
    """Output that nobody reads any more ends quietly, and not as if the log were at fault."""
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"".join(encode(record) + b"\n" for record in tape("ranked", 0).records()))
    reader, writer = os.pipe()
    os.close(reader)
    arguments = command.replace("LOG", str(path)).split()
    try:
        done = subprocess.run([sys.executable, "-m", *arguments], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode in (CLEAN, UNREADABLE)
