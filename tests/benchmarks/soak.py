"""A million prefetches through one coordinator: reader threads, a memory store, evictions all the time, the log in SQLite.

    python -m tests.benchmarks.bench_growth --soak 1000000

One in ten lacks a page in storage, one in fifty is aborted on its way, one in fifty is issued again under a new attempt.
The log begins a fresh file now and then, as a server rotates its own, so that the disk is bounded, too.
"""

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lifecycle import Declined, Policies, WaitComplete, dsa, page_keys
from lifecycle.events import Record
from lifecycle.keys import KeyChain
from lifecycle.runtime import Coordinator
from stores.events import SqliteEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex
from tests.benchmarks.common import machine, rss_bytes, slope

PAGES, PAGE_TOKENS, PAGE_BYTES = 4, 16, 64
PROMPTS = 4_096  # each of its own pages; host memory holds an eighth of them
CAPACITY = PROMPTS * PAGES // 8
IN_FLIGHT = 64
ROTATE_RECORDS = 2_000_000


class RotatingLog:
    """A SQLite event log that begins a fresh file every so many records, and drops the old one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files, self.appended, self._lost = folder, 0, 0, 0
        self._log = self._open()

    def _open(self) -> SqliteEventLog:
        self._files += 1
        return SqliteEventLog(self._folder / f"rank0-{self._files}.sqlite")

    def append(self, record: Record) -> None:
        """Keep a record."""
        self._log.append(record)
        self.appended += 1

    def flush(self) -> None:
        """Hand over what was appended; change files between two ticks."""
        if self.appended >= ROTATE_RECORDS * self._files:
            self.close()
            for path in self._folder.iterdir():
                path.unlink()
            self._log = self._open()
        self._log.flush()

    def records(self) -> Iterable[Record]:
        """Return what the present file has."""
        return self._log.records()

    @property
    def lost_events(self) -> int:
        """How many events no file has."""
        return self._lost + self._log.lost_events

    def close(self) -> None:
        """Close the present file."""
        self._log.close()
        self._lost += self._log.lost_events


class Soak:
    """The coordinator, and the loop that keeps `IN_FLIGHT` requests going."""

    def __init__(self, folder: Path) -> None:
        layout = dsa()
        sizes = {pool.name: PAGE_BYTES for pool in layout.pools}
        self.store, self.events = MemoryPageStore(sizes), RotatingLog(folder)
        self.index, self.memory = RadixIndex(layout), TorchHostMemory(layout, {"kv": CAPACITY}, sizes, pin=False)
        self.prompts = [self._write(number) for number in range(PROMPTS)]
        self.coordinator = Coordinator(
            layout, Policies(stop=WaitComplete()), PAGE_TOKENS, store=self.store, memory=self.memory, index=self.index,
            events=self.events,
        )  # fmt: skip
        self.outcomes: Counter[str] = Counter()
        self.issued = 0
        self._going: dict[str, KeyChain] = {}

    def _write(self, number: int) -> KeyChain:
        keys = page_keys(range(number * 100_000, number * 100_000 + PAGES * PAGE_TOKENS), PAGE_TOKENS)
        page = [memoryview(number.to_bytes(8, "little") * (PAGE_BYTES // 8))] * PAGES
        self.store.write("kv", keys, page)
        kept = PAGES - (number % 10 == 0)
        self.store.write("indexer", keys[:kept], page[:kept])
        return keys

    def run(self, prefetches: int, every: int, tell: Callable[[int], None]) -> None:
        """Run that many prefetches to their ends, calling `tell` after each `every` of them."""
        told = 0
        while self.issued < prefetches or self._going:
            while len(self._going) < IN_FLIGHT and self.issued < prefetches:
                self._issue()
            self.coordinator.tick()
            done = [request for request in self._going if self.coordinator.ready(request)]
            for request in done:
                self._finish(request)
            ended = self.issued - len(self._going)
            if ended // every > told:
                told = ended // every
                tell(told * every)
            if not done:
                time.sleep(0.0002)  # the forward pass: readers and the log have the interpreter meanwhile
        while self.coordinator.book.local:
            self.coordinator.tick()
            time.sleep(0.0002)

    def _issue(self) -> None:
        number = self.issued
        self.issued += 1
        request, keys = f"request-{number}", self.prompts[number * 1_237 % PROMPTS]
        self._begin(request, 0, keys)
        if number % 50 == 7:
            self.coordinator.abort(request)
        elif number % 50 == 13:
            self._begin(request, 1, keys)
        self._going[request] = keys

    def _begin(self, request: str, attempt: int, keys: KeyChain) -> None:
        anchor = self.index.match(keys, self.coordinator.tick_number).anchor
        if isinstance(answer := self.coordinator.issue(request, attempt, keys, anchor), Declined):
            self.outcomes[f"declined {answer.reason}"] += 1

    def _finish(self, request: str) -> None:
        match = self.index.match(self._going.pop(request), self.coordinator.tick_number)
        self.coordinator.served(request, match)
        self.outcomes["loaded something" if self.coordinator.take_loaded(request) else "loaded nothing"] += 1
        self.coordinator.finish(request)

    def kept(self) -> dict[str, int]:
        """Return how much is kept of what has ended: all zero when nothing is."""
        rank: Any = self.coordinator._rank
        replica, transfers = rank.book.replica, rank.transfers
        sized = {
            "in flight": replica.in_flight, "ids": replica._ids, "requests": replica.requests, "local": rank.book.local,
            "transfers": transfers.of, "dirty": transfers.dirty, "refusals": rank.settler._tries,
            "running": rank.readers.queue._running, "notes": rank.readers.notes,
        }  # fmt: skip
        counts = {name: len(held) for name, held in sized.items()}
        return counts | {"unclaimed": rank.readers.queue.unclaimed(), "locks": self.index.lock_count()}

    def close(self) -> None:
        """Close, and check the books."""
        self.coordinator.close()
        self.events.close()
        self.coordinator.check_integrity(replay=False)


def soak(prefetches: int, folder: Path, every: int) -> float:
    """Run the soak, print memory as it goes, and return by how many bytes it grows per prefetch once it is warm."""
    print(machine(), flush=True)
    run, points, began = Soak(folder), list[tuple[float, float]](), time.perf_counter()

    def tell(ended: int) -> None:
        gc.collect()
        points.append((ended, rss_bytes()))
        took = time.perf_counter() - began
        print(
            f"{ended:>10,} prefetches  {took:7.0f} s  {took / ended * 1e6:6.0f} us each  RSS {points[-1][1] / 2**20:7.1f} MiB"
            f"  {run.events.appended:>11,} events  {threading.active_count()} threads",
            flush=True,
        )

    run.run(prefetches, every, tell)
    kept = run.kept()
    run.close()
    warm = points[1:] if len(points) > 2 else points
    grows = slope(warm) if len(warm) > 1 else float("nan")
    print(f"outcomes: {dict(sorted(run.outcomes.items()))}; events lost: {run.events.lost_events}")
    print(f"kept of what has ended: {sum(kept.values())} ({', '.join(kept)})")
    print(f"slope after the first {every:,}: {grows:+.3f} bytes a prefetch; load now {machine().rpartition('load ')[2]}")
    return grows
