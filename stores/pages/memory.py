"""Pages in the memory of this process: for tests, simulations and examples."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from lifecycle.errors import IntegrityError, StoreError
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from stores.pages.ledger import Ledger, PageId
from stores.pages.requests import check_buffers, check_keys, checked_page_bytes, page_bytes_of
from stores.pages.tally import Tally


class _Page(NamedTuple):
    payload: bytes
    checksum: int


class MemoryPageStore:
    """A thread-safe page store in memory. With `capacity_bytes` the least recently used pages make room."""

    def __init__(self, page_bytes: Mapping[str, int], capacity_bytes: int | None = None) -> None:
        self._page_bytes = checked_page_bytes(page_bytes, capacity_bytes)
        self._lock = threading.Lock()
        self._pages: dict[PageId, _Page] = {}
        self._ledger = Ledger(capacity_bytes)
        self._tally = Tally("memory")
        self._closed = False

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Return, per pool, one bool per key: whether the page is there now."""
        check_keys(keys)
        for pool in pools:
            page_bytes_of(pool, self._page_bytes)
        with self._lock:
            self._check_open("query")
            return {pool: np.array([(pool, key) in self._pages for key in keys], dtype=np.bool_) for pool in pools}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Copy one page per key into the buffer beside it."""
        self._check_request("read", pool, keys, buffers, writable=True)
        with self._lock:
            self._check_open("read")
            pages = [self._pages.get((pool, key)) for key in keys]
            for key in keys:
                self._ledger.touch((pool, key))
        results = []
        for page, buffer in zip(pages, buffers, strict=True):
            if page is None:
                results.append(PageResult(0, ReadCode.MISSING))
            else:
                buffer.cast("B")[:] = page.payload
                results.append(PageResult(len(page.payload), None, page.checksum))
        missing = pages.count(None)
        self._tally.add({"read.missing": missing, "read.ok": len(pages) - missing})
        return results

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Keep a copy of one page per key."""
        self._check_request("write", pool, keys, buffers, writable=False)
        payloads = [bytes(buffer) for buffer in buffers]
        pages = [_Page(payload, xxhash.xxh3_64_intdigest(payload)) for payload in payloads]
        done: Counter[str] = Counter()
        with self._lock:
            self._check_open("write")
            for key, page in zip(keys, pages, strict=True):
                self._keep((pool, key), page, done)
        self._tally.add(done)
        return [True] * len(pages)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Remove pages; return how many were there."""
        check_keys(keys)
        page_bytes_of(pool, self._page_bytes)
        with self._lock:
            self._check_open("delete")
            return sum(self._forget((pool, key)) for key in keys)

    def stats(self) -> dict[str, int]:
        """Return what was done so far, counted by cause."""
        return self._tally.counts()

    @property
    def used_bytes(self) -> int:
        """How many bytes the pages take."""
        return self._ledger.used_bytes

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the bytes counted are not those of the pages held."""
        with self._lock:
            faults = self._ledger.faults()
            if sum(len(page.payload) for page in self._pages.values()) != self._ledger.used_bytes:
                faults.append(f"{self._ledger.used_bytes} bytes are counted, other bytes are held")
        if faults:
            raise IntegrityError("the memory page store", faults)

    def close(self) -> None:
        """Forget every page."""
        with self._lock:
            self._closed = True
            self._pages.clear()
            self._ledger = Ledger(self._ledger.capacity_bytes)

    def _keep(self, page_id: PageId, page: _Page, done: Counter[str]) -> None:
        while (victim := self._ledger.victim(page_id, len(page.payload))) is not None:
            self._forget(victim)
            done["evicted"] += 1
        self._pages[page_id] = page
        self._ledger.put(page_id, len(page.payload))
        done["write.ok"] += 1

    def _forget(self, page_id: PageId) -> bool:
        self._ledger.drop(page_id)
        return self._pages.pop(page_id, None) is not None

    def _check_request(
        self, operation: str, pool: str, keys: Sequence[str], buffers: Sequence[memoryview], writable: bool
    ) -> None:
        check_keys(keys)
        nbytes = page_bytes_of(pool, self._page_bytes)
        check_buffers(operation, pool, keys, buffers, nbytes, writable)

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise StoreError(f"cannot {operation} in the memory page store: it is closed (open a new one)")
