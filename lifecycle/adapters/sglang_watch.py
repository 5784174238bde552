"""What SGLang's scheduler does, seen call by call: issue, plan, allocations and frees; ends are in `sglang_ends.py`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lifecycle.adapters.hooks import Args, Hooks, Kwargs, first
from lifecycle.adapters.sglang_ends import Ends, Scope, operation_of
from lifecycle.adapters.sglang_pools import name_of
from lifecycle.adapters.sglang_recorder import Recorder, request_of
from lifecycle.layout import KV, Layout
from lifecycle.reasons import Reason


class _Issue(NamedTuple):
    key: Any
    entry: Any
    occupied: int
    anchor: Any
    tokens: int
    last_key: str
    matched: int  # tokens before it, where the caller says so (since 0.5.2x)


class Watch:
    """The hooks on the scheduler's side of one cache."""

    def __init__(
        self, tree: Any, controller: Any, layout: Layout, recorder: Recorder, flush: Callable[[], None], ranks: int,
        riders_with_kv: bool,
    ) -> None:  # fmt: skip
        self._ranks = ranks
        self._tree, self._controller, self._layout, self._recorder, self._flush = tree, controller, layout, recorder, flush
        self._riders_with_kv = riders_with_kv
        self._page = int(controller.page_size)
        self._ends = Ends(tree, controller, layout, recorder, riders_with_kv, self._sync)
        self._scopes, self._pending, self._hits = self._ends.scopes, self._ends.pending, self._ends.hits
        self._occupied = self._ends.occupied
        self._silent_revokes = False

    def attach(self, hooks: Hooks, pools: Mapping[str, Any]) -> dict[str, bool]:
        """Put the hooks on; return what can be seen, in words."""
        tree, controller, around, ends = self._tree, self._controller, hooks.around, self._ends
        around(tree, "prefetch_from_storage", self._before_issue, self._after_issue)
        around(tree, "check_prefetch_progress", ends.before("check"), ends.after)
        around(tree, "release_aborted_request", ends.before("abort"), ends.after_abort)
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

    # --- issue ---------------------------------------------------------------------------------------------------------

    def _before_issue(self, args: Args, kwargs: Kwargs) -> _Issue:
        key = first(args, kwargs)
        anchor = args[1] if len(args) > 1 else kwargs.get("last_host_node", kwargs.get("last_host_node_id"))
        tokens = args[2] if len(args) > 2 else kwargs["new_input_tokens"]
        last = args[3] if len(args) > 3 else kwargs.get("last_hash")
        matched = args[5] if len(args) > 5 else kwargs.get("matched_prefix_tokens")
        self._scopes.append(Scope("issue"))
        entry = self._tree.ongoing_prefetch.get(key)
        return _Issue(key, entry, self._occupied(), anchor, len(tokens), last or "", len(matched or ()))

    def _after_issue(self, issue: _Issue, result: object) -> None:
        self._scopes.pop()
        self._sync()
        entry = self._tree.ongoing_prefetch.get(issue.key)
        start = issue.matched // self._page if self._riders_with_kv else self._depth(issue.anchor)
        if entry is None or entry is issue.entry:
            self._declined(issue, start)
        else:
            tokens = self._occupied() - issue.occupied
            pages = len(entry[1]) // self._page
            seen = self._recorder.issued(issue.key, operation_of(entry), issue.anchor, start, pages, tokens, issue.last_key)
            groups = getattr(entry, "comp_xfers", {}).values()
            seen.transfers = tuple(each for group in groups for each in group if each.indices_from_pool is None)
            self._pending[seen.id] = seen
        if self._recorder.fresh:
            self._recorder.settle_allocations(self._waiting())

    def _declined(self, issue: _Issue, start: int) -> None:
        tokens = max(0, issue.tokens - int(bool(getattr(self._tree, "is_eagle", False))))
        pages = tokens // self._page
        if not pages or not getattr(self._tree, "enable_storage", True):
            return
        threshold = int(getattr(self._tree, "prefetch_threshold", self._controller.prefetch_threshold))
        request = request_of(issue.key)
        if pages * self._page < threshold:
            self._recorder.declined(request, Reason.TOO_SHORT, start, pages, issue.occupied)
        elif issue.occupied >= self._controller.prefetch_capacity_limit:
            self._recorder.declined(request, Reason.RATE_LIMITED, start, pages, issue.occupied)
        elif issue.entry is None:  # began, found no room in a pool beside kv, and gave everything back at once
            tokens = pages * self._page
            seen = self._recorder.issued(issue.key, object(), issue.anchor, start, pages, tokens, issue.last_key)
            seen.unlocks = 1
            self._recorder.ended(seen, Reason.HOST_CAPACITY, 0, tokens)
            self._recorder.close_if_quiet(seen)

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
        queue = getattr(self._controller, "prefetch_hit_queue", None)
        for operation in tuple(queue.queue) if queue is not None else ():
            self._hits[id(operation)] = operation.storage_hit_count // self._page
        self._scopes.append(Scope("drain"))

    def _after_drain(self, token: object, result: object) -> None:
        self._scopes.pop()
        self._sync()
        if self._silent_revokes:
            self._find_revoked()
        self._hits.clear()
        if self._recorder.fresh:
            self._recorder.settle_allocations(self._waiting())
        self._flush()

    def _find_revoked(self) -> None:
        """Tell of prefetches that were revoked in a place where nobody can look."""
        for seen in list(self._pending.values()):
            entry = self._tree.ongoing_prefetch.get(seen.key)
            if entry is None or operation_of(entry) is not seen.operation:
                seen.unlocks = 1
                self._ends.end(Scope("drain", seen, self._occupied() + seen.reserved_tokens), seen)
                self._recorder.close_if_quiet(seen)

    def _sync(self) -> None:
        """Tell what has happened since: plans that were made, then what the threads say of their reads."""
        if self._pending:
            for seen in [each for each in self._pending.values() if _has_plan(each.operation)]:
                del self._pending[seen.id]
                operation = seen.operation
                pages = len(operation.hash_value)
                hit = self._hits.pop(id(operation), pages)
                more = {}
                for each in seen.transfers:
                    name = name_of(each.name)
                    if each.host_indices is not None and name != KV and name in self._layout.index_of:
                        more[name] = each.host_indices
                whole, seen.whole = seen.whole, None
                indices = operation.host_indices
                used = indices if len(indices) == pages * self._page else indices[: pages * self._page]
                self._recorder.planned(seen, hit, indices if whole is None else whole, used, more)
        self._recorder.reads.drain()

    def _waiting(self) -> list[Any]:
        """Return the buffers of prefetches that have no plan yet."""
        buffers = []
        for seen in self._pending.values():
            buffers += [each.host_indices for each in seen.transfers]
            if seen.whole is None:  # before 0.5.16 kv pages are taken at once, and what the hit leaves goes back later
                seen.whole = getattr(seen.operation, "host_indices", None)
            buffers.append(seen.whole)
        return buffers

    def _allocated(self, pool: str) -> Callable[[object, Any], None]:
        def allocated(token: object, indices: Any) -> None:
            if indices is not None:
                self._recorder.allocated(pool, indices)
                if not self._scopes:
                    self._recorder.settle_allocations(self._waiting())

        return allocated

    def _freed(self, pool: str) -> Callable[[Any, object], None]:
        def freed(indices: Any, result: object) -> None:
            scope = self._scopes[-1] if self._scopes else None
            if scope is not None and scope.seen is not None:
                scope.frees.append((pool, indices))
            else:
                self._sync()
                self._recorder.freed(pool, indices)

        return freed

    # --- after the end ---------------------------------------------------------------------------------------------------

    def _after_pop(self, key: Any, result: Any) -> None:
        self._sync()
        tokens = result[0] if isinstance(result, tuple) else result
        self._recorder.taken(request_of(key), int(tokens or 0))


def _has_plan(operation: Any) -> bool:
    """Return whether both the hit and the pages for it are there."""
    return getattr(operation, "host_indices", None) is not None and bool(operation.hash_value)
