"""How a prefetch of SGLang's ends, seen from inside the calls that may end it: checks, aborts, revocations."""

import threading
import time
from collections.abc import Callable
from typing import Any

from lifecycle.adapters.hooks import Args, Kwargs, first
from lifecycle.adapters.sglang_pools import name_of
from lifecycle.adapters.sglang_recorder import Recorder
from lifecycle.adapters.sglang_seen import Seen
from lifecycle.layout import KV, Layout, TrailingPages
from lifecycle.reasons import Reason


class Scope:
    """A call of the scheduler's that may end one prefetch; what happens inside it belongs to that prefetch."""

    __slots__ = ("agreed", "frees", "kind", "locks", "occupied", "peer_stopped", "reduced_ns", "seen")

    def __init__(self, kind: str, seen: Seen | None = None, occupied: int = 0, locks: int | None = None) -> None:
        self.kind = kind
        self.seen = seen
        self.occupied = occupied
        self.locks = locks
        self.frees: list[tuple[str, Any]] = []
        self.agreed: dict[str, int] | None = None
        self.reduced_ns = 0
        self.peer_stopped = False


class Ends:
    """The hooks around and inside the calls that may end a prefetch. `sync` tells what has happened up to now."""

    def __init__(
        self, tree: Any, controller: Any, layout: Layout, recorder: Recorder, riders_with_kv: bool, sync: Callable[[], None]
    ) -> None:  # fmt: skip
        self._tree, self._controller, self._layout, self._recorder, self._sync = tree, controller, layout, recorder, sync
        self._riders_with_kv = riders_with_kv
        self._page = int(controller.page_size)
        self._scheduler = threading.get_ident()
        self.scopes: list[Scope] = []
        self.pending: dict[int, Seen] = {}  # no plan yet
        self.hits: dict[int, int] = {}  # agreed, of operations that wait for their pages
        self._least: dict[Any, bool] = {}  # whether a reduction is a MIN, by its operator: asking for its name is slow

    def occupied(self) -> int:
        """Return the tokens in flight, by the engine's own count."""
        return int(self._controller.prefetch_tokens_occupied)

    def before(self, kind: str) -> Callable[[Args, Kwargs], Scope]:
        """Return the hook ahead of a call that may end a prefetch."""

        def before(args: Args, kwargs: Kwargs) -> Scope:
            return self._enter(kind, first(args, kwargs))

        return before

    def before_result(self, args: Args, kwargs: Kwargs) -> Scope:
        """Enter the handling of a result, whoever asked for it."""
        self._recorder.reads.drain()
        return self._enter("check", first(args, kwargs).handle)

    def _enter(self, kind: str, key: Any) -> Scope:
        entry = self._tree.ongoing_prefetch.get(key)
        seen = None
        if entry is not None:
            if not self.scopes or self.scopes[-1].kind != "drain":
                self._sync()
            seen = self._recorder.by_operation.get(id(operation_of(entry)))
        scope = Scope(kind, seen, self.occupied(), getattr(seen.anchor, "host_ref_counter", None) if seen else None)
        self.scopes.append(scope)
        return scope

    def after(self, scope: Scope, result: object) -> None:
        """Tell the end of a prefetch, if that is what the call was; then what it freed."""
        self.scopes.pop()
        seen = scope.seen
        if seen is None:
            return
        if not seen.ended:
            entry = self._tree.ongoing_prefetch.get(seen.key)
            if entry is not None and operation_of(entry) is seen.operation:
                if scope.kind == "check":
                    self._recorder.wanted(seen)
            else:
                self.end(scope, seen)
        for pool, indices in scope.frees:
            self._recorder.freed(pool, indices)
        self._recorder.close_if_quiet(seen)

    def after_abort(self, scope: Scope, result: object) -> None:
        """Tell the end of an abort, and of the request."""
        self.after(scope, result)
        if scope.seen is not None:
            self._recorder.aborted(scope.seen.request)

    def end(self, scope: Scope, seen: Seen) -> None:
        """Tell how a prefetch ended."""
        outer = self.scopes[-1].kind if self.scopes else scope.kind
        kind = outer if scope.kind == "revoke" else scope.kind
        self.pending.pop(seen.id, None)
        if scope.locks is not None:
            seen.unlocks += scope.locks - seen.anchor.host_ref_counter
        if kind == "abort":
            reason = Reason.ABORTED
        elif kind == "check":
            if seen.reason is None:
                self._recorder.terminated(seen, seen.operation.completed_tokens, self._why(seen, scope, False))
            reason = seen.reason or Reason.BEST_EFFORT
            self._recorder.synced(seen, self._agreed(seen, scope), scope.reduced_ns)
        else:
            reason = self._revoked(seen)
        loaded = int(self._tree.prefetch_loaded_tokens_by_reqid.get(seen.key, 0))
        self._recorder.ended(seen, reason, loaded, scope.occupied - self.occupied())

    def _agreed(self, seen: Seen, scope: Scope) -> dict[str, int]:
        """Return what the ranks agreed on; where nobody reduced it here, what this rank goes by."""
        counted = getattr(getattr(seen.operation, "pool_storage_result", None), "extra_pool_hit_pages", {})
        agreed = {name_of(pool): int(pages) for pool, pages in counted.items() if name_of(pool) in self._layout.index_of}
        agreed[KV] = int(seen.operation.completed_tokens) if seen.windows else 0
        if self._riders_with_kv:
            agreed.update(self._agreed_together(seen, agreed[KV] // self._page))
        return {**agreed, **(scope.agreed or {})}

    def _agreed_together(self, seen: Seen, pages: int) -> dict[str, int]:
        """Return what is agreed of kv and its riders where the engine knows one number for them all: this rank's own runs if
        the number is their least, else the number for each."""
        runs = seen.runs(self._layout)
        group = [pool.name for pool in self._layout.pools if self._layout.owner(pool.name) == KV]
        own = {name: runs[name] - seen.start_page for name in group}
        found = own if min(own.values()) == pages else dict.fromkeys(group, pages)
        return {**found, KV: found[KV] * self._page}

    def _why(self, seen: Seen, scope: Scope, stopped: bool) -> Reason:
        """Return why a prefetch that admission asked for has stopped; `stopped`: a transfer thread had ended it."""
        policy = str(getattr(self._tree, "prefetch_stop_policy", ""))
        if not seen.windows:
            return Reason.QUEUE_TIMEOUT if policy == "timeout" else Reason.BEST_EFFORT
        runs = seen.runs(self._layout)
        if all(runs[pool.name] >= self._full(seen, pool.name) for pool in self._layout.pools):
            return Reason.COMPLETED
        if stopped or scope.peer_stopped or seen.over:
            return Reason.READ_FAILED
        return Reason.TIMEOUT if policy == "timeout" else Reason.BEST_EFFORT

    def _full(self, seen: Seen, pool: str) -> int:
        kind = self._layout.pool(pool)
        lo, hi = kind.window(seen.start_page, seen.plan_page)
        return hi - lo if isinstance(kind.coverage, TrailingPages) else hi

    def _revoked(self, seen: Seen) -> Reason:
        hit = self.hits.pop(id(seen.operation), None)
        if hit is not None and hit * self._page >= int(self._controller.prefetch_threshold):
            self._recorder.resolved(seen, hit)
            return Reason.HOST_CAPACITY
        self._recorder.reads.drain()
        found = seen.hit_page is not None and seen.hit_page > seen.start_page
        miss = Reason.BELOW_THRESHOLD if found else Reason.FULL_MISS
        self._recorder.resolved(seen, 0, miss)
        return miss

    # --- inside a call that may end a prefetch ---------------------------------------------------------------------------

    @property
    def _scope(self) -> Scope | None:
        return self.scopes[-1] if self.scopes and self.scopes[-1].seen is not None else None

    def before_terminate(self, args: Args, kwargs: Kwargs) -> tuple[Any, bool]:
        """Note whether a transfer thread had ended the operation before."""
        operation = first(args, kwargs)
        return operation, bool(operation.is_terminated())

    def after_terminate(self, token: tuple[Any, bool], result: Any) -> None:
        """Tell that the counters are frozen."""
        operation, stopped = token
        scope = self._scope
        if scope is None or scope.seen is None or scope.seen.operation is not operation or result is None:
            return
        self._recorder.reads.drain()
        if scope.kind == "abort":
            self._recorder.reads.freeze(scope.seen, int(result[0]))
        elif scope.kind == "check":
            self._recorder.terminated(scope.seen, int(result[0]), self._why(scope.seen, scope, stopped))

    def before_reduce(self, args: Args, kwargs: Kwargs) -> tuple[Any, bool, int] | None:
        """Note a reduction inside a check."""
        scope = self._scope
        if scope is None or scope.kind != "check":
            return None
        operator = args[1] if len(args) > 1 else kwargs["op"]
        least = self._least.get(operator)
        if least is None:
            least = self._least[operator] = "MIN" in repr(operator)
        return args[0], least, time.monotonic_ns()

    def after_reduce(self, token: tuple[Any, bool, int] | None, result: object) -> None:
        """Note what the ranks agreed on."""
        scope = self._scope
        if token is None or scope is None:
            return
        tensor, least, since_ns = token
        values = tensor.tolist()
        if least:
            assert scope.seen is not None, "a scope without a prefetch is none here"
            names = [name_of(each.name) for each in getattr(scope.seen.operation, "pool_transfers", None) or ()]
            scope.agreed = {KV: values[0], **dict(zip(names, values[1:], strict=False))}
            scope.reduced_ns = time.monotonic_ns() - since_ns
        elif len(values) > 1:
            scope.peer_stopped = values[1] == 1

    def after_insert(self, key: Any, result: Any) -> None:
        """Note what the tree took."""
        scope = self._scope
        if scope is not None and scope.seen is not None and result is not None:
            there = result if isinstance(result, int) else result.prefix_len
            scope.seen.inserted = (len(key), int(there), bool(getattr(result, "host_insert_dropped", False)))

    def unlocked(self, anchor: Any, result: object) -> None:
        """Note that the anchor was unlocked."""
        scope = self._scope
        if scope is not None and scope.seen is not None and anchor == scope.seen.anchor:
            scope.seen.unlocks += 1

    def releasing(self, args: Args, kwargs: Kwargs) -> None:
        """Note the slots of other pools that are put on their way back."""
        scope = self._scope
        if scope is None or scope.seen is None or threading.get_ident() != self._scheduler:
            return
        for each in (args[1] if len(args) > 1 else kwargs.get("extra_pools")) or ():
            if each.indices_from_pool is None and each.host_indices is not None:
                self._recorder.going_back(scope.seen, name_of(each.name), each.host_indices)


def operation_of(entry: Any) -> Any:
    """Return the operation in a bookkeeping entry, whatever else this version puts beside it."""
    return getattr(entry, "operation", None) or next(each for each in entry if hasattr(each, "completed_tokens"))
