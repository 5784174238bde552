"""The README is run: its Python blocks print what it says, its diagram and its names are those of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lifecycle
import lifecycle.runtime
from lifecycle.machine import mermaid

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", README, re.DOTALL)


@pytest.mark.parametrize(("code", "output"), BLOCKS, ids=range(len(BLOCKS)))
def test_python_block_prints_what_the_readme_says(code: str, output: str) -> None:
    """A block is run as a script of its own; the text block after it is its output."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_there_is_a_python_block() -> None:
    """The embedding is shown, so the test above ran something."""
    assert any("Coordinator(" in code for code, _ in BLOCKS)


def test_diagram_is_printed_from_the_table() -> None:
    """The README's diagram equals a fresh print."""
    assert re.findall(r"```mermaid\n(.*?)\n```", README, re.DOTALL) == [mermaid()]


@pytest.mark.parametrize("package", [lifecycle, lifecycle.runtime])
def test_public_names_are_those_the_readme_lists(package: object) -> None:
    """`__all__` and the README's list of names are the same."""
    name = package.__name__  # type: ignore[attr-defined]
    listed = re.search(rf"^`{re.escape(name)}`: (.*?)\.$", README, re.DOTALL | re.MULTILINE)
    assert listed is not None
    assert re.findall(r"`(\w+)`", listed.group(1)) == sorted(package.__all__)  # type: ignore[attr-defined]
