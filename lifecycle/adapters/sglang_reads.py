"""What SGLang's transfer threads say of their reads, told as our events: claims, pages in place, pages that failed.

What a thread says of a prefetch may come before it is told that it began, or in the middle of its abort; it is kept until then.
"""

from collections.abc import Callable
from typing import Any

from lifecycle import ranges as r
from lifecycle.adapters.sglang_seen import READING, VIRTUAL, Seen
from lifecycle.events import Event, PagesLanded, ReadClaimed, ReadEnded, ReadFailed, TransferStarted
from lifecycle.layout import KV, Layout
from lifecycle.ranges import EMPTY, Range
from lifecycle.reasons import ReadCode

EARLY = 64
"""Of how many operations that have not begun yet it is kept what is said."""


class Reads:
    """The reads of one rank. `resolved` and `close` tell what follows from them."""

    def __init__(
        self,
        layout: Layout,
        page_size: int,
        emit: Callable[[Event], None],
        now_ns: Callable[[], int],
        resolved: Callable[[Seen, int], None],
        close: Callable[[Seen], None],
    ) -> None:
        self._layout = layout
        self._page = page_size
        self._emit = emit
        self._now_ns = now_ns
        self._resolved = resolved
        self._close = close
        self.planned: Callable[..., None] = _untold
        self.by_operation: dict[int, Seen] = {}
        self._early: dict[int, tuple[Any, list[tuple[Any, ...]]]] = {}  # said of operations that have not begun yet
        self._kv_riders = tuple(p.name for p in layout.pools if p.rides_on == KV)
        self._of_owner = {each.name: tuple(p for p in group if p.name != KV) for group in layout.groups for each in group[:1]}

    def said(self, kind: str, operation: Any, *facts: Any) -> None:
        """Tell what a thread says of an operation."""
        seen = self.by_operation.get(id(operation))
        known = seen is not None and seen.operation is operation and not seen.aborting
        if seen is not None and known and (seen.windows or seen.ended or kind in ("hit", "plan")):
            _SAID[kind](self, seen, *facts)
            return
        early = self._early.get(id(operation))
        if early is None or early[0] is not operation:
            if len(self._early) >= EARLY:  # the oldest never began here: it was in flight before anybody looked, or is over
                del self._early[next(iter(self._early))]
            early = self._early[id(operation)] = (operation, [])
        early[1].append((kind, *facts))

    def catch_up(self, operation: Any) -> None:
        """Tell what was said of an operation before it had begun here, had its plan, or was aborted to the end."""
        early = self._early.pop(id(operation), None)
        if early is not None and early[0] is operation:
            for kind, *facts in early[1]:
                self.said(kind, operation, *facts)

    def _said_plan(self, seen: Seen, *facts: Any) -> None:
        self.planned(seen, *facts)
        self.catch_up(seen.operation)

    def _said_hit(self, seen: Seen, pages: int) -> None:
        self._resolved(seen, pages)

    def _said_reading(self, seen: Seen, first: int, pages: int) -> None:
        self._claim(seen, KV, (seen.start_page + first, seen.start_page + first + pages))

    def _claim(self, seen: Seen, pool: str, pages: Range) -> None:
        first = not seen.claims and not seen.landed
        seen.claims.append([pool, pages, READING])
        self._emit(ReadClaimed(seen.id, pool, pages))
        if first:
            self._emit(TransferStarted(seen.id, self._now_ns() - seen.issued_ns))

    def _said_read(self, seen: Seen, first: int, pages: int, completed_tokens: int, to_come: bool) -> None:
        lo, hi = seen.start_page + first, seen.start_page + first + pages
        if not seen.terminated and not seen.ended:
            self.progress(seen, min(hi, seen.start_page + completed_tokens // self._page))
            if seen.kv_landed < hi:
                self._emit(ReadFailed(seen.id, KV, (max(lo, seen.kv_landed), hi), ReadCode.MISSING))
        claim = _claim_of(seen, (lo, hi))
        if to_come and not seen.terminated:
            claim[2] = VIRTUAL
        else:
            self._unclaim(seen, claim)
        self._close(seen)

    def progress(self, seen: Seen, page: int) -> None:
        """Tell of kv pages up to `page` that are in place."""
        if page > seen.kv_landed:
            pages = (seen.kv_landed, page)
            seen.landed[KV] = ((seen.start_page, page),)
            seen.kv_landed = page
            self._emit(PagesLanded(seen.id, KV, pages, 0))

    def _unclaim(self, seen: Seen, claim: list[Any]) -> None:
        seen.claims.remove(claim)
        if not seen.terminated and not seen.ended:
            self._cancel_rest(seen, claim[0], claim[1])
        self._emit(ReadEnded(seen.id, claim[0], claim[1]))

    def _cancel_rest(self, seen: Seen, owner: str, pages: Range) -> None:
        """Tell that what was to be read into these pages too never will be: sidecars are given up when kv falls short."""
        for rider in self._of_owner[owner]:
            known = seen.answered.get(rider.name, EMPTY)
            if len(known) == 1 and known[0][0] <= pages[0] and pages[1] <= known[0][1]:
                continue
            asked = r.intersect((pages,), r.span(*rider.window(seen.start_page, seen.plan_page)))
            for rest in r.subtract(asked, seen.answered.get(rider.name, EMPTY)):
                seen.answered[rider.name] = r.union(seen.answered.get(rider.name, EMPTY), (rest,))
                self._emit(ReadFailed(seen.id, rider.name, rest, ReadCode.CANCELLED))

    def _said_reading_sides(self, seen: Seen, pools: tuple[str, ...]) -> None:
        seen.sides = True
        reads_kv = any(pool in self._kv_riders for pool in pools)
        for claim in list(seen.claims):
            if reads_kv:
                claim[2] = READING
        if reads_kv and not any(claim[0] == KV for claim in seen.claims):
            self._claim(seen, KV, seen.windows[KV])  # a read that begins although everything was given up
        for pool in seen.windows:
            if pool != KV and any(self._layout.owner(each) == pool for each in pools):
                self._claim(seen, pool, seen.windows[pool])

    def _said_read_sides(self, seen: Seen, results: dict[str, tuple[bool, ...]]) -> None:
        seen.sides = False
        if not seen.terminated and not seen.ended:
            for pool, flags in results.items():
                self._tell_side(seen, pool, flags)
        for claim in list(seen.claims):
            self._unclaim(seen, claim)
        self._close(seen)

    def _said_read_batch(self, seen: Seen, first: int, pages: int, kv_pages: int, sides: dict[str, tuple[bool, ...]]) -> None:
        lo, hi = seen.start_page + first, seen.start_page + first + pages
        if not seen.terminated and not seen.ended:
            self.progress(seen, lo + kv_pages)
            if seen.kv_landed < hi:
                self._emit(ReadFailed(seen.id, KV, (max(lo, seen.kv_landed), hi), ReadCode.MISSING))
            for pool, flags in sides.items():
                self._tell_side(seen, pool, flags, lo)
        self._unclaim(seen, _claim_of(seen, (lo, hi)))
        self._close(seen)

    def _tell_side(self, seen: Seen, pool: str, flags: tuple[bool, ...], at_page: int | None = None) -> None:
        lo, hi = self._layout.pool(pool).window(seen.start_page, seen.plan_page)
        lo = lo if at_page is None else at_page
        at = 0
        flags = flags[: hi - lo]
        if flags and False not in flags:
            pages = (lo, lo + len(flags))
            seen.answered[pool] = r.union(seen.answered.get(pool, EMPTY), (pages,))
            seen.land(pool, pages)
            self._emit(PagesLanded(seen.id, pool, pages, 0))
            return
        while at < len(flags):
            stop = at + 1
            while stop < len(flags) and flags[stop] == flags[at]:
                stop += 1
            pages = (lo + at, lo + stop)
            seen.answered[pool] = r.union(seen.answered.get(pool, EMPTY), (pages,))
            if flags[at]:
                seen.land(pool, pages)
                self._emit(PagesLanded(seen.id, pool, pages, 0))
            else:
                self._emit(ReadFailed(seen.id, pool, pages, ReadCode.MISSING))
            at = stop

    def _said_over(self, seen: Seen) -> None:
        seen.over = True
        for claim in list(seen.claims):
            self._unclaim(seen, claim)
        self._close(seen)

    def freeze(self, seen: Seen, completed_tokens: int) -> None:
        """Count what has landed for the last time."""
        page = seen.start_page + completed_tokens // self._page
        if seen.windows and page > seen.kv_landed:
            busy = r.union(seen.busy(KV), seen.landed.get(KV, EMPTY))
            self.progress(seen, min(busy[-1][1] if busy else seen.start_page, page))
        seen.terminated = True

    def give_up(self, seen: Seen) -> None:
        """End the claims of pages that nobody reads at the moment."""
        for claim in list(seen.claims):
            if claim[2] == VIRTUAL:
                self._unclaim(seen, claim)


def _claim_of(seen: Seen, pages: Range) -> list[Any]:
    """Return the claim of some pages of kv; it is there, since the thread that reads said so before."""
    claim: list[Any] = seen.claims[-1]
    if claim[1] != pages or claim[0] != KV:
        claim = next(each for each in seen.claims if each[0] == KV and each[1] == pages)
    return claim


def _untold(*facts: Any) -> None:
    """Tell nothing."""


_SAID: dict[str, Callable[..., None]] = {
    "plan": Reads._said_plan,
    "hit": Reads._said_hit,
    "reading": Reads._said_reading,
    "read": Reads._said_read,
    "read batch": Reads._said_read_batch,
    "reading sides": Reads._said_reading_sides,
    "read sides": Reads._said_read_sides,
    "over": Reads._said_over,
}
