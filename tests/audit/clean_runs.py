"""Simulated runs of the library as it is, and what the audit says of their logs: nothing, or it is a finding.

    python tests/audit/clean_runs.py --seeds 10000 [--seed 0] [--steps 120] [--faults 0.2]

Layout, ranks, lag, policies and faults of stores, ports and peers are drawn for each seed. Each log goes through the codec,
then all ranks of a run are checked together and each by itself. Exit status 1 if anything was found.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lifecycle.audit import Violation, verify_logs
from lifecycle.codec import decode_lines, encode
from lifecycle.events import Record
from lifecycle.testing.sim_checks import Violation as Broken
from lifecycle.testing.sim_run import quiet
from lifecycle.testing.sim_setup import draw
from lifecycle.testing.sim_steps import generate
from lifecycle.testing.sim_world import World

NOT_OVER = ("never", "at the stop")
"""What is said of debts that a port refused to take to the very end: the log tells the truth, and it is no fault of it."""


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    runs: int = 0
    logs: int = 0
    events: int = 0
    broken: list[str] = field(default_factory=list)  # runs in which a check of the simulator itself failed


def check(seed: int, steps: int, faults: float, counts: Counts) -> Iterator[Violation]:
    """Simulate one seed and yield whatever the audit says of it."""
    setup = draw(seed, fault_rate=faults)
    world = World(setup, 1 << 30)  # the simulator's own recounts are not what is tested here
    counts.runs += 1
    try:
        with quiet():
            world.run(list(generate(setup, steps)))
    except Broken as broken:  # a check of the simulator's own: no clean run, and for the simulator to tell
        counts.broken.append(f"seed {seed}: {broken}")
        return
    for life, ticker in zip(world.lives, world.tickers, strict=True):
        logs = [_through_the_codec(log) for log in life]
        counts.logs += len(logs)
        counts.events += sum(map(len, logs))
        together = [] if ticker.excuses else [logs]  # a rank that was made to differ does
        for group in [*together, *([log] for log in logs)]:
            for violation in verify_logs(group):
                if not (ticker.owing and any(words in str(violation) for words in NOT_OVER)):
                    yield violation


def _through_the_codec(log: Sequence[Record]) -> list[Record]:
    return decode_lines(b"".join(encode(record) + b"\n" for record in log))


def main() -> int:
    """Check the seeds that are asked for; return 1 if the audit said anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--faults", type=float, default=0.2)
    given = parser.parse_args()
    counts, said, began = Counts(), 0, time.monotonic()
    for seed in range(given.seed, given.seed + given.seeds):
        for violation in check(seed, given.steps, given.faults, counts):
            said += 1
            print(f"seed {seed}: {violation}")
        if counts.runs % 500 == 0:
            print(f"... {counts.runs} runs, {said} violations", flush=True)
    clean = counts.runs - len(counts.broken)
    took = time.monotonic() - began
    print(f"{clean} runs of {given.steps} steps, {counts.logs} logs, {counts.events:,} events: {said} violations, {took:.0f} s")
    for broken in counts.broken:
        print(f"not a clean run, says the simulator: {broken}")
    return int(said > 0)


if __name__ == "__main__":
    sys.exit(main())
