"""A page store that lies, delays, fails and never answers, as real ones do: to be put around any other in tests.

What it does follows from (seed, rank, verb, pool, first key, how often that was asked): ranks differ, and a run can be
repeated in whatever order its threads run.
"""

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult, PageStore


@dataclass(frozen=True, slots=True)
class FaultMix:
    """How often each fault comes, as a multiple of the store's rate. A page, a batch or a query has one fault at most.

    The defaults make about one page in 20 / rate bad: at rate 0.1 some prefetches of 20 pages fail and most do not.
    Where the chances of one kind exceed 1 together, those declared last get what is left.
    """

    # per page read; all but `corrupt` leave the buffer as it was, or dirty, as often as not
    missing: float = 1 / 100
    short: float = 1 / 100
    corrupt: float = 1 / 100
    io_error: float = 1 / 100
    lease_expired: float = 1 / 100
    # per batch read
    never: float = 1 / 100
    raises: float = 1 / 10
    wrong_length: float = 1 / 10
    late: float = 1.0
    # per query
    query_never: float = 1 / 100
    query_raises: float = 1 / 10
    query_late: float = 1.0
    # per page asked for in a query
    phantom: float = 1 / 100  # claimed, though not there
    omitted: float = 1 / 100  # there, not claimed
    # per page written
    unwritten: float = 1 / 20
    # how long late answers take, in seconds
    late_min_s: float = 0.002
    late_max_s: float = 0.1

    def __post_init__(self) -> None:
        negative = [name for name in self.__slots__ if getattr(self, name) < 0]
        if negative or self.late_min_s > self.late_max_s:
            raise ConfigError(f"cannot use {self}: need weights of at least 0 and late_min_s <= late_max_s")

    def of(self, names: Sequence[str], rate: float) -> tuple[tuple[str, float], ...]:
        """Return the chance of each named fault at this rate."""
        return tuple((name, getattr(self, name) * rate) for name in names)


_CODES = {code.value: code for code in (ReadCode.MISSING, ReadCode.IO_ERROR, ReadCode.LEASE_EXPIRED)}


class FaultyStore:
    """Wraps a page store and makes about `rate` of its batches, and fewer of its pages, go wrong. Thread-safe.

    Calls that are never answered block until `release_all()` or `close()`; only then do they write into their buffers.
    Raises `ConfigError` for a rate outside 0 to 1.
    """

    def __init__(self, inner: PageStore, rate: float, seed: int, rank: int, mix: FaultMix = FaultMix()) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"cannot use rate {rate}: need 0 to 1")
        self._inner = inner
        self._mix = mix
        self._origin = f"{seed}/{rank}"
        self._page = mix.of(("missing", "short", "corrupt", "io_error", "lease_expired"), rate)
        self._batch = mix.of(("never", "raises", "wrong_length", "late"), rate)
        self._query = mix.of(("query_never", "query_raises", "query_late"), rate)
        self._write = mix.of(("unwritten",), rate)
        self._claims = dict(mix.of(("phantom", "omitted"), rate))
        self._changed = threading.Condition()  # guards all below
        self._asked: Counter[tuple[str, str, str]] = Counter()
        self._counts: Counter[str] = Counter()
        self._gate = threading.Event()
        self._blocked = 0
        self._closed = False

    @property
    def counts(self) -> dict[str, int]:
        """How often each fault was given, by its name in `FaultMix`; `ok` are pages read without one."""
        with self._changed:
            return dict(self._counts)

    @property
    def blocked(self) -> int:
        """How many calls are waiting for `release_all()`."""
        return self._blocked

    def wait_blocked(self, calls: int, timeout_s: float = 10.0) -> bool:
        """Wait until at least `calls` calls are blocked; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._blocked >= calls, timeout_s)

    def release_all(self) -> None:
        """Let every call that is blocked now go on; later ones block again."""
        with self._changed:
            gate, self._gate = self._gate, threading.Event()
        gate.set()

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Ask the inner store, and answer late, never, with an error or with a few wrong bools."""
        dice = self._dice("query", ",".join(pools), keys)
        fault = _draw(dice, self._query)
        self._count({fault: 1} if fault else {})
        if fault == "query_raises":
            raise RuntimeError("injected: the existence query failed")
        claimed = {pool: np.array(there, dtype=np.bool_) for pool, there in self._inner.restorable(keys, pools).items()}
        self._delay(fault, dice)
        for there in claimed.values():
            dices = np.array([dice.random() for _ in keys])
            phantom = ~there & (dices < self._claims["phantom"])
            omitted = there & (dices < self._claims["omitted"])
            there ^= phantom | omitted
            self._count({"phantom": int(phantom.sum()), "omitted": int(omitted.sum())})
        return claimed

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Read from the inner store, and answer late, never, with an error, with too few results or with bad pages."""
        dice = self._dice("read", pool, keys)
        fault = _draw(dice, self._batch)
        self._count({fault: 1} if fault else {})
        if fault == "raises":
            done = dice.randrange(len(keys) + 1)  # some pages may be in place by then
            self._inner.read_into(pool, keys[:done], buffers[:done])
            raise RuntimeError("injected: the read failed")
        if fault == "never":
            return self._read_at_last(pool, keys, buffers)
        self._delay(fault, dice)
        results = self._read(pool, keys, buffers, dice)
        if fault == "wrong_length":
            return dice.choice((results[:-1], [*results, *results[-1:]], [], results * 2)) if results else [PageResult(0)]
        return results

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Write to the inner store, except a few pages that are refused."""
        dice = self._dice("write", pool, keys)
        kept = [_draw(dice, self._write) is None for _ in keys]
        places = [place for place, keep in enumerate(kept) if keep]
        answers = self._inner.write(pool, [keys[place] for place in places], [buffers[place] for place in places])
        for place, answer in zip(places, answers, strict=True):
            kept[place] = answer
        self._count({"unwritten": len(keys) - len(places)})
        return kept

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Delete from the inner store."""
        return self._inner.delete(pool, keys)

    def check_integrity(self) -> None:
        """Check the inner store."""
        self._inner.check_integrity()

    def close(self) -> None:
        """Let every blocked call go on, for good, and close the inner store."""
        with self._changed:
            self._closed = True
        self.release_all()
        self._inner.close()

    def _read(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview], dice: random.Random) -> list[PageResult]:
        faults = [_draw(dice, self._page) for _ in keys]
        asked = [place for place, fault in enumerate(faults) if fault in (None, "corrupt", "short")]
        kept = {place: bytes(buffers[place]) for place in asked if faults[place] == "short"}
        answers = self._inner.read_into(pool, [keys[place] for place in asked], [buffers[place] for place in asked])
        results = dict(zip(asked, answers, strict=True))
        for place, fault in enumerate(faults):
            if fault is not None:
                results[place] = _spoil(fault, buffers[place], kept.get(place), dice)
        self._count(Counter(fault or "ok" for fault in faults))
        return [results[place] for place in range(len(keys))]

    def _read_at_last(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        scratch = [memoryview(bytearray(buffer.nbytes)) for buffer in buffers]
        results = self._inner.read_into(pool, keys, scratch)  # now: the inner store may be closed by then
        self._block()
        for buffer, late in zip(buffers, scratch, strict=True):
            buffer.cast("B")[:] = late
        return results

    def _delay(self, fault: str | None, dice: random.Random) -> None:
        if fault == "query_never":
            self._block()
        elif fault in ("late", "query_late"):
            self._gate.wait(dice.uniform(self._mix.late_min_s, self._mix.late_max_s))

    def _block(self) -> None:
        with self._changed:
            gate = self._gate
            if self._closed:
                return
            self._blocked += 1
            self._changed.notify_all()
        gate.wait()
        with self._changed:
            self._blocked -= 1
            self._changed.notify_all()

    def _dice(self, verb: str, pool: str, keys: Sequence[str]) -> random.Random:
        first = keys[0] if keys else ""
        with self._changed:
            self._asked[verb, pool, first] += 1
            times = self._asked[verb, pool, first]
        return random.Random(f"{self._origin}/{verb}/{pool}/{first}/{times}")

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._changed:
            self._counts.update(counts)


def _draw(dice: random.Random, chances: tuple[tuple[str, float], ...]) -> str | None:
    left = dice.random()
    for name, chance in chances:
        if left < chance:
            return name
        left -= chance
    return None


def _spoil(fault: str, buffer: memoryview, before: bytes | None, dice: random.Random) -> PageResult:
    page = np.frombuffer(buffer, dtype=np.uint8)
    if fault == "corrupt":
        start = dice.randrange(page.size)
        page[start : dice.randrange(start, page.size) + 1] ^= 0xFF
        return PageResult(0, ReadCode.CORRUPT)
    dirty = dice.random() < 0.5
    if fault == "short":
        came = dice.randrange(page.size)
        if dirty:
            page[came:] = dice.randrange(256)
        elif before is not None:
            page[came:] = np.frombuffer(before, dtype=np.uint8)[came:]
        return PageResult(came, ReadCode.SHORT)
    if dirty:
        page[:] = dice.randrange(256)
    return PageResult(0, _CODES[fault])
