"""What SGLang's scheduler does, noted call by call where it does it: issue, plan, allocations and frees.

Runs on the scheduler's thread inside the engine's own calls, so it copies what may change and leaves everything else to
`sglang_told.py`. Ends of prefetches are noted in `sglang_ends.py`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lifecycle.adapters.hooks import Args, Hooks, Kwargs, first
from lifecycle.adapters.sglang_ends import Ends, Notes, operation_of
from lifecycle.adapters.sglang_pools import starts
from lifecycle.adapters.sglang_told import Teller

_now_ns = time.monotonic_ns


class _Issue(NamedTuple):
    key: Any
    entry: Any
    occupied: int
    anchor: Any
    tokens: int
    last_key: str
    matched: int  # tokens before it, where the caller says so (since 0.5.2x)


class Watch:
    """The hooks on the scheduler's side of one cache. `ended` is called behind each of the engine's outermost calls."""

    def __init__(self, notes: Notes, teller: Teller, ranks: int, riders_with_kv: bool, ticked: Callable[[], None]) -> None:
        self._notes, self._teller, self._ranks, self._ticked = notes, teller, ranks, ticked
        self._tree, self._controller, self._note = notes.tree, notes.controller, notes.facts.append
        self._riders_with_kv = riders_with_kv
        self._page = notes.page_size
        self._ends = Ends(notes, teller)
        self._asked: tuple[Any, ...] = ()  # operations whose hit waits for pages
        self._silent_revokes = False

    def attach(self, hooks: Hooks, pools: Mapping[str, Any]) -> dict[str, bool]:
        """Put the hooks on; return what can be seen, in words."""
        tree, controller, around, ends = self._tree, self._controller, hooks.around, self._ends
        around(tree, "prefetch_from_storage", self._before_issue, self._after_issue)
        around(tree, "check_prefetch_progress", ends.before("check"), ends.after)
        around(tree, "release_aborted_request", ends.before("abort"), ends.after)
        around(tree, "_drain_storage_control_queues_impl", self._before_drain, self._after_drain)
        around(tree, "pop_prefetch_loaded_tokens", first, self._after_pop)
        around(tree, "pop_prefetch_loaded_span", first, self._after_pop)
        around(tree, "_handle_prefetch_result", ends.before_result, ends.after)
        for name, pool in pools.items():
            around(pool, "alloc", None, self._allocated(name))
            around(pool, "free", first, self._freed(name))
        core = getattr(tree, "tree_core", tree)
        insert = "insert_host" if hasattr(core, "insert_host") else "_insert_helper_host"
        revoke = "revoke_pending_prefetch" if hasattr(tree, "revoke_pending_prefetch") else "_revoke_pending_prefetch"
        revokes = around(tree, revoke, ends.before("revoke"), ends.after)
        self._silent_revokes = not revokes
        seen = {
            "which prefetches are revoked (told afterwards; unlock and tokens are taken for granted)": revokes,
            "what the tree took": around(core, insert, lambda args, _: args[1], ends.after_insert),
            "where the counters were frozen": around(
                controller, "terminate_prefetch", ends.before_terminate, ends.after_terminate
            ),
            "which pages of other pools go back": around(controller, "append_host_mem_release", ends.releasing, None),
        }
        if self._riders_with_kv:  # a thread of its own reduces, bit by bit, and the scheduler goes by what comes out
            seen["what each rank brought to the agreement (only what came of it)"] = False
        elif self._ranks > 1:  # alone, what this rank read is what is agreed
            seen["what the ranks agreed on"] = around(tree, "_all_reduce_attn_groups", ends.before_reduce, ends.after_reduce)
        if hasattr(tree, "dec_host_lock_ref"):
            around(tree, "dec_host_lock_ref", first, ends.unlocked)
        return seen

    def _before_issue(self, args: Args, kwargs: Kwargs) -> _Issue:
        key = first(args, kwargs)
        given = len(args)
        anchor = args[1] if given > 1 else kwargs.get("last_host_node", kwargs.get("last_host_node_id"))
        tokens = args[2] if given > 2 else kwargs["new_input_tokens"]
        last = args[3] if given > 3 else kwargs.get("last_hash")
        matched = args[5] if given > 5 else kwargs.get("matched_prefix_tokens")
        self._notes.scopes.append(_ISSUE)
        entry = self._tree.ongoing_prefetch.get(key)
        return _Issue(
            key, entry, self._controller.prefetch_tokens_occupied, anchor, len(tokens), last or "", len(matched or ())
        )

    def _after_issue(self, issue: _Issue, result: object) -> None:
        notes = self._notes
        notes.scopes.pop()
        entry = self._tree.ongoing_prefetch.get(issue.key)
        start = issue.matched // self._page if self._riders_with_kv else self._depth(issue.anchor)
        if entry is None or entry is issue.entry:
            self._declined(issue, start)
        else:
            operation = operation_of(entry)
            groups = getattr(entry, "comp_xfers", None)
            transfers: tuple[Any, ...] = ()
            if groups:
                transfers = tuple(each for group in groups.values() for each in group if each.indices_from_pool is None)
            tokens = self._controller.prefetch_tokens_occupied - issue.occupied
            self._note((self._teller.issued, _now_ns(), issue.key, operation, issue.anchor, start, len(entry[1]) // self._page,
                        tokens, issue.last_key))  # fmt: skip
            notes.pending[id(operation)] = (issue.key, operation, transfers)
            if notes.fresh:
                notes.adopt_but([getattr(operation, "host_indices", None), *(each.host_indices for each in transfers)])
        if notes.fresh:
            notes.adopt_but(())
        notes.over()

    def _declined(self, issue: _Issue, start: int) -> None:
        tokens = max(0, issue.tokens - int(bool(getattr(self._tree, "is_eagle", False))))
        pages = tokens // self._page
        if not pages or not getattr(self._tree, "enable_storage", True):
            return
        threshold = int(getattr(self._tree, "prefetch_threshold", self._controller.prefetch_threshold))
        limit = self._controller.prefetch_capacity_limit
        again = issue.entry is not None
        self._note((self._teller.declined, _now_ns(), issue.key, issue.anchor, start, pages, issue.occupied, issue.last_key,
                    pages * self._page < threshold, issue.occupied >= limit, again))  # fmt: skip

    def _depth(self, anchor: Any) -> int:
        """Return how many pages the prefix up to an anchor has."""
        core = getattr(self._tree, "tree_core", None)
        node = core.node_by_id(anchor) if core is not None and isinstance(anchor, int) else anchor
        tokens = 0
        while node is not None and node.parent is not None:
            tokens += len(node.key)
            node = node.parent
        return tokens // self._page

    # --- plan ----------------------------------------------------------------------------------------------------------

    def _before_drain(self, args: Args, kwargs: Kwargs) -> None:
        self._notes.scopes.append(_DRAIN)
        queue = getattr(self._controller, "prefetch_hit_queue", None)
        if queue is not None and queue.queue:
            self._asked = asked = tuple(queue.queue)
            self._note((self._teller.hits, _now_ns(), tuple([(each, each.storage_hit_count) for each in asked])))

    def _after_drain(self, token: object, result: object) -> None:
        notes = self._notes
        notes.scopes.pop()
        asked, self._asked = self._asked, ()
        if asked:
            for operation in asked:
                notes.capture(operation)
            self._note((self._teller.hits, _now_ns(), ()))
        if self._silent_revokes:
            self._find_revoked()
        if notes.fresh:
            taken: list[Any] = []
            for operation in asked:
                taken.append(operation.host_indices)
                taken += [each.host_indices for each in getattr(operation, "pool_transfers", None) or ()]
            notes.adopt_but(taken)
        notes.over()
        self._ticked()

    def _find_revoked(self) -> None:
        """Note prefetches that were revoked in a place where nobody can look."""
        for key, operation, _ in list(self._notes.pending.values()):
            entry = self._tree.ongoing_prefetch.get(key)
            if entry is None or operation_of(entry) is not operation:
                self._ends.gone(key, operation)

    def _allocated(self, pool: str) -> Callable[[object, Any], None]:
        notes = self._notes

        def allocated(token: object, indices: Any) -> None:
            if indices is not None:
                notes.fresh.append((pool, indices))
                if not notes.scopes:
                    notes.adopt_but(())
                    notes.over()

        return allocated

    def _freed(self, pool: str) -> Callable[[Any, object], None]:
        notes, size, told, told_inside = self._notes, self._notes.sizes[pool], self._teller.freed, self._teller.freed_inside

        def freed(indices: Any, result: object) -> None:
            if not len(indices):
                return
            scope = notes.scopes[-1] if notes.scopes else None
            if scope is not None and scope.operation is not None:
                scope.freed = True
                self._note((told_inside, _now_ns(), scope.operation, pool, starts(indices, size)))
                return
            self._note((told, _now_ns(), pool, starts(indices, size)))
            if scope is None:
                notes.over()

        return freed

    # --- after the end ---------------------------------------------------------------------------------------------------

    def _after_pop(self, key: Any, result: Any) -> None:
        tokens = result[0] if isinstance(result, tuple) else result
        self._note((self._teller.taken, _now_ns(), key, tokens))
        if not self._notes.scopes:
            self._notes.over()


class _Open:
    """A call that belongs to no prefetch."""

    operation = None

    def __init__(self, kind: str) -> None:
        self.kind = kind


_ISSUE, _DRAIN = _Open("issue"), _Open("drain")
