"""Logs that somebody made to do harm, and logs that are broken: a clear message, never a traceback, never markup."""

import gzip
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from audit_stories import STORIES, run, tape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logs import folder, renamed, write

from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main
from lifecycle.codec import encode
from lifecycle.events import Issued

HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>'\"&",
    "ansi": "\x1b[31m\x1b]0;title\x07\x1b[2Jcleared",
    "newlines": "a\r\nrun x: rank 0: no violations\nb",
    "long": "x" * (1 << 20),
    "markup": "[bold red]shout[/] :smile: [link=http://x]y[/link]",
    "bidi": "\u202eevil\u2066\u200b",
    "empty": "",
    "option": "--json",
}
COMMANDS = {
    "verify": [],
    "explain": ["--request"],
    "blast-radius": ["--prefetch", "1"],
    "stats": [],
    "redecide": [],
    "trace": ["-o"],
    "report": ["-o"],
}


def call(command: str, logs: list[str], tmp_path: Path, request: str, json: bool = False) -> int:
    """Run a command on logs."""
    extra = list(COMMANDS[command])
    if command == "explain":
        extra = [f"--request={request}"]
    if extra == ["-o"]:
        extra.append(str(tmp_path / "out.file"))
    return main([command, *logs, *extra, *(["--json"] if json else [])])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_request_id_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str) -> None:
    """Nothing of an id reaches the terminal as a control character, the page as markup, or a line of its own."""
    request = HOSTILE[kind]
    logs = folder(tmp_path, renamed(request))
    call(command, [logs], tmp_path, request)
    said = capsys.readouterr()
    text = said.out + said.err
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\nrun x: rank 0" not in text
    assert len(text) < 40_000
    if command in ("trace", "report"):
        written = (tmp_path / "out.file").read_text()
        assert len(written) < 60_000
        assert "<script" not in written.lower() or command == "trace"
        assert "<img" not in written.lower() or command == "trace"
        assert "\x1b" not in written


@pytest.mark.parametrize("kind", HOSTILE)
def test_json_is_one_line_of_plain_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """Programs get the id as it is, in JSON that is safe to print."""
    assert call("explain", [folder(tmp_path, renamed(HOSTILE[kind]))], tmp_path, HOSTILE[kind], json=True) == VIOLATED
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert msgspec.json.decode(line)["request"] == HOSTILE[kind]


def test_markup_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets and emoji codes are printed as they are."""
    call("explain", [folder(tmp_path, renamed(HOSTILE["markup"]))], tmp_path, HOSTILE["markup"])
    assert "[bold red]shout[/] :smile:" in capsys.readouterr().out


def test_a_number_beyond_every_real_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of hundreds of digits is counted or refused, never a traceback."""
    log = tape("plain")
    log.change(Issued, new={"reserved_tokens": 10**400, "end_page": 10**300}, prefetch=1)
    logs = folder(tmp_path, log)
    for command in COMMANDS:
        assert call(command, [logs], tmp_path, "a") in (CLEAN, VIOLATED, UNREADABLE)
    assert "Traceback" not in capsys.readouterr().err


# --- broken logs ------------------------------------------------------------------------------------------------------------


def spoil(data: st.DataObject, whole: bytes) -> bytes:
    """Return a log cut, doubled, shuffled or with bytes changed."""
    lines = whole.splitlines(keepends=True)
    what = data.draw(st.sampled_from(["cut", "double", "drop", "shuffle", "bytes", "insert", "gzip", "number"]))
    at = data.draw(st.integers(0, len(lines) - 1))
    if what == "cut":
        return whole[: data.draw(st.integers(0, len(whole)))]
    if what == "double":
        return b"".join([*lines[: at + 1], *lines[at:]])
    if what == "drop":
        return b"".join([*lines[:at], *lines[at + 1 :]])
    if what == "shuffle":
        return b"".join(data.draw(st.permutations(lines)))
    if what == "gzip":
        packed = gzip.compress(whole, mtime=0)
        return packed[: data.draw(st.integers(2, len(packed)))]
    if what == "number":
        digits = data.draw(st.sampled_from([b"-1", b"0", b"99999999999", b"9" * 400]))
        parts = lines[at].split(b":")
        place = data.draw(st.integers(1, len(parts) - 1))
        tail = parts[place].lstrip(b"0123456789-")
        parts[place] = digits + tail if tail != parts[place] else parts[place]
        return b"".join([*lines[:at], b":".join(parts), *lines[at + 1 :]])
    blob = data.draw(st.binary(min_size=1, max_size=8))
    place = data.draw(st.integers(0, len(whole)))
    return whole[:place] + blob + whole[place + (len(blob) if what == "bytes" else 0) :]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_broken_log_gives_a_message_and_a_status(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    """However a log is broken, each command ends with one of its three statuses, and an error names file and place."""
    story = data.draw(st.sampled_from(sorted(STORIES)))
    command = data.draw(st.sampled_from(sorted(COMMANDS)))
    with tempfile.TemporaryDirectory() as name:
        tmp_path = Path(name)
        paths = []
        for rank, records in enumerate(run(story)):
            whole = b"".join(encode(record) + b"\n" for record in records)
            path = tmp_path / f"log{rank}.jsonl"
            path.write_bytes(spoil(data, whole) if rank == 0 else whole)
            paths.append(str(path))
        capsys.readouterr()
        status = call(command, paths, tmp_path, "a")
        said = capsys.readouterr()
    assert status in (CLEAN, VIOLATED, UNREADABLE)
    assert (status == UNREADABLE) == said.err.startswith("error: ")
    if status == UNREADABLE and "cannot read" in said.err:
        assert "line " in said.err


def test_the_position_of_what_is_broken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unreadable line in the middle is named with its number and byte."""
    path = Path(write(tmp_path / "rank0.jsonl", run("plain")[0]))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], b"{broken\n", *lines[6:]]))
    assert main(["verify", str(path)]) == UNREADABLE
    assert f"line 7 (byte {sum(map(len, lines[:6]))})" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\n", b"\x1f\x8b", b"SQLite format 3\x00", b"{}\n", b"[" * 100_000])
def test_files_that_are_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    """A file without an event is never called clean: there was nothing to check."""
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(content)
    for command in COMMANDS:
        assert call(command, [str(path)], tmp_path, "a") == UNREADABLE
        assert capsys.readouterr().err.startswith("error: cannot ")


def test_an_empty_log_beside_others_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two ranks one logged nothing: what there is is checked, and the file that holds nothing is named."""
    write(tmp_path / "rank0.jsonl", run("plain")[0])
    (tmp_path / "rank1.jsonl").touch()
    assert main(["verify", str(tmp_path)]) == CLEAN
    assert f"note: {tmp_path / 'rank1.jsonl'} holds no event" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("capacity", [(1 << 28) - 16, (1 << 31) - 1])
def test_a_header_cannot_claim_memory(tmp_path: Path, capacity: int) -> None:
    """However many slots a header speaks of, memory is taken for those that the log names: within 64 MiB more than usual."""
    log = tape("plain")
    path = write(tmp_path / "rank0.jsonl", log.records())
    data = Path(path).read_bytes()
    usual = peak_kib(path)
    Path(path).write_bytes(re.sub(rb'("capacity_pages":\{"kv":)\d+', rb"\g<1>%d" % capacity, data, count=1))
    assert peak_kib(path) < usual + (64 << 10)


def peak_kib(path: str) -> int:
    """Return the peak of memory of a process that verifies a log."""
    code = (
        "import resource, sys; from lifecycle.audit.cli import main; main(['verify', sys.argv[1]]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])
