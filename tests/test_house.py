"""The shape of the house: which room may import which, and what the pure core may not touch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "lifecycle").glob("*.py"))
IMPURE = {
    "os",
    "io",
    "pathlib",
    "threading",
    "time",
    "datetime",
    "random",
    "secrets",
    "socket",
    "torch",
    "subprocess",
    "sqlite3",
}
UNSAFE = {"pickle", "marshal", "shelve", "dill"}
MAY_IMPORT = {
    "lifecycle": {"lifecycle"},
    "lifecycle/runtime": {"lifecycle", "lifecycle/runtime"},
    "stores": {"lifecycle", "stores"},  # and the ports, see below
    "lifecycle/docs": {"lifecycle", "lifecycle/docs"},
    "lifecycle/audit": {"lifecycle", "lifecycle/runtime", "lifecycle/audit", "stores"},
    "lifecycle/adapters": {"lifecycle", "lifecycle/runtime", "lifecycle/audit", "lifecycle/adapters", "stores"},
    "lifecycle/testing": {"lifecycle", "lifecycle/runtime", "lifecycle/audit", "lifecycle/testing", "stores"},
}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _room(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "stores":
        return "stores"
    if parts[0] != "lifecycle":
        return None
    rooms = {"runtime", "docs", "audit", "adapters", "testing"}
    return f"lifecycle/{parts[1]}" if len(parts) > 1 and parts[1] in rooms else "lifecycle"


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    """No room imports one that builds on it; stores know the runtime by its ports alone."""
    files = sorted((ROOT / room).glob("*.py") if room == "lifecycle" else (ROOT / room).rglob("*.py"))
    wrong = [
        (str(path.relative_to(ROOT)), module)
        for path in files
        for module in _imports(path)
        if (target := _room(module)) is not None
        and target not in MAY_IMPORT[room]
        and not (room == "stores" and module == "lifecycle.runtime.ports")
    ]
    assert wrong == []


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_core_opens_no_file_reads_no_clock_starts_no_thread(path: Path) -> None:
    """The core imports nothing that could: time and bytes come in as arguments."""
    assert {module.split(".")[0] for module in _imports(path)} & IMPURE == set()


def test_nothing_unpickles_or_evaluates() -> None:
    """No shipped file imports a pickler or calls eval or exec."""
    wrong = []
    for path in sorted((ROOT / "lifecycle").rglob("*.py")) + sorted((ROOT / "stores").rglob("*.py")):
        tree = ast.parse(path.read_text())
        calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        if calls & {"eval", "exec"} or {module.split(".")[0] for module in _imports(path)} & UNSAFE:
            wrong.append(path.name)
    assert wrong == []


def test_core_and_ports_load_without_torch() -> None:
    """Importing the core, the runtime or the event logs does not import torch: the audit starts in no time."""
    code = "import sys, lifecycle, lifecycle.runtime, stores.events; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_packages_are_all_listed() -> None:
    """Every folder with an `__init__.py` goes into the wheel, and nothing else does."""
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("lifecycle", "stores")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(listed) == found


def test_the_top_level_stays() -> None:
    """Beside the packages, their tests and the examples lies what a newcomer reads first, and nothing else."""
    made = {"build", "dist", "__pycache__", "prefetch_lifecycle.egg-info"}  # not kept: see .gitignore
    assert {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - made == {
        "CHANGELOG.md", "README.md", "constraints.txt", "examples", "lifecycle", "pyproject.toml", "stores", "tests",
    }  # fmt: skip
