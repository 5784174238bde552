"""Write-back: chains go to L3 on a thread of their own, so that the scheduler does not wait for the store.

What is due of a chain, in which order, and when a refused page is tried again, is `stores.pages.ChainWriter`.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lifecycle.coverage import Flags
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.runtime.ports import PageStore
from loop_pages import page_bytes_of
from stores.pages import ChainWriter

_MAX_QUEUED = 4  # requests; a prompt that repeats one of so short ago may miss it in L3


class _Chain(NamedTuple):
    keys: KeyChain
    held: Mapping[str, Flags]
    tick: int


class WriteBack:
    """One writer thread over one store. When it falls behind, `put` waits: nothing is dropped.

    `pages` counts what was written, refused, held back behind what was refused, and lost by L3; `blocked_s` and `written_s` are
    how long `put` waited and the turns took.
    """

    def __init__(self, store: PageStore, layout: Layout, page_bytes: dict[str, int], rank: int, degrade: bool) -> None:
        self._writer = ChainWriter(store, layout, degrade=degrade)
        self._page_bytes, self._rank = page_bytes, rank
        self._queue: queue.Queue[_Chain | None] = queue.Queue(_MAX_QUEUED)
        self._error: BaseException | None = None
        self.pages: Counter[str] = Counter()
        self.blocked_s = self.written_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"write-back-rank{rank}", daemon=True)
        self._thread.start()

    def put(self, keys: KeyChain, held: Mapping[str, Flags], tick: int) -> None:
        """Have L3 get what it lacks of the chain, of which `held` says, per pool and page, what host memory holds.

        From page 0 on: also what a prefetch brought, or L2 had all along, may have gone from L3.
        """
        self._check()
        before = time.monotonic()
        self._queue.put(_Chain(keys, held, tick))
        self.blocked_s += time.monotonic() - before

    def drain(self) -> None:
        """Wait until everything that was put is written or refused."""
        self._queue.join()
        self._check()

    def close(self) -> None:
        """Write what is queued and stop; raises what the store raised, if it did."""
        self._queue.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError("cannot write back: the store raised (see the cause)") from self._error

    def _run(self) -> None:
        while (chain := self._queue.get()) is not None:
            if self._error is None:  # afterwards the queue is only emptied, so that `put` never waits for ever
                try:
                    self._write(chain)
                except Exception as error:  # handed to the scheduler's thread at its next call
                    self._error = error
            self._queue.task_done()

    def _write(self, chain: _Chain) -> None:
        def pages_of(pool: str, pages: Sequence[int]) -> list[memoryview]:
            """Return what host memory holds of the pages (here: made again; an engine keeps their slots until then)."""
            nbytes = self._page_bytes[pool]
            return [page_bytes_of(chain.keys[page], pool, self._rank, nbytes).data for page in pages]

        before = time.monotonic()
        turn = self._writer.write(chain.keys, chain.held, pages_of, chain.tick)
        self.written_s += time.monotonic() - before
        self.pages.update(written=turn.written, refused=turn.refused, held_back=turn.held_back, lost=turn.lost)
