"""The README and the pages beside it are run: blocks print what they say, and what they tell of the code is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lifecycle
import lifecycle.runtime

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {"README.md": README} | {
    str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "lifecycle" / "docs").glob("*.md"))
}
BLOCKS = [
    pytest.param(code, output, id=f"{page}-{place}")
    for page, text in PAGES.items()
    for place, (code, output) in enumerate(re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL))
]


@pytest.mark.parametrize(("code", "output"), BLOCKS)
def test_python_block_prints_what_the_page_says(code: str, output: str) -> None:
    """A block is run as a script of its own; the text block after it is its output."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_the_readme_and_its_pages_show_python() -> None:
    """The embedding is shown on the first page, and most pages have a block, so the test above ran something."""
    assert "Coordinator(" in README.partition("```text")[0]
    assert len({block.id.rpartition("-")[0] for block in BLOCKS if block.id}) >= 4


def test_every_page_is_named_in_the_readme() -> None:
    """Whoever has the README finds all pages."""
    assert set(PAGES) - {"README.md"} == set(re.findall(r"^\| \[\w+\.md\]\(([\w/.]+)\) \|", README, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    """What a page links to, or names as a file of this repository, is there."""
    text = PAGES[page]
    links = {link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)} - {""}
    paths = set(re.findall(r"`((?:lifecycle|stores|tests|examples)/[\w/.-]*\w(?:\.\w+|/))`", text))
    here = (ROOT / page).parent
    assert [link for link in sorted(links) if not (here / link).exists()] == []
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", [lifecycle, lifecycle.runtime])
def test_public_names_are_those_the_readme_lists(package: object) -> None:
    """`__all__` and the README's list of names are the same."""
    name = package.__name__  # type: ignore[attr-defined]
    listed = re.search(rf"^`{re.escape(name)}`: (.*?)\.$", README, re.DOTALL | re.MULTILINE)
    assert listed is not None
    assert re.findall(r"`(\w+)`", listed.group(1)) == sorted(package.__all__)  # type: ignore[attr-defined]
