"""A garbled output, and the one command that says why.

The public bug in miniature. An indexer page is evicted from L3 between the question and the read. A loop that counts
successes (7 of 8) publishes seven pages, and the one in the middle still holds another request's bytes. `prefetch-audit
explain` names the request, the page, the pool and the rule; the right rule, the leading run, serves nothing garbled.

The old rule is patched in from the outside, here alone: the library has no switch for it.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from lifecycle import Policies, WaitComplete, dsa, page_keys
from lifecycle.audit.cli import main as prefetch_audit
from lifecycle.local import Local
from lifecycle.runtime import Coordinator
from loop_pages import differs, fill
from stores.events import JsonLinesEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex

PAGE_TOKENS, PAGES, LOST_PAGE = 64, 8, 4
LAYOUT = dsa()  # kv, and an indexer page for each kv page: GLM-5.x, DeepSeek-V3.2
PAGE_BYTES = {pool.name: 4096 for pool in LAYOUT.pools}


class LosingStore(MemoryPageStore):
    """An L3 that evicts one indexer page just after it said that the page is there."""

    def __init__(self, lost_key: str) -> None:
        super().__init__(PAGE_BYTES)
        self._lost_key = lost_key

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Answer, then evict."""
        present = super().restorable(keys, pools)
        if self._lost_key in keys:
            self.delete("indexer", [self._lost_key])
        return present


@contextmanager
def old_counting_rule() -> Iterator[None]:
    """Count what landed instead of following the leading run, as loops did that garbled output."""

    def sum_of_successes(local: Local, pool: str) -> int:
        return local.shared.start_page + sum(stop - start for start, stop in local.landed.get(pool, ()))

    with patch.object(Local, "run", sum_of_successes):
        yield


def serve_two(folder: Path, run: str) -> tuple[int, list[str]]:
    """Serve two requests from L3 through host memory that holds one of them; return pages served and what was garbled."""
    prompts = [page_keys(range(first, first + PAGES * PAGE_TOKENS), PAGE_TOKENS) for first in (0, 100_000)]
    store = LosingStore(prompts[1][LOST_PAGE])
    for keys in prompts:
        for pool in PAGE_BYTES:
            store.write(pool, keys, [_page(key, pool) for key in keys])
    index, memory = RadixIndex(LAYOUT), TorchHostMemory(LAYOUT, {"kv": PAGES}, PAGE_BYTES)
    events = JsonLinesEventLog(folder / "rank0.jsonl")
    coordinator = Coordinator(
        LAYOUT, Policies(stop=WaitComplete()), PAGE_TOKENS, store=store, memory=memory, index=index,
        events=events, readers=1, run=run, clock_ns=lambda: 0, wall_ns=lambda: 0,
    )  # fmt: skip
    served, garbled = 0, []
    for number, keys in enumerate(prompts, start=1):
        request = f"request-{number}"
        coordinator.issue(request, 0, keys, index.match(keys, coordinator.tick_number).anchor)
        while not coordinator.ready(request):
            coordinator.tick()
            time.sleep(0.0005)
        match = index.match(keys, coordinator.tick_number)
        coordinator.served(request, match)
        served = match.pages
        garbled = [
            f"page {page} of {pool} of {request}"
            for pool in PAGE_BYTES
            for page, buffer in enumerate(memory.buffers(pool, match.slots(pool, 0, match.pages)))
            if differs(buffer, keys[page], pool, 0)
        ]
        coordinator.finish(request)
        while coordinator.snapshot()["in_flight"]:
            coordinator.tick()
    coordinator.close()
    coordinator.check_integrity()
    events.close()
    store.close()
    return served, garbled


def _page(key: str, pool: str) -> memoryview:
    page = bytearray(PAGE_BYTES[pool])
    fill(page, key, pool, 0)
    return memoryview(page)


def main() -> int:
    """Run both rules and ask the audit about each; return 0 if it tells the two apart."""
    with tempfile.TemporaryDirectory(prefix="garbled-output-") as folder:
        old, right = Path(folder) / "old", Path(folder) / "right"
        old.mkdir()
        right.mkdir()
        with old_counting_rule():
            served, garbled = serve_two(old, "old-rule")
        print(f"counting successes: {served} pages of request-2 served; garbled: {', '.join(garbled) or 'none'}\n")
        print("$ prefetch-audit explain old/ --request request-2", flush=True)
        blamed = prefetch_audit(["explain", str(old), "--request", "request-2"])

        served, still = serve_two(right, "right-rule")
        print(f"\nthe leading run: {served} pages of request-2 served; garbled: {', '.join(still) or 'none'}\n")
        print("$ prefetch-audit verify right/", flush=True)
        clean = prefetch_audit(["verify", str(right)])
    return 0 if garbled and blamed == 1 and not still and clean == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
