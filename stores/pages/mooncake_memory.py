"""Memory that the transport may touch: what was registered, where a buffer lies, and blocks for headers and detours."""

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, StoreError
from stores.pages.mooncake_engine import Engine

Bytes = NDArray[np.uint8]


def addresses_of(buffers: Sequence[memoryview]) -> list[int]:
    """Return where contiguous buffers begin, without copying them."""
    address, writable = ctypes.addressof, ctypes.c_char.from_buffer
    try:
        return [address(writable(buffer)) for buffer in buffers]
    except TypeError:  # constants: 20 times slower
        return [int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]) for buffer in buffers]


class Regions:
    """The memory registered with one engine, each region once. Keeps it alive until `close`. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: dict[int, Bytes] = {}
        self._bounds = _bounds({})

    def add(self, region: NDArray[np.generic]) -> None:
        """Register a contiguous writable array. Raises `ConfigError` for another one, `StoreError` if it is refused."""
        if not region.flags.c_contiguous or not region.flags.writeable or not region.nbytes:
            raise ConfigError("cannot register host memory: need a contiguous writable array that is not empty")
        flat = region.reshape(-1).view(np.uint8)
        start, nbytes = int(flat.__array_interface__["data"][0]), flat.nbytes
        with self._lock:
            code = self._engine.register_buffer(start, nbytes)
            if code != 0:
                raise StoreError(
                    f"cannot register {nbytes} bytes of host memory with Mooncake: code {code} (is part of it registered?)"
                )
            self._kept[start] = flat
            self._bounds = _bounds(self._kept)

    def cover(self, addresses: Sequence[int], nbytes: int) -> list[bool]:
        """Say for each address whether `nbytes` from there on lie in one region."""
        starts, stops = self._bounds  # read without the lock: replaced as a whole
        if not starts or not addresses:
            return [False] * len(addresses)
        place = bisect_right(starts, min(addresses)) - 1
        if place >= 0 and max(addresses) + nbytes <= stops[place]:  # all in one region, the usual case
            return [True] * len(addresses)
        places = [bisect_right(starts, address) - 1 for address in addresses]
        return [place >= 0 and address + nbytes <= stops[place] for place, address in zip(places, addresses, strict=True)]

    def close(self) -> None:
        """Undo every registration; the memory may be freed afterwards."""
        with self._lock:
            for start in self._kept:
                self._engine.unregister_buffer(start)
            self._kept.clear()
            self._bounds = _bounds({})


def _bounds(kept: dict[int, Bytes]) -> tuple[list[int], list[int]]:
    starts = sorted(kept)
    return starts, [start + kept[start].nbytes for start in starts]


class Blocks:
    """Registered blocks of one shape, taken for the length of a call and given back. Thread-safe; grows as needed."""

    def __init__(self, regions: Regions, rows: int, row_bytes: int) -> None:
        self.rows, self.row_bytes = rows, row_bytes
        self._regions = regions
        self._lock = threading.Lock()
        self._free: list[tuple[Bytes, Sequence[int]]] = []
        self.made = self.taken = 0

    @contextmanager
    def take(self) -> Iterator[tuple[Bytes, Sequence[int]]]:
        """Lend a block of shape [rows, row_bytes] and the addresses of its rows."""
        with self._lock:
            lent = self._free.pop() if self._free else None
            self.taken += lent is not None
        if lent is None:
            lent = self._make()
        try:
            yield lent
        finally:
            with self._lock:
                self.taken -= 1
                self._free.append(lent)

    def _make(self) -> tuple[Bytes, Sequence[int]]:
        block = np.zeros((self.rows, self.row_bytes), np.uint8)
        self._regions.add(block)
        with self._lock:
            self.made += 1
            self.taken += 1
        first = int(block.__array_interface__["data"][0])
        return block, range(first, first + block.nbytes, self.row_bytes)

    def faults(self) -> list[str]:
        """Return what does not add up."""
        with self._lock:
            if self.taken < 0 or self.taken + len(self._free) != self.made:
                return [f"{self.made} blocks were made, {self.taken} are lent and {len(self._free)} are free"]
        return []
