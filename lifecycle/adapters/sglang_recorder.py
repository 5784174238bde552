"""What is seen of SGLang, told as our events. Calls nothing of SGLang's and changes nothing; one rank, one log.

Reads are told in `sglang_reads.py`. Slots come as the first index of each page, copied where they were seen.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle import coverage
from lifecycle import ranges as r
from lifecycle.adapters.sglang_pools import ENGINE, HELD, RESIDENT, UNKNOWN, Slots, page_ranges, slot_runs
from lifecycle.adapters.sglang_reads import Reads
from lifecycle.adapters.sglang_seen import Seen
from lifecycle.events import (
    Adopted,
    AnchorUnlocked,
    Clamped,
    Closed,
    Committed,
    Declined,
    Discarded,
    Event,
    Evicted,
    HitResolved,
    HostHandedOver,
    HostReleased,
    HostReserved,
    Issued,
    LoadedTaken,
    PagesUnlocked,
    PlanAgreed,
    PrefixServed,
    RequestFinished,
    RoundDone,
    Settled,
    Synced,
    Terminated,
    TokensCredited,
    TokensReturned,
    Wanted,
)  # fmt: skip
from lifecycle.layout import KV, Layout, TrailingPages
from lifecycle.ranges import EMPTY, Range, Ranges
from lifecycle.reasons import Part, Reason

Emit = Callable[[Event], None]


class Recorder:
    """The prefetches of one rank, and whose each host slot is."""

    def __init__(
        self, layout: Layout, slots: Mapping[str, Slots], page_size: int, ranks: int, limit_tokens: int, emit: Emit,
        now_ns: Callable[[], int],
    ) -> None:  # fmt: skip
        self._layout = layout
        self._slots = slots
        self._page = page_size
        self._ranks = ranks
        self._limit_tokens = limit_tokens
        self._emit = emit
        self._now_ns = now_ns
        self._next_id = 1
        self._round = 0
        self.reads = Reads(layout, page_size, emit, now_ns, self.resolved, self.close_if_quiet)
        self.by_operation = self.reads.by_operation
        self.by_id: dict[int, Seen] = {}
        self.attempts: dict[str, int] = {}  # of requests that are not over
        self._admitted: set[str] = set()  # of those

    # --- issue ---------------------------------------------------------------------------------------------------------

    def issued(self, key: Any, operation: Any, anchor: Any, start_page: int, pages: int, tokens: int, last_key: str) -> Seen:
        """Tell that a prefetch began. `key` is what the engine files it under."""
        request = request_of(key)
        attempt = self._attempt(request)
        seen = Seen(self._next_id, key, request, attempt, operation, anchor, start_page, start_page + pages)
        self._next_id += 1
        seen.reserved_tokens = tokens
        seen.issued_ns = self._now_ns()
        self.by_operation[id(operation)] = self.by_id[seen.id] = seen
        self._emit(Issued(seen.id, request, attempt, start_page, seen.end_page, "", last_key, tokens))
        return seen

    def declined(self, request: str, reason: Reason, start_page: int, pages: int, occupied: int) -> None:
        """Tell that a prefetch was refused."""
        attempt = self._attempt(request)
        self._emit(Declined(request, attempt, reason, start_page, start_page + pages, occupied, self._limit_tokens))

    def _attempt(self, request: str) -> int:
        attempt = self.attempts.get(request, -1) + 1
        self.attempts[request] = attempt
        self._admitted.discard(request)
        return attempt

    def wanted(self, seen: Seen) -> None:
        """Tell that admission asked for it."""
        if not seen.wanted:
            seen.wanted = True
            self._emit(Wanted(seen.id))

    # --- plan ----------------------------------------------------------------------------------------------------------

    def resolved(self, seen: Seen, hit_pages: int, miss: Reason | None = None) -> None:
        """Tell what this rank's shard of L3 holds."""
        if seen.hit_page is None:
            seen.hit_page = seen.start_page + hit_pages
            self._emit(HitResolved(seen.id, seen.hit_page, {KV: seen.hit_page - seen.start_page}, miss))

    def planned(self, seen: Seen, hit_pages: int, indices: list[int], sidecars: Mapping[str, list[int]]) -> None:
        """Tell that the plan is made and its pages are reserved: `indices` of kv, and those of other pools with slots."""
        if seen.windows or seen.ended:
            return
        hit_page = seen.start_page + hit_pages
        self.resolved(seen, hit_pages)
        slots = self._slots[KV].of(indices)
        seen.plan_page = seen.start_page + len(slots)
        given: dict[str, tuple[Range, list[int]]] = {KV: ((seen.start_page, seen.plan_page), slots)}
        for pool, more in sidecars.items():
            window = self._layout.pool(pool).window(seen.start_page, seen.plan_page)
            given[pool] = (window, self._slots[pool].of(more)[: window[1] - window[0]])
        cut = Reason.HOST_CAPACITY if seen.plan_page < hit_page else None
        left_out: tuple[str, ...] = ()
        if len(given) < len(self._layout.groups):  # a span that is shorter than the window is read without it
            left_out = tuple(p.name for group in self._layout.groups if group[0].name not in given for p in group)
        self._emit(PlanAgreed(seen.id, hit_page, seen.plan_page, cut, {p: each[0] for p, each in given.items()}, left_out))
        for pool, (pages, taken) in given.items():
            seen.reserve(pool, pages, taken)
            self._slots[pool].take(taken, seen.id, HELD)
            self._emit(HostReserved(seen.id, pool, pages, slot_runs(taken)))
        seen.over = False

    def adopted(self, pool: str, indices: list[int]) -> None:
        """Tell that the engine took slots for its own."""
        slots = self._slots[pool].of(indices)
        self._slots[pool].take(slots, ENGINE, RESIDENT)
        self._emit(Adopted("", {pool: len(slots)}, 0, {pool: slot_runs(slots)}))

    # --- the end -------------------------------------------------------------------------------------------------------

    def terminated(self, seen: Seen, completed_tokens: int, reason: Reason) -> None:
        """Tell that the counters are frozen."""
        if seen.terminated or seen.ended:
            return
        self.reads.freeze(seen, completed_tokens)
        seen.reason = reason
        self._emit(Terminated(seen.id, reason, dict(seen.runs(self._layout))))
        self.reads.give_up(seen)

    def synced(self, seen: Seen, agreed: Mapping[str, int], duration_ns: int) -> None:
        """Tell the agreed result: tokens of kv, pages or keys of the other pools, as the engine counts them."""
        self._round += 1
        if self._ranks > 1:
            self._emit(RoundDone(self._round, 1, 0, self._ranks, duration_ns))
        for pool in self._layout.pools:
            if pool.name == KV:
                seen.agreed[KV] = seen.start_page + agreed.get(KV, 0) // self._page
            elif isinstance(pool.coverage, TrailingPages):
                seen.agreed[pool.name] = agreed.get(pool.name, 0)
            else:
                seen.agreed[pool.name] = seen.start_page + agreed.get(pool.name, 0)
        self._emit(Synced(seen.id, dict(seen.agreed), self._ranks, self._round if self._ranks > 1 else 0))

    def ended(self, seen: Seen, why: Reason, loaded_tokens: int, returned_tokens: int) -> None:
        """Tell the outcome, from what the engine gave to the tree, and what it gave back."""
        offered, there, dropped = seen.inserted or (0, 0, False)
        usable_page = seen.start_page + offered // self._page
        if seen.inserted is None or usable_page <= seen.start_page or dropped:
            if seen.agreed and seen.inserted is None and seen.windows and why not in _COMMANDS:
                why = Reason.SHORTFALL
            if dropped:
                why = Reason.INSERT_DROPPED
            self._emit(Discarded(seen.id, why, None if dropped or why in _COMMANDS else self._short(seen)))
        else:
            self._publish(seen, usable_page, there, why)
            self._emit(TokensCredited(seen.id, loaded_tokens))
        seen.ended = True
        if returned_tokens:
            seen.returned = True
            self._emit(TokensReturned(seen.id, returned_tokens))
        for pool, pages in seen.taken.items():
            self._hand_over(seen, pool, pages)
        for _ in range(seen.unlocks):
            self._emit(AnchorUnlocked(seen.id))
        self.reads.give_up(seen)

    def _short(self, seen: Seen) -> str | None:
        """Return the pool that fell short, by the rule of the layout."""
        if not (seen.windows and seen.agreed):
            return None
        return coverage.outcome(self._layout, False, seen.start_page, seen.plan_page, (), seen.agreed).short

    def _publish(self, seen: Seen, usable_page: int, there_tokens: int, why: Reason) -> None:
        seen.published, seen.usable_page = True, usable_page
        taken = {KV: r.span(seen.start_page + there_tokens // self._page, usable_page)}
        for pool, window in seen.windows.items():
            if pool != KV:
                back = seen.outside.get(pool, set())
                kept = [window[0] + place for place, slot in enumerate(seen.slots[pool]) if slot not in back]
                taken[pool] = page_ranges(kept)
        seen.taken = {pool: pages for pool, pages in taken.items() if pages}
        if usable_page == seen.plan_page:
            self._emit(Committed(seen.id, usable_page, dict(seen.taken), ()))
        else:
            self._emit(Clamped(seen.id, usable_page, dict(seen.taken), (), why))

    def _hand_over(self, seen: Seen, pool: str, pages: Ranges) -> None:
        for each in pages:
            self._slots[pool].take(seen.slots_of(pool, each), seen.id, RESIDENT)
        held = seen.held[pool]
        seen.held[pool] = EMPTY if held == pages else r.subtract(held, pages)
        late = r.intersect(pages, seen.busy(pool)) if seen.claims else EMPTY
        self._emit(HostHandedOver(seen.id, pool, pages, late))

    def going_back(self, seen: Seen, pool: str, indices: list[int]) -> None:
        """Note slots of a prefetch that the engine has put on their way back."""
        if pool in seen.windows:
            seen.outside.setdefault(pool, set()).update(self._slots[pool].of(indices))

    def freed(self, pool: str, indices: list[int]) -> None:
        """Tell that slots are free again."""
        slots = self._slots[pool].of(indices)
        gone: list[int] = []
        for (owner, place), group in self._slots[pool].give(slots).items():
            seen = self.by_id.get(owner)
            if place == UNKNOWN:
                continue  # out before we came
            if place == RESIDENT or (owner == ENGINE):
                gone += group
            elif seen is not None:
                if seen.over and not seen.terminated:  # its thread ended it, and its tail is back before anybody asks for it
                    self.terminated(seen, (seen.kv_landed - seen.start_page) * self._page, Reason.READ_FAILED)
                self._release(seen, pool, page_ranges(seen.page_of(pool, slot) for slot in group))
            else:
                self._emit(HostReleased(owner, pool, ((0, len(group)),), Part.TAIL))  # once more, after everything was over
        if gone:
            self._emit(Evicted(pool, len(gone), slot_runs(gone), ()))

    def _release(self, seen: Seen, pool: str, pages: Ranges) -> None:
        for part, among in seen.parts(self._layout, pool, pages):
            self._emit(HostReleased(seen.id, pool, among, part))
        seen.held[pool] = r.subtract(seen.held[pool], pages)
        self.close_if_quiet(seen)

    def close_if_quiet(self, seen: Seen) -> None:
        """Tell that nothing of the prefetch is out any more, once that is so."""
        if not seen.quiet or seen.id not in self.by_id:
            return
        del self.by_id[seen.id]
        if self.by_operation.get(id(seen.operation)) is seen:
            del self.by_operation[id(seen.operation)]
        self._emit(Settled(seen.id))
        self._emit(Closed(seen.id))
        if seen.published:
            self._emit(PagesUnlocked(seen.id))

    # --- requests ------------------------------------------------------------------------------------------------------

    def taken(self, request: str, tokens: int) -> None:
        """Tell that the scheduler read the loaded tokens of a request: it is admitted. It may ask again."""
        attempt = self.attempts.get(request)
        if attempt is not None and request not in self._admitted:
            self._admitted.add(request)
            self._emit(LoadedTaken(request, attempt, tokens))

    def served(self, request: str, path: list[tuple[int, list[int] | None]]) -> None:
        """Tell that a request was served a prefix: pages and host slots (None: no host copy) along its path from the root."""
        sources: list[tuple[int, int, int]] = []
        page = 0
        for pages, indices in path:
            owners = [None] * pages if indices is None else self._slots[KV].residents(indices)
            for owner in owners[:pages]:
                page += 1
                if owner is None:
                    continue
                if sources and sources[-1][1:] == (page - 1, owner):
                    sources[-1] = (sources[-1][0], page, owner)
                else:
                    sources.append((page - 1, page, owner))
            page += pages - len(owners[:pages])
        if page:
            self._emit(PrefixServed(request, self.attempts.get(request, 0), page, tuple(sources)))

    def finished(self, request: str) -> None:
        """Tell that the request is over."""
        self._admitted.discard(request)
        if self.attempts.pop(request, None) is not None:
            self._emit(RequestFinished(request))


def request_of(key: Any) -> str:
    """Return the request id of what the engine files a prefetch under: the id itself, or a handle that has it."""
    return str(getattr(key, "rid", key))


_COMMANDS = frozenset({Reason.ABORTED, Reason.SUPERSEDED, Reason.SHUTDOWN})
