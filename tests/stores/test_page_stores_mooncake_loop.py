"""The main job on a real Mooncake with faults, its master killed and started again in the middle of the run.

That hits come again is in `test_page_stores_mooncake_outage.py`; so short a run may be over before the client has lent its
memory to the new master. A longer one: `LOOP_LAYOUTS="kv_only dsa swa" LOOP_KILL_AT=7000
LOOP_OPTIONS="--trace FILE --requests 1000 --page-size 512 --host-pages 400" python -m pytest -s` and this file.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import mooncake_master
import pytest

from lifecycle.events import Clamped, Committed
from lifecycle.layout import PRESETS
from stores.events import LogReader

REASON = mooncake_master.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = shlex.split(os.environ.get("LOOP_OPTIONS", "--requests 100 --host-pages 64"))
KILL_AT = int(os.environ.get("LOOP_KILL_AT", "800"))  # events in the log of rank 0
LAYOUTS = shlex.split(os.environ.get("LOOP_LAYOUTS", "dsa"))
OUTAGE_S, PATIENCE_S = 1.0, 240.0
MUST_BE_ZERO = ("garbled_pages", "leaked_pages", "open_obligations", "lock_refs", "occupied_tokens", "violations")


def lines(path: Path) -> int:
    """Return how many events the log has by now."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_whose_master_is_killed_and_restarted_garbles_and_leaks_nothing(tmp_path: Path, layout: str) -> None:
    """With one call in five faulty besides: hits, then misses, and everything that must be is at zero."""
    assert layout in PRESETS
    result, log = tmp_path / "result.json", tmp_path / "rank0.jsonl"
    with mooncake_master.running(tmp_path) as master:
        command = [sys.executable, "examples/scheduler_loop.py", "--layout", layout, "--faults", "0.2", "--json", str(result)]
        command += ["--store", master.spec, "--events", f"jsonl:{tmp_path}", *OPTIONS]
        with (tmp_path / "said").open("w") as said:
            run = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "GLOG_minloglevel": "3"}, stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while (killed_at := lines(log)) < KILL_AT:
                assert run.poll() is None, "the run ended before the master was to be killed"
                assert time.monotonic() < deadline, "the run makes no progress"
                time.sleep(0.01)
            master.kill()
            with suppress(subprocess.TimeoutExpired):
                run.wait(OUTAGE_S)  # how long the master is away is what is tried
            master.start()
            started_at = lines(log)
            assert run.wait(PATIENCE_S) == 0, (tmp_path / "said").read_text(errors="replace")[-3000:]
        finally:
            run.kill()
            run.wait()
    values = json.loads(result.read_text())
    assert {name: values[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    published = [place for place, record in enumerate(LogReader(log)) if isinstance(record.event, Committed | Clamped)]
    phases = [sum(first <= place < last for place in published) for first, last in ((0, killed_at), (killed_at, started_at))]
    print(layout, {name: values[name] for name in ("committed", "clamped", "discarded", "refused_pages", "wall_s")})
    print("published before the kill, without a master, afterwards:", *phases, len(published) - sum(phases))
    assert values["refused_pages"] + values["held_back_pages"] > 100  # writes met the outage
    assert phases[0] > 0
