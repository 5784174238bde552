"""Memory that the transport may touch: what was registered, where a page lies in it, and blocks for headers and detours."""

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, StoreError
from stores.host_region import SlotRegion
from stores.pages.header import HEADER_BYTES
from stores.pages.mooncake_engine import Engine

Bytes = NDArray[np.uint8]
Lent = tuple[Bytes, Sequence[int]]


class Part(NamedTuple):
    """Pages of a request that lie alike: outside of what is registered; in it; or there in slots with room for the header."""

    places: Sequence[int]  # which pages of the request
    inside: bool
    region: SlotRegion | None = None  # of slots with room
    slots: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    start: int
    stop: int
    memory: Bytes
    slots: SlotRegion | None


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
        self._kept: tuple[_Kept, ...] = ()  # by address; replaced as a whole, so that it is read without the lock

    def add(self, region: NDArray[np.generic] | SlotRegion) -> None:
        """Register a contiguous writable array, or slots. Raises `ConfigError` for another one, `StoreError` if refused."""
        slots = region if isinstance(region, SlotRegion) else None
        array = region.memory if isinstance(region, SlotRegion) else region
        if not array.flags.c_contiguous or not array.flags.writeable or not array.nbytes:
            raise ConfigError(
                "cannot register host memory: need a contiguous writable array that is not empty (where slots have header"
                " room, their `regions()`)"
            )
        flat = array.reshape(-1).view(np.uint8)
        start, nbytes = int(flat.__array_interface__["data"][0]), flat.nbytes
        with self._lock:
            code = self._engine.register_buffer(start, nbytes)
            if code != 0:
                raise StoreError(
                    f"cannot register {nbytes} bytes of host memory with Mooncake: code {code} (is part of it registered?)"
                )
            self._kept = tuple(sorted((*self._kept, _Kept(start, start + nbytes, flat, slots)), key=_start))

    def find(self, addresses: Sequence[int], nbytes: int) -> list[Part]:
        """Say where the pages of `nbytes` bytes that begin at these addresses lie, each in exactly one of the parts."""
        kept, every = self._kept, range(len(addresses))
        if not kept or not addresses:
            return [Part(every, False)]
        lowest, highest = min(addresses), max(addresses)
        around = kept[bisect_right(kept, lowest, key=_start) - 1]
        if around.start <= lowest and highest + nbytes <= around.stop:  # all in one region, the usual case
            return _parts(around, every, addresses, nbytes)
        outside: list[int] = []
        within: dict[_Kept, list[int]] = {}
        for place, address in enumerate(addresses):
            around = kept[bisect_right(kept, address, key=_start) - 1]
            inside = around.start <= address and address + nbytes <= around.stop
            (within.setdefault(around, []) if inside else outside).append(place)
        parts = [part for region, places in within.items() for part in _parts(region, places, addresses, nbytes)]
        return [*parts, Part(outside, False)] if outside else parts

    def close(self) -> None:
        """Undo every registration; the memory may be freed afterwards."""
        with self._lock:
            for kept in self._kept:
                self._engine.unregister_buffer(kept.start)
            self._kept = ()


def _start(kept: _Kept) -> int:
    return kept.start


def _parts(kept: _Kept, places: Sequence[int], addresses: Sequence[int], nbytes: int) -> list[Part]:
    region = kept.slots
    if region is None or region.page_bytes != nbytes or region.header_room_bytes < HEADER_BYTES:
        return [Part(places, True)]
    first, step = kept.start + region.header_room_bytes, region.header_room_bytes + nbytes
    inside = addresses if len(places) == len(addresses) else [addresses[place] for place in places]
    off = [(address - first) % step for address in inside]
    slots = [(address - first) // step for address in inside]
    if not any(off):
        return [Part(places, True, region, slots)]
    # What begins elsewhere than the page of a slot is not that page, and has no room.
    own, other = [not each for each in off], Part([*compress(places, off)], True)
    return [other, Part([*compress(places, own)], True, region, [*compress(slots, own)])] if any(own) else [other]


class Blocks:
    """Registered blocks of one shape, taken for the length of a call and given back. Thread-safe; grows as needed."""

    def __init__(self, regions: Regions, rows: int, row_bytes: int) -> None:
        self.rows, self.row_bytes = rows, row_bytes
        self._regions = regions
        self._lock = threading.Lock()
        self._free: list[Lent] = []
        self.made = self.taken = 0

    @contextmanager
    def take(self) -> Iterator[Lent]:
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

    def _make(self) -> Lent:
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
