"""Pages moved between the engine and buffers: headers beside them, and a detour for buffers that are not registered.

Judges nothing and believes nothing. One call of the engine per call here, of at most `MAX_KEYS` keys.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from stores.pages.header import HEADER_BYTES
from stores.pages.mooncake_engine import MAX_KEYS, Engine
from stores.pages.mooncake_judge import Answer, PoolPages
from stores.pages.mooncake_memory import Blocks, Regions, addresses_of

_DETOUR_BYTES = 4 << 20


class Batch(NamedTuple):
    """Up to `MAX_KEYS` pages of one pool: keys, buffers, where these lie, and which of them are registered."""

    pages: PoolPages
    keys: Sequence[str]
    buffers: Sequence[memoryview]
    addresses: Sequence[int]
    inside: Sequence[bool]

    def of(self, places: Sequence[int]) -> "Batch":
        """Return the batch of some of the pages."""
        keys, buffers, addresses, inside = ([given[place] for place in places] for given in self[1:])
        return Batch(self.pages, keys, buffers, addresses, inside)  # type: ignore[arg-type]


class Transfer:
    """Moves batches through one engine. Thread-safe."""

    def __init__(self, engine: Engine, largest_page_bytes: int) -> None:
        self._engine = engine
        self.regions = Regions(engine)
        self._headers = Blocks(self.regions, MAX_KEYS, HEADER_BYTES)
        rows = max(1, min(MAX_KEYS, _DETOUR_BYTES // largest_page_bytes))
        self._detours = Blocks(self.regions, rows, largest_page_bytes)

    def batches(self, pages: PoolPages, keys: Sequence[str], buffers: Sequence[memoryview]) -> Iterator[Batch]:
        """Cut a request so that each part fits one call and one block of the detour."""
        addresses = addresses_of(buffers)
        inside = self.regions.cover(addresses, pages.nbytes)
        if 0 < len(inside) <= MAX_KEYS and all(inside):  # the usual case
            yield Batch(pages, keys, buffers, addresses, inside)
            return
        start = outside = 0
        for place, is_inside in enumerate(inside):
            if place - start == MAX_KEYS or (not is_inside and outside == self._detours.rows):
                yield Batch(pages, keys[start:place], buffers[start:place], addresses[start:place], inside[start:place])
                start, outside = place, 0
            outside += not is_inside
        if start < len(inside):
            yield Batch(pages, keys[start:], buffers[start:], addresses[start:], inside[start:])

    def fetch(self, batch: Batch, names: list[str], causes: Counter[str]) -> tuple[list[int], list[Answer]]:
        """Read the pages into their buffers; return the engine's codes and what they and the bytes mean."""
        if all(batch.inside):
            return self._fetch(batch, names, batch.addresses)
        outside = [place for place, is_inside in enumerate(batch.inside) if not is_inside]
        causes["read.detour"] += len(outside)
        addresses, buffers = list(batch.addresses), list(batch.buffers)
        with self._detours.take() as (block, rows):
            for row, place in enumerate(outside):
                addresses[place] = rows[row]
                buffers[place] = block[row, : batch.pages.nbytes].data
            codes, answers = self._fetch(batch._replace(buffers=buffers), names, addresses)
            for place in outside:
                if answers[place][0].code is None:
                    batch.buffers[place].cast("B")[:] = buffers[place]
        return codes, answers

    def _fetch(self, batch: Batch, names: list[str], addresses: Sequence[int]) -> tuple[list[int], list[Answer]]:
        with self._headers.take() as (heads, rows):
            pointers = list(zip(rows, addresses, strict=False))
            codes = self._engine.batch_get_into_multi_buffers(names, pointers, [batch.pages.sizes] * len(names))
            return codes, batch.pages.judge(codes, batch.keys, heads, batch.buffers)

    def put(self, batch: Batch, names: list[str], checksums: Sequence[int], causes: Counter[str]) -> list[int]:
        """Write the pages from their buffers; return the engine's codes."""
        if all(batch.inside):
            return self._put(batch, names, checksums, batch.addresses)
        addresses = list(batch.addresses)
        outside = [place for place, is_inside in enumerate(batch.inside) if not is_inside]
        causes["write.detour"] += len(outside)
        with self._detours.take() as (block, rows):
            for row, place in enumerate(outside):
                addresses[place] = rows[row]
                block[row, : batch.pages.nbytes] = np.frombuffer(batch.buffers[place], np.uint8)
            return self._put(batch, names, checksums, addresses)

    def _put(self, batch: Batch, names: list[str], checksums: Sequence[int], addresses: Sequence[int]) -> list[int]:
        with self._headers.take() as (heads, rows):
            for row, (key, checksum) in enumerate(zip(batch.keys, checksums, strict=True)):
                heads[row] = np.frombuffer(batch.pages.header.pack(key, checksum), np.uint8)
            pointers = list(zip(rows, addresses, strict=False))
            return self._engine.batch_put_from_multi_buffers(names, pointers, [batch.pages.sizes] * len(names))

    def register(self, region: NDArray[np.generic]) -> None:
        """Let pages in this array be moved without a detour."""
        self.regions.add(region)

    def faults(self, idle: bool) -> list[str]:
        """Return what does not add up; `idle`: no call is in flight."""
        found = [*self._headers.faults(), *self._detours.faults()]
        lent = self._headers.taken + self._detours.taken
        return [*found, f"no call is in flight, and {lent} blocks are lent"] if idle and lent else found

    def close(self) -> None:
        """Let go of all memory. No call may be in flight."""
        self.regions.close()


def checksums(batch: Batch) -> list[int]:
    """Return the xxh3-64 of each page."""
    return [xxhash.xxh3_64_intdigest(buffer) for buffer in batch.buffers]
