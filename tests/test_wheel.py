"""The wheel: built from a copy of the sources, installed alone in an environment of its own, and used from there.

That environment sees the packages of this one, so that torch is not installed twice, but nothing that is ours.
"""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
EXTRAS = {"metrics": "prometheus-client", "test": "pytest", "dev": "mypy", "mooncake": "mooncake-transfer-engine-non-cuda"}
"""Each with a package that only it brings, or that the tests need anyway."""

SHIPPED = ("lifecycle", "stores")
OURS = (*SHIPPED, "prefetch_lifecycle", "__editable__")
"""How what is installed of this library begins, which the wheel's environment must not see."""

USER = """
from lifecycle import Declined, Policies, kv_only
from lifecycle.runtime import Coordinator, EventLog, HostMemory, PageStore, PrefixIndex


def begin(store: PageStore, memory: HostMemory, index: PrefixIndex, events: EventLog, keys: list[str]) -> int:
    coordinator = Coordinator(kv_only(), Policies(), 16, store=store, memory=memory, index=index, events=events)
    begun = coordinator.issue("r1", 0, keys, index.match(keys, 0).anchor)
    return 0 if isinstance(begun, Declined) else begun
"""


def _run(command: Sequence[str | Path], where: Path, status: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), cwd=where, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from what goes into it, as it would be in a clean tree."""
    where = tmp_path_factory.mktemp("sources")
    copied = [path for top in SHIPPED for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in [*copied, ROOT / "pyproject.toml", ROOT / "README.md"]:
        target = where / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    _run([*pip, "-w", "dist", "."], where)
    (built,) = (where / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def there(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a fresh environment, and return that."""
    env = tmp_path_factory.mktemp("env")
    venv.create(env, symlinks=True)
    _run(
        [sys.executable, "-m", "pip", "--python", env / "bin" / "python", "install", "-q", "--no-deps", "--no-index", wheel],
        env,
    )
    (site,) = env.glob("lib/python*/site-packages")
    others = env / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(OURS):
            (others / path.name).symlink_to(path)
    (site / "others.pth").write_text(f"{others}\n")
    return env


def test_nothing_but_the_two_packages_goes_into_the_wheel(wheel: Path) -> None:
    """Every module and page of `lifecycle` and `stores` is in it, with `py.typed`; no test, no example, nothing else."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    sources = {
        str(path.relative_to(ROOT))
        for top in SHIPPED
        for pattern in ("*.py", "*.md", "py.typed")
        for path in (ROOT / top).rglob(pattern)
    }
    assert {"lifecycle/py.typed", "stores/py.typed", "lifecycle/docs/house.md"} <= sources
    assert sorted(names) == sorted(sources)


def test_the_installed_library_is_the_wheels(there: Path) -> None:
    """What is imported comes from the wheel, and its version is the one in pyproject.toml, a release in the changelog."""
    code = "import lifecycle, stores, lifecycle.version as v; print(lifecycle.__file__, stores.__file__, v.VERSION)"
    library, other, installed = _run([there / "bin" / "python", "-I", "-c", code], there).split()
    assert Path(library).is_relative_to(there)
    assert Path(other).is_relative_to(there)
    declared = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert installed == declared.group(1)
    assert re.search(rf"^## \[{re.escape(installed)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_readmes_embedding_runs_from_the_wheel(there: Path) -> None:
    """The first block of the README prints there what it prints here."""
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    assert _run([there / "bin" / "python", "-I", "-c", found.group(1)], there) == found.group(2)


def test_the_commands_are_installed(there: Path) -> None:
    """`prefetch-audit --help` lists its commands; the pages are there to be printed from."""
    assert "blast-radius" in _run([there / "bin" / "prefetch-audit", "--help"], there)
    assert "stateDiagram-v2" in _run([there / "bin" / "python", "-I", "-m", "lifecycle.docs", "states"], there)


def test_the_pytest_plugin_is_loaded_by_its_entry_point(there: Path, tmp_path: Path) -> None:
    """A test of somebody else's finds the fixtures, and a leak fails it by name."""
    (tmp_path / "test_theirs.py").write_text(
        "def test_leak(lifecycle_ledger):\n    lifecycle_ledger.take('kv', [12], 'read')\n"
    )
    command = [there / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"]
    said = _run(command, tmp_path, status=1)
    assert "kv" in said
    assert "12" in said
    assert "1 passed, 1 error" in said


def test_types_reach_a_user_of_the_wheel(there: Path, tmp_path: Path) -> None:
    """A user's ten lines pass mypy strictly, and a wrong argument is found."""
    pytest.importorskip("mypy", reason="mypy is in the extra dev")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-torch.*]\nfollow_imports = skip\n")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(USER.replace('issue("r1", 0', 'issue("r1", "0"'))
    command = [sys.executable, "-m", "mypy", "--python-executable", there / "bin" / "python"]
    assert "Success" in _run([*command, "user.py"], tmp_path)
    said = _run([*command, "wrong.py"], tmp_path, status=1)
    assert 'Argument 2 to "issue" of "Coordinator" has incompatible type "str"; expected "int"' in said
    assert "Found 1 error" in said


def test_every_extra_can_be_had(wheel: Path) -> None:
    """The wheel declares the extras of the README, each requirement is pinned in constraints.txt, and pins fit the ranges."""
    metadata = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert set(re.findall(r"^Provides-Extra: (.*)$", text, re.MULTILINE)) == set(EXTRAS)
    pins = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    wanted = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)]
    assert len(wanted) > len(EXTRAS)
    for requirement in wanted:
        assert requirement.specifier.contains(pins[requirement.name]), (
            f"{requirement} is not pinned at {pins[requirement.name]}"
        )


def test_pip_resolves_the_extras(wheel: Path, there: Path) -> None:
    """pip finds all that the extras ask for, in versions that go together, among what is installed here (in CI: everything)."""
    extras = [extra for extra, name in EXTRAS.items() if _is_installed(name)]
    assert {"metrics", "test"} <= set(extras)
    pip = [sys.executable, "-m", "pip", "--python", there / "bin" / "python", "install", "--dry-run", "--no-index"]
    assert "Would install" not in _run([*pip, f"{wheel}[{','.join(extras)}]"], there)


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False
