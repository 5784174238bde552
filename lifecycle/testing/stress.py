"""Stress with real threads: `python -m lifecycle.testing.stress --prefetches N [--seed S]`.

Real coordinators, reader threads and a store that fails, with the interpreter told to switch threads as often as it can.
Ranks are threads, too. Many short lives one after the other, so that no log grows: each ends with nothing left, its log
folded and checked by the audit. What breaks a law is printed with its seed, and the exit status is 1. Other than in
`simulate`, a seed fixes what is asked for and which answers are bad, not how the threads run.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from lifecycle import events as ev
from lifecycle.testing.sim_run import quiet
from lifecycle.testing.stress_life import Life, draw, run_life

SWITCH_S = 1e-6
"""The smallest switch interval that CPython tells from none."""


@dataclass(slots=True)
class Totals:
    """What many lives did, as rank 0 logged it."""

    lives: int = 0
    prefetches: int = 0
    events: int = 0
    served_pages: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def run(self, life: Life) -> None:
        """Run a life and count it."""
        try:
            logs, ranks = run_life(life)
        except Exception as error:  # whatever a life raises is a finding
            self.violations.append(f"{life.text()}: {type(error).__name__}: {error}")
            self.prefetches += life.prefetches
            return
        self.lives += 1
        self.events += sum(map(len, logs))
        self.served_pages += sum(rank.served_pages for rank in ranks)
        for rank in ranks:
            self.faults.update({fault: count for fault, count in rank.store.counts.items() if fault != "ok"})
        for event in (record.event for record in logs[0]):
            match event:
                case ev.Issued():
                    self.prefetches += 1
                case ev.Committed():
                    self.reasons["completed"] += 1
                case ev.Clamped(reason=reason) | ev.Discarded(reason=reason) | ev.Declined(reason=reason):
                    self.reasons[reason] += 1
                case ev.ReadLost():
                    self.faults["reads lost"] += 1

    def lines(self, seconds: float) -> list[str]:
        """Return the totals for people."""
        each = 1000 * seconds / max(1, self.prefetches)
        return [
            f"{self.prefetches} prefetches in {self.lives} lives, {self.events} events, {self.served_pages} pages served",
            f"reasons: {', '.join(f'{reason} {count}' for reason, count in self.reasons.most_common())}",
            f"faults: {', '.join(f'{fault} {count}' for fault, count in self.faults.most_common())}",
            f"{len(self.violations)} violations, {seconds:.1f} s, {each:.2f} ms a prefetch",
        ]


@contextmanager
def often_switched() -> Iterator[None]:
    """Have the interpreter switch threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def stress(prefetches: int, seed: int, per_life: int, ranks: int | None = None, fault_rate: float = 0.2) -> Iterator[Totals]:
    """Run lives from a seed on until there were so many prefetches; yield the totals after each."""
    totals = Totals()
    with quiet(), often_switched():
        while totals.prefetches < prefetches:
            wanted = min(per_life, prefetches - totals.prefetches)
            totals.run(draw(seed, wanted, ranks, fault_rate))
            seed += 1
            yield totals


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if no law was broken."""
    parser = argparse.ArgumentParser(prog="python -m lifecycle.testing.stress", description=__doc__)
    parser.add_argument("--prefetches", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first life")
    parser.add_argument("--per-life", type=int, default=500, help="prefetches from a start to its close")
    parser.add_argument("--ranks", type=int, help="one and two in turn unless given")
    parser.add_argument("--faults", type=float, default=0.2, help="the fault rate of the store (default 0.2)")
    given = parser.parse_args(argv)
    if min(given.prefetches, given.per_life, given.ranks or 1) < 1 or not 0 <= given.faults <= 1:
        parser.error("use at least 1 prefetch and rank, and a fault rate from 0 to 1")
    began, totals, told = time.monotonic(), Totals(), 0
    for totals in stress(given.prefetches, given.seed, given.per_life, given.ranks, given.faults):
        for line in totals.violations[told:]:
            print(line, flush=True)
        told = len(totals.violations)
    print("\n".join(totals.lines(time.monotonic() - began)))
    return int(bool(totals.violations))


if __name__ == "__main__":
    sys.exit(main())
