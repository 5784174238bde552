"""Writing stories to files, and running `prefetch-audit` on them."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from audit_stories import Tape, tape

from lifecycle.audit.cli import main
from lifecycle.codec import encode
from lifecycle.events import AnchorUnlocked, Closed, PrefixServed, Record, RequestFinished


def write(path: Path, *logs: Iterable[Record]) -> str:
    """Write runs into one file of JSON lines."""
    path.write_bytes(b"".join(encode(record) + b"\n" for log in logs for record in log))
    return str(path)


def folder(tmp_path: Path, *tapes: Tape) -> str:
    """Write the logs of one run, one file a rank, and return their folder."""
    for rank, log in enumerate(tapes):
        write(tmp_path / f"rank{rank}.jsonl", log.records())
    return str(tmp_path)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> list[dict[str, object]]:
    """Run a command with `--json`, check its status, and return its lines, decoded."""
    capsys.readouterr()
    found = main([*arguments, "--json"])
    said = capsys.readouterr()
    assert found == status, said
    assert said.err == ""
    return [msgspec.json.decode(line) for line in said.out.splitlines()]


def served_too_much(end_page: int = 8) -> tuple[Tape, Tape]:
    """Two ranks: `b` is served more of prefetch 2 than was published; rank 1 never got page 4 of kv."""
    tapes = tape("ranked", 0), tape("ranked", 1)
    for log in tapes:
        log.put(PrefixServed("b", 0, end_page, ((0, end_page, 2),)), Closed, prefetch=2)
    return tapes


def served_clean() -> tuple[Tape, Tape]:
    """Two ranks: `b` is served what prefetch 2 published, `a` what prefetch 1 did."""
    tapes = served_too_much(4)
    for log in tapes:
        log.put(PrefixServed("a", 0, 8, ((0, 8, 1),)), RequestFinished, after=False, request="a")
    return tapes


def renamed(request: str) -> Tape:
    """Return a log at fault whose first request has this id."""
    log = tape("plain")
    log.events = [
        msgspec.structs.replace(event, request=request) if getattr(event, "request", None) == "a" else event
        for event in log.events
    ]
    log.double(AnchorUnlocked, prefetch=1)
    log.put(PrefixServed(request, 0, 9, ((0, 9, 1),)), Closed, prefetch=1)
    return log
