"""Pages moved between the engine and buffers: each with its header in front or beside it, or by a detour.

Judges nothing and believes nothing. One call of the engine per call here, of at most `MAX_KEYS` keys.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from stores.host_region import SlotRegion
from stores.pages.header import HEADER_BYTES
from stores.pages.mooncake_engine import MAX_KEYS, Engine
from stores.pages.mooncake_judge import Answer, PoolPages
from stores.pages.mooncake_memory import Blocks, Regions, Spot, addresses_of, claim

_DETOUR_BYTES = 4 << 20


class Batch(NamedTuple):
    """Up to `MAX_KEYS` pages of one pool: keys, buffers, and where these lie."""

    pages: PoolPages
    keys: Sequence[str]
    buffers: Sequence[memoryview]
    addresses: Sequence[int]
    spots: Sequence[Spot]

    def of(self, places: Sequence[int]) -> "Batch":
        """Return the batch of some of the pages."""
        keys, buffers, addresses, spots = ([given[place] for place in places] for given in self[1:])
        return Batch(self.pages, keys, buffers, addresses, spots)  # type: ignore[arg-type]

    def cut(self, start: int, stop: int) -> "Batch":
        """Return the batch of the pages [start, stop)."""
        keys, buffers, addresses, spots = (given[start:stop] for given in self[1:])
        return Batch(self.pages, keys, buffers, addresses, spots)  # type: ignore[arg-type]


class Way(NamedTuple):
    """What one call of the engine moves: per page its one or two pieces, header first, and where header and page lie."""

    pointers: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    heads: Sequence[memoryview]
    buffers: Sequence[memoryview]
    detours: Sequence[int]  # the pages whose buffer here is not their own


class Transfer:
    """Moves batches through one engine. Thread-safe."""

    def __init__(self, engine: Engine, largest_page_bytes: int) -> None:
        self._engine = engine
        self.regions = Regions(engine)
        self._headers = Blocks(self.regions, MAX_KEYS, HEADER_BYTES)
        rows = max(1, min(MAX_KEYS, _DETOUR_BYTES // largest_page_bytes))
        self._detours = Blocks(self.regions, rows, HEADER_BYTES + largest_page_bytes)

    def batches(self, pages: PoolPages, keys: Sequence[str], buffers: Sequence[memoryview]) -> Iterator[Batch]:
        """Cut a request so that each part fits one call and one block of the detour."""
        addresses = addresses_of(buffers)
        whole = Batch(pages, keys, buffers, addresses, self.regions.find(addresses, pages.nbytes))
        start = outside = 0
        for place, spot in enumerate(whole.spots):
            if place - start == MAX_KEYS or (not spot.inside and outside == self._detours.rows):
                yield whole.cut(start, place)
                start, outside = place, 0
            outside += not spot.inside
        if start < len(keys):
            yield whole.cut(start, len(keys)) if start else whole

    def fetch(self, batch: Batch, names: list[str], causes: Counter[str]) -> tuple[list[int], list[Answer]]:
        """Read the pages into their buffers; return the engine's codes and what they and the bytes mean."""
        with self._way(batch) as way:
            codes = self._engine.batch_get_into_multi_buffers(names, way.pointers, way.sizes)
            answers = batch.pages.judge(codes, batch.keys, way.heads, way.buffers)
            for place in way.detours:
                if answers[place][0].code is None:
                    batch.buffers[place].cast("B")[:] = way.buffers[place]
        causes.update({"read.detour": len(way.detours)} if way.detours else {})
        return codes, answers

    def put(self, batch: Batch, names: list[str], checksums: Sequence[int], causes: Counter[str]) -> list[int]:
        """Write the pages from their buffers; return the engine's codes."""
        with self._way(batch) as way:
            for key, checksum, head in zip(batch.keys, checksums, way.heads, strict=True):
                head[:] = batch.pages.header.pack(key, checksum)
            for place in way.detours:
                way.buffers[place][:] = batch.buffers[place].cast("B")
            codes = self._engine.batch_put_from_multi_buffers(names, way.pointers, way.sizes)
        causes.update({"write.detour": len(way.detours)} if way.detours else {})
        return codes

    @contextmanager
    def _way(self, batch: Batch) -> Iterator[Way]:
        """Take what the call needs besides the pages: their rooms, else a header's row, or a row of the detour.

        A transport may take each piece as a request of its own, so that one piece is worth having.
        """
        count, nbytes = len(batch.keys), batch.pages.nbytes
        together = [HEADER_BYTES + nbytes]
        with ExitStack() as stack:
            roomy = stack.enter_context(claim(batch.spots))
            if all(roomy):
                heads = [spot.head for spot in batch.spots if spot.head is not None]
                pointers: list[Sequence[int]] = [[address - HEADER_BYTES] for address in batch.addresses]
                yield Way(pointers, [together] * count, heads, batch.buffers, ())
                return
            rows = stack.enter_context(self._headers.take())
            pointers = [[row.address, address] for row, address in zip(rows, batch.addresses, strict=False)]
            sizes: list[Sequence[int]] = [[HEADER_BYTES, nbytes]] * count
            heads, buffers = [row.view for row in rows[:count]], list(batch.buffers)
            for place, (spot, taken) in enumerate(zip(batch.spots, roomy, strict=True)):
                if taken and spot.head is not None:
                    pointers[place], sizes[place] = [batch.addresses[place] - HEADER_BYTES], together
                    heads[place] = spot.head
            outside = [place for place, spot in enumerate(batch.spots) if not spot.inside]
            lent = stack.enter_context(self._detours.take())[: len(outside)] if outside else ()
            for place, row in zip(outside, lent, strict=True):
                pointers[place], sizes[place] = [row.address], together
                heads[place], buffers[place] = row.view[:HEADER_BYTES], row.view[HEADER_BYTES : HEADER_BYTES + nbytes]
            yield Way(pointers, sizes, heads, buffers, outside)

    def register(self, region: NDArray[np.generic] | SlotRegion) -> None:
        """Let pages in this memory be moved without a detour."""
        self.regions.add(region)

    def faults(self, idle: bool) -> list[str]:
        """Return what does not add up; `idle`: no call is in flight."""
        found = [*self._headers.faults(), *self._detours.faults()]
        if idle and (lent := self._headers.taken + self._detours.taken):
            found.append(f"no call is in flight, and {lent} blocks are lent")
        return found

    def close(self) -> None:
        """Let go of all memory. No call may be in flight."""
        self.regions.close()


def checksums(batch: Batch) -> list[int]:
    """Return the xxh3-64 of each page."""
    return [xxhash.xxh3_64_intdigest(buffer) for buffer in batch.buffers]
