"""A page store whose every answer is scripted, one character a page, as public fault reports write them: `1101`."""

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult

CODES: Mapping[str, ReadCode | None] = {
    "1": None,
    "0": ReadCode.MISSING,
    "s": ReadCode.SHORT,
    "c": ReadCode.CORRUPT,
    "i": ReadCode.IO_ERROR,
    "l": ReadCode.LEASE_EXPIRED,
}
"""`1` a whole page, `0` missing, `s` short, `c` corrupt, `i` an io error, `l` an expired lease; `a` ok with half a page."""

BATCHES = ("", "raise", "short", "long", "none")


class ScriptedStore:
    """Every page is there and whole until the script says otherwise. A failed read leaves dirt in its buffer."""

    def __init__(self, page_bytes: Mapping[str, int], salt: str = "") -> None:
        self._page_bytes, self._salt = dict(page_bytes), salt
        self._reads: dict[tuple[str, str], str] = {}
        self._hints: dict[tuple[str, str], bool] = {}
        self._batches: dict[str, str] = {}
        self.query = ""  # what becomes of queries, as in `batch`
        self.asked: list[tuple[str, tuple[str, ...]]] = []  # every read, in order

    def page(self, pool: str, key: str) -> bytes:
        """Return what the page of a key must hold."""
        nbytes = self._page_bytes[pool]
        seed = xxhash.xxh3_128_digest(f"{self._salt}/{pool}/{key}".encode())
        return (seed * (nbytes // len(seed) + 1))[:nbytes]

    def say(self, pool: str, answers: str, keys: Sequence[str]) -> None:
        """Answer the reads of `keys` as the text says; raises `ConfigError` for a character that means nothing."""
        if unknown := set(answers) - set(CODES) - {"a"}:
            raise ConfigError(f"cannot script {answers!r}: {sorted(unknown)} mean nothing (use {''.join(CODES)}a)")
        self._reads.update({(pool, key): answer for answer, key in zip(answers, keys, strict=False)})

    def show(self, pool: str, hints: str, keys: Sequence[str]) -> None:
        """Answer queries for `keys` as the text says: 1 there, 0 not."""
        self._hints.update({(pool, key): hint == "1" for hint, key in zip(hints, keys, strict=False)})

    def batch(self, pool: str, fault: str) -> None:
        """Have every read of a pool `raise`, answer too `short`, too `long` or with `none`; empty for nothing."""
        if fault not in BATCHES:
            raise ConfigError(f"cannot script batches that {fault!r}: use one of {', '.join(BATCHES[1:])}")
        self._batches[pool] = fault

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Answer a query as scripted."""
        hints = {pool: [self._hints.get((pool, key), True) for key in keys] for pool in pools}
        shaped = {pool: _shaped(flags, self.query) for pool, flags in hints.items()}
        return {pool: np.asarray(flags, dtype=np.bool_) for pool, flags in shaped.items()}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Answer a read as scripted."""
        self.asked.append((pool, tuple(keys)))
        results = [self._read(pool, key, buffer) for key, buffer in zip(keys, buffers, strict=True)]
        return _shaped(results, self._batches.get(pool, ""))  # type: ignore[return-value]

    def _read(self, pool: str, key: str, buffer: memoryview) -> PageResult:
        answer = self._reads.get((pool, key), "1")
        if answer == "1":
            buffer[:] = self.page(pool, key)
            return PageResult(len(buffer), None, xxhash.xxh3_64_intdigest(buffer))
        half = len(buffer) // 2
        buffer[:half] = b"!" * half
        return PageResult(half) if answer == "a" else PageResult(0, CODES[answer])

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Refuse: what is there is scripted."""
        return [False] * len(keys)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Delete nothing."""
        return 0

    def check_integrity(self) -> None:
        """Find nothing: there are no books."""

    def close(self) -> None:
        """Hold nothing."""


def _shaped(results: Sequence[object], fault: str) -> object:
    match fault:
        case "raise":
            raise OSError("scripted: the store fails")
        case "short":
            return results[:-1]
        case "long":
            return [*results, *results[-1:]]
        case "none":
            return None
    return results
