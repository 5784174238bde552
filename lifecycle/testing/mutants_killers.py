"""What may kill a mutant, quickest first: the simulator, the audit of its logs, the model checker, the tests."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lifecycle.audit import verify_logs
from lifecycle.codec import decode
from lifecycle.errors import LifecycleError
from lifecycle.events import Record
from lifecycle.testing.mutants_plant import Mutant, copy_library, plant

PATIENCE_S = 900.0
"""How long one killer may take on a busy machine; what then goes on counts as killed: it has no end."""

_FOUND = "tests/testing/test_mutants_found.py"
_RULES = (
    "tests/runtime/test_public_faults.py",
    "tests/runtime/test_public_faults_more.py",
    "tests/lifecycle",
    "tests/core",
    "tests/runtime",
    "tests/testing/test_simulate_found.py",
    _FOUND,
)
_ROUNDS = (
    _FOUND,
    "tests/runtime/test_rounds_by_hand.py",
    "tests/runtime/test_ranks.py",
    "tests/sync/test_sync_words.py",
    "tests/sync/test_sync_divergence.py",
    "tests/sync/test_sync_failure.py",
)
_PAGES = ("tests/stores/test_page_stores.py", "tests/stores/test_page_stores_files.py")
_PREFIX = ("tests/stores/test_prefix_covered.py", "tests/stores/test_prefix.py", "tests/stores/test_prefix_evict.py")
_TRIES = (_FOUND, "tests/runtime/test_port_failures.py",)
_WAITS = (_FOUND, "tests/runtime/test_retry.py", "tests/runtime/test_attempts.py")
NEAR: dict[str, tuple[str, ...]] = {
    "lifecycle/coverage.py": ("tests/core/test_coverage.py", "tests/runtime/test_plans.py"),
    "lifecycle/decide.py": ("tests/lifecycle/test_votes.py", "tests/runtime/test_plans.py", *_WAITS),
    "lifecycle/keys.py": ("tests/core/test_keys.py",),
    "lifecycle/layout.py": ("tests/core/test_layout.py",),
    "lifecycle/local.py": ("tests/lifecycle/test_obligations.py",),
    "lifecycle/obligations.py": ("tests/lifecycle/test_votes.py", "tests/lifecycle/test_obligations.py"),
    "lifecycle/reasons.py": ("tests/core/test_reasons.py",),
    "lifecycle/replica.py": ("tests/lifecycle/test_votes.py", "tests/lifecycle/test_book.py", *_WAITS),
    "lifecycle/requests.py": _WAITS,
    "lifecycle/rows.py": _ROUNDS,
    "lifecycle/table.py": ("tests/lifecycle/test_machine.py",),
    "lifecycle/votes.py": ("tests/lifecycle/test_votes.py", "tests/runtime/test_time.py"),
    "lifecycle/waiting.py": _WAITS,
    "lifecycle/runtime/agreement.py": _ROUNDS,
    "lifecycle/runtime/coordinator.py": ("tests/runtime/test_attempts.py",),
    "lifecycle/runtime/deadlines.py": ("tests/runtime/test_time.py",),
    "lifecycle/runtime/ending.py": _ROUNDS,
    "lifecycle/runtime/issuing.py": _WAITS,
    "lifecycle/runtime/naming.py": ("tests/sync/test_sync_divergence.py",),
    "lifecycle/runtime/opening.py": ("tests/sync/test_sync_opening.py",),
    "lifecycle/runtime/readers.py": ("tests/runtime/test_read_queue.py", "tests/runtime/test_time.py"),
    "lifecycle/runtime/residency.py": ("tests/runtime/test_plans.py", "tests/runtime/test_edges.py"),
    "lifecycle/runtime/settle.py": _TRIES,
    "lifecycle/runtime/steps.py": (*_TRIES, "tests/runtime/test_ranks.py"),
    "lifecycle/runtime/ticks.py": _ROUNDS,
    "lifecycle/runtime/transfers.py": ("tests/runtime/test_time.py",),
    "stores/host_slots.py": ("tests/stores/test_host.py",),
    "stores/pages/header.py": _PAGES,
    "stores/pages/beliefs.py": ("tests/stores/test_page_stores_mooncake_codes.py",),
    "stores/prefix_evict.py": _PREFIX,
    "stores/prefix_match.py": _PREFIX,
}
"""The tests that are run first for a file; those of all rules follow."""


class ProbeFailed(LifecycleError):
    """Raised when a killer could not be run at all: that says nothing about the mutant."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How it went with one mutant (None: the library as it is): who killed it, and what its logs alone show."""

    mutant: Mutant | None
    killer: str | None  # None: it survived
    found: str
    audit: str | None  # the law that the logs break; None where they show nothing
    seconds: float


@dataclass(frozen=True, slots=True)
class Killers:
    """The killers there are: without tests, all but those. `seeds` is how many the simulator runs."""

    root: Path
    tests: Path | None
    seeds: int = 16

    def trial(self, mutant: Mutant | None) -> Trial:
        """Plant the mutant in a copy of the library and let one killer after the other at it."""
        began = time.monotonic()
        with TemporaryDirectory(prefix="mutant-") as folder:
            copy, out = Path(folder, "library"), Path(folder, "out")
            out.mkdir()
            copy_library(self.root, copy, self.tests)
            if mutant is not None:
                plant(mutant, copy)
            broken, lives = _probe("simulate", copy, out, str(self.seeds))
            law = _audit(out, lives)
            killer, found = "", ""
            if broken:
                killer, found = "simulator", broken[0][1]
            elif law is not None:
                killer, found = "audit", law
            if not killer:
                broken, _ = _probe("model", copy, out)
                if broken:
                    killer, found = "model checker", broken[0][1]
            if not killer and self.tests is not None:
                failed = run_tests(copy, suite_for(mutant))
                if failed is not None:
                    killer, found = "tests", failed
        return Trial(mutant, killer or None, found, law, time.monotonic() - began)


def suite_for(mutant: Mutant | None) -> tuple[str, ...]:
    """Return the tests that are run for a mutant, in order, or those for the library as it is: all of them."""
    near = NEAR.get(mutant.file, ()) if mutant is not None else tuple(test for tests in NEAR.values() for test in tests)
    return tuple(dict.fromkeys((*near, *_RULES)))


def _environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


def _probe(what: str, copy: Path, out: Path, *more: str) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """Return what the simulator or the model checker found broken in a copy, and the logs that it wrote."""
    command = [sys.executable, "-m", "lifecycle.testing.mutants_probe", what, str(out), *more]
    try:
        done = subprocess.run(
            command, cwd=copy, env=_environment(copy), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [[0, "no end", ""]], []
    answer = out / f"{what}.json"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return [[0, "no end", ""]], []
    if not answer.exists():
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return [[0, f"the library does not run: {last[0][:200]}", ""]], []
    told = json.loads(answer.read_text())
    if Path(told["library"]).resolve() != copy.resolve():
        raise ProbeFailed(f"cannot probe the copy: the library was loaded from {told['library']} instead (unset PYTHONHOME)")
    return told["broken"], told.get("lives", [])


def _audit(out: Path, lives: Sequence[dict[str, Any]]) -> str | None:
    """Return the first law that the logs break, by this library's own rules; None where they show nothing."""
    for life in lives:
        logs = [_read(out / name) for name in life["files"]]
        for group in [[log] for log in logs] if life["apart"] else [logs]:
            for violation in verify_logs(group):
                # A port refused to the end: what it kept is missing, as the log says itself.
                if not (life["owing"] and any(word in str(violation) for word in ("never", "at the stop"))):
                    return violation.law.value
    return None


def _read(path: Path) -> list[Record]:
    return [decode(line) for line in path.read_bytes().splitlines()]


def run_tests(copy: Path, tests: Sequence[str]) -> str | None:
    """Return the first test that fails in a copy, or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-o", "timeout=120", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=_environment(copy), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.MULTILINE)
    if failed:
        return failed.group(1)
    if "Timeout" in done.stdout + done.stderr:
        return "a test did not end"
    raise ProbeFailed(f"cannot run the tests: {(done.stderr or done.stdout).strip()[-500:]} (status {done.returncode})")
