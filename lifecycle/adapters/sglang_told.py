"""What was noted of SGLang's scheduler, told: which prefetch it is about, how it ended and why.

Looks at no live object of the engine's but by what its facts hold; runs wherever the facts are told.
"""

from collections.abc import Mapping, Sized
from typing import Any, Protocol

from lifecycle.adapters.sglang_pools import name_of
from lifecycle.adapters.sglang_recorder import Recorder, request_of
from lifecycle.adapters.sglang_seen import Seen
from lifecycle.layout import KV, Layout, TrailingPages
from lifecycle.reasons import Reason


class Call(Protocol):
    """A call of the engine's that is over, and what happened in it."""

    kind: str
    key: Any
    operation: Any
    unlocks: int
    inserted: tuple[Sized, int, bool] | None  # what was offered to the tree, tokens of it that were there, dropped
    frees: list[tuple[str, list[int]]] | None


class Teller:
    """Tells facts through a recorder. Every method is what one kind of fact says; `operation` is what it is about."""

    def __init__(self, layout: Layout, recorder: Recorder, page_size: int, riders_with_kv: bool, threshold_tokens: int) -> None:
        self._layout, self._recorder, self._page = layout, recorder, page_size
        self._riders_with_kv = riders_with_kv
        self._threshold_tokens = threshold_tokens
        self.said = recorder.reads.said
        self.finishes = False  # whether it is seen that a request is finished; else it is over for us once it is admitted

    def _seen(self, operation: Any) -> Seen | None:
        seen = self._recorder.by_operation.get(id(operation))
        return seen if seen is not None and seen.operation is operation else None

    # --- issue and plan --------------------------------------------------------------------------------------------------

    def issued(self, key: Any, operation: Any, anchor: Any, start: int, prompt: Sized, tokens: int, last_key: str) -> None:
        """A prefetch began. `prompt` is what is asked for: it is as long as it ever was."""
        self._recorder.issued(key, operation, anchor, start, len(prompt) // self._page, tokens, last_key)
        self._recorder.reads.catch_up(operation)

    def declined(
        self, key: Any, anchor: Any, start: int, pages: int, occupied: int, last_key: str, short: bool, full: bool, again: bool
    ) -> None:  # fmt: skip
        """A prefetch did not begin: it was too `short`, the limit was reached (`full`), or there was no room beside kv."""
        request = request_of(key)
        if short:
            self._recorder.declined(request, Reason.TOO_SHORT, start, pages, occupied)
        elif full:
            self._recorder.declined(request, Reason.RATE_LIMITED, start, pages, occupied)
        elif not again:  # began, found no room in a pool beside kv, and gave everything back at once
            tokens = pages * self._page
            seen = self._recorder.issued(key, object(), anchor, start, pages, tokens, last_key)
            seen.unlocks = 1
            self._recorder.ended(seen, Reason.HOST_CAPACITY, 0, tokens)
            self._recorder.close_if_quiet(seen)

    def planned(self, seen: Seen, hit_tokens: int, kv: list[int], others: tuple[tuple[str, list[int]], ...]) -> None:
        """A plan is made in these slots, of a hit of so many tokens that all ranks share."""
        self._recorder.planned(seen, hit_tokens // self._page, kv, dict(others))

    def adopted(self, pool: str, indices: list[int]) -> None:
        """The engine took host memory for itself."""
        self._recorder.adopted(pool, indices)

    def wanted(self, operation: Any) -> None:
        """Admission asked for it."""
        seen = self._seen(operation)
        if seen is not None:
            self._recorder.wanted(seen)

    # --- inside a call that may end a prefetch ---------------------------------------------------------------------------

    def terminated(self, kind: str, operation: Any, completed_tokens: int, stopped: bool, policy: str) -> None:
        """The counters are frozen; `stopped`: a transfer thread had ended it before."""
        seen = self._seen(operation)
        if seen is None:
            return
        if kind == "abort":
            self._recorder.reads.freeze(seen, completed_tokens)
            seen.aborting = True
        else:
            self._recorder.terminated(seen, completed_tokens, self._why(seen, policy, stopped))

    def reduced(self, operation: Any, values: list[int], least: bool, names: tuple[str, ...], took_ns: int) -> None:
        """The ranks reduced something in a check: their least results, or whether any of them had stopped."""
        seen = self._seen(operation)
        if seen is None:
            return
        if least:
            seen.reduced = {KV: values[0], **dict(zip(names, values[1:], strict=False))}
            seen.reduced_ns = took_ns
        elif len(values) > 1:
            seen.peer_stopped = values[1] == 1

    def going_back(self, operation: Any, back: tuple[tuple[str, list[int]], ...]) -> None:
        """Slots of other pools were put on their way back."""
        seen = self._seen(operation)
        if seen is not None:
            for pool, indices in back:
                self._recorder.going_back(seen, pool, indices)

    def freed(self, pool: str, indices: list[int]) -> None:
        """Slots went free."""
        self._recorder.freed(pool, indices)

    # --- the end -----------------------------------------------------------------------------------------------------------

    def ended(
        self, call: Call, outer: str, still: bool, loaded: int, returned: int, completed_tokens: int,
        counted: Mapping[Any, int] | None, policy: str, hit_tokens: int | None,
    ) -> None:  # fmt: skip
        """A call is over in which a prefetch ended, or (`still`) freed or unlocked something and goes on.

        `outer` is what called it; `hit_tokens`: what all ranks shared of one that was revoked as it was to get its pages.
        """
        seen = self._seen(call.operation)
        if seen is not None and not seen.ended:
            seen.unlocks += call.unlocks
        if seen is not None and not seen.ended and not still:
            if call.inserted is not None:
                offered, there, dropped = call.inserted
                seen.inserted = (len(offered), int(there), bool(dropped))
            self._end(seen, outer, loaded, returned, completed_tokens, counted or {}, policy, hit_tokens)
            if seen.aborting:
                seen.aborting = False
                self._recorder.reads.catch_up(seen.operation)
        for pool, indices in call.frees or ():
            self._recorder.freed(pool, indices)
        if seen is not None:
            self._recorder.close_if_quiet(seen)
        if call.kind == "abort" and not still:
            self._recorder.finished(request_of(call.key))

    def gone(self, operation: Any) -> None:
        """A prefetch was revoked where nobody could look: unlock and tokens are taken for granted."""
        seen = self._seen(operation)
        if seen is not None and not seen.ended:
            seen.unlocks = 1
            self._recorder.ended(seen, self._revoked(seen, None), 0, seen.reserved_tokens)
            self._recorder.close_if_quiet(seen)

    def _end(
        self, seen: Seen, kind: str, loaded: int, returned: int, completed_tokens: int, counted: Mapping[Any, int], policy: str,
        hit_tokens: int | None,
    ) -> None:  # fmt: skip
        if kind == "abort":
            reason = Reason.ABORTED
        elif kind == "check":
            if seen.reason is None:
                self._recorder.terminated(seen, completed_tokens, self._why(seen, policy, False))
            reason = seen.reason or Reason.BEST_EFFORT
            self._recorder.synced(seen, self._agreed(seen, completed_tokens, counted), seen.reduced_ns)
        else:
            reason = self._revoked(seen, hit_tokens)
        self._recorder.ended(seen, reason, int(loaded), int(returned))

    def _agreed(self, seen: Seen, completed_tokens: int, counted: Mapping[Any, int]) -> dict[str, int]:
        """Return what the ranks agreed on; where nobody reduced it here, what this rank goes by."""
        agreed = {name_of(pool): int(pages) for pool, pages in counted.items() if name_of(pool) in self._layout.index_of}
        agreed[KV] = int(completed_tokens) if seen.windows else 0
        if self._riders_with_kv:
            agreed.update(self._agreed_together(seen, agreed[KV] // self._page))
        return {**agreed, **seen.reduced}

    def _agreed_together(self, seen: Seen, pages: int) -> dict[str, int]:
        """Return what is agreed of kv and its riders where the engine knows one number for them all: this rank's own runs if
        the number is their least, else the number for each."""
        runs = seen.runs(self._layout)
        group = [pool.name for pool in self._layout.pools if self._layout.owner(pool.name) == KV]
        own = {name: runs[name] - seen.start_page for name in group}
        found = own if min(own.values()) == pages else dict.fromkeys(group, pages)
        return {**found, KV: found[KV] * self._page}

    def _why(self, seen: Seen, policy: str, stopped: bool) -> Reason:
        """Return why a prefetch that admission asked for has stopped."""
        if not seen.windows:
            return Reason.QUEUE_TIMEOUT if policy == "timeout" else Reason.BEST_EFFORT
        runs = seen.runs(self._layout)
        if all(runs[pool.name] >= self._full(seen, pool.name) for pool in self._layout.pools):
            return Reason.COMPLETED
        if stopped or seen.peer_stopped or seen.over:
            return Reason.READ_FAILED
        return Reason.TIMEOUT if policy == "timeout" else Reason.BEST_EFFORT

    def _full(self, seen: Seen, pool: str) -> int:
        kind = self._layout.pool(pool)
        lo, hi = kind.window(seen.start_page, seen.plan_page)
        return hi - lo if isinstance(kind.coverage, TrailingPages) else hi

    def _revoked(self, seen: Seen, hit_tokens: int | None) -> Reason:
        if hit_tokens is not None and hit_tokens >= self._threshold_tokens:
            self._recorder.resolved(seen, hit_tokens // self._page)
            return Reason.HOST_CAPACITY
        found = seen.hit_page is not None and seen.hit_page > seen.start_page
        miss = Reason.BELOW_THRESHOLD if found else Reason.FULL_MISS
        self._recorder.resolved(seen, 0, miss)
        return miss

    # --- after the end -----------------------------------------------------------------------------------------------------

    def taken(self, key: Any, tokens: int | None) -> None:
        """The scheduler read the loaded tokens of a request."""
        request = request_of(key)
        self._recorder.taken(request, int(tokens or 0))
        if not self.finishes:
            self._recorder.finished(request)

    def served(self, request: str, path: list[tuple[int, list[int] | None]]) -> None:
        """A request was served a prefix: from its end to its start, tokens and host slots of each node."""
        self._recorder.served(request, [(tokens // self._page, slots) for tokens, slots in reversed(path)])

    def finished(self, key: Any) -> None:
        """A request is over."""
        self._recorder.finished(request_of(key))
