"""The main job on two ranks and a real Mooncake with faults: its master dies in the middle, comes back, and so do the hits.

Slow answers of one rank make the run last until the clients have lent their memory to the new master, on any machine.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mooncake_master
import pytest

from lifecycle.events import Clamped, Committed, Discarded
from stores.events import LogReader

REASON = mooncake_master.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = shlex.split("--requests 200 --host-pages 64 --faults 0.1 --slow-rank 0:0.05 --stop-policy wait_complete")
KILL_AT, OUTAGE = 800, 80  # events in the log of rank 0
PATIENCE_S = 240.0
MUST_BE_ZERO = ("garbled_pages", "leaked_pages", "open_obligations", "lock_refs", "occupied_tokens", "violations")


def lines(path: Path) -> int:
    """Return how many events the log has by now."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def running(folder: Path, spec: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the job; what it says lies in `said`."""
    command = [sys.executable, "examples/scheduler_loop.py", "--json", str(folder / "result.json"), "--store", spec]
    command += ["--events", f"jsonl:{folder}", *OPTIONS]
    with (folder / "said").open("w") as said:
        run = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "GLOG_minloglevel": "3"}, stdout=said, stderr=said)
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def wait_for(run: "subprocess.Popen[bytes]", log: Path, events: int) -> int:
    """Wait until the log has so many events; return how many it has then."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := lines(log)) < events:
        assert run.poll() is None, "the run ended before it was to"
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)
    return found


def test_hits_come_again_after_the_master_has_come_back(tmp_path: Path) -> None:
    """Before: prefetches are published. Without a master: misses. Afterwards: published again. Nothing garbled or leaked."""
    log = tmp_path / "rank0.jsonl"
    with mooncake_master.running(tmp_path) as master, running(tmp_path, master.spec) as run:
        wait_for(run, log, KILL_AT)
        master.kill()
        killed_at = lines(log)
        wait_for(run, log, killed_at + OUTAGE)
        master.start()
        started_at = lines(log)
        assert run.wait(PATIENCE_S) == 0, (tmp_path / "said").read_text(errors="replace")[-3000:]
    values = json.loads((tmp_path / "result.json").read_text())
    assert {name: values[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    names, starts = ("before", "without", "after"), (killed_at, started_at)
    phases: dict[str, Counter[str]] = {name: Counter() for name in names}
    for place, record in enumerate(LogReader(log)):
        phase = phases[names[bisect_right(starts, place)]]
        if isinstance(record.event, Committed | Clamped):
            phase["published"] += 1
        elif isinstance(record.event, Discarded):
            phase[record.event.reason] += 1
    print(phases, {name: values[name] for name in ("wall_s", "refused_pages", "held_back_pages", "lost_pages")})
    assert phases["before"]["published"] > 0
    assert sum(phases["without"].values()) > phases["without"]["published"]  # misses
    assert values["refused_pages"] > 0  # writes met the outage
    assert phases["after"]["published"] > 0
