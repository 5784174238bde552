"""Traffic through SGLang's own cache on a CPU, with the shadow looking on, and the audit's report of what it saw.

    tests/sglang/setup.sh && .venv-sglang/bin/python examples/sglang_shadow.py [--requests 200] [--log FOLDER]

The cache, its tree and its controller are SGLang's; host memory and storage are stubs without bytes. Requests share
prefixes; pages go missing, sidecars fall short, requests are aborted while their prefetch is in flight. With `--log` the log
stays, for `prefetch-audit explain FOLDER --request request-7` and the rest of it.
"""

import argparse
import importlib
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

from lifecycle.adapters.known import known_difference  # noqa: E402  # after the path is right
from lifecycle.adapters.sglang import shadow  # noqa: E402
from lifecycle.audit import verify_log  # noqa: E402
from stores.events import open_event_log, read_log  # noqa: E402

try:
    originals: Any = importlib.import_module("originals")  # SGLang's own classes over stubs
    prefix: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
    radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
except ImportError as error:
    sys.exit(f"SGLang is not here ({error}); build its environment with tests/sglang/setup.sh and run this with its python")


class Request:
    """A request as far as the cache looks at it: its id, and the last node of the prefix that it is given."""

    def __init__(self, rid: str, last_node: Any) -> None:
        self.rid, self.last_node = rid, last_node


def traffic(world: Any, requests: int, dice: random.Random) -> Counter[str]:
    """Send requests through the cache, a few in flight at a time; return how often what happened."""
    cache, done = world.cache, Counter[str]()
    waiting: dict[str, Any] = {}  # prompts
    number = 0
    while number < requests or waiting:
        while number < requests and len(waiting) < 4:
            number += 1
            prompt = originals.tokens_of(dice.randrange(40), dice.randint(2, 12), shared=dice.choice((0, 0, 1, 2)))
            request = f"request-{number}"
            cache.prefetch_from_storage(request, world.root, prompt, None)
            waiting[request] = prompt
        world.storage.script = _answers(dice)
        world.controller.step_queries()
        world.drain()
        if dice.random() < 0.15:
            gone = dice.choice(list(waiting))
            del waiting[gone]
            cache.release_aborted_request(gone)
            done["aborted"] += 1
        world.controller.step_reads()
        for request in list(waiting):
            if cache.check_prefetch_progress(request):
                loaded = cache.pop_prefetch_loaded_tokens(request)
                done["admitted with pages from L3" if loaded else "admitted without"] += 1
                _serve(cache, request, waiting.pop(request))
        world.drain()
    world.drain()
    return done


def _serve(cache: Any, request: str, prompt: Any) -> None:
    """Do what the scheduler does once a request is admitted: match its prompt, keep what it computes, and be done with it."""
    match = cache.match_prefix(prefix.MatchPrefixParams(key=radix.RadixKey(prompt)))
    given = Request(request, match.best_match_node)
    cache.cache_unfinished_req(given)
    cache.cache_finished_req(given)


def _answers(dice: random.Random) -> Any:
    good = {pool: [dice.random() < 0.97 for _ in range(12)] for pool in ("kv", "indexer")}
    return originals.Script(dice.choice((12, 12, 8, 3, 0)), good)


def main() -> None:
    """Run the traffic, then audit the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--log", type=Path, help="where to leave rank0.sqlite (default: nowhere)")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        kept = args.log or Path(folder)
        world = originals.unified("dsa", {"kv": 60})
        world.cache.prefetch_stop_policy = "wait_complete"
        world.cache.cache_unfinished_req = world.cache.cache_finished_req = lambda req: None  # the rest of them wants a device
        events = open_event_log(f"sqlite:{kept}", 0)
        watch = shadow(world.cache, events)
        print("cannot be seen:", "; ".join(watch.unseen))
        for what, times in sorted(traffic(world, args.requests, random.Random(args.seed)).items()):
            print(f"{times:5d} {what}")
        watch.detach()
        events.close()
        records = list(read_log(kept / "rank0.sqlite"))
    kinds = Counter(type(record.event).__name__ for record in records)
    ends = {name: kinds[name] for name in ("Issued", "Declined", "Committed", "Clamped", "Discarded", "Evicted")}
    print(f"{len(records)} events:", ", ".join(f"{count} {name.lower()}" for name, count in ends.items()))
    known, faults = Counter[str](), []
    for violation in verify_log(records):
        name = known_difference(violation)
        if name is None:
            faults.append(violation)
        else:
            known[name] += 1
    for name, times in known.items():
        print(f"known difference {name}: {times} times")
    for violation in faults:
        print(violation)
    print("audit:", f"{len(faults)} violations" if faults else "every law kept")
    print(f"locks {world.locks()}, tokens in flight {world.controller.prefetch_tokens_occupied}")


if __name__ == "__main__":
    main()
