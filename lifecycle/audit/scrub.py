"""Resident pages hashed again and compared with what landed: a page that was overwritten afterwards is no bad read.

Needs a store that gives checksums (xxh3-64 of the page) and the memory of the rank whose log it is, on the thread that owns
both. Reads the log once, and each resident page whose checksum the log has.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import xxhash

from lifecycle.audit.account import Held
from lifecycle.audit.terms import terms_of
from lifecycle.errors import LogError
from lifecycle.events import (
    Adopted,
    Clamped,
    Closed,
    Committed,
    Evicted,
    HostHandedOver,
    HostReserved,
    Issued,
    LogOpened,
    PagesLanded,
    Record,
)  # fmt: skip
from lifecycle.layout import Layout
from lifecycle.runtime.ports import HostMemory

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
    """What a scrub found. `unknown` pages are resident, and the log has no checksum of them."""

    checked: int
    unknown: int
    changed: tuple[Overwritten, ...]


class _Landed(msgspec.Struct, frozen=True, gc=False):
    prefetch: int
    request: str
    page: int
    seq: int
    checksum: int


class _Resident:
    """Which page is in which slot, as the log says. Memory: what is resident, and what is in flight."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self._requests: dict[int, str] = {}
        self.places: dict[str, dict[int, _Landed | None]] = {}  # pool, riders too -> slot -> what landed there
        self._held: dict[tuple[int, str], Held] = {}
        self._sums: dict[tuple[int, str], dict[int, _Landed]] = {}
        self._dropped: dict[int, tuple[str, ...]] = {}

    def _open(self, layout: Layout) -> None:
        """Begin a run, with empty memory."""
        self.layout = layout
        self.places = {pool.name: {} for pool in layout.pools}
        for known in (self._requests, self._held, self._sums, self._dropped):
            known.clear()

    def feed(self, record: Record) -> None:
        """Take a record."""
        event = record.event
        match event:
            case LogOpened():
                self._open(terms_of(event).layout)
            case Issued():
                self._requests[event.prefetch] = event.request
            case HostReserved():
                self._held[event.prefetch, event.pool] = Held(event.pages, event.slots)
            case PagesLanded(checksums=tuple(sums)):
                request = self._requests.get(event.prefetch, "")
                kept = self._sums.setdefault((event.prefetch, event.pool), {})
                for page, checksum in zip(range(*event.pages), sums, strict=False):
                    kept[page] = _Landed(event.prefetch, request, page, record.seq, checksum)
            case Committed() | Clamped():
                self._dropped[event.prefetch] = event.dropped
            case HostHandedOver():
                self._handed_over(event)
            case Evicted():
                for pool in self._group(event.pool):
                    for lo, hi in event.slots:
                        for slot in range(lo, hi):
                            self.places[pool].pop(slot, None)
            case Adopted():
                for owner, slots in event.slots.items():
                    for pool in self._group(owner):
                        self.places[pool].update((slot, None) for lo, hi in slots for slot in range(lo, hi))
            case Closed():
                for key in [key for key in self._sums if key[0] == event.prefetch]:
                    del self._sums[key]
                for key in [key for key in self._held if key[0] == event.prefetch]:
                    del self._held[key]
                self._dropped.pop(event.prefetch, None)
                self._requests.pop(event.prefetch, None)
            case _:
                pass

    def _group(self, owner: str) -> list[str]:
        groups = () if self.layout is None else self.layout.groups
        return [pool.name for group in groups if group[0].name == owner for pool in group]

    def _handed_over(self, event: HostHandedOver) -> None:
        held = self._held.get((event.prefetch, event.pool))
        if held is None:
            return
        slots = [slot for lo, hi in held.slots(event.pages) for slot in range(lo, hi)]
        pages = [page for lo, hi in event.pages for page in range(lo, hi)]
        for pool in self._group(event.pool):
            if pool not in self._dropped.get(event.prefetch, ()):
                sums = self._sums.get((event.prefetch, pool), {})
                self.places[pool].update((slot, sums.get(page)) for page, slot in zip(pages, slots, strict=True))


def scrub(records: Iterable[Record], memory: HostMemory) -> Scrubbed:
    """Hash every resident page again and return those that are not what landed. Raises `LogError` without a header."""
    resident = _Resident()
    for record in records:
        resident.feed(record)
    if resident.layout is None:
        raise LogError("cannot scrub: the log has no header, so which pools there are is not known")
    checked = unknown = 0
    changed: list[Overwritten] = []
    for pool, places in resident.places.items():
        known = {slot: landed for slot, landed in sorted(places.items()) if landed is not None}
        unknown += len(places) - len(known)
        checked += len(known)
        changed += _compare(pool, known, memory)
    return Scrubbed(checked, unknown, tuple(changed))


def _compare(pool: str, known: Mapping[int, _Landed], memory: HostMemory) -> list[Overwritten]:
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
