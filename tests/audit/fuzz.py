"""A coverage-guided fuzzer over the audit's commands: readers, laws, stories, the report, the import of SGLang's logs.

    pip install atheris                                  # libFuzzer for Python; none of this library's own extras
    python tests/audit/fuzz.py --seeds FOLDER            # once: writes real logs to begin with
    python tests/audit/fuzz.py FOLDER -max_total_time=600 -timeout=20 -rss_limit_mb=2048 -max_len=65536

A finding stops it with a traceback and a file `crash-...` (or `timeout-`, `oom-`); pass that file to run it again. What it
runs, and what every input must come to, is in `fuzz_target.py`, of which the tests run a part.
"""

import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "audit")]


def write_seeds(folder: Path) -> None:
    """Write an input for each command and each real log."""
    from fuzz_seeds import seeds

    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (folder / f"seed-{number}").write_bytes(seed)


def main() -> None:
    """Fuzz until told to stop."""
    import atheris

    with atheris.instrument_imports(include=["lifecycle", "stores"]):
        from fuzz_target import one, spoil

    folder = Path(tempfile.mkdtemp(prefix="fuzz-audit-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    kept = [path.read_bytes() for path in sorted(Path(sys.argv[1]).glob("seed-*"))] if len(sys.argv) > 1 else []

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if kept and dice.random() < 0.6:
            return spoil(data or b"\x00", kept, dice)[:most]
        mutated: bytes = atheris.Mutate(data, most)
        return mutated

    atheris.Setup(sys.argv, lambda data: one(data, folder), custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        write_seeds(Path(sys.argv[2]))
    else:
        main()
