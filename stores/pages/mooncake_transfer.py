"""Pages moved between the engine and buffers: each with its header in front or beside it, or by a detour.

Judges nothing and believes nothing. One call of the engine per call here, of at most `MAX_KEYS` keys.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from stores.host_region import SlotRegion
from stores.pages.header import HEADER_BYTES
from stores.pages.mooncake_engine import MAX_KEYS, Engine
from stores.pages.mooncake_judge import Answer, PoolPages
from stores.pages.mooncake_memory import Blocks, Part, Regions, addresses_of

_T = TypeVar("_T")
_DETOUR_BYTES = 4 << 20


class Batch(NamedTuple):
    """Up to `MAX_KEYS` pages of one pool that lie alike: their places in the request, keys, buffers, addresses and slots."""

    pages: PoolPages
    part: Part
    places: Sequence[int]
    keys: Sequence[str]
    buffers: Sequence[memoryview]
    addresses: Sequence[int]
    slots: Sequence[int]  # of a region with room, else empty

    def of(self, chosen: Sequence[int]) -> "Batch":
        """Return the batch of some of the pages."""
        return Batch(self.pages, self.part, *(_pick(column, chosen) for column in self[2:]))  # type: ignore[arg-type]


class Way(NamedTuple):
    """What one call of the engine moves: for each page one piece or two, header first; and where the headers lie."""

    pointers: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    table: NDArray[np.uint8]
    rows: slice | Sequence[int]  # of the table, one for each page
    buffers: Sequence[memoryview]


class Transfer:
    """Moves batches through one engine. Thread-safe."""

    def __init__(self, engine: Engine, largest_page_bytes: int) -> None:
        self._engine = engine
        self.regions = Regions(engine)
        self._headers = Blocks(self.regions, MAX_KEYS, HEADER_BYTES)
        rows = max(1, min(MAX_KEYS, _DETOUR_BYTES // largest_page_bytes))
        self._detours = Blocks(self.regions, rows, HEADER_BYTES + largest_page_bytes)

    def batches(self, pages: PoolPages, keys: Sequence[str], buffers: Sequence[memoryview]) -> Iterator[Batch]:
        """Cut a request so that each part lies alike and fits one call, and one block of the detour."""
        addresses = addresses_of(buffers)
        for part in self.regions.find(addresses, pages.nbytes):
            every = Batch(pages, part, range(len(keys)), keys, buffers, addresses, ())
            if len(part.places) < len(keys):
                every = every.of(part.places)
            every = every._replace(slots=part.slots)
            most = MAX_KEYS if part.inside else self._detours.rows
            if 0 < len(part.places) <= most:  # the usual case
                yield every
                continue
            for start in range(0, len(part.places), most):
                yield every.of(range(start, min(start + most, len(part.places))))

    def fetch(self, batch: Batch, names: list[str], causes: Counter[str]) -> tuple[list[int], list[Answer]]:
        """Read the pages into their buffers; return the engine's codes and what they and the bytes mean."""
        with self._way(batch) as way:
            codes = self._engine.batch_get_into_multi_buffers(names, way.pointers, way.sizes)
            answers = batch.pages.judge(codes, batch.keys, way.table[way.rows], way.buffers)
            if not batch.part.inside:
                causes["read.detour"] += len(names)
                for buffer, moved, (result, _) in zip(batch.buffers, way.buffers, answers, strict=True):
                    if result.code is None:
                        buffer.cast("B")[:] = moved
        return codes, answers

    def put(self, batch: Batch, names: list[str], checksums: Sequence[int], causes: Counter[str]) -> list[int]:
        """Write the pages from their buffers; return the engine's codes."""
        heads = b"".join(map(batch.pages.header.pack, batch.keys, checksums))
        with self._way(batch) as way:
            way.table[way.rows] = np.frombuffer(heads, np.uint8).reshape(-1, HEADER_BYTES)
            if not batch.part.inside:
                causes["write.detour"] += len(names)
                for buffer, moved in zip(batch.buffers, way.buffers, strict=True):
                    moved[:] = buffer.cast("B")
            return self._engine.batch_put_from_multi_buffers(names, way.pointers, way.sizes)

    @contextmanager
    def _way(self, batch: Batch) -> Iterator[Way]:
        """Take what the call needs besides the pages: their rooms, else rows for the headers, or for all of it.

        A transport may take each piece as a request of its own, so that header and page in one piece are worth having.
        """
        count, nbytes = len(batch.keys), batch.pages.nbytes
        together, apart = [[HEADER_BYTES + nbytes]] * count, [[HEADER_BYTES, nbytes]] * count
        region = batch.part.region
        if region is not None and region.rooms.take(batch.slots):
            try:
                pointers = [[address - HEADER_BYTES] for address in batch.addresses]
                yield Way(pointers, together, region.heads(HEADER_BYTES), batch.slots, batch.buffers)
            finally:
                region.rooms.give_back(batch.slots)
        elif batch.part.inside:
            with self._headers.take() as (block, rows):
                yield Way(list(zip(rows, batch.addresses, strict=False)), apart, block, slice(count), batch.buffers)
        else:
            with self._detours.take() as (block, rows):
                pages = [row.data for row in block[:count, HEADER_BYTES : HEADER_BYTES + nbytes]]
                yield Way([[row] for row in rows[:count]], together, block[:, :HEADER_BYTES], slice(count), pages)

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


def _pick(column: Sequence[_T], chosen: Sequence[int]) -> Sequence[_T]:
    return [column[place] for place in chosen] if column else column
