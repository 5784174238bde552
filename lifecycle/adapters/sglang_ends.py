"""How a prefetch of SGLang's ends, noted inside the calls that may end it: checks, aborts, revocations.

Like `sglang_watch.py` this runs inside the engine's calls: it copies, and tells nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lifecycle.adapters.hooks import Args, Kwargs, first
from lifecycle.adapters.sglang_pools import name_of, starts
from lifecycle.adapters.sglang_scribe import Fact
from lifecycle.adapters.sglang_told import Teller
from lifecycle.layout import KV

_now_ns = time.monotonic_ns


class Scope:
    """A call of the scheduler's that may end one prefetch; what happens inside it belongs to that prefetch."""

    unlocks = 0
    inserted: tuple[Any, int, bool] | None = None  # key offered, tokens there before, dropped
    frees: list[tuple[str, list[int]]] | None = None

    def __init__(self, kind: str, key: Any, operation: Any, occupied: int, anchor: Any, locks: int | None) -> None:
        self.kind, self.key, self.operation, self.occupied = kind, key, operation, occupied
        self.anchor, self.locks = anchor, locks  # how often it is locked, where an anchor says so itself


class Notes:
    """What the hooks on the scheduler's thread share. `over`, if any, is called where the engine's outermost call is over."""

    def __init__(
        self, tree: Any, controller: Any, facts: deque[Fact], sizes: Mapping[str, int], teller: Teller,
        over: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        self.tree, self.controller, self.facts, self.sizes, self.over = tree, controller, facts, sizes, over
        self.page_size = int(controller.page_size)
        self.scopes: list[Any] = []
        self.pending: dict[int, tuple[Any, Any, tuple[Any, ...]]] = {}  # no plan yet: key, operation, transfers with slots
        self.hits: dict[int, int] = {}  # in a drain: tokens of operations that wait for their pages
        self.fresh: list[tuple[str, Any]] = []  # given out in this call: to whom is not known yet
        self._teller, self._said, self._kv_size = teller, teller.said, sizes[KV]

    def capture(self, operation: Any) -> None:
        """Note the plan of an operation, once both the hit and the pages for it are there. From any thread."""
        waiting = self.pending.get(id(operation))
        if waiting is None:
            return
        indices, keys = operation.host_indices, operation.hash_value
        if indices is None or not keys:
            return
        pages = len(keys)
        slots = starts(indices, self._kv_size)
        if len(slots) > pages:
            del slots[pages:]
        others: tuple[tuple[str, list[int]], ...] = ()
        if waiting[2]:
            others = tuple(
                (name, starts(each.host_indices, self.sizes[name]))
                for each in waiting[2]
                if each.host_indices is not None and (name := name_of(each.name)) != KV and name in self.sizes
            )
        hit = self.hits.get(id(operation), pages * self.page_size)
        self.facts.append((self._said, _now_ns(), "plan", operation, hit, slots, others))
        self.pending.pop(id(operation), None)  # only now: who finds it gone may count on the fact

    def adopt_but(self, taken: Iterable[Any]) -> None:
        """Note what was given out and is in none of these buffers as the engine's own."""
        kept = set(map(id, taken))
        fresh = tuple(self.fresh)
        self.fresh.clear()
        for pool, indices in fresh:
            if id(indices) not in kept and indices.numel():
                self.facts.append((self._teller.adopted, _now_ns(), pool, starts(indices, self.sizes[pool])))


class Ends:
    """The hooks around and inside the calls that may end a prefetch."""

    def __init__(self, notes: Notes, teller: Teller) -> None:
        self._notes, self._teller, self._note = notes, teller, notes.facts.append
        self._tree, self._controller, self._scopes, self._pending = notes.tree, notes.controller, notes.scopes, notes.pending
        self._told_wanted, self._told_ended, self._told_terminated = teller.wanted, teller.ended, teller.terminated
        self._scheduler = threading.get_ident()
        self._wanted: set[int] = set()  # operations that admission has asked for
        self._before_check = self.before("check")
        self._least: dict[Any, bool] = {}  # whether a reduction is a MIN, by its operator: asking for its name is slow

    def before(self, kind: str) -> Callable[[Args, Kwargs], Scope]:
        """Return the hook ahead of a call that may end a prefetch."""
        tree, controller, scopes, notes = self._tree, self._controller, self._scopes, self._notes

        def before(args: Args, kwargs: Kwargs) -> Scope:
            key = args[0] if args else first(args, kwargs)
            entry = tree.ongoing_prefetch.get(key)
            if entry is None:
                scope = Scope(kind, key, None, 0, None, None)
            else:
                operation = getattr(entry, "operation", None) or operation_of(entry)
                if id(operation) in notes.pending:
                    notes.capture(operation)
                anchor = entry[0]
                locks = None if type(anchor) is int else getattr(anchor, "host_ref_counter", None)
                scope = Scope(kind, key, operation, controller.prefetch_tokens_occupied, anchor, locks)
            scopes.append(scope)
            return scope

        return before

    def before_result(self, args: Args, kwargs: Kwargs) -> Scope:
        """Enter the handling of a result, whoever asked for it."""
        return self._before_check((first(args, kwargs).handle,), {})

    def after(self, scope: Scope, result: object) -> None:
        """Note the end of a prefetch, if that is what the call was."""
        scopes, operation, notes = self._scopes, scope.operation, self._notes
        scopes.pop()
        if operation is not None:
            entry = self._tree.ongoing_prefetch.get(scope.key)
            if entry is None or (getattr(entry, "operation", None) or operation_of(entry)) is not operation:
                self._wanted.discard(id(operation))
                self._pending.pop(id(operation), None)
                self._end(scope, operation, still=False)
            else:
                if scope.kind == "check" and id(operation) not in self._wanted:
                    self._wanted.add(id(operation))
                    self._note((self._teller.wanted, _now_ns(), operation))
                if scope.frees or scope.unlocks:
                    self._end(scope, operation, still=True)
        elif scope.kind == "abort":
            self._note((self._teller.finished, _now_ns(), scope.key))
        if not scopes:
            if notes.fresh:
                notes.adopt_but(())
            if notes.over is not None:
                notes.over()

    def _end(self, scope: Scope, operation: Any, still: bool) -> None:
        tree, outer, hit = self._tree, scope.kind, None
        if outer == "revoke" and self._scopes:
            outer = self._scopes[-1].kind
            hit = self._notes.hits.get(id(operation))
        if scope.locks is not None:
            scope.unlocks += scope.locks - scope.anchor.host_ref_counter
        counted = None
        if getattr(operation, "pool_transfers", None):
            counted = dict(getattr(operation.pool_storage_result, "extra_pool_hit_pages", ()))
        self._note((self._told_ended, _now_ns(), scope, outer, still, tree.prefetch_loaded_tokens_by_reqid.get(scope.key, 0),
                    scope.occupied - self._controller.prefetch_tokens_occupied, operation.completed_tokens, counted,
                    tree.prefetch_stop_policy, hit))  # fmt: skip

    def gone(self, key: Any, operation: Any) -> None:
        """Note that a prefetch was revoked in a place where nobody could look."""
        self._wanted.discard(id(operation))
        self._pending.pop(id(operation), None)
        self._note((self._teller.gone, _now_ns(), operation))

    # --- inside a call that may end a prefetch ---------------------------------------------------------------------------

    @property
    def _scope(self) -> Scope | None:
        return self._scopes[-1] if self._scopes and self._scopes[-1].operation is not None else None

    def before_terminate(self, args: Args, kwargs: Kwargs) -> tuple[Any, bool]:
        """Note whether a transfer thread had ended the operation before."""
        operation = args[0] if args else first(args, kwargs)
        return operation, operation.is_terminated()

    def after_terminate(self, token: tuple[Any, bool], result: Any) -> None:
        """Note that the counters are frozen."""
        scopes = self._scopes
        if scopes and result is not None:
            scope = scopes[-1]
            operation, stopped = token
            if scope.operation is operation and scope.kind != "revoke":
                self._note((self._told_terminated, _now_ns(), scope.kind, operation, int(result[0]), stopped,
                            self._tree.prefetch_stop_policy))  # fmt: skip

    def before_reduce(self, args: Args, kwargs: Kwargs) -> tuple[Any, bool, int] | None:
        """Note a reduction inside a check."""
        scope = self._scope
        if scope is None or scope.kind != "check":
            return None
        operator = args[1] if len(args) > 1 else kwargs["op"]
        least = self._least.get(operator)
        if least is None:
            least = self._least[operator] = "MIN" in repr(operator)
        return args[0], least, _now_ns()

    def after_reduce(self, token: tuple[Any, bool, int] | None, result: object) -> None:
        """Note what the ranks agreed on."""
        scope = self._scope
        if token is None or scope is None:
            return
        tensor, least, since_ns = token
        operation, values = scope.operation, tensor.tolist()
        names: tuple[str, ...] = ()
        if least:
            names = tuple(name_of(each.name) for each in getattr(operation, "pool_transfers", None) or ())
        now_ns = _now_ns()
        self._note((self._teller.reduced, now_ns, operation, values, least, names, now_ns - since_ns))

    def inserted(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Note what the tree took."""
        scopes = self._scopes
        if scopes and result is not None and scopes[-1].operation is not None:
            there = result if isinstance(result, int) else result.prefix_len
            scopes[-1].inserted = args[1], there, getattr(result, "host_insert_dropped", False)

    def unlocked(self, args: Args, kwargs: Kwargs, result: object) -> None:
        """Note that an anchor was unlocked."""
        scopes = self._scopes
        if scopes:
            scope = scopes[-1]
            if scope.operation is not None and (args[0] if args else first(args, kwargs)) == scope.anchor:
                scope.unlocks += 1

    def releasing(self, args: Args, kwargs: Kwargs) -> None:
        """Note the slots of other pools that are put on their way back."""
        extra = args[1] if len(args) > 1 else kwargs.get("extra_pools")
        if not extra:
            return
        scope = self._scope
        if scope is None or threading.get_ident() != self._scheduler:
            return
        sizes = self._notes.sizes
        back = tuple(
            (name, starts(each.host_indices, sizes[name]))
            for each in extra
            if each.indices_from_pool is None and each.host_indices is not None and (name := name_of(each.name)) in sizes
        )
        if back:
            self._note((self._teller.going_back, _now_ns(), scope.operation, back))


def operation_of(entry: Any) -> Any:
    """Return the operation in a bookkeeping entry, whatever else this version puts beside it."""
    return getattr(entry, "operation", None) or next(each for each in entry if hasattr(each, "completed_tokens"))
