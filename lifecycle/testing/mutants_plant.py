"""One seeded bug as data, and the copy of the library that it is planted in. Runs nothing."""

import ast
import shutil
from dataclasses import dataclass
from pathlib import Path

from lifecycle.errors import LifecycleError

FAULTS = {
    "A": "the published length is wrong: holes, sidecars, legal ends",
    "B": "visible before valid: failed or half reads counted as good",
    "C": "freed while a read may still write it",
    "D": "released, unlocked or finished twice",
    "E": "never released: an end without its effects",
    "F": "occupancy, limits and budgets",
    "G": "collectives: who takes part, in what shape, and ranks that part",
    "H": "no end, or too late",
    "I": "the anchor moved between issue and commit",
    "J": "key, namespace, attempt",
    "K": "presence is only a belief; retries",
    "L": "tokens and reasons told wrong",
    "M": "a store's result of another shape",
    "N": "what the engine is told after a failed load",
}
"""The classes of faults in public reports that the mutants stand for."""


class StaleMutant(LifecycleError):
    """Raised when the code that a mutant changes is not there exactly once, or cannot be changed to what it says."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A small patch to one rule: `old`, which stands in `file` exactly once, becomes `new`."""

    name: str
    fault: str  # a class of FAULTS
    file: str  # from the root, as in lifecycle/decide.py
    old: str
    new: str
    says: str  # what the bug does, in a sentence

    def patched(self, root: Path) -> str:
        """Return the text of the patched file, or raise `StaleMutant`."""
        text = (root / self.file).read_text()
        found = text.count(self.old)
        if found != 1:
            raise StaleMutant(
                f"cannot plant mutant {self.name}: {self.file} holds the code that it changes {found} times, not once"
                f" (bring its `old` up to date): {self.old!r}"
            )
        new = text.replace(self.old, self.new)
        try:
            same = ast.dump(ast.parse(new)) == ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise StaleMutant(f"cannot plant mutant {self.name}: {self.file} is no Python afterwards: {error}") from error
        if same:
            raise StaleMutant(f"cannot plant mutant {self.name}: it changes nothing that {self.file} does")
        return new


def copy_library(root: Path, target: Path, tests: Path | None) -> None:
    """Copy the library, and the tests with what they are run by, to a folder of its own."""
    for package in ("lifecycle", "stores"):
        shutil.copytree(root / package, target / package)
    if tests is not None:
        shutil.copytree(tests, target / "tests")
        for name in ("pyproject.toml", "README.md"):
            shutil.copy2(tests.parent / name, target / name)


def plant(mutant: Mutant, target: Path) -> None:
    """Patch a copy of the library. Raises `StaleMutant`, having changed nothing."""
    text = mutant.patched(target)
    path = target / mutant.file
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_text(text)
