"""A page store whose every answer is scripted, and whose calls can be held and let go in any order.

Answers are text, one character per page, as in the public fault reports: `1` whole page, `0` missing, `a` an acknowledgement
that says ok without a whole page, `s` short, `c` corrupt, `i` an io error, `l` an expired lease.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kit.spies import Active
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult

PAGE_BYTES = 16
_CODES = {
    "0": ReadCode.MISSING,
    "s": ReadCode.SHORT,
    "c": ReadCode.CORRUPT,
    "i": ReadCode.IO_ERROR,
    "l": ReadCode.LEASE_EXPIRED,
}


def page_of(pool: str, key: str, rank: int) -> bytes:
    """Return what a page must hold."""
    return f"{pool[:3]}{rank}{key[:12]}".encode().ljust(PAGE_BYTES, b".")[:PAGE_BYTES]


@dataclass
class Held:
    """A call that waits to be let go."""

    pool: str  # empty: a query
    pages: tuple[int, ...]
    gate: threading.Event = field(default_factory=threading.Event)


class ScriptedStore:
    """One rank's shard. `say` and `show` script reads and queries; `hold` stops calls inside."""

    def __init__(self, rank: int, active: Active) -> None:
        self.rank = rank
        self.active = active
        self.page = dict[str, int]()  # key -> page number
        self.answers = dict[tuple[str, str], str]()  # (pool, key) -> character
        self.present = dict[tuple[str, str], bool]()
        self.batch = dict[str, str]()  # pool -> raise | short | long | none
        self.query = ""  # raise | short | none | lacking
        self.holding = set[str]()  # pools whose reads are held; "" for queries
        self.held: list[Held] = []
        self.changed = threading.Condition()
        self.reads = Counter[tuple[str, int]]()
        self.queries = self.answered = 0

    # --- scripting -----------------------------------------------------------------------------------------------------

    def say(self, pool: str, answers: str, keys: Sequence[str], first: int = 0) -> None:
        """Answer reads of `keys[first:]` as the text says."""
        self.answers.update({(pool, key): answer for key, answer in zip(keys[first:], answers, strict=False)})

    def show(self, pool: str, flags: str, keys: Sequence[str], first: int = 0) -> None:
        """Answer queries for `keys[first:]` as the text says."""
        self.present.update({(pool, key): flag == "1" for key, flag in zip(keys[first:], flags, strict=False)})

    def hold(self, *pools: str) -> None:
        """Hold every later call for these pools; the empty name is the query."""
        self.holding.update(pools)

    def let_go(self, pool: str | None = None, page: int | None = None, last: bool = False) -> int:
        """Let held calls go (of one pool, those that hold `page`); return how many. Later calls are held as before."""
        with self.changed:
            chosen = [h for h in self.held if pool in (None, h.pool) and (page is None or page in h.pages)]
            if last:
                chosen = chosen[-1:]
            for held in chosen:
                self.held.remove(held)
                held.gate.set()
            return len(chosen)

    def open_all(self) -> None:
        """Hold nothing any more."""
        self.holding.clear()
        self.let_go()

    def waiting(self, pool: str | None = None) -> int:
        """Return how many calls are held."""
        with self.changed:
            return sum(pool in (None, held.pool) for held in self.held)

    # --- the port ------------------------------------------------------------------------------------------------------

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Answer a query as scripted."""
        with self.changed:
            self.queries += 1
        self._stop("", keys)
        with self.changed:
            self.answered += 1
        if self.query == "raise":
            raise OSError("scripted: the query fails")
        if self.query == "none":
            return None  # type: ignore[return-value]
        given = list(pools)[:-1] if self.query == "lacking" else list(pools)
        asked = keys[:-1] if self.query == "short" else keys
        return {pool: np.array([self.present.get((pool, key), True) for key in asked], dtype=np.bool_) for pool in given}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Answer a read as scripted; bytes are in place before the answer is given, late ones too."""
        try:
            with self.changed:
                self.reads.update((pool, self.page[key]) for key in keys)
            self._stop(pool, keys)
            results = [self._read(pool, key, buffer) for key, buffer in zip(keys, buffers, strict=True)]
            match self.batch.get(pool):
                case "raise":
                    raise OSError("scripted: the read fails")
                case "short":
                    return results[:-1]
                case "long":
                    return [*results, results[-1]]
                case "none":
                    return None  # type: ignore[return-value]
                case "bools":
                    return [True] * len(results)  # type: ignore[list-item]
            return results
        finally:
            self.active.end()
            with self.changed:
                self.changed.notify_all()

    def _read(self, pool: str, key: str, buffer: memoryview) -> PageResult:
        answer = self.answers.get((pool, key), "1")
        if answer in "1":
            buffer[:] = page_of(pool, key, self.rank)
            return PageResult(PAGE_BYTES)
        buffer[: PAGE_BYTES // 2] = b"!" * (PAGE_BYTES // 2)  # a failed read leaves dirt
        return PageResult(PAGE_BYTES // 2) if answer == "a" else PageResult(0, _CODES[answer])

    def _stop(self, pool: str, keys: Sequence[str]) -> None:
        with self.changed:
            if pool not in self.holding:
                return
            held = Held(pool, tuple(self.page[key] for key in keys))
            self.held.append(held)
            self.changed.notify_all()
        held.gate.wait()

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Take nothing."""
        return [False] * len(keys)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Hold nothing that could go."""
        return 0

    def check_integrity(self) -> None:
        """Find nothing: there are no books."""

    def close(self) -> None:
        """Let every call go."""
        self.open_all()
