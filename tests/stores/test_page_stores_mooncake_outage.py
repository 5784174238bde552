"""A real coordinator on a real Mooncake whose master is killed and started again while prefetches are in flight."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mooncake_master
import numpy as np
import pytest
import structlog
import xxhash

from lifecycle.errors import StoreError
from lifecycle.events import Declined
from lifecycle.keys import EMPTY_NAMESPACE, KeyChain, page_keys
from lifecycle.layout import preset
from lifecycle.policies import Policies, WaitComplete
from lifecycle.runtime.coordinator import Coordinator
from stores.events import open_event_log
from stores.host import TorchHostMemory
from stores.pages import MooncakePageStore, header_room, register_host_memory
from stores.prefix import RadixIndex
from stores.prefix_match import RadixAnchor

REASON = mooncake_master.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

PAGE_BYTES, PROMPT_PAGES, HOST_PAGES, LOAD = 16 << 10, 8, 64, 6
PATIENCE_S = 60.0


def page_of(key: str) -> bytes:
    """Return the one right content of a page."""
    return np.random.default_rng(xxhash.xxh3_64_intdigest(key.encode())).bytes(PAGE_BYTES)


class Engine:
    """One rank that prefetches prompts, six at a time, and reads what it is served."""

    def __init__(self, store: MooncakePageStore) -> None:
        self.layout = preset("kv_only")
        self.store = store
        rooms = header_room(store, ["kv"])
        self.memory = TorchHostMemory(self.layout, {"kv": HOST_PAGES}, {"kv": PAGE_BYTES}, header_room_bytes=rooms)
        register_host_memory(store, self.memory.regions())
        self.index = RadixIndex(self.layout)
        self.prompts = [page_keys(range(1000 * n, 1000 * n + 4 * PROMPT_PAGES), 4) for n in range(1, 25)]
        policies = Policies(stop=WaitComplete())
        self.coordinator = Coordinator(
            self.layout, policies, 4, store=store, memory=self.memory, index=self.index, events=open_event_log("memory", 0)
        )
        self.pages: Counter[str] = Counter()
        self.requests = 0

    def issue(self, prompt: KeyChain) -> tuple[str, KeyChain, RadixAnchor]:
        """Begin a request; what L2 holds of it stays until it is served."""
        self.requests += 1
        request = f"r{self.requests}"
        anchor = self.index.match(prompt, self.coordinator.tick_number).anchor
        self.index.lock(anchor)
        assert not isinstance(self.coordinator.issue(request, 0, prompt, anchor), Declined) or anchor.pages == PROMPT_PAGES
        return request, prompt, anchor

    def serve(self, request: str, prompt: KeyChain, held: RadixAnchor) -> None:
        """Wait for its prefetch, read what it is served, and forget it."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.coordinator.ready(request):
            self.coordinator.tick()
            assert time.monotonic() < deadline, self.coordinator.snapshot()
        match = self.index.match(prompt, self.coordinator.tick_number)
        for key, buffer in zip(prompt, self.memory.buffers("kv", match.slots("kv")), strict=False):
            self.pages["garbled" if bytes(buffer) != page_of(key) else "served"] += 1
        self.index.unlock(held)
        self.coordinator.finish(request)

    def run(self, kill: mooncake_master.Master | None = None) -> int:
        """Serve every prompt, killing the master while the second load is in flight; return how many pages were served."""
        before = self.pages["served"]
        for first in range(0, len(self.prompts), LOAD):
            read = self.store.stats().get("read.ok", 0)
            load = [self.issue(prompt) for prompt in self.prompts[first : first + LOAD]]
            if kill is not None and first == LOAD:
                while self.store.stats().get("read.ok", 0) == read:
                    self.coordinator.tick()
                kill.kill()
            for request, prompt, held in load:
                self.serve(request, prompt, held)
        return self.pages["served"] - before

    def write_all(self) -> bool:
        """Write every prompt to L3; return whether all of it is stored."""
        return all(all(self.store.write("kv", keys, [memoryview(page_of(key)) for key in keys])) for keys in self.prompts)

    def drain(self) -> None:
        """Tick until nothing is owed."""
        deadline = time.monotonic() + PATIENCE_S
        while self.coordinator.snapshot()["in_flight"]:
            self.coordinator.tick()
            assert time.monotonic() < deadline, self.coordinator.snapshot()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[mooncake_master.Master]:
    with mooncake_master.running(tmp_path) as master:
        yield master


def test_a_master_killed_and_restarted_under_load_costs_misses_and_nothing_else(master: mooncake_master.Master) -> None:
    """Before: hits. Without a master: misses, at once. After: hits again. Nothing garbled, nothing leaked."""
    store = MooncakePageStore(
        master.client(), {"kv": PAGE_BYTES}, EMPTY_NAMESPACE, "r0of1", master=master.address, owns_engine=True, retry_s=0.1
    )
    engine = Engine(store)
    every = len(engine.prompts) * PROMPT_PAGES
    with structlog.testing.capture_logs():
        assert engine.write_all()
        assert engine.run() == every  # more than L2 holds, so that each run reads L3

        during = engine.run(kill=master)
        assert during < every
        assert engine.run() <= HOST_PAGES  # what L2 still holds
        with pytest.raises(StoreError, match="the master does not answer"):
            store.restorable(engine.prompts[0], ["kv"])

        master.start()
        deadline = time.monotonic() + PATIENCE_S
        while not engine.write_all():  # the client has to lend its memory again
            engine.coordinator.tick()
            assert time.monotonic() < deadline, store.stats()
        assert engine.run() == every
    engine.drain()
    assert engine.pages["garbled"] == 0
    engine.coordinator.check_integrity()
    store.check_integrity()
    engine.coordinator.close()
    assert engine.index.lock_count() == 0
    assert engine.memory.quarantined_pages("kv") == 0
    assert engine.memory.free_pages("kv") + engine.index.resident_pages("kv") == HOST_PAGES
    store.close()
