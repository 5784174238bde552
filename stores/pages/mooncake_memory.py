"""Memory that the transport may touch: what was registered, where a page lies in it, and blocks for headers and detours."""

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, StoreError
from stores.host_region import Rooms, SlotRegion
from stores.pages.header import HEADER_BYTES
from stores.pages.mooncake_engine import Engine

Bytes = NDArray[np.uint8]


class Spot(NamedTuple):
    """Where a page lies: in registered memory or not; and if its slot has room for its header, what that is."""

    inside: bool
    head: memoryview | None = None  # the end of the slot's room
    rooms: Rooms | None = None
    slot: int = -1


OUTSIDE, BARE = Spot(False), Spot(True)


class _Kept(NamedTuple):
    start: int
    stop: int
    flat: Bytes
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
            self._kept = tuple(sorted((*self._kept, _Kept(start, start + nbytes, flat, slots)), key=lambda kept: kept.start))

    def find(self, addresses: Sequence[int], nbytes: int) -> list[Spot]:
        """Say for each address where the page of `nbytes` bytes that begins there lies. A page must lie in one region."""
        kept = self._kept
        if not kept or not addresses:
            return [OUTSIDE] * len(addresses)
        around = kept[bisect_right(kept, min(addresses), key=_start) - 1]
        if around.start <= min(addresses) and max(addresses) + nbytes <= around.stop:  # all in one region, the usual case
            return _spots(around, addresses, nbytes)
        out = []
        for address in addresses:
            around = kept[bisect_right(kept, address, key=_start) - 1]
            inside = around.start <= address and address + nbytes <= around.stop
            out += _spots(around, [address], nbytes) if inside else [OUTSIDE]
        return out

    def close(self) -> None:
        """Undo every registration; the memory may be freed afterwards."""
        with self._lock:
            for kept in self._kept:
                self._engine.unregister_buffer(kept.start)
            self._kept = ()


def _start(kept: _Kept) -> int:
    return kept.start


def _spots(kept: _Kept, addresses: Sequence[int], nbytes: int) -> list[Spot]:
    slots = kept.slots
    if slots is None or slots.page_bytes != nbytes or slots.header_room_bytes < HEADER_BYTES:
        return [BARE] * len(addresses)
    step, flat, rooms, first = slots.memory.shape[1], kept.flat.data, slots.rooms, kept.start + slots.header_room_bytes
    out = []
    for address in addresses:
        slot, off = divmod(address - first, step)
        at = address - kept.start
        # What begins elsewhere than a slot's page is not that page, and has no room.
        out.append(Spot(True, flat[at - HEADER_BYTES : at], rooms, slot) if off == 0 else BARE)
    return out


@contextmanager
def claim(spots: Sequence[Spot]) -> Iterator[list[bool]]:
    """Take the rooms of these pages for the length of a call; say of each whether it has one and got it."""
    got = [False] * len(spots)
    taken: list[tuple[Rooms, list[int]]] = []
    try:
        for rooms in {spot.rooms for spot in spots if spot.rooms is not None}:
            places = [place for place, spot in enumerate(spots) if spot.rooms is rooms]
            free = rooms.take([spots[place].slot for place in places])
            taken.append((rooms, [spots[place].slot for place in compress(places, free)]))
            for place, is_free in zip(places, free, strict=True):
                got[place] = is_free
        yield got
    finally:
        for rooms, slots in taken:
            rooms.give_back(slots)


class Row(NamedTuple):
    """A row of a block: where it begins, and a view of it."""

    address: int
    view: memoryview


class Blocks:
    """Registered blocks of one shape, taken for the length of a call and given back. Thread-safe; grows as needed."""

    def __init__(self, regions: Regions, rows: int, row_bytes: int) -> None:
        self.rows, self.row_bytes = rows, row_bytes
        self._regions = regions
        self._lock = threading.Lock()
        self._free: list[Sequence[Row]] = []
        self.made = self.taken = 0

    @contextmanager
    def take(self) -> Iterator[Sequence[Row]]:
        """Lend the rows of a block."""
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

    def _make(self) -> Sequence[Row]:
        block = np.zeros((self.rows, self.row_bytes), np.uint8)
        self._regions.add(block)
        with self._lock:
            self.made += 1
            self.taken += 1
        first = int(block.__array_interface__["data"][0])
        return [Row(first + row * self.row_bytes, block[row].data) for row in range(self.rows)]

    def faults(self) -> list[str]:
        """Return what does not add up."""
        with self._lock:
            if self.taken < 0 or self.taken + len(self._free) != self.made:
                return [f"{self.made} blocks were made, {self.taken} are lent and {len(self._free)} are free"]
        return []
