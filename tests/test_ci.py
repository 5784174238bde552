"""What CI says at its end of the tests that it skipped."""

import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = Path(__file__).parents[1] / ".ci" / "skipped"

TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
@pytest.mark.skipif(True, reason="Mooncake cannot be imported: no libibverbs.so.1 (install it)")
def test_mooncake(n): ...

@pytest.mark.skip(reason="no GPU")
def test_gpu(): ...

@pytest.mark.xfail(reason="known")
def test_known(): assert False

def test_fine(): ...
"""


def said(log: Path) -> list[str]:
    """Return the lines that are printed of what pytest printed."""
    return subprocess.run([SKIPPED, log], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("options", [["-q", "-ra"], ["-rs", "--color=yes"]])
def test_how_many_tests_were_skipped_and_why_is_said(tmp_path: Path, options: list[str]) -> None:
    """One line with the number, and one for each reason with its own; what was expected to fail isn't among them."""
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_some.py").write_text(TESTS)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_some.py"]
    with log.open("w") as out:
        subprocess.run(command, cwd=tmp_path, stdout=out, check=True)
    first, *reasons = said(log)
    assert first.startswith("SKIPPED TESTS: 4 did not run here")
    assert sorted(line.split(maxsplit=1) for line in reasons) == [
        ["1", "no GPU"],
        ["3", "Mooncake cannot be imported: no libibverbs.so.1 (install it)"],
    ]


def test_that_nothing_was_skipped_is_said_too(tmp_path: Path) -> None:
    """Silence would look like a summary that broke."""
    (log := tmp_path / "log").write_text("....\n4 passed in 61.01s (0:01:01)\n")
    assert said(log) == ["SKIPPED TESTS: none"]


def test_reasons_that_were_not_printed_are_counted(tmp_path: Path) -> None:
    """The number is that of the last line, whatever came before it."""
    (log := tmp_path / "log").write_text("SKIPPED [1] a.py:3: no GPU\n==== 4 passed, 3 skipped, 1 warning in 2.01s ====\n")
    first, *reasons = said(log)
    assert first.startswith("SKIPPED TESTS: 3 did not run")
    assert [line.split() for line in reasons] == [["1", "no", "GPU"], ["2", "for", "reasons", "that", "were", "not", "printed"]]


def test_a_run_that_was_cut_off_is_not_taken_for_one_without_skips(tmp_path: Path) -> None:
    """Where the last line is missing nobody knows."""
    (log := tmp_path / "log").write_text("....\nSKIPPED [1] a.py:3: no GPU\n")
    assert said(log) == ["SKIPPED TESTS: cannot tell: the tests did not run to their end"]
