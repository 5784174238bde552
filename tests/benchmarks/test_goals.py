"""The command that runs every benchmark: its table has a line for every goal. Nothing here is timed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import others
from tests.benchmarks.common import Row
from tests.benchmarks.goals import GOALS

ROOT = Path(__file__).resolve().parents[2]
REACHED = {  # the goals that were set when the library was designed, in the order of its table
    "finalise-32": "<= 1x", "finalise-512": "<= 0.3x", "finalise-2048": "<= 0.1x", "finalise-flat": "flat",
    "sync-64": ">= 30x less", "sync-blocked": "<= 10 %", "growth": "<= 1.5x", "append": "<= 3 us",
    "audit-rate": ">= 200,000", "audit-memory": "the same", "pages-1mib": ">= 0.7x", "pages-64kib": ">= 0.4x",
    "pages-sglang-1mib": "> 1x", "pages-sglang-64kib": "> 1x",
}  # fmt: skip
QUICK = ("append", "audit", "sync")


def test_the_goals_are_those_that_were_set() -> None:
    """No goal is dropped or loosened in passing."""
    assert {key: goal.goal for key, goal in GOALS.items()} == REACHED


def test_every_goal_has_a_benchmark() -> None:
    """Each goal names a benchmark that the command can run."""
    assert {goal.bench for goal in GOALS.values()} <= set(command.BENCHES)


def test_a_goal_that_was_not_measured_still_has_its_line() -> None:
    """What was not run, or failed, is said so in the goal's own line; what was measured is not repeated."""
    measured = Row("append", "an append", "<= 3 us", "", "1 us", "", True, key="append")
    rows = command.complete([measured], ["append", "audit"])
    assert sorted(row.key for row in rows) == sorted(GOALS)
    notes = {row.key: row.note for row in rows}
    assert notes["append"] == ""
    assert notes["audit-rate"] == "failed"
    assert notes["sync-64"] == "not run"


def test_a_missing_baseline_is_said_to_be_missing() -> None:
    """Without SGLang the rows that need it have our figure, no verdict, and say what is missing."""
    ours = {str(pages): {"ours": 100.0} for pages in (1, 32, 512, 2_048)}
    lines = [
        {"page_bytes": page_bytes, "way": way, "threads": 1, "mb_per_s": rate, "ratio": 0.9}
        for page_bytes in (1 << 20, 64 << 10)
        for way, rate in (("bare readv", 10.0), ("store, verified", 9.0), ("SGLang HiCacheFile", None))
    ]
    rows = [*others.finalised(ours), *others.file_rows(lines)]
    lacking = [row for row in rows if "SGLang is missing" in row.note]
    assert [row.key for row in lacking] == [
        "finalise-32", "finalise-512", "finalise-2048", "pages-sglang-1mib", "pages-sglang-64kib"
    ]  # fmt: skip
    assert all(row.met is None and row.ours for row in lacking)


@pytest.mark.parametrize(("theirs", "met"), [(50.0, False), (2_000.0, True)])
def test_a_verdict_is_that_of_the_ratio(theirs: float, met: bool) -> None:
    """Beside a slow original the goals are met, beside a quick one missed."""
    table = {str(pages): {"ours": 100.0, "SGLang": theirs} for pages in (32, 512, 2_048)}
    assert [row.met for row in others.finalised(table)] == [met, met, met, True]


def test_the_command_prints_every_goal(tmp_path: Path) -> None:
    """Benchmarks run quickly, also the one that reaches into a rank: their goals have figures, all others have a line."""
    only = [word for bench in QUICK for word in ("--only", bench)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--quick", "--json", *only],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    keys = [row["key"] for row in found["rows"] if row["key"]]
    assert set(keys) == set(GOALS)
    measured = [row for row in found["rows"] if row["bench"] in QUICK]
    assert all(row["ours"] for row in measured), measured
    assert {row["bench"] for row in measured} == set(QUICK)
    assert "load" in found["machine"]
