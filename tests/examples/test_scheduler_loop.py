"""The main job, run as a user runs it: in processes, on made-up traces short enough for a test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import scheduler_loop
from lifecycle.book import fold
from lifecycle.errors import LogError
from lifecycle.events import Discarded, LogOpened
from lifecycle.layout import PRESETS, Layout
from lifecycle.reasons import Reason
from stores.events import LogReader

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "scheduler_loop.py"
ZEROS = ("garbled_pages", "leaked_pages", "open_obligations", "lock_refs", "occupied_tokens", "violations")
FIELDS = {
    "requests", "ticks", "ranks", "issued", "declined", "committed", "clamped", "discarded", "hit_tokens", "loaded_tokens",
    "collectives", "reuse_bound_tokens", "served_pages", "garbled_pages", "leaked_pages", "quarantined_pages",
    "open_obligations", "lock_refs", "occupied_tokens", "events", "violations", "wall_s",
}  # fmt: skip


def _command(*options: object) -> list[str]:
    return [sys.executable, str(SCRIPT), *map(str, options)]


def _run(folder: Path, *options: object) -> dict[str, Any]:
    """Run the job, expect that it ends well, and return what it counted."""
    path = folder / "out.json"
    done = subprocess.run(_command(*options, "--json", path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    values: dict[str, Any] = json.loads(path.read_text())
    assert {name: values[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    return values


def _write_trace(path: Path, lengths: Sequence[int], shared: bool = True) -> Path:
    """Write a trace of prompts of these lengths, a second apart, that begin alike if `shared`."""
    with path.open("w") as file:
        for place, tokens in enumerate(lengths):
            blocks = -(-tokens // 512)
            ids = list(range(blocks)) if shared else [place * 1000 + block for block in range(blocks)]
            line = {"timestamp": place * 1000, "input_length": tokens, "output_length": 8, "hash_ids": ids}
            file.write(json.dumps(line) + "\n")
    return path


# --- what a run shows ---------------------------------------------------------------------------------------------------


def test_default_layout_commits_clamps_and_discards_under_faults_and_nothing_is_left_over(tmp_path: Path) -> None:
    """With a store that fails every outcome occurs, and pages, locks, tokens and bytes still come out right."""
    values = _run(tmp_path, "--faults", 0.3, "--requests", 150)
    assert values.keys() >= FIELDS
    assert values["requests"] == 150
    assert values["committed"] > 0
    assert values["clamped"] > 0
    assert values["discarded"][Reason.ABORTED] > 0
    assert values["collectives"] == values["ticks"]
    ended = values["committed"] + values["clamped"] + sum(values["discarded"].values())
    assert ended == values["issued"]


@pytest.mark.parametrize("layout", [name for name in PRESETS if name != "dsa"])
def test_every_layout_survives_faults(tmp_path: Path, layout: str) -> None:
    """Whatever the pools, nothing is garbled, leaked or left open; a round takes two collectives at most."""
    values = _run(tmp_path, "--layout", layout, "--faults", 0.1, "--requests", 40)
    assert values["committed"] + values["clamped"] > 0
    trailing = PRESETS[layout]().has_trailing()
    assert values["ticks"] <= values["collectives"] <= values["ticks"] * (1 + trailing)


def test_most_of_what_can_be_reused_is_loaded_from_l3_when_l2_is_small(tmp_path: Path) -> None:
    """Two prompts that take turns in an L2 that holds one of them are loaded from L3 again and again."""
    lengths = [4096, 4608] * 8
    trace = tmp_path / "trace.jsonl"
    with trace.open("w") as file:
        for place, tokens in enumerate(lengths):
            first = 1000 * (place % 2)
            ids = list(range(first, first + tokens // 512))
            file.write(json.dumps({"timestamp": place * 100_000, "input_length": tokens, "output_length": 8, "hash_ids": ids}))
            file.write("\n")
    values = _run(tmp_path, "--trace", trace, "--page-size", 512, "--host-pages", 9)
    assert values["reuse_ratio"] > 0.8
    assert values["loaded_tokens"] > values["l2_tokens"]
    assert values["evicted_pages"] > 0


def test_readers_of_very_different_speed_do_not_make_ranks_differ(tmp_path: Path) -> None:
    """One slow rank under heavy eviction: the logs of both tell the same outcomes."""
    options = ("--slow-rank", "1:0.02", "--requests", 60, "--host-pages", 180, "--layout", "swa", "--faults", 0.05)
    assert _run(tmp_path, *options)["evicted_pages"] > 0


def test_one_rank_runs_no_collective(tmp_path: Path) -> None:
    """Alone there is nothing to agree on, with faults or without."""
    values = _run(tmp_path, "--ranks", 1, "--requests", 40, "--faults", 0.1)
    assert values["collectives"] == 0
    assert values["ticks"] > 0


def test_prompts_shorter_than_a_page_and_empty_ones_are_served_without_prefetch(tmp_path: Path) -> None:
    """A prompt without a whole page has no key: it is declined as too short, and runs."""
    trace = _write_trace(tmp_path / "trace.jsonl", [0, 1, 63, 0, 64])
    values = _run(tmp_path, "--trace", trace, "--ranks", 1)
    assert values["requests"] == 5
    assert values["declined"] == {Reason.TOO_SHORT: 4}
    assert values["issued"] == 1


def test_host_memory_smaller_than_a_prompt_ends_no_run(tmp_path: Path) -> None:
    """What does not fit is computed anew, and the run goes on to its end."""
    values = _run(tmp_path, "--ranks", 1, "--requests", 20, "--host-pages", 2, "--layout", "mamba")
    assert values["requests"] == 20


def test_logs_and_pages_on_disk_are_used_by_the_next_run(tmp_path: Path) -> None:
    """A second run finds the pages of the first in its store, and appends to its logs."""
    options = ("--requests", 20, "--ranks", 1, "--events", f"sqlite:{tmp_path / 'log'}", "--store", f"file:{tmp_path / 'l3'}")
    first, second = _run(tmp_path, *options), _run(tmp_path, *options)
    assert second["loaded_tokens"] > first["loaded_tokens"]
    [log] = second["logs"]
    opened = [record.event.run for record in LogReader(log) if isinstance(record.event, LogOpened)]
    assert len(set(opened)) == 2


# --- how a run ends early -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_logs_of_a_run_that_was_killed_replay_to_a_legal_state(tmp_path: Path, kind: str) -> None:
    """After `kill -9` both logs open again, and everything before the torn tail folds."""
    process = _started(tmp_path, kind, "--faults", 0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for rank in (0, 1):
        opened, *records = LogReader(tmp_path / f"rank{rank}.{kind}")
        assert isinstance(opened.event, LogOpened)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        layout = Layout.of_declaration(opened.event.layout)
        book = fold(layout, opened.event.budget_pages, (record.event for record in records))
        assert book.faults() == []


def test_a_rank_that_dies_ends_the_run(tmp_path: Path) -> None:
    """The parent says which rank died, stops the others and exits with 1."""
    process = _started(tmp_path)
    os.kill(_children(process.pid)[1], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "rank 1 ended before the run did" in said


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_rank_outlives_the_process_that_started_it(tmp_path: Path, number: int, status: int) -> None:
    """However the parent ends, its ranks end, too."""
    process = _started(tmp_path)
    ranks = _children(process.pid)
    process.send_signal(number)
    process.communicate(timeout=30)  # also waits until no rank holds its end of the pipes
    assert process.returncode == status
    _wait_until(lambda: not any(_is_running(rank) for rank in ranks))


def _started(folder: Path, kind: str = "jsonl", *options: object) -> "subprocess.Popen[str]":
    """Start a run that takes long, in a session of its own; return once prefetches have ended on both ranks."""
    command = _command("--requests", 20_000, "--page-bytes", 256, "--events", f"{kind}:{folder}", *options)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    logs = [folder / f"rank{rank}.{kind}" for rank in (0, 1)]
    _wait_until(lambda: process.poll() is not None or all(map(_has_ended_prefetch, logs)))
    assert process.poll() is None, process.communicate()
    return process


def _has_ended_prefetch(log: Path) -> bool:
    try:
        return any(isinstance(record.event, Discarded) for record in LogReader(log))
    except LogError:  # it is being made
        return False


def _wait_until(done: Callable[[], bool]) -> None:
    """Wait for other processes; what hangs is ended by the time limit of the test."""
    while not done():
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    """Return the processes that this one started, oldest first."""
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return sorted(int(child) for child, parent in map(str.split, found.splitlines()) if int(parent) == pid)


def _is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(found) and not found.startswith("Z")


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the job, expect that it refuses the options before any process starts, and return its one line."""

    def run(*options: object) -> str:
        monkeypatch.setattr(scheduler_loop, "spawn", lambda *_: pytest.fail("processes were started"))
        with pytest.raises(SystemExit) as ended:
            scheduler_loop.main([str(option) for option in options])
        assert ended.value.code == 2
        said = capsys.readouterr()
        assert said.out == ""
        [line] = said.err.splitlines()
        return line

    return run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--layout", "gqa"], "there are: kv_only, dsa, swa, mamba, deepseek_v4"),
        (["--store", "s3:bucket"], "there are memory, file:DIR"),
        (["--events", "kafka"], "memory, jsonl:DIR, sqlite:DIR"),
        (["--stop-policy", "never"], "best_effort, wait_complete, timeout"),
        (["--page-size", "0"], "--page-size 0"),
        (["--ranks", "0"], "--ranks 0"),
        (["--faults", "1.5"], "--faults 1.5"),
        (["--trace", "/no/such/trace.jsonl"], "No such file or directory"),
        (["--json", "/no/such/folder/out.json"], "cannot write"),
        (["--slow-rank", "2:0.1"], "there are ranks 0 to 1"),
        (["--slow-rank", "one"], "R:SECONDS"),
    ],
)
def test_bad_options_are_refused_in_one_line(refused: Callable[..., str], options: list[str], said: str) -> None:
    """Nothing starts, nothing is printed but one line on stderr, and the status is 2."""
    assert said in refused(*options)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is '', no number"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one', no number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "there is no rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0"}, "environment variable MASTER_ADDR expected"),
    ],
)
def test_an_environment_that_is_not_torchruns_is_refused_in_one_line(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str
) -> None:
    """Whoever has RANK set for another reason is told what is missing, and the way out."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = refused("--requests", 5)
    assert said in line
    assert "unset RANK" in line


def test_a_trace_line_that_is_none_is_named_by_file_and_line(refused: Callable[..., str], tmp_path: Path) -> None:
    """The second line is no JSON: the error says so."""
    trace = _write_trace(tmp_path / "trace.jsonl", [600])
    trace.write_text(trace.read_text() + "not json\n")
    assert f"{trace}:2:" in refused("--trace", trace)
