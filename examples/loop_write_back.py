"""Write-back: new pages go to L3 on a thread of their own, so that the scheduler does not wait for the store."""

import queue
import threading
import time
from collections import Counter
from typing import NamedTuple

from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.runtime.ports import PageStore
from loop_pages import page_bytes_of

_BATCH_PAGES = 128
_MAX_QUEUED = 4  # requests; a prompt that repeats one of so short ago may miss it in L3


class _Span(NamedTuple):
    keys: KeyChain
    start_page: int
    end_page: int


class WriteBack:
    """One writer thread over one store. When it falls behind, `put` waits: nothing is dropped.

    `pages` counts what was written and refused; `blocked_s` and `written_s` are how long `put` waited and the store took.
    """

    def __init__(self, store: PageStore, layout: Layout, page_bytes: dict[str, int], rank: int) -> None:
        self._store, self._layout, self._page_bytes, self._rank = store, layout, page_bytes, rank
        self._queue: queue.Queue[_Span | None] = queue.Queue(_MAX_QUEUED)
        self._error: BaseException | None = None
        self.pages: Counter[str] = Counter()
        self.blocked_s = self.written_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"write-back-rank{rank}", daemon=True)
        self._thread.start()

    def put(self, keys: KeyChain, start_page: int, end_page: int) -> None:
        """Have every pool's pages [start_page, end_page) written: at each page boundary a prefix can be restored."""
        self._check()
        before = time.monotonic()
        self._queue.put(_Span(keys, start_page, end_page))
        self.blocked_s += time.monotonic() - before

    def close(self) -> None:
        """Write what is queued and stop; raises what the store raised, if it did."""
        self._queue.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError("cannot write back: the store raised (see the cause)") from self._error

    def _run(self) -> None:
        while (span := self._queue.get()) is not None:
            if self._error is None:  # afterwards the queue is only emptied, so that `put` never waits for ever
                try:
                    self._write(span)
                except Exception as error:  # handed to the scheduler's thread at its next call
                    self._error = error

    def _write(self, span: _Span) -> None:
        for first in range(span.start_page, span.end_page, _BATCH_PAGES):
            keys = span.keys[first : min(span.end_page, first + _BATCH_PAGES)]
            for pool in self._layout.pools:
                nbytes = self._page_bytes[pool.name]
                pages = [page_bytes_of(key, pool.name, self._rank, nbytes).data for key in keys]
                before = time.monotonic()
                kept = sum(self._store.write(pool.name, keys, pages))
                self.written_s += time.monotonic() - before
                self.pages.update(written=kept, refused=len(keys) - kept)
