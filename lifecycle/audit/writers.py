"""Reads that may still write a slot when somebody else gets it: the late write that garbles a page nobody misread."""

from collections import deque
from dataclasses import dataclass

from lifecycle import ranges as r
from lifecycle.audit.account import Held
from lifecycle.events import Adopted, EventsLost, HostReserved, ReadClaimed, ReadEnded, ReadLost, Record
from lifecycle.ranges import Range

MOST_LOST = 4096
"""Lost reads that are remembered; a run declines long before."""


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A slot that was given away while a read could still write it. The new owner is a prefetch, or the engine (0)."""

    pool: str
    slots: Range
    page: int | None  # of the new owner's first one of these slots
    by: int  # the prefetch whose read it is
    claim_seq: int
    given_seq: int
    lost: bool


class Writers:
    """Follows the claimed reads of one rank, by slot. Memory: what is reserved and claimed."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], Held] = {}
        self._writing: dict[tuple[int, str, Range], int] = {}  # with the seq of the claim
        self._lost: deque[tuple[int, str, Range, int]] = deque(maxlen=MOST_LOST)
        self._order: deque[tuple[int, str]] = deque()

    def feed(self, record: Record) -> list[LateWrite]:
        """Take a record; return the late writes that it makes possible."""
        event = record.event
        match event:
            case ReadClaimed():
                self._writing[(event.prefetch, event.pool, event.pages)] = record.seq
            case EventsLost():  # among them may be the end of each of these
                self._writing.clear()
                self._lost.clear()
            case ReadEnded():
                self._writing.pop((event.prefetch, event.pool, event.pages), None)
                self._lost = deque((x for x in self._lost if x[:3] != (event.prefetch, event.pool, event.pages)), MOST_LOST)
            case ReadLost():
                claimed = self._writing.pop((event.prefetch, event.pool, event.pages), record.seq)
                self._lost.append((event.prefetch, event.pool, event.pages, claimed))
            case HostReserved():
                held = Held(event.pages, event.slots)
                found = self._given(record.seq, event.prefetch, event.pool, event.slots, held)
                self._remember((event.prefetch, event.pool), held)
                return found
            case Adopted():
                return [late for pool, slots in event.slots.items() for late in self._given(record.seq, 0, pool, slots, None)]
            case _:
                pass
        return []

    def _remember(self, key: tuple[int, str], held: Held) -> None:
        """Keep whose slots these are for as long as a read may be out; those without one go, oldest first."""
        self._held[key] = held
        self._order.append(key)
        busy = {(id_, pool) for id_, pool, _ in self._writing} | {(id_, pool) for id_, pool, _, _ in self._lost}
        while len(self._order) > MOST_LOST:
            oldest = self._order.popleft()
            if oldest in busy and len(self._held) < 4 * MOST_LOST:
                self._order.append(oldest)
                return
            self._held.pop(oldest, None)

    def _given(self, seq: int, to: int, pool: str, slots: tuple[Range, ...], new: Held | None) -> list[LateWrite]:
        given = tuple(sorted(slots))
        out: list[tuple[int, Range, int, bool]] = [
            (id_, pages, claimed, False)
            for (id_, owner, pages), claimed in self._writing.items()
            if owner == pool and id_ != to
        ]
        out += [(id_, pages, claimed, True) for id_, owner, pages, claimed in self._lost if owner == pool and id_ != to]
        found = []
        for id_, pages, claimed, lost in out:
            held = self._held.get((id_, pool))
            if held is None:
                continue
            for run in r.intersect(tuple(sorted(held.slots((pages,)))), given):
                page = None if new is None else _page_of(new, run[0])
                found.append(LateWrite(pool, run, page, id_, claimed, seq, lost))
        return found


def _page_of(held: Held, slot: int) -> int | None:
    at = held.reserved[0]
    for start, stop in held.runs:
        if start <= slot < stop:
            return at + slot - start
        at += stop - start
    return None
