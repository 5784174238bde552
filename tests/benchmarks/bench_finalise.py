"""Finalising one prefetch: ours with everything logged, beside SGLang's check_prefetch_progress, in one run.

    .venv-sglang/bin/python tests/benchmarks/bench_finalise.py      (see tests/sglang/setup.sh)

Without SGLang only ours is measured. What is timed: the scheduler's own work from the last answer to the end, all pages
read, nothing in the tree before. Medians of many prefetches, the two in turn by blocks so that both see the same machine.
With `--cold` both sides start from caches that hold nothing of theirs, whatever the pages: hashing and reading a longer
prompt drives more out of them, which would else show as growth with pages.
"""

import argparse
import gc
import json
import logging
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from lifecycle import Policies, WaitComplete, kv_only, page_keys  # noqa: E402
from lifecycle.errors import HostExhausted  # noqa: E402
from lifecycle.runtime import Coordinator, PageResult  # noqa: E402
from lifecycle.runtime.jobs import Note, run  # noqa: E402
from lifecycle.runtime.readers import ReadQueue  # noqa: E402
from stores.events import MemoryEventLog, SqliteEventLog  # noqa: E402
from stores.prefix import RadixIndex  # noqa: E402

PAGE = 64  # tokens
PAGES = (1, 32, 512, 2048)
BLOCK = 25  # prefetches of one side in a row
GOALS = {1: None, 32: 1.0, 512: 0.3, 2048: 0.1}
Slots = NDArray[np.int32]


class StubMemory:
    """Page slots and nothing behind them, as little work as the stub pool that the original runs on."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._next = 0
        self._out = 0

    def capacity_pages(self, pool: str) -> int:
        return self._pages

    def free_pages(self, pool: str) -> int:
        return self._pages - self._out

    def page_bytes(self, pool: str) -> int:
        return 1

    def allocate(self, need: dict[str, int]) -> dict[str, Slots]:
        pages = need["kv"]
        if pages > self._pages - self._next:
            raise HostExhausted("kv", pages, self._pages - self._next)
        first, self._next = self._next, self._next + pages
        self._out += pages
        return {"kv": np.arange(first, first + pages, dtype=np.int32)}

    def release(self, pool: str, slots: Slots) -> None:
        self._out -= len(slots)

    def quarantine(self, pool: str, slots: Slots) -> None:
        raise NotImplementedError

    def quarantined_pages(self, pool: str) -> int:
        return 0

    def buffers(self, pool: str, slots: Slots) -> list[memoryview]:
        return []

    def check_integrity(self) -> None:
        """Find nothing: there are no books."""


class AllThere:
    """A page store that has every page and reads them in no time."""

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
        return {pool: np.ones(len(keys), dtype=np.bool_) for pool in pools}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> list[PageResult]:
        return [PageResult(1)] * len(keys)


class Stepped:
    """Readers that work when told to."""

    def __init__(self, store: Any, memory: Any) -> None:
        self.notes: deque[Note] = deque()
        self.queue = ReadQueue(time.monotonic_ns, self.notes, per_prefetch=64)
        self._store, self._memory = store, memory

    def work(self) -> None:
        while (job := self.queue.claim()) is not None:
            for note in run(job, self._store, self._memory):
                if note.kind == "end":
                    self.queue.done(job)
                self.notes.append(note)

    def add(self) -> None:
        """Need no more."""

    def close(self, timeout_s: float) -> int:
        self.queue.close()
        return 0


def chill(elsewhere: NDArray[np.int64] | None) -> None:
    """Drive everything out of the caches of this core, if asked to."""
    if elsewhere is not None:
        elsewhere += 1


def ours(
    pages: int, rounds: int, log: str, folder: Path | None = None, elsewhere: NDArray[np.int64] | None = None
) -> Callable[[], float]:
    """Return what finalises one fresh prefetch at each call and says how long that took, in microseconds."""
    memory = StubMemory(pages * (rounds + 1))
    readers = Stepped(AllThere(), memory)
    layout = kv_only()
    index = RadixIndex(layout)
    events: Any = MemoryEventLog(10_000_000) if log == "memory" else SqliteEventLog(folder / f"{pages}.sqlite")  # type: ignore[operator]
    coordinator = Coordinator(
        layout, Policies(stop=WaitComplete(), limit_tokens=1 << 30), PAGE, store=AllThere(), memory=memory,  # type: ignore[arg-type]
        index=index, events=events, readers=readers,
    )  # fmt: skip
    root = index.match((), 0).anchor
    number = 0

    def once() -> float:
        nonlocal number
        number += 1
        request = f"r{number}"
        keys = page_keys(np.arange(pages * PAGE) + number * 1_000_003, PAGE)
        coordinator.issue(request, 0, keys, root)
        readers.work()
        coordinator.tick()  # the plan
        readers.work()
        last = [readers.notes.pop()]  # the end of the last read comes later than the rest
        coordinator.tick()
        readers.notes.extend(last)
        chill(elsewhere)
        start = time.perf_counter_ns()
        coordinator.tick()
        done = coordinator.ready(request)
        took = time.perf_counter_ns() - start
        assert done
        assert coordinator.take_loaded(request) == pages * PAGE
        coordinator.finish(request)
        return took / 1000

    return once


def theirs(pages: int, elsewhere: NDArray[np.int64] | None = None) -> Callable[[], float]:
    """Return the same for SGLang's unified cache."""
    import originals

    originals.PAGE = PAGE
    originals.controller_module.STORAGE_BATCH_SIZE = 128
    originals.BATCH = 128
    logging.getLogger("sglang").setLevel(logging.INFO)  # it logs its line; nobody writes it anywhere
    logging.getLogger("sglang").addHandler(logging.NullHandler())
    logging.getLogger("sglang").propagate = False
    from array import array

    world = originals.unified("kv_only", {"kv": pages * 4})
    world.cache.prefetch_stop_policy = "wait_complete"
    world.controller.prefetch_capacity_limit = 1 << 40
    number = 0

    def once() -> float:
        nonlocal number
        number += 1
        world.storage.script = originals.Script(pages, {"kv": [True] * pages})
        prompt = array("q", range(number * 1_000_003, number * 1_000_003 + pages * PAGE))
        request = f"r{number}"
        world.cache.prefetch_from_storage(request, world.root, prompt, None)
        world.controller.step_queries()
        world.drain()
        world.controller.step_reads()
        chill(elsewhere)
        start = time.perf_counter_ns()
        done = world.cache.check_prefetch_progress(request)
        took = time.perf_counter_ns() - start
        assert done
        assert world.cache.pop_prefetch_loaded_tokens(request) == pages * PAGE
        world.cache.evict_host(pages * PAGE)
        return took / 1000

    return once


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pages", type=int, nargs="*", default=PAGES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a tensor of a prefetch is too small to share out, and the threads would be what is timed
    try:
        import sglang
    except ImportError:
        version = None
    else:
        version = getattr(sglang, "__version__", "?")
    print(f"{platform.machine()}, Python {platform.python_version()}, SGLang {version}, rounds {args.rounds}")
    table = {}
    elsewhere = np.zeros(4 << 20, dtype=np.int64) if args.cold else None  # 32 MiB
    for pages in args.pages:
        sides = {"ours": ours(pages, 2 * args.rounds + BLOCK, "memory", elsewhere=elsewhere)}
        if version is not None:
            sides["SGLang"] = theirs(pages, elsewhere)
        took: dict[str, list[float]] = {name: [] for name in sides}
        gc.collect()
        gc.freeze()  # as a server does once it is up: what was there before is not walked again
        for _ in range(0, args.rounds, BLOCK):
            for name, once in sides.items():
                once()  # the code of the other side was run last
                took[name] += [once() for _ in range(BLOCK)]
        medians = {name: statistics.median(values) for name, values in took.items()}
        table[pages] = medians
        words = "  ".join(f"{name} {us:8.1f} us" for name, us in medians.items())
        ratio = medians["ours"] / medians["SGLang"] if "SGLang" in medians else float("nan")
        goal = GOALS.get(pages)
        print(f"{pages:5d} pages  {words}  ratio {ratio:5.2f}" + (f"  (goal {goal})" if goal else ""))
    if args.json:
        print(json.dumps(table))


if __name__ == "__main__":
    main()
