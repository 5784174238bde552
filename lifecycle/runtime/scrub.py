"""Resident pages hashed again and compared with what landed: a page that was overwritten afterwards is no bad read.

The log says which page of which prefetch is in which slot, and its checksum (xxh3-64), where the store gave one. Needs the
host memory of the rank whose log it is, on the thread that owns it.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import xxhash

from lifecycle.errors import LogError
from lifecycle.events import (
    Adopted,
    Clamped,
    Closed,
    Committed,
    Discarded,
    EventsLost,
    Evicted,
    HostHandedOver,
    HostReserved,
    Issued,
    LateWriteEnded,
    LogOpened,
    PageOverwritten,
    PagesLanded,
    PagesScrubbed,
    Record,
    Slots,
)  # fmt: skip
from lifecycle.layout import Layout
from lifecycle.ranges import Ranges
from lifecycle.runtime.ports import HostMemory
from lifecycle.runtime.rank import Rank

_BATCH = 128


class Overwritten(msgspec.Struct, frozen=True):
    """A resident page that is not what landed."""

    pool: str
    slot: int
    page: int
    prefetch: int  # that brought it
    request: str
    landed_seq: int
    landed_checksum: int
    found_checksum: int

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"page {self.page} of {self.pool} (slot {self.slot}), brought by prefetch {self.prefetch}, was whole when it landed"
            f" (seq {self.landed_seq}, {self.landed_checksum:#x}) and is another now ({self.found_checksum:#x})"
        )


class Scrubbed(msgspec.Struct, frozen=True):
    """What a scrub found. `unknown` pages are resident and were not compared: no checksum of them is in the log, or a read
    that is out may still write them."""

    checked: int
    unknown: int
    changed: tuple[Overwritten, ...]


class _Landed(msgspec.Struct, frozen=True, gc=False):
    prefetch: int
    request: str
    page: int
    seq: int
    checksum: int


class _Prefetch:
    """What one prefetch reserved and landed: slots by own pool, each for one page from the first on; checksums by pool."""

    __slots__ = ("dropped", "id", "request", "slots", "sums")

    def __init__(self, event: Issued) -> None:
        self.id, self.request = event.prefetch, event.request
        self.slots: dict[str, tuple[int, list[int]]] = {}
        self.sums: dict[str, dict[int, _Landed]] = {}
        self.dropped: tuple[str, ...] = ()

    def places(self, pool: str, pages: Ranges) -> list[tuple[int, int]]:
        """Return page and slot of those pages that were reserved."""
        first, slots = self.slots.get(pool, (0, []))
        end = first + len(slots)
        return [(page, slots[page - first]) for lo, hi in pages for page in range(max(lo, first), min(hi, end))]


class Resident:
    """Which page is in which slot, as the log says. Memory: what is resident, and what is in flight.

    Where events were lost nothing that landed before them is known any more.
    """

    def __init__(self, memory: HostMemory) -> None:
        self.layout: Layout | None = None
        self.places: dict[str, dict[int, _Landed | None]] = {}  # pool, riders too -> slot -> what landed there
        self.late: dict[str, set[int]] = {}  # own pool -> slots that a read may still write
        self._memory = memory
        self._capacity: dict[str, int] = {}
        self._groups: dict[str, list[str]] = {}
        self._flying: dict[int, _Prefetch] = {}
        self._next = 0

    def _open(self, layout: Layout) -> None:
        """Begin a run, with empty memory."""
        self.layout = layout
        self._groups = {group[0].name: [pool.name for pool in group] for group in layout.groups}
        self._capacity = {owner: self._memory.capacity_pages(owner) for owner in self._groups}
        self._forget()

    def _forget(self) -> None:
        self.places = {pool: {} for group in self._groups.values() for pool in group}
        self.late = {owner: set() for owner in self._groups}
        self._flying.clear()

    def feed(self, record: Record) -> None:
        """Take a record. Raises `LogError` for slots that there are not, `LayoutError` for a header without a layout."""
        event = record.event
        if record.seq != self._next:
            self._forget()
        self._next = record.seq + 1
        match event:
            case LogOpened():
                self._open(Layout.of_declaration(event.layout))
            case EventsLost():
                self._next = record.seq + max(1, event.events)
                self._forget()
            case Issued():
                self._flying[event.prefetch] = _Prefetch(event)
            case Evicted() if event.pool in self._groups:
                slots = self._numbers(record.seq, event.pool, event.slots)
                self.late[event.pool].difference_update(slots)
                for pool in self._groups[event.pool]:
                    for slot in slots:
                        self.places[pool].pop(slot, None)
            case Adopted():
                for owner, runs in event.slots.items():
                    for pool in self._groups.get(owner, ()):
                        self.places[pool].update(dict.fromkeys(self._numbers(record.seq, owner, runs)))
            case _:
                prefetch = self._flying.get(getattr(event, "prefetch", 0))
                if prefetch is not None:
                    self._of_prefetch(prefetch, record)

    def _of_prefetch(self, prefetch: _Prefetch, record: Record) -> None:
        event = record.event
        match event:
            case HostReserved() if event.pool in self._groups:
                slots = self._numbers(record.seq, event.pool, event.slots)
                prefetch.slots[event.pool] = event.pages[0], slots[: max(0, event.pages[1] - event.pages[0])]
            case PagesLanded(checksums=tuple(sums)):
                kept = prefetch.sums.setdefault(event.pool, {})
                for page, checksum in zip(range(*event.pages), sums, strict=False):
                    kept[page] = _Landed(prefetch.id, prefetch.request, page, record.seq, checksum)
            case Committed() | Clamped():
                prefetch.dropped = event.dropped
            case HostHandedOver() if event.pool in self._groups:
                self.late[event.pool].update(slot for _, slot in prefetch.places(event.pool, event.late))
                placed = prefetch.places(event.pool, event.pages)
                for pool in self._groups[event.pool]:
                    if pool not in prefetch.dropped:
                        landed = prefetch.sums.get(pool, {})
                        self.places[pool].update((slot, landed.get(page)) for page, slot in placed)
            case LateWriteEnded() if event.pool in self._groups:
                self.late[event.pool].difference_update(slot for _, slot in prefetch.places(event.pool, event.pages))
            case Discarded():
                prefetch.sums.clear()
            case Closed():
                del self._flying[prefetch.id]
            case _:
                pass

    def _numbers(self, seq: int, pool: str, runs: Slots) -> list[int]:
        capacity = self._capacity[pool]
        if any(not 0 <= lo < hi <= capacity for lo, hi in runs) or sum(hi - lo for lo, hi in runs) > capacity:
            raise LogError(f"cannot scrub: record {seq} names slots of {pool} that this memory of {capacity} has not")
        return [slot for lo, hi in runs for slot in range(lo, hi)]


def compare(resident: Resident, memory: HostMemory) -> Scrubbed:
    """Hash every resident page whose checksum is known, and that no read may write, against what landed."""
    checked = unknown = 0
    changed: list[Overwritten] = []
    for pool, places in resident.places.items():
        assert resident.layout is not None, "places are of a layout"
        late = resident.late[resident.layout.owner(pool)]
        known = {slot: landed for slot, landed in sorted(places.items()) if landed is not None and slot not in late}
        unknown += len(places) - len(known)
        checked += len(known)
        changed += _changed(pool, known, memory)
    return Scrubbed(checked, unknown, tuple(changed))


def _changed(pool: str, known: Mapping[int, _Landed], memory: HostMemory) -> list[Overwritten]:
    changed = []
    slots = list(known)
    for first in range(0, len(slots), _BATCH):
        batch = slots[first : first + _BATCH]
        for slot, buffer in zip(batch, memory.buffers(pool, np.array(batch, dtype=np.int32)), strict=True):
            landed, found = known[slot], xxhash.xxh3_64_intdigest(buffer)
            if found != landed.checksum:
                changed.append(
                    Overwritten(pool, slot, landed.page, landed.prefetch, landed.request, landed.seq, landed.checksum,
                                found)
                )  # fmt: skip
    return changed


def scrub(records: Iterable[Record], memory: HostMemory) -> Scrubbed:
    """Hash every resident page again and return those that are not what landed. Raises `LogError` without a header."""
    resident = Resident(memory)
    for record in records:
        resident.feed(record)
    if resident.layout is None:
        raise LogError("cannot scrub: the log has no header, so which pools there are is not known")
    return compare(resident, memory)


def scrub_rank(rank: Rank) -> Scrubbed:
    """Scrub a live rank by its own log, and log what was found. The events move nothing."""
    rank.events.flush()
    found = scrub(rank.events.records(), rank.memory)
    for page in found.changed:
        rank.append(PageOverwritten(page.prefetch, page.pool, page.page, page.slot, page.landed_checksum, page.found_checksum))
    rank.append(PagesScrubbed(found.checked, found.unknown, len(found.changed)))
    return found
