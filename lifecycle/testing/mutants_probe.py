"""Simulate or check the model with the library that is on the path: `python -m lifecycle.testing.mutants_probe WHAT OUT`.

Run by the mutants command in a copy of the library with a bug in it. Writes what was broken, and the simulated logs, to the
folder OUT; the logs are judged by a library without the bug.
"""

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lifecycle
from lifecycle.codec import encode
from lifecycle.testing.model import explore
from lifecycle.testing.model_scope import small
from lifecycle.testing.sim_run import quiet, run
from lifecycle.testing.sim_setup import draw
from lifecycle.testing.sim_steps import generate
from lifecycle.testing.sim_world import World

STEPS = 300
MOST_STATES = 1_000
ENOUGH = 2
"""After so many seeds that break a law, no more are run."""
LIMIT_S = 60
"""Processor time, however busy the machine is; what then goes on has no end."""


def simulate(out: Path, seeds: int) -> dict[str, Any]:
    """Run the first seeds; return the laws broken, and which logs were written: one group of files a life."""
    broken: list[list[Any]] = []
    lives: list[dict[str, Any]] = []
    for seed in range(seeds):
        setup = draw(seed)
        with quiet():
            world, failure = run(setup, generate(setup, STEPS))
        if failure is not None:
            broken.append([seed, failure.kind, failure.text[:500]])
        if world is not None:
            lives += _write_logs(out, seed, world)
        if len(broken) == ENOUGH:
            break
    return {"broken": broken, "lives": lives}


def _write_logs(out: Path, seed: int, world: World) -> list[dict[str, Any]]:
    lives = []
    for number, (life, ticker) in enumerate(zip(world.lives, world.tickers, strict=True)):
        files = []
        for rank, log in enumerate(life):
            path = out / f"{seed}-{number}-{rank}.jsonl"
            path.write_bytes(b"".join(encode(record) + b"\n" for record in log))
            files.append(path.name)
        lives.append({"files": files, "apart": bool(ticker.excuses), "owing": ticker.owing})
    return lives


def check_model() -> dict[str, Any]:
    """Explore the small scopes, the big ones among them in part, up to the first that breaks a law."""
    for scope in small():
        verdict = explore(scope, MOST_STATES)
        if verdict.broken:
            return {"broken": [[scope.name, verdict.broken[:500], len(verdict.steps)]]}
    return {"broken": []}


def main(argv: Sequence[str]) -> int:
    """Run what the command line says."""
    what, out = argv[0], Path(argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    found = simulate(out, int(argv[2])) if what == "simulate" else check_model()
    found["library"] = str(Path(lifecycle.__file__).parent.parent)
    (out / f"{what}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
