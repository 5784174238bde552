"""One rank's shard of L3 in a simulation: every page is there until a step takes it away, and faults come when armed."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult

PAGE_BYTES = 8
_CODES = {
    "missing": ReadCode.MISSING,
    "short": ReadCode.SHORT,
    "corrupt": ReadCode.CORRUPT,
    "io_error": ReadCode.IO_ERROR,
    "lease_expired": ReadCode.LEASE_EXPIRED,
}


@cache
def page_of(pool: str, key: str, rank: int) -> bytes:
    """Return what a page must hold: 8 bytes that no other page has."""
    return xxhash.xxh3_64_digest(f"{pool}/{key}/{rank}".encode())


@cache
def checksum_of(pool: str, key: str, rank: int) -> int:
    """Return the checksum that a store knows of that page."""
    return xxhash.xxh3_64_intdigest(page_of(pool, key, rank))


class StoreDown(OSError):
    """Raised by a simulated store that was told to fail."""


class SimStore:
    """Answers for one rank. `absent` holds the pages that are not there; armed faults are used up one by one."""

    def __init__(self, rank: int, injected: Counter[str]) -> None:
        self.rank = rank
        self.absent: set[tuple[str, str]] = set()
        self.reads: deque[tuple[str, int, int]] = deque()  # kind, place in the batch, how many calls to let pass
        self.queries: deque[str] = deque()
        self.injected = injected

    def disarm(self) -> None:
        """Forget every armed fault."""
        self.reads.clear()
        self.queries.clear()

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Say what is there, or what the next armed fault makes of it."""
        found = {pool: np.array([(pool, key) not in self.absent for key in keys], dtype=np.bool_) for pool in pools}
        if not self.queries:
            return found
        fault = self.queries.popleft()
        self.injected[fault] += 1
        last = pools[-1]
        match fault:
            case "query_raise":
                raise StoreDown("simulated: the query failed")
            case "query_short":
                found[last] = found[last][:-1]
            case "query_none":
                return None  # type: ignore[return-value]
            case "query_lacking":
                del found[last]
            case "phantom":
                found[last][:] = True
            case "omitted":
                found[last][len(keys) // 2] = False
        return found

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Read the pages, or do what the next armed fault says."""
        fault, place = self._next_fault()
        results = []
        for number, (key, buffer) in enumerate(zip(keys, buffers, strict=True)):
            if number == place % len(keys) and fault.startswith("raise"):
                if fault == "raise_late":
                    buffer[:] = page_of(pool, key, self.rank)
                raise StoreDown("simulated: the read failed")
            if number == place % len(keys) and fault in _CODES:
                buffer[:4] = b"dirt"
                results.append(PageResult(4 if fault == "short" else 0, _CODES[fault]))
            elif number == place % len(keys) and fault == "ack_short":
                buffer[:4] = b"part"
                results.append(PageResult(4))
            elif (pool, key) in self.absent:
                results.append(PageResult(0, ReadCode.MISSING))
            else:
                buffer[:] = page_of(pool, key, self.rank)
                results.append(PageResult(PAGE_BYTES, None, checksum_of(pool, key, self.rank)))
        match fault:
            case "wrong_short":
                return results[:-1]
            case "wrong_long":
                return [*results, results[-1]]
            case "wrong_none":
                return None  # type: ignore[return-value]
            case "wrong_kind":
                return [True] * len(results)  # type: ignore[list-item]
        return results

    def _next_fault(self) -> tuple[str, int]:
        if not self.reads:
            return "", 0
        kind, place, wait = self.reads.popleft()
        if wait:
            self.reads.appendleft((kind, place, wait - 1))
            return "", 0
        self.injected[kind] += 1
        return kind, place

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Make the pages present again."""
        self.absent.difference_update((pool, key) for key in keys)
        return [True] * len(keys)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Take pages away; return how many were there."""
        gone = {(pool, key) for key in keys} - self.absent
        self.absent |= gone
        return len(gone)

    def check_integrity(self) -> None:
        """Find nothing: there are no books."""

    def close(self) -> None:
        """Hold nothing."""
