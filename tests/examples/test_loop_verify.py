"""The switch that turns verification off: what it lets through, and that nothing else does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lifecycle.keys import Namespace, page_keys
from loop_options import parse_options
from stores.pages import open_page_store

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "scheduler_loop.py"
PAGE, KEYS = {"kv": 4096}, page_keys(range(4), 1)


def damage(file: Path) -> None:
    """Flip one bit of the page, past its header."""
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_page_is_served_only_without_verification(tmp_path: Path, verify: bool) -> None:
    """With the switch on it is a failed read, counted; with it off it comes as it is."""
    open_page_store(f"file:{tmp_path}", PAGE, Namespace("m"), "r0of1").write("kv", KEYS[:1], [memoryview(bytes(4096))])
    damage(tmp_path / "r0of1" / "kv" / KEYS[0][:2] / KEYS[0])
    store = open_page_store(f"file:{tmp_path}", PAGE, Namespace("m"), "r0of1", verify=verify)
    buffer = bytearray(4096)
    (result,) = store.read_into("kv", KEYS[:1], [memoryview(buffer)])
    assert (result.code is None) == (not verify)
    assert verify or any(buffer)


def test_the_switch_is_on_unless_it_is_turned_off() -> None:
    """Nobody loses verification by leaving an option out."""
    assert parse_options([]).verify
    assert not parse_options(["--no-verify"]).verify


def run(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the job over the trace and the store of the test; return its status and what it counted."""
    out = folder / "out.json"
    command = [sys.executable, str(SCRIPT), "--ranks", "1", "--layout", "kv_only", "--trace", str(folder / "trace.jsonl")]
    command += ["--store", f"file:{folder / 'l3'}", "--json", str(out), "--stop-policy", "wait_complete", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    values: dict[str, Any] = json.loads(out.read_text())
    return done.returncode, values


def test_the_job_finds_garbled_pages_where_it_was_told_not_to_verify(tmp_path: Path) -> None:
    """With --no-verify damage in L3 reaches the output, and the run says so."""
    line = {"timestamp": 0, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(line) + "\n")
    assert run(tmp_path)[0] == 0
    stored = [path for path in (tmp_path / "l3" / "r0of1" / "kv").rglob("*") if path.is_file()]
    assert len(stored) == 16
    for file in stored[:4]:
        damage(file)
    status, values = run(tmp_path, "--no-verify")
    assert status == 1
    assert values["garbled_pages"] >= 4
