"""A page store whose pages are moved through slots of host memory with header room, as an engine moves them."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from page_store_contract import PAGE_BYTES

from lifecycle.layout import dsa
from lifecycle.runtime.ports import PageResult, PageStore
from stores.host import TorchHostMemory
from stores.pages import header_room, register_host_memory

SLOTS = 1024
POISON = 0xA5


class InSlots:
    """Reads into slots that it holds for the length of the call, and writes from such; the buffers are copied.

    Slots that are not held are full of one byte, room and page; `check_integrity` finds what was written there.
    """

    def __init__(self, inner: PageStore) -> None:
        self.inner = inner
        rooms = header_room(inner, PAGE_BYTES)
        self.memory = TorchHostMemory(dsa(), {"kv": SLOTS}, PAGE_BYTES, pin=False, header_room_bytes=rooms)
        self._lock = threading.Lock()
        self.rows = {pool: region.memory for pool, region in zip(("kv", "indexer"), self.memory.regions(), strict=True)}
        for rows in self.rows.values():
            rows[:] = POISON
        register_host_memory(inner, self.memory.regions())

    @contextmanager
    def _slots(self, pool: str, buffers: Sequence[memoryview]) -> Iterator[list[memoryview]]:
        if any(buffer.nbytes != PAGE_BYTES.get(pool) for buffer in buffers) or any(buffer.readonly for buffer in buffers):
            yield list(buffers)  # to be refused, or to be read from as they are
            return
        with self._lock:
            slots = self.memory.allocate({"kv": len(buffers)})["kv"]
        try:
            yield self.memory.buffers(pool, slots)
        finally:
            self.rows[pool][slots] = POISON
            with self._lock:
                self.memory.release("kv", slots)

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, np.ndarray]:
        return self.inner.restorable(keys, pools)

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        with self._slots(pool, buffers) as places:
            results = self.inner.read_into(pool, keys, places)
            for place, buffer, result in zip(places, buffers, results, strict=True):
                if result.code is None:
                    buffer.cast("B")[:] = place
        return results

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        writable = [memoryview(bytearray(buffer)) for buffer in buffers]
        with self._slots(pool, writable) as places:
            for place, buffer in zip(places, writable, strict=True):
                place[:] = buffer
            return self.inner.write(pool, keys, places)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        return self.inner.delete(pool, keys)

    def check_integrity(self) -> None:
        self.inner.check_integrity()
        self.memory.check_integrity()
        assert self.memory.held_pages("kv") == 0
        assert all((rows == POISON).all() for rows in self.rows.values()), "a slot that nobody held was written"
        assert not any(region.rooms.taken for region in self.memory.regions())

    def close(self) -> None:
        self.inner.close()
