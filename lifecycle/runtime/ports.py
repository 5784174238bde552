"""What the coordinator needs from an engine: four ports, each of few verbs, each all-or-nothing.

If a verb raises, nothing happened; the coordinator tries releases and unlocks again at the next tick. The reference
implementations are in `stores/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lifecycle.events import Record
from lifecycle.ranges import Ranges
from lifecycle.reasons import ReadCode, Reason

SlotArray = NDArray[np.int32]
"""Slot numbers of consecutive pages, in page order."""


class PageResult(NamedTuple):
    """The answer for one key: ok means `code is None` and `nbytes` is a whole page, in place and verified."""

    nbytes: int
    code: ReadCode | None = None
    checksum: int | None = None  # xxh3-64 of the page, where the store knows it


class PageStore(Protocol):
    """Where pages live in L3. One instance serves one rank (its shard); called from several reader threads at once.

    Never raises for a bad page: the result says so, key by key, and a failed key never fails its neighbours.
    """

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Return, per pool, one bool per key: whether the page seems to be there. A hint, never a promise."""

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Read one page per key into the buffer beside it (writable, exactly one page); one result per key, in order."""

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Store one page per key; True only where the page is stored whole and would be read back."""

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Remove pages; return how many were there."""

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the store's own books do not add up."""

    def close(self) -> None:
        """Give back what the store holds. Bounded; may be called twice."""


class HostMemory(Protocol):
    """Page slots of L2. Pools with own slots are counted; a pool that rides on another is addressed by that pool's slots."""

    def capacity_pages(self, pool: str) -> int:
        """Return how many slots the pool has."""

    def free_pages(self, pool: str) -> int:
        """Return how many slots are free on this rank."""

    def page_bytes(self, pool: str) -> int:
        """Return the bytes of one page of the pool (own or riding)."""

    def allocate(self, need: Mapping[str, int]) -> Mapping[str, SlotArray]:
        """Take slots in several pools at once, or raise `HostExhausted` having taken none. Few ranges per allocation."""

    def release(self, pool: str, slots: SlotArray) -> None:
        """Give slots back; raises `DoubleRelease`, naming the slot, if one is not held, having released none."""

    def quarantine(self, pool: str, slots: SlotArray) -> None:
        """Take held slots out of use for good (a lost read may still write them). Same errors as `release`."""

    def quarantined_pages(self, pool: str) -> int:
        """Return how many slots are quarantined."""

    def buffers(self, pool: str, slots: SlotArray) -> list[memoryview]:
        """Return one writable view per slot, exactly one page long. Safe to call from reader threads.

        Stores write nothing beside it, unless the memory was declared to them with room in front of each slot
        (`stores.host_region.SlotRegion`): that room is then held, quarantined and freed with its slot.
        """

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless free + held + quarantined == capacity in every pool and no slot is in two of them."""


class Anchor(Protocol):
    """A place in the prefix index: the end of a prefix of `pages` pages. Opaque to everyone but the index."""

    @property
    def pages(self) -> int:
        """How many pages lie under the anchor."""

    @property
    def key(self) -> str:
        """The key of page `pages - 1`; empty at the root."""


class Match(Protocol):
    """What the index serves of a prompt."""

    @property
    def pages(self) -> int:
        """The longest length that every pool asked for covers."""

    @property
    def anchor(self) -> Anchor:
        """The place at that length."""

    @property
    def sources(self) -> tuple[tuple[int, int, int], ...]:
        """Which prefetch brought which pages of [0, pages): (start, stop, prefetch id; 0 for the engine), in order."""


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """What the index would take of an offer: page ranges per pool with own slots."""

    end_page: int
    taken: Mapping[str, Ranges]


class PrefixIndex(Protocol):
    """The prefix index of L2. Its shape is the same on all ranks; only the slot numbers in it are local.

    An index that spares rebuildable pools or not has `degrade`, which must be that of the policies; one
    built for a `Layout` may say so as `layout`, whose pools must be the coordinator's.
    It moves by these verbs alone. LRU is counted in ticks; ties go by insertion number; no choice iterates over a set.
    """

    def match(self, keys: Sequence[str], tick: int, pools: Sequence[str] | None = None) -> Match:
        """Return the longest prefix that `pools` (default: all required ones) cover, and mark it used at `tick`."""

    def lock(self, anchor: Anchor) -> None:
        """Keep the anchor's prefix in every pool until unlocked (trailing pools: its window). Raises `AnchorLost`."""

    def unlock(self, anchor: Anchor) -> None:
        """Drop one lock. Raises `ObligationError` if the anchor is not locked."""

    def plan_insert(self, anchor: Anchor, keys: Sequence[str], offer: Mapping[str, tuple[int, int]]) -> InsertPlan | Reason:
        """Say what `insert` would take: `offer` is a page range [lo, hi) per pool (riders too); kv ends the prefix.

        Read-only. Returns `Reason.ANCHOR_LOST` if the place is gone, `Reason.INSERT_DROPPED` if it would not take it.
        """

    def insert(
        self,
        anchor: Anchor,
        keys: Sequence[str],
        offer: Mapping[str, tuple[int, int]],
        slots: Mapping[str, SlotArray],
        source: int,
        tick: int,
    ) -> Anchor:
        """Take what `plan_insert` said, now owning those slots; return the place at the end of the offer.

        `slots[pool]` has one slot per page of `offer[pool]`; those of pages that are not taken stay the caller's.
        `source` is the prefetch that brought the pages (0: the engine).
        """

    def evictable_pages(self, pool: str) -> int:
        """Return how many pages of the pool `evict` could give back now."""

    def evict(self, need: Mapping[str, int]) -> Mapping[str, SlotArray]:
        """Drop at least `need` pages per pool, least recently used first; return every slot freed, in every pool.

        Evicting kv pages drops what rides on them and what other pools hold for them. All or nothing: if a pool cannot
        give what is needed, raises `HostExhausted` and drops nothing.
        """

    def resident_pages(self, pool: str) -> int:
        """Return how many slots of the pool the index owns."""

    def lock_count(self) -> int:
        """Return how many locks are held (each `lock` not yet undone counts one)."""

    def digest(self) -> int:
        """Return 62 bits that stand for the shape (not the slots), kept up to date by every change."""

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the tree's own books do not add up."""


class EventLog(Protocol):
    """Where the events of one rank go. `append` and `flush` never wait for the disk and never encode."""

    def append(self, record: Record) -> None:
        """Keep a record, in order. Never raises while the log is open: what cannot be kept is counted as lost."""

    def flush(self) -> None:
        """Hand what was appended to the writer; called at the end of each tick."""

    def records(self) -> Iterable[Record]:
        """Return what was kept, in order; waits until everything appended is written."""

    @property
    def lost_events(self) -> int:
        """How many events could not be kept."""

    def close(self) -> None:
        """Write what is left and stop. Bounded; may be called twice."""
