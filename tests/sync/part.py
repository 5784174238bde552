"""One rank with everything it needs: reference ports over a shard that answers as told, and what is compared afterwards."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import SyncFailed
from lifecycle.events import Event
from lifecycle.keys import KeyChain, page_keys
from lifecycle.layout import Layout, preset
from lifecycle.policies import Policies, WaitComplete
from lifecycle.reasons import ReadCode
from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.ports import PageResult
from lifecycle.runtime.transport import TorchTransport, Transport
from stores.events.memory import MemoryEventLog
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex

PAGE_TOKENS = 4
PAGE_BYTES = 32


def prompt(number: int, pages: int) -> KeyChain:
    """Return the keys of a prompt that shares nothing with those of other numbers."""
    first = 10_000 * (number + 1)
    return page_keys(range(first, first + pages * PAGE_TOKENS), PAGE_TOKENS)


class Shard:
    """One rank's shard of L3: every page is there but those that `lacks` names; reads of `held` prompts wait."""

    def __init__(self) -> None:
        self.lacks = set[tuple[str, str]]()  # (pool, key): neither found nor readable
        self.fails = set[tuple[str, str]]()  # found, and not readable
        self.held = set[str]()  # keys whose reads wait until `let_go`
        self.pause_s = 0.0
        self._go = threading.Event()

    def let_go(self) -> None:
        """Let every read go on."""
        self._go.set()

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Say what is there."""
        return {pool: np.array([(pool, key) not in self.lacks for key in keys], dtype=np.bool_) for pool in pools}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Fill the buffers."""
        if self.held.intersection(keys):
            self._go.wait()
        time.sleep(self.pause_s)
        return [self._read(pool, key, buffer) for key, buffer in zip(keys, buffers, strict=True)]

    def _read(self, pool: str, key: str, buffer: memoryview) -> PageResult:
        if (pool, key) in self.lacks or (pool, key) in self.fails:
            return PageResult(0, ReadCode.MISSING)
        buffer[:] = f"{pool[:4]}{key}".encode().ljust(PAGE_BYTES)[:PAGE_BYTES]
        return PageResult(PAGE_BYTES)

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Take nothing."""
        return [False] * len(keys)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Hold nothing that could go."""
        return 0

    def check_integrity(self) -> None:
        """Find nothing: there are no books."""

    def close(self) -> None:
        """Let every read go on."""
        self.let_go()


def host_memory(layout: Layout, capacity: int) -> TorchHostMemory:
    """Return memory with as many slots in every pool."""
    own, every = {p.name: capacity for p in layout.own}, {p.name: PAGE_BYTES for p in layout.pools}
    return TorchHostMemory(layout, own, every, pin=False)


class Part:
    """A coordinator of one rank. Commands match the index first, as an engine does."""

    def __init__(
        self,
        layout: str | Layout = "kv_only",
        policies: Policies | None = None,
        *,
        transport: Transport | None = None,
        capacity: int = 64,
        index: RadixIndex | None = None,
        memory: TorchHostMemory | None = None,
        timeout_s: float = 10.0,
        page_tokens: int = PAGE_TOKENS,
        log: MemoryEventLog | None = None,
        **more: Any,
    ) -> None:
        self.layout = preset(layout) if isinstance(layout, str) else layout
        policies = policies or Policies(stop=WaitComplete())
        self.store = Shard()
        self.memory = memory or host_memory(self.layout, capacity)
        self.index = index or RadixIndex(self.layout, policies.degrade)
        self.log = log or MemoryEventLog()
        self.coordinator = Coordinator(
            self.layout, policies, page_tokens, store=self.store, memory=self.memory, index=self.index, events=self.log,
            transport=transport or TorchTransport(timeout_s=timeout_s), **more,
        )  # fmt: skip

    def issue(self, request: str, keys: KeyChain, attempt: int = 0) -> Any:
        """Issue after a match."""
        match = self.index.match(keys, self.coordinator.tick_number)
        return self.coordinator.issue(request, attempt, keys, match.anchor)

    def tick_until(self, condition: Callable[[], object]) -> None:
        """Tick until a condition on the replica holds: it does so at the same tick on all ranks."""
        while not condition():
            self.coordinator.tick()
            time.sleep(0.0005)

    def tick_until_quiet(self) -> None:
        """Tick until nothing is in flight."""
        self.tick_until(lambda: not self.coordinator.book.replica.in_flight)

    def tick_until_failure(self, ticks: int = 100_000) -> SyncFailed:
        """Tick until the coordinator fails, and return how."""
        for _ in range(ticks):
            try:
                self.coordinator.tick()
            except SyncFailed as failure:
                return failure
            time.sleep(0.0005)
        raise AssertionError(f"nothing failed in {ticks} ticks")

    def wind_down(self) -> None:
        """Tick on after a failure until every debt is paid, close, and find no leak."""
        self.store.let_go()
        published = self.published()
        while self.coordinator.book.local:
            failure = self.tick_until_failure(1)
            assert failure.round_number >= 0
        self.coordinator.check_integrity()
        assert self.published() == published, "something was published after the failure"
        self.close()

    def close(self) -> None:
        """Close, and find no leak."""
        self.store.let_go()
        self.coordinator.close()
        self.coordinator.check_integrity()
        book = self.coordinator.book
        assert not book.local, f"still open: {book.local}"
        assert book.replica.occupied_tokens == 0
        assert self.index.lock_count() == 0
        for pool in self.layout.own:
            resident = self.index.resident_pages(pool.name)
            assert self.memory.free_pages(pool.name) + resident == self.memory.capacity_pages(pool.name), "a leak"

    def published(self) -> int:
        """Return how many prefetches ended with something published."""
        return sum(name in ("committed.1", "clamped.1") for name, _ in self.events())

    def events(self) -> list[tuple[str, list[str]]]:
        """Return the replicated events of this rank's log, as every rank must have logged them."""
        return [_plain(record.event) for record in self.log.records() if record.event.REPLICATED]


def _plain(event: Event) -> tuple[str, list[str]]:
    return str(event.__struct_config__.tag), [repr(getattr(event, name)) for name in event.REPLICATED]
