"""Page slots of L2 in torch tensors: one page-first tensor per pool, pinned where there is a GPU.

Holds bytes and says which slots are free, held or quarantined. Knows nothing of keys, prefixes or prefetches.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, HostExhausted, IntegrityError
from lifecycle.layout import Layout
from lifecycle.runtime.ports import SlotArray
from stores.host_region import SlotRegion, checked_room_bytes
from stores.host_slots import SlotBook

_MAX_SLOTS = 2**31 - 1  # slot numbers are int32


class TorchHostMemory:
    """Keep the pages of every pool of a layout in host memory; satisfies `ports.HostMemory`.

    `capacity_pages` has the slots of each pool with own slots; a pool that rides on another has as many as its owner
    and is addressed by the owner's slots. `page_bytes` has the bytes of one page of every pool. Memory starts zeroed.

    `header_room_bytes` has, for pools that are to have it, the bytes of room in front of each slot for the header of a page
    store, a multiple of 64 (`stores.pages.header_room` says what a store can use). Slots then lie page and room apart, aligned
    to what divides both, and the pool takes `allocated_bytes`; views, buffers and tensors are the pages alone. A room is held,
    quarantined and freed with its slot. It costs 256 in 65,536 bytes at 64 KiB pages.

    `pin` defaults to whether CUDA is available. Only the scheduler thread takes and gives back; `buffers` may be called
    from any thread. The memory stays mapped for as long as a view of it lives. Raises `ConfigError` for sizes that make
    no sense.
    """

    def __init__(
        self,
        layout: Layout,
        capacity_pages: Mapping[str, int],
        page_bytes: Mapping[str, int],
        pin: bool | None = None,
        header_room_bytes: Mapping[str, int] | None = None,
    ) -> None:
        _check_sizes(layout, capacity_pages, page_bytes)
        rooms = _checked_rooms(layout, header_room_bytes or {})
        cuda = torch.cuda.is_available()
        if pin and not cuda:
            raise ConfigError("cannot pin host memory: CUDA is not available (leave `pin` out, or set it to False)")
        self.pinned = cuda if pin is None else pin
        self._layout = layout
        self._books = {pool.name: SlotBook(capacity_pages[pool.name]) for pool in layout.own}
        # Rows of a room and a page; most pools have no room.
        rows = {
            pool.name: torch.zeros(
                (capacity_pages[layout.owner(pool.name)], rooms[pool.name] + page_bytes[pool.name]),
                dtype=torch.uint8,
                pin_memory=self.pinned,
            )
            for pool in layout.pools
        }
        self._regions = {name: SlotRegion(tensor.numpy(), rooms[name]) for name, tensor in rows.items()}
        self._tensors = {name: tensor[:, rooms[name] :] for name, tensor in rows.items()}
        self._arrays: dict[str, NDArray[np.uint8]] = {
            name: region.memory[:, rooms[name] :] for name, region in self._regions.items()
        }
        # Slicing one flat view per pool is the cheapest way to a page; each slice keeps the tensor alive.
        self._flat = {name: region.memory.reshape(-1).data for name, region in self._regions.items()}

    def capacity_pages(self, pool: str) -> int:
        """Return how many slots the pool has."""
        return self._book(pool).capacity

    def free_pages(self, pool: str) -> int:
        """Return how many slots are free."""
        return self._book(pool).free

    def held_pages(self, pool: str) -> int:
        """Return how many slots are held: allocated, neither given back nor quarantined."""
        return self._book(pool).held

    def quarantined_pages(self, pool: str) -> int:
        """Return how many slots are quarantined."""
        return self._book(pool).quarantined

    def page_bytes(self, pool: str) -> int:
        """Return the bytes of one page of the pool."""
        self._layout.pool(pool)
        return int(self._arrays[pool].shape[1])

    def header_room_bytes(self, pool: str) -> int:
        """Return the bytes of room in front of each slot of the pool."""
        self._layout.pool(pool)
        return self._regions[pool].header_room_bytes

    def allocated_bytes(self, pool: str) -> int:
        """Return the bytes that the pool takes, rooms included."""
        self._layout.pool(pool)
        return int(self._regions[pool].memory.nbytes)

    def regions(self) -> tuple[SlotRegion, ...]:
        """Return the memory of every pool, rooms included, as `stores.pages.register_host_memory` takes it."""
        return tuple(self._regions.values())

    def allocate(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Take slots in several pools at once, ascending in each, or raise `HostExhausted` having taken none."""
        books = {pool: self._own_book("allocate", pool) for pool in need}
        for pool, pages in need.items():
            if pages < 0:
                raise ConfigError(f"cannot allocate {pages} pages of pool {pool!r}: ask for 0 or more")
            if pages > books[pool].free:
                raise HostExhausted(pool, pages, books[pool].free)
        return {pool: books[pool].take(pages) for pool, pages in need.items()}

    def release(self, pool: str, slots: SlotArray) -> None:
        """Give slots back; raises `DoubleRelease`, naming pool and slot, if one is not held, having released none."""
        self._own_book("release", pool).release(f"release pool {pool!r}", slots)

    def quarantine(self, pool: str, slots: SlotArray) -> None:
        """Take held slots out of use for good. Same errors as `release`."""
        self._own_book("quarantine", pool).quarantine(f"quarantine pool {pool!r}", slots)

    def buffers(self, pool: str, slots: SlotArray | Sequence[int]) -> list[memoryview]:
        """Return one writable view per slot, exactly one page long; raises `ConfigError` for a slot there is not."""
        nbytes = self.page_bytes(pool)
        array = np.asarray(slots)
        capacity = len(self._arrays[pool])
        if array.size and (int(array.min()) < 0 or int(array.max()) >= capacity):
            wrong = int(array[(array < 0) | (array >= capacity)][0])
            raise ConfigError(f"cannot view slot {wrong} of pool {pool!r}: there are slots 0 to {capacity - 1}")
        flat, room = self._flat[pool], self._regions[pool].header_room_bytes
        starts = array.astype(np.int64) * (room + nbytes) + room
        return [flat[start : start + nbytes] for start in starts.tolist()]

    def views(self, pool: str) -> NDArray[np.uint8]:
        """Return the whole pool as an array of shape [slots, page bytes]: the memory itself, not a copy.

        Contiguous unless the pool has header room.
        """
        self._layout.pool(pool)
        return self._arrays[pool]

    def tensor(self, pool: str) -> torch.Tensor:
        """Return the whole pool as a uint8 tensor of shape [slots, page bytes], for copies to a device.

        Contiguous unless the pool has header room; each row always is.
        """
        self._layout.pool(pool)
        return self._tensors[pool]

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every slot of every pool is in one state and the counts agree."""
        faults = [f"pool {name}: {fault}" for name, book in self._books.items() for fault in book.faults()]
        if faults:
            raise IntegrityError("host memory", faults)

    def _book(self, pool: str) -> SlotBook:
        return self._books[self._layout.owner(pool)]

    def _own_book(self, verb: str, pool: str) -> SlotBook:
        owner = self._layout.owner(pool)
        if owner != pool:
            raise ConfigError(f"cannot {verb} slots of pool {pool!r}: it uses the slots of {owner!r} ({verb} those)")
        return self._books[pool]


def _check_sizes(layout: Layout, capacity_pages: Mapping[str, int], page_bytes: Mapping[str, int]) -> None:
    own, every = [p.name for p in layout.own], [p.name for p in layout.pools]
    for what, given, names in (("capacity_pages", capacity_pages, own), ("page_bytes", page_bytes, every)):
        if sorted(given) != sorted(names):
            raise ConfigError(
                f"cannot build host memory of layout {layout.name!r}: {what} has {', '.join(given) or 'nothing'}"
                f" (give exactly {', '.join(names)})"
            )
        for pool, size in given.items():
            if size < 1:
                raise ConfigError(f"cannot build host memory: {what} of pool {pool!r} is {size} (use at least 1)")
    for pool, slots in capacity_pages.items():
        if slots > _MAX_SLOTS:
            raise ConfigError(f"cannot build host memory: pool {pool!r} has {slots} slots (use at most {_MAX_SLOTS})")


def _checked_rooms(layout: Layout, header_room_bytes: Mapping[str, int]) -> dict[str, int]:
    names = [pool.name for pool in layout.pools]
    for pool in header_room_bytes:
        if pool not in names:
            raise ConfigError(
                f"cannot build host memory of layout {layout.name!r}: header_room_bytes has {pool!r}, which is no pool of it"
                f" (there are {', '.join(names)})"
            )
    return {name: checked_room_bytes(f"build host memory of pool {name!r}", header_room_bytes.get(name, 0)) for name in names}
