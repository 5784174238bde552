"""Kill a rank at random moments of a loaded run, and look at the survivors: zero leaks each time.

    python -m tests.sync.kill_ranks --moments 50

A survivor must get `SyncFailed`, publish nothing more, pay every debt, and pass every check. The seed of a moment that
fails is printed; `--seed` with `--moments 1` runs it again.
"""

import argparse
import os
import random
import secrets
import signal
import sys
import threading
import time
from typing import Any

from lifecycle.errors import CoordinatorClosed, SyncFailed
from lifecycle.policies import BestEffort, Policies, Timeout, WaitComplete
from tests.kit import ledger
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt

LAYOUTS = ("kv_only", "dsa", "swa", "mamba", "deepseek_v4")


def run_loaded(world: World, seed: int, victim: int) -> dict[str, Any] | None:
    """Serve requests until a peer dies; the victim kills itself at a moment that no other rank knows."""
    alike, own = random.Random(seed), random.Random(seed * 31 + world.rank)
    policies = Policies(
        stop=alike.choice([WaitComplete(), BestEffort(), Timeout(0.02, 0.0, 0.02)]),
        lag_ticks=alike.choice([0, 0, 1, 2]),
        row_capacity=alike.choice([4, 64]),
    )
    part = Part(alike.choice(LAYOUTS), policies, capacity=48, timeout_s=5.0)
    part.store.pause_s = own.choice([0.0, 0.001, 0.004])
    if world.rank == victim:
        threading.Timer(own.uniform(0.0, 0.15), os.kill, (os.getpid(), signal.SIGKILL)).start()
    failure = serve(part, alike)
    in_flight = len(part.coordinator.book.local)
    part.wind_down()
    faults = ledger.faults([record.event for record in part.log.records()])
    assert not faults, faults
    return {"round": failure.round_number, "tick": part.coordinator.tick_number, "open": in_flight, "cause": failure.cause}


def serve(part: Part, alike: random.Random) -> SyncFailed:
    """Issue, ask, abort, retry and finish at random, alike on all ranks, until a round fails."""
    coordinator, attempts = part.coordinator, dict[str, int]()
    while True:
        try:
            for _ in range(alike.randrange(3)):
                number = alike.randrange(24)
                name = f"r{number}"
                attempts[name] = attempts.get(name, -1) + 1
                part.issue(name, prompt(number, 2 + number % 11), attempts[name])
            for name in list(attempts):
                if coordinator.ready(name) and alike.random() < 0.5:
                    coordinator.finish(name)
                    del attempts[name]
                elif alike.random() < 0.05:
                    coordinator.abort(name)
            coordinator.tick()
        except SyncFailed as failure:
            return failure
        except CoordinatorClosed as error:
            raise AssertionError("the failure was not told by a tick") from error


def kill_once(seed: int, ranks: int) -> list[dict[str, Any]]:
    """Run one moment; return what the survivors say."""
    victim = seed % ranks
    found = run_ranks(ranks, run_loaded, seed, victim, killed=(victim,))
    return [each for rank, each in enumerate(found) if rank != victim]


def main() -> int:
    """Run the moments, print a line for each, and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="of the first moment; the others follow")
    options = parser.parse_args()
    first = secrets.randbits(30) if options.seed is None else options.seed
    failed, began = 0, time.monotonic()
    for seed in range(first, first + options.moments):
        ranks = 2 + seed % 3
        try:
            told = kill_once(seed, ranks)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {ranks} ranks: LEAK OR HANG\n{error}", flush=True)
            continue
        ends = ", ".join(f"round {each['round']} with {each['open']} open" for each in told)
        print(f"seed {seed}: {ranks} ranks: {ends}: no leak", flush=True)
    took_s = time.monotonic() - began
    print(f"{options.moments - failed} of {options.moments} moments without a leak, in {took_s:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
