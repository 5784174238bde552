"""Ledgers around what an engine has: host memory, prefix index, token budget, and the event log of a coordinator."""

from collections.abc import Iterable, Mapping, Sequence

from lifecycle import events as ev
from lifecycle.events import Record
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import Anchor, EventLog, HostMemory, InsertPlan, Match, PrefixIndex, SlotArray
from lifecycle.testing.ledger import Ledger, LedgerError


class LedgerMemory:
    """A `HostMemory` that notes every slot that is taken and given back, before the memory itself is asked to give it back."""

    def __init__(self, memory: HostMemory, ledger: Ledger) -> None:
        self._memory, self._ledger = memory, ledger
        self.capacity_pages = memory.capacity_pages
        self.free_pages = memory.free_pages
        self.page_bytes = memory.page_bytes
        self.quarantined_pages = memory.quarantined_pages
        self.buffers = memory.buffers
        self.check_integrity = memory.check_integrity

    def allocate(self, need: Mapping[str, int]) -> Mapping[str, SlotArray]:
        """Allocate and note the slots."""
        given = self._memory.allocate(need)
        for pool, slots in given.items():
            self._ledger.take(pool, slots.tolist())
        return given

    def release(self, pool: str, slots: SlotArray) -> None:
        """Note and release. Raises `LedgerError`, naming the slot, if one is not held; nothing was released then."""
        self._ledger.check_held(pool, slots.tolist())
        self._memory.release(pool, slots)
        self._ledger.give_back(pool, slots.tolist())

    def quarantine(self, pool: str, slots: SlotArray) -> None:
        """Note and quarantine; a quarantined slot is not held any more."""
        self._ledger.check_held(pool, slots.tolist(), "quarantined")
        self._memory.quarantine(pool, slots)
        self._ledger.give_back(pool, slots.tolist(), "quarantined")


class LedgerIndex:
    """A `PrefixIndex` that notes every lock; one that is dropped too often, or never, is named by its anchor."""

    def __init__(self, index: PrefixIndex, ledger: Ledger) -> None:
        self._index, self._ledger = index, ledger
        self._depth: dict[str, int] = {}
        self.evictable_pages, self.evict = index.evictable_pages, index.evict
        self.resident_pages, self.digest = index.resident_pages, index.digest
        self.lock_count, self.check_integrity = index.lock_count, index.check_integrity

    def match(self, keys: Sequence[str], tick: int, pools: Sequence[str] | None = None) -> Match:
        """Match."""
        return self._index.match(keys, tick, pools)

    def lock(self, anchor: Anchor) -> None:
        """Lock and note it."""
        self._index.lock(anchor)
        depth = self._depth[anchor.key] = self._depth.get(anchor.key, 0) + 1
        self._ledger.lock(_name(anchor), f"holder {depth}")

    def unlock(self, anchor: Anchor) -> None:
        """Note it and unlock. Raises `LedgerError` if the anchor is not locked."""
        depth = self._depth.get(anchor.key, 0)
        if depth:
            self._index.unlock(anchor)
            self._depth[anchor.key] = depth - 1
        self._ledger.unlock(_name(anchor), f"holder {max(1, depth)}")

    def plan_insert(self, anchor: Anchor, keys: Sequence[str], offer: Mapping[str, tuple[int, int]]) -> InsertPlan | Reason:
        """Plan."""
        return self._index.plan_insert(anchor, keys, offer)

    def insert(
        self,
        anchor: Anchor,
        keys: Sequence[str],
        offer: Mapping[str, tuple[int, int]],
        slots: Mapping[str, SlotArray],
        source: int,
        tick: int,
    ) -> Anchor:
        """Insert."""
        return self._index.insert(anchor, keys, offer, slots, source, tick)


def _name(anchor: Anchor) -> str:
    return f"at page {anchor.pages} ({anchor.key[:12] or 'the root'})"


class TokenBudget:
    """Tokens in flight against a limit. A reservation ends once, by the amount that was recorded."""

    def __init__(self, limit_tokens: int, ledger: Ledger) -> None:
        self.limit_tokens = limit_tokens
        self._ledger = ledger

    @property
    def used_tokens(self) -> int:
        """How many tokens are reserved."""
        return self._ledger.reserved_tokens

    def reserve(self, owner: str, tokens: int) -> bool:
        """Reserve if it fits; say whether it did."""
        if self.used_tokens + tokens > self.limit_tokens:
            return False
        self._ledger.reserve(tokens, owner)
        return True

    def give_back(self, owner: str, tokens: int, how: str = "") -> None:
        """End the reservation; raises `LedgerError` for another amount, or a second time."""
        self._ledger.return_tokens(tokens, owner, how)


class LedgerLog:
    """An `EventLog` that checks, event by event, that a coordinator does everything once; `ledger` has what is open.

    Page numbers and event numbers in its errors are those of the log.
    """

    def __init__(self, log: EventLog, ledger: Ledger) -> None:
        self._log, self.ledger = log, ledger
        self.flush, self.records, self.close = log.flush, log.records, log.close

    @property
    def lost_events(self) -> int:
        """How many events could not be kept."""
        return self._log.lost_events

    def append(self, record: Record) -> None:
        """Check and keep a record; raises `LedgerError` for what happens twice."""
        note(self.ledger, record)
        self._log.append(record)


def note(ledger: Ledger, record: Record) -> None:
    """Tell a ledger what one event of a log took or gave back."""
    at = record.seq
    match record.event:
        case ev.Issued(prefetch=id_, reserved_tokens=tokens, anchor_key=key):
            ledger.lock(f"on anchor {key[:12] or 'the root'}", f"prefetch {id_}", at)
            ledger.reserve(tokens, f"prefetch {id_}", at)
            ledger.take(f"outcome of prefetch {id_}", [id_], event=at)
        case ev.HostReserved(prefetch=id_, pool=pool, pages=pages):
            ledger.take(f"{pool} of prefetch {id_}", range(*pages), event=at)
        case ev.HostReleased(prefetch=id_, pool=pool, pages=ranges, part=part):
            ledger.give_back(f"{pool} of prefetch {id_}", _pages(ranges), part, at)
        case ev.HostQuarantined(prefetch=id_, pool=pool, pages=ranges, part=part):
            ledger.give_back(f"{pool} of prefetch {id_}", _pages(ranges), f"quarantined {part}", at)
        case ev.HostHandedOver(prefetch=id_, pool=pool, pages=ranges):
            ledger.give_back(f"{pool} of prefetch {id_}", _pages(ranges), "handed over", at)
        case ev.Committed(prefetch=id_) | ev.Clamped(prefetch=id_) | ev.Discarded(prefetch=id_):
            ledger.give_back(f"outcome of prefetch {id_}", [id_], type(record.event).__name__.lower(), at)
        case ev.TokensReturned(prefetch=id_, tokens=tokens):
            ledger.return_tokens(tokens, f"prefetch {id_}", event=at)
        case ev.AnchorUnlocked(prefetch=id_):
            for anchor in ledger.locked_by(f"prefetch {id_}") or [_none(id_, at)]:
                ledger.unlock(anchor, f"prefetch {id_}", event=at)
        case _:
            pass


def _none(prefetch: int, at: int) -> str:
    raise LedgerError(f"the anchor of prefetch {prefetch} was unlocked at event {at}, and it is not locked")


def _pages(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [page for lo, hi in ranges for page in range(lo, hi)]
