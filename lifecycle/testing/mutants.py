"""Plant bugs in the library's own rules and see who finds them: `python -m lifecycle.testing.mutants [--jobs N]`.

Each mutant is one small patch, planted in a copy of the library and put before the simulator, the audit of the simulated
logs, the model checker and the tests, until one of them kills it. A mutant that survives is a missing test, and the exit
status is 1. The tests are those of a source checkout; where there is none, the other three run alone, and the table says so.
"""

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lifecycle
from lifecycle.testing.mutants_effects import EFFECTS
from lifecycle.testing.mutants_killers import Killers, Trial
from lifecycle.testing.mutants_logs import IN_LOGS, in_logs
from lifecycle.testing.mutants_plant import FAULTS, Mutant, StaleMutant
from lifecycle.testing.mutants_rounds import ROUNDS
from lifecycle.testing.mutants_rules import RULES
from lifecycle.testing.mutants_stores import STORES

MUTANTS: tuple[Mutant, ...] = (*RULES, *EFFECTS, *ROUNDS, *STORES)

ROOT = Path(lifecycle.__file__).parent.parent


def suite_at(root: Path) -> Path | None:
    """Return the tests of a source checkout, or None where the library is installed without them."""
    tests = root / "tests"
    return tests if (tests / "conftest.py").is_file() and (root / "pyproject.toml").is_file() else None


def sample(count: int) -> list[Mutant]:
    """Return `count` mutants, always the same ones, spread over the list."""
    return [MUTANTS[place * len(MUTANTS) // count] for place in range(count)]


def trials(mutants: Sequence[Mutant | None], killers: Killers, jobs: int) -> Iterator[Trial]:
    """Yield how it went with each mutant (None: the library as it is), in order; `jobs` of them are tried at a time."""
    with ThreadPoolExecutor(jobs) as pool:  # the work is done in processes of its own
        yield from pool.map(killers.trial, mutants)


def row(trial: Trial) -> list[str]:
    """Return a line: mutant, class, file, killer, what it found, what these logs show, seconds, what any log can show."""
    mutant = trial.mutant
    assert mutant is not None, "the library as it is has no line"
    return [
        mutant.name,
        mutant.fault,
        mutant.file,
        trial.killer or "SURVIVES",
        trial.found,
        trial.audit or "-",
        f"{trial.seconds:.1f}",
        in_logs(mutant.name) if mutant.name in IN_LOGS else "?",
    ]


COLUMNS = ("mutant", "class", "file", "killed by", "which", "these logs show", "seconds", "what a log alone can show")
_WIDTHS = (28, 5, 34, 13, 60, 15, 7, 0)


def line(cells: Sequence[str], markdown: bool) -> str:
    """Return a row as text."""
    if markdown:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def summary(done: Sequence[Trial], seconds: float) -> list[str]:
    """Return the sums over all trials."""
    by = Counter(trial.killer for trial in done if trial.killer)
    classes = Counter(trial.mutant.fault for trial in done if trial.mutant is not None)
    shown = sum(trial.audit is not None for trial in done)
    return [
        f"{_mutants(len(done))}, {by.total()} killed, {_survive(len(done) - by.total())}, {seconds:.0f} s",
        f"killed by: {', '.join(f'{killer} {count}' for killer, count in by.most_common()) or 'nobody'}",
        f"classes: {', '.join(f'{fault} {classes[fault]}' for fault in FAULTS if classes[fault])}",
        f"the logs alone show {shown}",
    ]


def _mutants(count: int) -> str:
    return f"{count} mutant{'' if count == 1 else 's'}"


def _survive(count: int) -> str:
    return f"{count} survive{'s' if count == 1 else ''}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if every mutant was killed and the library as it is was not.

    Whoever reads the output may go away in the middle of it: then it ends, as a command does that is told so.
    """
    try:
        status = _main(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at the exit would fail once more
        return 128 + signal.SIGPIPE
    return status


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lifecycle.testing.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants are tried at a time")
    parser.add_argument("--sample", type=int, help="try so many of them alone, always the same ones")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this one alone; may be given several times")
    parser.add_argument("--seeds", type=int, default=16, help="seeds that the simulator runs")
    parser.add_argument("--tests", type=Path, default=suite_at(ROOT), help="the tests of a source checkout")
    parser.add_argument("--no-tests", action="store_true", help="simulator, audit and model checker alone")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--list", action="store_true", help="say what each mutant does, and try none")
    parser.add_argument("--check", action="store_true", help="see that every patch fits, and try none")
    given = parser.parse_args(argv)
    names = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in given.only or () if name not in names]:
        parser.error(f"there is no mutant {unknown[0]} (see --list)")
    if given.jobs < 1 or given.seeds < 1 or not 1 <= (given.sample or 1) <= len(MUTANTS):
        parser.error(f"use at least 1 job and seed, and a sample of 1 to {len(MUTANTS)}")
    chosen = [names[name] for name in given.only] if given.only else sample(given.sample) if given.sample else MUTANTS
    if given.list:
        for mutant in chosen:
            print(f"{mutant.name} ({mutant.fault}: {FAULTS[mutant.fault]}; {mutant.file})\n    {mutant.says}")
            print(f"    in the logs: {in_logs(mutant.name)}")
        return 0
    if stale := _stale(chosen):
        print("\n".join(stale), file=sys.stderr)
        return 2
    if given.check:
        print(f"{len(chosen)} patch{' fits' if len(chosen) == 1 else 'es fit'}")
        return 0
    return _run(chosen, Killers(ROOT, None if given.no_tests else given.tests, given.seeds), given.jobs, given.markdown)


def _stale(chosen: Sequence[Mutant]) -> list[str]:
    """Return what is wrong with the mutants that do not fit the code any more."""
    found = []
    for mutant in chosen:
        try:
            mutant.patched(ROOT)
        except StaleMutant as error:
            found.append(str(error))
    return found


def _run(chosen: Sequence[Mutant], killers: Killers, jobs: int, markdown: bool) -> int:
    if killers.tests is None:
        print("without tests: what only a test kills survives here (run it in a source checkout, or give --tests)")
    began, done = time.monotonic(), list[Trial]()
    print(line(COLUMNS, markdown), flush=True)
    if markdown:
        print(line(["---"] * len(COLUMNS), markdown))
    for trial in trials([None, *chosen], killers, jobs):
        if trial.mutant is not None:
            print(line(row(trial), markdown), flush=True)
            done.append(trial)
        elif trial.killer is not None:
            print(f"the library as it is fails: {trial.killer}: {trial.found} (mend that first)", file=sys.stderr)
            return 2
    print("\n".join(["", *summary(done, time.monotonic() - began)]))
    return int(any(trial.killer is None for trial in done))


if __name__ == "__main__":
    sys.exit(main())
