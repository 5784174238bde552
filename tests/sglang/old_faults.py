"""Runs the two faults of 0.5.15.post1 on whatever version is first on the path, under the guard; prints what it found.

    PYTHONPATH=.venv-sglang/versions/0.5.15.post1 .venv-sglang/bin/python tests/sglang/old_faults.py

Eight pages are planned and read; the indexer of one or more of them is gone by the time it is read.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

import originals  # noqa: E402
from originals import PAGE, Script, hiradix, tokens_of  # noqa: E402

from lifecycle.adapters.guard import guard  # noqa: E402
from stores.events import MemoryEventLog  # noqa: E402

CASES = {
    "a hole in the indexer": [True] * 5 + [False] + [True] * 2,
    "the indexer ends early": [True] * 5 + [False] * 3,
}


def run(indexer: list[bool]) -> dict[str, object]:
    """Return how much was published of one prefetch, and what the guard said."""
    world = hiradix("dsa", {"kv": 40})
    events = MemoryEventLog()
    watch = guard(world.cache, events)
    world.cache.prefetch_stop_policy = "wait_complete"
    world.storage.script = Script(8, {"kv": [True] * 8, "indexer": indexer})
    prompt = tokens_of(1, 8)
    world.cache.prefetch_from_storage("r", world.root, prompt, None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    assert world.cache.check_prefetch_progress("r")
    loaded = world.cache.pop_prefetch_loaded_tokens("r")
    world.drain()
    watch.detach()
    assert watch.failure is None, watch.failure
    return {
        "published": world.resident(prompt),
        "loaded": loaded // PAGE,
        "laws": sorted({violation.law.value for violation in watch.violations}),
        "said": [str(violation) for violation in watch.violations],
        "unseen": list(watch.unseen),
    }


def main() -> None:
    """Print one JSON object: the version's folder, and each case."""
    where = str(Path(originals.controller_module.__file__).parents[3])
    print(json.dumps({"where": where, **{name: run(indexer) for name, indexer in CASES.items()}}))


if __name__ == "__main__":
    main()
