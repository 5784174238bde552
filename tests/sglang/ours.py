"""Our coordinator under the same script as the original: same anchor, same answers, same stops, step by step."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lifecycle import BestEffort, Declined, Layout, Policies, Pool, Timeout, TrailingPages, WaitComplete, page_keys
from lifecycle.keys import KeyChain
from lifecycle.layout import KV
from lifecycle.reasons import ReadCode
from lifecycle.runtime import Coordinator, PageResult
from lifecycle.runtime.jobs import Job, Note, run
from lifecycle.runtime.readers import ReadQueue
from lifecycle.runtime.transport import Transport
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex

PAGE, WINDOW, BATCH = 4, 2, 4
PAGE_BYTES = 8

V4_KV = ("deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c128")
V4_SWA = ("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128_state")
_TRAILING = TrailingPages(WINDOW)

LAYOUTS: Mapping[str, Layout] = {
    "kv_only": Layout("kv_only", (Pool(KV),)),
    "dsa": Layout("dsa", (Pool(KV), Pool("indexer", rides_on=KV))),
    "swa": Layout("swa", (Pool(KV), Pool("swa", _TRAILING))),
    "mamba": Layout("mamba", (Pool(KV), Pool("mamba", TrailingPages(1)))),
    "deepseek_v4": Layout(
        "deepseek_v4",
        (
            Pool(KV),
            *(Pool(name, rides_on=KV) for name in V4_KV),
            Pool("swa", _TRAILING),
            *(Pool(name, _TRAILING, rides_on="swa") for name in V4_SWA),
        ),
    ),
}
"""The pools as the original has them: every sidecar required, none rebuildable."""

STOPS = {"best_effort": BestEffort(), "wait_complete": WaitComplete(), "timeout": Timeout(1.0, 0.0, 1.0)}


class ScriptedStore:
    """Answers page by page: `hit_pages` from the anchor on, then `good` per pool, page of the span or key of the window."""

    def __init__(self, keys: KeyChain, start: int) -> None:
        self.page_of = {key: page for page, key in enumerate(keys)}
        self.start = start
        self.hit_pages = 0
        self.good: Mapping[str, Sequence[bool]] = {}
        self.first: Mapping[str, int] = {}  # the first page of each pool's window
        self.during_kv: dict[int, Callable[[], None]] = {}
        self.batches = 0

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        found = np.arange(len(keys)) < self.hit_pages
        return {pool: found.copy() for pool in pools}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        if pool == KV:
            if during := self.during_kv.get(self.batches):
                during()
            self.batches += 1
        good, first = self.good[pool], self.first.get(pool, self.start)
        answers = []
        for key in keys:
            ok = good[self.page_of[key] - first]
            answers.append(PageResult(PAGE_BYTES) if ok else PageResult(0, ReadCode.MISSING))
        return answers

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        raise NotImplementedError

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Find nothing: there are no books."""

    def close(self) -> None:
        """Hold nothing."""


class SteppedReaders:
    """A pool of readers that works when told to, on the caller's thread."""

    def __init__(self, store: ScriptedStore, memory: TorchHostMemory, clock_ns: Callable[[], int]) -> None:
        self.notes: deque[Note] = deque()
        self.queue = ReadQueue(clock_ns, self.notes, per_prefetch=1)
        self._store, self._memory = store, memory

    def work(self) -> None:
        """Run every job that waits."""
        while (job := self.queue.claim()) is not None:
            self._run(job)

    def _run(self, job: Job) -> None:
        for note in run(job, self._store, self._memory):
            if note.kind == "end":
                self.queue.done(job)
            self.notes.append(note)

    def add(self) -> None:
        """Need no more: none is ever lost."""

    def close(self, timeout_s: float) -> int:
        self.queue.close()
        return 0


class Ours:
    """One rank: a coordinator over a scripted store, and the prompt that it prefetches."""

    def __init__(
        self, layout: str, capacity: Mapping[str, int], stop: str, threshold_pages: int, prompt: Sequence[int],
        anchor_pages: int, transport: Transport | None = None,
    ) -> None:  # fmt: skip
        self.layout = LAYOUTS[layout]
        self.keys = page_keys(prompt, PAGE)
        self.now_ns = 1
        page_bytes = {pool.name: PAGE_BYTES for pool in self.layout.pools}
        self.memory = TorchHostMemory(self.layout, {pool: pages + 1 for pool, pages in capacity.items()}, page_bytes)
        self.index = RadixIndex(self.layout)
        self.store = ScriptedStore(self.keys, anchor_pages)
        self.readers = SteppedReaders(self.store, self.memory, lambda: self.now_ns)
        self.events = MemoryEventLog()
        self.coordinator = Coordinator(
            self.layout, Policies(stop=STOPS[stop], threshold_pages=threshold_pages, batch_pages=BATCH), PAGE,
            store=self.store, memory=self.memory, index=self.index, events=self.events, transport=transport,
            readers=self.readers, clock_ns=lambda: self.now_ns,
        )  # fmt: skip
        self.anchor_pages = anchor_pages
        filler = page_keys([7] * PAGE, PAGE)
        self.own(filler, 1)  # no pool may be empty: one page more of each, which nothing can evict
        self.index.lock(self.index.match(filler, 0).anchor)
        self.own(self.keys, anchor_pages)

    def own(self, keys: KeyChain, pages: int) -> None:
        """Have the engine itself put the first pages of a prompt into the index."""
        if pages:
            anchor = self.index.match(keys[:0], self.coordinator.tick_number).anchor
            reached = self.coordinator.adopt("engine", keys, anchor, pages, lambda pool, span, slots: None)
            assert reached == pages, "the capacity holds what the engine keeps"

    def locks(self) -> int:
        """Return the locks in the index, beside the filler's."""
        return self.index.lock_count() - 1

    def issue(self) -> bool:
        """Begin the prefetch; say whether it began."""
        anchor = self.index.match(self.keys[: self.anchor_pages], self.coordinator.tick_number).anchor
        assert anchor.pages == self.anchor_pages
        return not isinstance(self.coordinator.issue("r", 0, self.keys, anchor), Declined)

    def stop(self) -> None:
        """Let the stop policy end it now: by demand, or by the clock."""
        self.now_ns += 2_000_000_000
        self.coordinator.ready("r")
        self.coordinator.tick()

    def abort(self) -> None:
        self.coordinator.abort("r")

    def free_pages(self) -> dict[str, int]:
        return {pool.name: self.memory.free_pages(pool.name) for pool in self.layout.own}
