"""How the reads of a batch are spread over threads, which is a matter of the interpreter's lock.

A page is opened, read and closed without the lock, and judged with it. Large pages hardly notice, so that further threads
help; with small ones, threads that read at once lose more to each other, waiting for the lock, than they win, as long as
what they read lies in memory. So these take turns. They don't where a read waits for a device, or for ever.
"""

import threading
import time
from collections.abc import Callable

from stores.pages.helpers import Helpers, spare_cores

_LARGE_BYTES = 128 << 10
_PART_BYTES = 2 << 20  # of large pages: what is worth another thread
_TURN_PAGES = 16
_QUICK_S = 100e-6  # a small page that takes longer did not lie in memory, or the cores are busy with other things
_WAIT_S = 0.005

Work = Callable[[int, int], None]
"""Reads the pages [start, stop) of a batch."""


class Batches:
    """Runs batches, for any number of callers at once."""

    def __init__(self, helpers: int | None) -> None:
        self._helpers = Helpers(spare_cores() if helpers is None else helpers)
        self._turns = Turns()

    def run(self, work: Work, pages: int, page_bytes: int) -> None:
        """Call `work` for all parts of a batch; raises what it raised."""
        if page_bytes >= _LARGE_BYTES:
            step = max(1, _PART_BYTES // page_bytes)
            self._helpers.share(work, [(start, min(start + step, pages)) for start in range(0, pages, step)])
        else:
            for start in range(0, pages, _TURN_PAGES):
                self._turns.take(work, start, min(start + _TURN_PAGES, pages))

    def close(self) -> None:
        """Let the helpers end."""
        self._helpers.close()


class Turns:
    """One part at a time while that pays. Nobody waits longer than a few milliseconds, whatever another one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pays = True  # a hint: changed without a lock

    def take(self, work: Work, start: int, stop: int) -> None:
        """Call `work` for one part, when it is its turn."""
        got = self._pays and self._lock.acquire(timeout=_WAIT_S)
        before = time.perf_counter()
        try:
            work(start, stop)
        finally:
            quick = time.perf_counter() - before < (stop - start) * _QUICK_S
            if got:
                self._lock.release()
                self._pays = quick
            else:  # somebody who holds the turn that long may never give it back
                self._pays = quick and not self._lock.locked()
