"""Simulate: `python -m lifecycle.testing.simulate --seed S --steps N [--seeds K]`.

Prints what was run, reached and injected. A seed that fails prints its shortest failing list of steps and the command that
repeats it, and the exit status is 1.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from lifecycle.reasons import ReadCode, Reason
from lifecycle.states import State
from lifecycle.testing.sim_run import WAITS, Failure, Summary, quiet, run, run_seed, shortest
from lifecycle.testing.sim_setup import LAYOUTS, Setup, draw
from lifecycle.testing.sim_steps import generate

_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says of every seed."""

    steps: int
    layout: str | None
    ranks: int | None
    lag: int | None
    fault_rate: float

    def setup(self, seed: int) -> Setup:
        """Return the setup of a seed."""
        return draw(seed, self.layout, self.ranks, self.lag, self.fault_rate)

    def command(self, seed: int, keep: Sequence[int]) -> str:
        """Return the command that repeats a failure."""
        given = {"layout": self.layout, "ranks": self.ranks, "lag": self.lag}
        extra = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
        extra += f" --faults {self.fault_rate}" if self.fault_rate != 0.2 else ""
        kept = ",".join(map(str, keep))
        return f"python -m lifecycle.testing.simulate --seed {seed} --steps {self.steps}{extra} --keep {kept}"


def simulate(options: Options, seeds: range, jobs: int) -> Iterator[tuple[int, Summary, Failure | None]]:
    """Yield each seed with what it did, in order; `jobs` processes share the work."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from _run_chunk(options, chunk)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in pool.map(_run_chunk, [options] * len(chunks), chunks):
            yield from done


def _run_chunk(options: Options, seeds: range) -> list[tuple[int, Summary, Failure | None]]:
    return [(seed, *run_seed(options.setup(seed), options.steps)) for seed in seeds]


def report(summary: Summary, failures: int, seconds: float) -> str:
    """Return the summary for people."""
    share = 100 * summary.faults / max(1, summary.prefetches)
    lines = [
        f"{summary.runs} runs, {summary.steps} steps, {summary.events} events",
        f"{summary.prefetches} prefetches, {summary.faults} faults ({share:.0f} for 100 prefetches)",
        f"{failures} violations, {seconds:.1f} s, {1000 * seconds / max(1, summary.prefetches):.2f} ms a prefetch",
        _table("states", {str(state): summary.states[state] for state in State}),
        _table("moves", dict(summary.moves.most_common())),
        _table("waits", {wait: summary.waits[wait] for wait in (*WAITS, *(w for w in summary.waits if w not in WAITS))}),
        _table("reasons", {str(reason): summary.reasons[reason] for reason in Reason}),
        _table("read codes", {str(code): summary.codes[code] for code in ReadCode}),
        _table("faults injected", dict(summary.injected.most_common())),
    ]
    lines += [f"never reached, {what}: {', '.join(missing)}" for what, missing in summary.holes().items()]
    return "\n".join(lines)


def _table(title: str, counts: dict[str, int]) -> str:
    width = max((len(name) for name in counts), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {count}" for name, count in counts.items())])


def explain(options: Options, seed: int, failure: Failure) -> str:
    """Return a failure with its shortest list of steps and the command that repeats it."""
    setup = options.setup(seed)
    steps = generate(setup, options.steps)
    with quiet():
        keep = shortest(setup, steps, failure)
        _, found = run(setup, [steps[number] for number in keep])
    lines = [f"seed {seed} breaks a law: {failure.kind}: {failure.text}", f"  {setup.text()}", f"  {len(keep)} steps do it:"]
    lines += [f"    {number:>4}  {steps[number].text()}" for number in keep]
    lines += [f"  there: {found.kind}: {found.text}" if found else "  (not repeated)", f"  {options.command(seed, keep)}"]
    return "\n".join(lines)


def repeat(options: Options, seed: int, keep: Sequence[int]) -> Failure | None:
    """Run some steps of a seed, printing them, with every check after every step."""
    setup = options.setup(seed)
    steps = generate(setup, options.steps)
    print(setup.text())
    for number in keep:
        print(f"  {number:>4}  {steps[number].text()}")
    _, failure = run(setup, [steps[number] for number in keep], recount_every=1)
    return failure


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if no law was broken."""
    parser = argparse.ArgumentParser(prog="python -m lifecycle.testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there")
    parser.add_argument("--steps", type=int, default=400, help="steps in each run; about one in seven issues a prefetch")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), help="drawn for each seed unless given")
    parser.add_argument("--ranks", type=int, help="drawn unless given")
    parser.add_argument("--lag", type=int, help="drawn unless given")
    parser.add_argument("--faults", type=float, default=0.2, help="how many of the prefetches meet a fault (default 0.2)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", help="run these steps of the seed alone, and print them: 3,17,20")
    given = parser.parse_args(argv)
    if given.steps < 1 or given.seeds < 1 or given.jobs < 1 or not 0 <= given.faults <= 1 or (given.ranks or 1) < 1:
        parser.error("use at least 1 step, seed, rank and job, and a fault rate from 0 to 1")
    options = Options(given.steps, given.layout, given.ranks, given.lag, given.faults)
    if given.keep is not None:
        failure = repeat(options, given.seed, [int(number) for number in given.keep.split(",")])
        print(f"{failure.kind}: {failure.text}" if failure else "no law is broken")
        return int(failure is not None)
    began, total, failures = time.monotonic(), Summary(), 0
    for seed, summary, failure in simulate(options, range(given.seed, given.seed + given.seeds), given.jobs):
        total.add(summary)
        if failure is not None:
            failures += 1
            print(explain(options, seed, failure) if failures <= 5 else f"seed {seed}: {failure.kind}: {failure.text}")
    print(report(total, failures, time.monotonic() - began))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
