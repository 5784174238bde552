"""The example on SGLang's own classes, as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sglang.srt", reason="needs SGLang (tests/sglang/setup.sh)")

pytestmark = pytest.mark.sglang
ROOT = Path(__file__).resolve().parents[2]


def test_ends_with_the_report() -> None:
    """Traffic runs, the log is audited, every law is kept, and the cache holds no lock and no token."""
    command = [sys.executable, "-W", "ignore", "examples/sglang_shadow.py", "--requests", "60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["audit: every law kept", "locks 0, tokens in flight 0"]
