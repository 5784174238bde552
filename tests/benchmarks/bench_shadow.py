"""What the shadow costs: the scheduler's calls of one prefetch on SGLang's own classes, with it and without, in one run.

    .venv-sglang/bin/python tests/benchmarks/bench_shadow.py

Counted are the scheduler's calls alone: prefetch_from_storage, the drains, check_prefetch_progress and
pop_prefetch_loaded_tokens. Goal: at most 40 us a prefetch, and 1 us a page at most, on a machine that does nothing else.
Beside the time by the clock stands that of the scheduler's thread, which does not count who else uses the machine.
"""

import argparse
import gc
import platform
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

import originals  # noqa: E402
import torch  # noqa: E402

from lifecycle.adapters.guard import guard  # noqa: E402
from lifecycle.adapters.sglang import Shadow, shadow  # noqa: E402
from stores.events import MemoryEventLog  # noqa: E402

PAGE = 64  # tokens
BLOCK = 25  # prefetches of one side in a row


Took = tuple[float, float]  # by the clock, and of this thread, in microseconds


def prefetches(pages: int, layout: str, watched: str) -> tuple[Callable[[], Took], Shadow | None]:
    """Return what runs one prefetch at each call and says how long the scheduler's calls took, and who looks on."""
    world = originals.unified(layout, {"kv": pages * 4})
    world.cache.prefetch_stop_policy = "wait_complete"
    world.controller.prefetch_capacity_limit = 1 << 40
    watch = None
    if watched == "shadow":
        watch = shadow(world.cache, MemoryEventLog(10_000_000))
    elif watched == "guard":
        watch = guard(world.cache, MemoryEventLog(10_000_000))
    names = ["kv", *(str(spec.pool_name) for spec in originals.sidecars(layout))]
    world.storage.script = originals.Script(pages, {name: [True] * pages for name in names})
    cache, number = world.cache, 0

    def once() -> Took:
        nonlocal number
        number += 1
        request = f"r{number}"
        prompt = array("q", range(number * 1_000_003, number * 1_000_003 + pages * PAGE))
        spent = of_thread = 0

        def timed(call: Callable[[], object]) -> object:
            nonlocal spent, of_thread
            thread, start = time.thread_time_ns(), time.perf_counter_ns()
            result = call()
            spent += time.perf_counter_ns() - start
            of_thread += time.thread_time_ns() - thread
            return result

        timed(lambda: cache.prefetch_from_storage(request, world.root, prompt, None))
        world.controller.step_queries()
        timed(world.drain)
        world.controller.step_reads()
        assert timed(lambda: cache.check_prefetch_progress(request))
        timed(lambda: cache.pop_prefetch_loaded_tokens(request))
        timed(world.drain)
        cache.evict_host(pages * PAGE)
        return spent / 1000, of_thread / 1000

    return once, watch


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--layout", default="dsa", choices=("kv_only", "dsa"))
    parser.add_argument("--pages", type=int, nargs="*", default=(1, 32, 512))
    args = parser.parse_args()
    torch.set_num_threads(1)
    originals.PAGE, originals.BATCH, originals.controller_module.STORAGE_BATCH_SIZE = PAGE, 128, 128
    print(f"{platform.machine()}, Python {platform.python_version()}, {args.layout}, rounds {args.rounds}")
    for pages in args.pages:
        sides = {name: prefetches(pages, args.layout, name) for name in ("without", "shadow", "guard")}
        took: dict[str, list[Took]] = {name: [] for name in sides}
        gc.collect()
        gc.freeze()  # as a server does once it is up: what was there before is not walked again
        for _ in range(0, args.rounds, BLOCK):
            for name, (once, watch) in sides.items():
                once()  # the code of another side was run last
                took[name] += [once() for _ in range(BLOCK)]
                if watch is not None:
                    watch.catch_up()  # what its own thread has not told yet: the other sides are not to pay for it
        clock, thread = ({name: statistics.median(each[i] for each in values) for name, values in took.items()} for i in (0, 1))
        words = "  ".join(f"{name} {us:7.1f} us" for name, us in clock.items())
        added, of_thread = clock["shadow"] - clock["without"], thread["shadow"] - thread["without"]
        print(f"{pages:4d} pages  {words}   shadow adds {added:6.1f} us (goal {40 + pages}), of the thread {of_thread:6.1f} us")
        for _, watch in sides.values():
            if watch is not None:
                watch.detach()


if __name__ == "__main__":
    main()
