"""The loop's write-back: whole chains, head first, also of what a prefetch brought or L2 had all along."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lifecycle.keys import KeyChain, page_keys
from lifecycle.layout import Layout, dsa, swa
from lifecycle.policies import Policies
from lifecycle.runtime.coordinator import Coordinator
from loop_compare import comparing
from loop_faults import Upsets
from loop_pages import differs, page_bytes_of
from loop_scheduler import Scheduler
from loop_trace import Request, read_trace
from loop_write_back import WriteBack
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex

PAGE_SIZE, NBYTES = 64, 256


class Deaf(MemoryPageStore):
    """Refuses every page until it is told to listen."""

    listens = False

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Write, or refuse."""
        return super().write(pool, keys, buffers) if self.listens else [False] * len(keys)


def keys_of(request: Request) -> KeyChain:
    """Return the page keys of a prompt."""
    return page_keys(request.tokens, PAGE_SIZE)


def same_prompts(folder: Path, times: int) -> list[Request]:
    """Return requests with one prompt of 16 pages, so far apart that each has ended when the next arrives."""
    path = folder / "trace.jsonl"
    lines = [
        {"timestamp": 10_000 * place, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]} for place in range(times)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_trace(path)


class Loop:
    """The scheduler on one rank, over a store that the test holds in its hands."""

    def __init__(self, layout: Layout, store: MemoryPageStore, requests: Sequence[Request], host_pages: int = 64) -> None:
        self.store = store
        page_bytes = {pool.name: NBYTES for pool in layout.pools}
        capacity = {pool.name: host_pages for pool in layout.own}
        memory = TorchHostMemory(layout, capacity, page_bytes, pin=False)
        index, policies = RadixIndex(layout), Policies(limit_tokens=1 << 20)
        self.coordinator = Coordinator(
            layout, policies, PAGE_SIZE, store=store, memory=memory, index=index, events=MemoryEventLog()
        )  # fmt: skip
        self.write_back = WriteBack(store, layout, page_bytes, 0, policies.degrade)
        self.scheduler = Scheduler(
            layout, policies, PAGE_SIZE, self.coordinator, index, memory, self.write_back, requests, keys_of, 0,
            Upsets(0, 0), comparing(memory, 0, None),
        )  # fmt: skip

    def run_until(self, ended: int) -> None:
        """Run until so many requests have ended, and what they had written is written."""
        while self.scheduler.counts["requests"] < ended:
            self.scheduler.step()
        self.write_back.drain()

    def close(self) -> None:
        """End the loop; nothing was garbled, nothing is left open."""
        self.write_back.close()
        self.coordinator.close()
        self.coordinator.check_integrity()
        assert self.scheduler.pages["garbled"] == 0


@pytest.mark.parametrize("layout", [dsa(), swa(4)], ids=lambda layout: layout.name)
def test_a_head_that_l3_loses_while_l2_holds_it_is_written_again(tmp_path: Path, layout: Layout) -> None:
    """The second request is served from L2 in full, and its end brings back what L3 has lost meanwhile."""
    requests = same_prompts(tmp_path, 2)
    keys = keys_of(requests[0])
    loop = Loop(layout, MemoryPageStore({pool.name: NBYTES for pool in layout.pools}), requests)
    loop.run_until(1)
    pools = [pool.name for pool in layout.pools]
    loop.store.delete("kv", keys[:2])
    assert not loop.store.restorable(keys[:1], ["kv"])["kv"][0]
    loop.run_until(2)
    assert loop.scheduler.counts["reuse_tokens"] == 1024
    assert all(there.all() for there in loop.store.restorable(keys, pools).values())
    assert loop.write_back.pages["lost"] == 2
    page = bytearray(NBYTES)
    loop.store.read_into("kv", keys[:1], [memoryview(page)])
    assert not differs(page, keys[0], "kv", 0)
    loop.close()


def test_a_head_that_was_refused_is_written_by_a_later_request_with_the_same_prompt(tmp_path: Path) -> None:
    """A store that refused everything gets the chain once it takes pages, though L2 has held all of it since."""
    requests = same_prompts(tmp_path, 9)
    keys = keys_of(requests[0])
    store = Deaf({"kv": NBYTES, "indexer": NBYTES})
    loop = Loop(dsa(), store, requests)
    loop.run_until(2)
    assert loop.write_back.pages["written"] == 0
    store.listens = True
    loop.run_until(9)  # the head is not tried again at once
    assert all(there.all() for there in store.restorable(keys, ["kv", "indexer"]).values())
    loop.close()


def test_what_the_store_raises_reaches_the_scheduler() -> None:
    """The writer's thread doesn't die unseen."""
    store = MemoryPageStore({"kv": NBYTES, "indexer": NBYTES})
    write_back = WriteBack(store, dsa(), {"kv": NBYTES + 1, "indexer": NBYTES}, 0, degrade=False)  # not what the store takes
    held = {"kv": np.ones(1, np.bool_), "indexer": np.ones(1, np.bool_)}
    write_back.put(page_keys([1], 1), held, 0)
    with pytest.raises(RuntimeError, match="cannot write back: the store raised"):
        write_back.close()


def test_pages_written_are_those_of_the_rank() -> None:
    """Each rank writes its own shard's content."""
    store = MemoryPageStore({"kv": NBYTES, "indexer": NBYTES})
    write_back = WriteBack(store, dsa(), {"kv": NBYTES, "indexer": NBYTES}, 3, degrade=False)
    keys = page_keys([1], 1)
    write_back.put(keys, {"kv": np.ones(1, np.bool_), "indexer": np.ones(1, np.bool_)}, 0)
    write_back.close()
    page = bytearray(NBYTES)
    store.read_into("indexer", keys, [memoryview(page)])
    assert page == page_bytes_of(keys[0], "indexer", 3, NBYTES).tobytes()
