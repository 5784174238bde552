"""The README and the pages beside it are run: blocks print what they say, and what they tell of the code is so."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lifecycle
import lifecycle.runtime
from lifecycle.docs.__main__ import HOUSE, fresh, main
from lifecycle.docs.diagrams import flow
from lifecycle.policies import Policies

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


def test_diagrams_are_printed_from_the_code() -> None:
    """The page on the house equals a fresh print: else run `python -m lifecycle.docs --write`."""
    assert HOUSE.read_text() == fresh(HOUSE.read_text())


def test_the_flow_shows_what_the_code_calls() -> None:
    """Effects reach host memory and the index, reads the store and events the log, each by the module that does it."""
    drawn = flow()
    for line in (
        'settle -->|"quarantine, release"| HostMemory',
        'jobs -->|"read_into, restorable"| PageStore',
        'rank -->|"append"| EventLog',
        'rank -->|"apply"| book',
        'readers -.->|"notes"| transfers',
    ):
        assert line in drawn
    assert "jobs --> rank" not in drawn, "a reader thread moves nothing"


def test_the_command_prints_a_part_or_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m lifecycle.docs states` prints the diagram; an unknown part is refused, naming the parts."""
    assert main(["states"]) == 0
    assert capsys.readouterr().out.startswith("```mermaid\nstateDiagram-v2\n")
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "there are states, meanings, flow, emitters" in capsys.readouterr().err


def test_every_verb_of_the_face_is_explained() -> None:
    """Whatever the coordinator offers is written about, beside the diagram that is printed from it."""
    text = re.sub(r"```mermaid.*?```", "", "".join(PAGES.values()), flags=re.DOTALL)
    face = [name for name in vars(lifecycle.runtime.Coordinator) if not name.startswith("_")]
    assert [name for name in face if not re.search(rf"`{name}\b|\b{name}\(|\.{name}\b", text)] == []


def test_every_policy_is_explained_with_its_default() -> None:
    """The table of policies has a row for each field, with the default where that is a number."""
    rows = re.findall(
        r"^\| `(\w+)` \| `?([^|`]+)`? \|", PAGES["lifecycle/docs/embed.md"].partition("## Policies")[2], re.MULTILINE
    )
    fields = {field.name: field.default for field in dataclasses.fields(Policies)}
    assert sorted(name for name, _ in rows[: len(fields)]) == sorted(fields)
    told = {name: text for name, text in rows[: len(fields)]}
    numbers = {name: default for name, default in fields.items() if isinstance(default, int | float)}
    assert {name: float(told[name]) for name in numbers} == numbers
