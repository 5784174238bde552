"""`prefetch-audit import-sglang`: the lines that users paste, what they prove, and what they leave open."""

import gzip
import stat
from pathlib import Path

import pytest
from logs import json_of

from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main
from lifecycle.audit.seen import read_seen
from lifecycle.audit.sglang_lines import read_line

T = "[2026-06-26 09:14:59 TP3]"
SHAPES = [
    (f"{T} HiCache prefetch success req=r1 completed_local=256 completed_synced=256 matched=256 loaded=0 tail_release=0 "
     "occupied=11008", "success", "0.5.15", {"completed_local": 256, "tail_release": 0, "occupied": 11008}),
    ("[2026-07-01 00:00:00.123 TP4 EP4] HiCache prefetch dropped req=r1 completed_local=128 completed_synced=64 matched=0 "
     "loaded=0 released=128 occupied=0", "dropped", "0.5.17", {"released": 128, "completed_synced": 64}),
    ("HiCache prefetch success req=r1 completed=219968 matched=0 loaded=219968 occupied=0", "success", "0.5.23",
     {"completed": 219968}),
    ("HiCache prefetch success req=r1 completed_local=12288 completed_synced=12288", "success", "", {"completed_local": 12288}),
    ("14:29:28 PP0  HiCache prefetch success req=r1 attn_reduce_world=1", "success", "", {"attn_reduce_world": 1}),
    (f"{T} HiCache hybrid prefetch discarded req=r1 completed=6464 requested=6464", "discarded", "0.5.17",
     {"completed": 6464, "requested": 6464}),
    (f"{T} HiCache hybrid prefetch discarded req=r1 completed=1 requested=2 kv_beliefs_kept_pages=3", "discarded", "0.5.17",
     {"kv_beliefs_kept_pages": 3}),
    (f"{T} HiCache hybrid prefetch discarded req=r1 reason=deadline completed=64 requested=128 kv_beliefs_kept_pages=None "
     "aux_pool_hit_pages={'swa': 4, 'mamba': 0}", "discarded", "0.5.23",
     {"reason": "deadline", "kv_beliefs_kept_pages": None, "aux_pool_hit_pages": {"swa": 4, "mamba": 0}}),
    ("[2026-02-05 07:24:35] Revoking prefetch for request r1 due to insufficient hits (0).", "revoked", "",
     {"reason": "insufficient_hits", "hit_pages_or_tokens": 0}),
    (f"{T} Revoking prefetch for request r1 due to host memory allocation failure.", "revoked", "", {"reason": "host_memory"}),
    ("[2026-02-05 07:24:35] Prefetch r1 completed with 0 tokens", "finished", "", {"completed": 0}),
    ("[01:09:56] Prefetching 157 pages for request r1.", "started", "", {"pages": 157}),
    (f"{T} Prefetch operation r1 failed to retrieve page {'ab' * 32}.", "page_missed", "", {"key": "ab" * 32}),
    (f"{T} Prefetch operation r1 bytes: 1073.74MB, alloc time: 0.078026s, io time: 0.167429s, copy time: 0.118728s", "io", "",
     {"megabytes": 1073.74, "io_s": 0.167429}),
    (f"{T} HiCache prefetch declined req=r1 reason=unservable_prefix device_prefix=64 hit=128", "declined", "0.5.23",
     {"reason": "unservable_prefix", "device_prefix": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "shape", "facts"), SHAPES, ids=range(len(SHAPES)))
def test_each_shape_is_read(line: str, kind: str, shape: str, facts: dict[str, object]) -> None:
    """Every shape gives its kind, its version where that is known, its request and its facts; coloured or not."""
    for text in (line, f"\x1b[32m{line}\x1b[0m", f"pod-7 stdout F {line}" if line.startswith("[") else line):
        ((_, _, found, request, version, said),), broken = read_line(text)
        assert (found, request, version, broken) == (kind, "r1", shape, False)
        assert facts.items() <= said.items()


def test_a_fact_that_a_line_lacks_is_absent() -> None:
    """Nothing is made up: no matched, no loaded, no time, no rank where the line has none."""
    ((at_ns, rank, _, _, _, facts),), _ = read_line(SHAPES[3][0])
    assert (at_ns, rank) == (None, "")
    assert set(facts) == {"completed_local", "completed_synced"}


def test_a_prompt_that_quotes_a_line_is_none() -> None:
    """What stands in the middle of another message is not a message."""
    quoted = "HiCache prefetch success req=x completed=1 matched=0 loaded=1 occupied=0"
    assert read_line(f"{T} Receive: text='{quoted}'") == ([], False)


def test_two_writes_in_one_line() -> None:
    """Ranks that wrote over each other are told apart by their prefixes."""
    first, second = SHAPES[0][0], SHAPES[5][0].replace("TP3", "TP1")
    found, _ = read_line(first + second)
    assert [(line[1], line[2]) for line in found] == [("TP3", "success"), ("TP1", "discarded")]


def imported(tmp_path: Path, *texts: str | bytes) -> str:
    """Import files with these texts."""
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"server.log.{number}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        paths.append(str(path))
    target = tmp_path / "imported.jsonl"
    assert main(["import-sglang", *paths, "-o", str(target)]) == CLEAN
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    return str(target)


def success(request: str, rank: str = "TP0", second: int = 0, **facts: int) -> str:
    """A success line of 0.5.17 that adds up, unless told otherwise."""
    counts = {"completed_local": 256, "completed_synced": 256, "matched": 64, "loaded": 192, "released": 0, "occupied": 0}
    words = " ".join(f"{name}={value}" for name, value in (counts | facts).items())
    time = f"2026-06-26 {9 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"[{time} {rank}] HiCache prefetch success req={request} {words}\n"


def laws(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int) -> list[tuple[str, str]]:
    """Return level and law of what is found in a text."""
    path = imported(tmp_path, text)
    (checked,) = json_of(capsys, "verify", path, status=status)
    return [(each["level"], each["law"]) for each in checked["found"]]  # type: ignore[attr-defined]


def test_lines_that_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is found, and it is said what such lines cannot tell."""
    path = imported(tmp_path, success("a") + success("a", "TP1"))
    assert main(["verify", path]) == CLEAN
    out = capsys.readouterr().out
    assert "0 violations" in out
    assert "cannot tell: such lines carry no pool" in out


@pytest.mark.parametrize(
    "facts",
    [{"loaded": 256}, {"released": 64}, {"completed_synced": 300}, {"occupied": -64}, {"completed_local": 320}],
)
def test_counts_that_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, int]) -> None:
    """Each count follows from the others by the rules of its version."""
    assert ("violation", "counts") in laws(tmp_path, capsys, success("a", **facts), VIOLATED)


def test_dropped_releases_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `dropped`, released is all that was completed: the same numbers that are wrong for success are right for it."""
    line = success("a", loaded=0, released=256, matched=0).replace("success", "dropped")
    assert laws(tmp_path, capsys, line, CLEAN) == []
    assert ("violation", "counts") in laws(tmp_path, capsys, line.replace("released=256", "released=0"), VIOLATED)


def test_ranks_that_print_different_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is agreed is the same on all ranks; data-parallel ranks have nothing in common."""
    other = {"completed_synced": 192, "matched": 64, "loaded": 128, "released": 64}
    assert ("violation", "ranks") in laws(tmp_path, capsys, success("a") + success("a", "TP1", **other), VIOLATED)
    assert laws(tmp_path, capsys, success("a", "DP0 TP0") + success("a", "DP1 TP0", occupied=64), CLEAN) == []


def test_agreed_is_at_most_what_each_rank_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sync over a rank that has less is a violation; one under all of them is a shortfall that no line names."""
    less = success("a", "TP1", completed_local=128, released=-128)
    assert ("violation", "ranks") in laws(tmp_path, capsys, success("a") + less, VIOLATED)
    short = {"completed_synced": 192, "loaded": 128, "released": 64}
    assert laws(tmp_path, capsys, success("a", **short) + success("a", "TP1", **short), CLEAN) == [("cannot tell", "shortfall")]


def test_a_rank_without_an_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that goes on printing outcomes and has none for one request is at fault; one that never prints is not."""
    text = success("lost") + "".join(success(f"r{n}", rank) for n in range(10) for rank in ("TP0", "TP1"))
    assert laws(tmp_path, capsys, text, VIOLATED) == [("violation", "ranks")]
    quiet = success("a") + "[2026-06-26 09:00:00 TP1] Prefetch operation a failed to retrieve page abc.\n"
    assert laws(tmp_path, capsys, quiet, CLEAN) == [("cannot tell", "ranks")]


def test_occupancy_that_never_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A floor that stays up and is seen again and again is a leak; one that is never seen twice may be load."""
    before = success("a") + success("b")
    leak = "".join(success(f"r{n}", occupied=4096 + 64 * (n % 3)) for n in range(12))
    assert laws(tmp_path, capsys, before + leak, VIOLATED) == [("violation", "occupancy")]
    load = "".join(success(f"r{n}", occupied=4096 + n) for n in range(12))
    assert laws(tmp_path, capsys, before + load, CLEAN) == [("cannot tell", "occupancy")]
    assert laws(tmp_path, capsys, before + leak + success("end"), CLEAN) == []


def test_issued_and_never_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A start without an end, and a log that goes on for a minute, is at fault; at the end of the log it is open."""
    start = "[2026-06-26 09:00:00 TP0] Prefetching 9 pages for request a.\n"
    assert laws(tmp_path, capsys, start + success("b", second=61), VIOLATED) == [("violation", "never ended")]
    assert laws(tmp_path, capsys, start + success("b", second=5), CLEAN) == [("cannot tell", "never ended")]
    assert laws(tmp_path, capsys, start + success("a", second=61), CLEAN) == []


def test_a_discard_of_everything_names_no_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of kv was read and it was discarded: which pool fell short cannot be told."""
    assert laws(tmp_path, capsys, SHAPES[5][0] + "\n", CLEAN) == [("cannot tell", "discard")]


def test_noise_rotation_and_gzip(tmp_path: Path) -> None:
    """Tracebacks, binary noise and thousands of other lines are passed over; rotated files are read in order of time."""
    noise = b"Traceback (most recent call last):\n  File \"x.py\", line 1\n\xff\xfe\x00\nPrefetch\n" + b"unrelated\n" * 2000
    newer, older = noise + success("new", second=30).encode(), gzip.compress(success("old").encode())
    path = imported(tmp_path, newer, older)
    assert [seen.request for seen in read_seen(path)] == ["old", "new"]


def test_a_torn_gzip_and_a_cut_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is read; a line that is cut off is left out and said."""
    whole = gzip.compress("".join(success(f"r{n}", occupied=n) for n in range(2000)).encode())
    path = imported(tmp_path, whole[: len(whole) // 2], f"{T} HiCache prefetch success req=cut compl")
    assert 0 < sum(1 for _ in read_seen(path)) < 2000
    assert "is not whole" in capsys.readouterr().out


def test_explain_and_stats_of_an_imported_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of a request with their places, and what is wrong with it; other commands refuse and say why."""
    path = imported(tmp_path, success("a", loaded=7) + success("b"))
    assert main(["explain", path, "--request", "a"]) == VIOLATED
    assert "loaded=7 (right: 192" in capsys.readouterr().out
    assert main(["stats", path]) == CLEAN
    assert "TP0 success" in capsys.readouterr().out
    assert main(["redecide", path]) == UNREADABLE
    assert "it was imported" in capsys.readouterr().err
    assert main(["explain", path, "--request", "zzz"]) == UNREADABLE


def test_an_imported_log_that_is_torn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that does not decode is named."""
    path = Path(imported(tmp_path, success("a")))
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["verify", str(path)]) == UNREADABLE
    assert "line 2" in capsys.readouterr().err


def test_the_input_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Naming an input as the output is refused, and the input is left."""
    path = tmp_path / "server.log"
    path.write_text(success("a"))
    assert main(["import-sglang", str(path), "-o", str(path)]) == UNREADABLE
    assert path.read_text() == success("a")


@pytest.mark.parametrize("at", range(-40, 0))
def test_a_value_that_is_cut_is_absent(at: int) -> None:
    """Of a line that does not end, and of a write that another breaks into, no value is a part of what was printed."""
    whole = success("r1").rstrip("\n")
    ((*_, complete),), _ = read_line(whole + "\n")
    for text in (whole[:at], whole[:at] + SHAPES[5][0]):
        found, _ = read_line(text, ends=False)
        facts = found[0][5]
        assert facts.items() <= complete.items()
        assert found[0][2] == "success"


def test_a_request_that_is_cut_is_none() -> None:
    """The beginning of an id is not an id; a line that ends with its full stop is whole."""
    assert read_line("[01:09:56] Prefetching 157 pages for request abc", ends=False) == ([], True)
    ((_, _, _, request, _, _),), _ = read_line("[01:09:56] Prefetching 157 pages for request abc.", ends=False)
    assert request == "abc"


def test_an_id_with_blanks() -> None:
    """A request may be called anything."""
    for words in ("Prefetching 157 pages for request {}.", "Prefetch {} completed with 0 tokens"):
        ((_, _, _, request, _, _),), _ = read_line(f"{T} " + words.format("a \"b\" 'c'"))
        assert request == "a \"b\" 'c'"


def test_never_ended_where_no_outcome_is_ever_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that prints no outcome at all may be of a level or a version that prints none."""
    start = "[2026-06-26 09:00:00 TP0] Prefetching 9 pages for request a.\n"
    later = "[2026-06-26 09:10:00 TP0] Prefetch operation b failed to retrieve page abc.\n"
    assert laws(tmp_path, capsys, start + later, CLEAN) == [("cannot tell", "never ended")]


def test_two_servers_in_one_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files in which one rank prints at the same time prove nothing together; what one line contradicts is still wrong."""
    one = "".join(success(f"a{n}", rank, n) for n in range(12) for rank in ("TP0", "TP1"))
    two = "".join(success(f"b{n}", rank, n + 1, occupied=512) for n in range(12) for rank in ("TP0", "TP1", "TP2", "TP3"))
    path = imported(tmp_path, one, two)
    (checked,) = json_of(capsys, "verify", path, status=CLEAN)
    found = [(each["level"], each["law"]) for each in checked["found"]]  # type: ignore[attr-defined]
    assert ("cannot tell", "files") in found
    assert {level for level, _ in found} == {"cannot tell"}
    path = imported(tmp_path, one, two + success("bad", second=20, loaded=7))
    (checked,) = json_of(capsys, "verify", path, status=VIOLATED)
    assert checked["violations"] == 1


def test_a_server_that_was_started_again_with_more_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that was not there yet owes no outcome; of one server's rotated files what is missing is still missing."""
    one = "".join(success(f"a{n}", rank, n) for n in range(12) for rank in ("TP0", "TP1"))
    two = "".join(success(f"b{n}", rank, n + 900) for n in range(12) for rank in ("TP0", "TP1", "TP2"))
    (checked,) = json_of(capsys, "verify", imported(tmp_path, one, two), status=CLEAN)
    assert checked["violations"] == 0
    rest = "".join(success(f"b{n}", rank, n + 900) for n in range(12) for rank in ("TP0", "TP1"))
    (checked,) = json_of(capsys, "verify", imported(tmp_path, one + success("lost", second=20), rest), status=VIOLATED)
    assert checked["violations"] == 1


def test_files_that_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of something else are not taken for a clean server."""
    path = imported(tmp_path, "unrelated\n" * 5000)
    assert "no line of these is about a prefetch" in capsys.readouterr().out
    assert main(["verify", path]) == CLEAN
    out = capsys.readouterr().out
    assert "on no rank" in out
    assert "nothing to check" in out


def test_what_was_read_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--json` an import says in one object what it read, and what it left out."""
    path = tmp_path / "server.log"
    path.write_text(f"{T} HiCache prefetch success req=cut compl\n" + success("a"))
    (read,) = json_of(capsys, "import-sglang", str(path), "-o", str(tmp_path / "out.jsonl"), status=CLEAN)
    expected = {"observations": 1, "lines": 2, "files": [str(path)], "unread": 1, "unread_at": [[str(path), 1]]}
    assert expected.items() <= read.items()


@pytest.mark.parametrize("line", ["Prefetching 5 pages for request a{}b", "HiCache prefetch success req=a{}", " {}"])
@pytest.mark.parametrize("filler", ["=", " ", ".", "a=1 "])
def test_no_line_takes_time_that_grows_with_its_square(tmp_path: Path, line: str, filler: str) -> None:
    """Forty lines of 64 KiB that clients can bring about are read; quadratic, they would outlast any test's limit."""
    path = tmp_path / "server.log"
    long = line.format(filler * ((1 << 16) // len(filler)))
    path.write_text(f"{T} HiCache prefetch success req=cut compl\n" + success("a") + f"{T} {long}\n" * 40)
    assert main(["import-sglang", str(path), "-o", str(tmp_path / "out")]) == CLEAN
