"""What SGLang's scheduler does, noted call by call where it does it: issue, plan, allocations and frees.

Runs on the scheduler's thread inside the engine's own calls, so it copies what may change and leaves everything else to
`sglang_told.py`. Ends of prefetches are noted in `sglang_ends.py`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.adapters.hooks import Args, Behind, Hooks, Kwargs, first
from lifecycle.adapters.sglang_ends import Ends, Notes, Scope, operation_of
from lifecycle.adapters.sglang_pools import starts
from lifecycle.adapters.sglang_scribe import MOST_WAITING, FellBehind
from lifecycle.adapters.sglang_told import Teller

_now_ns = time.monotonic_ns

_Issue = tuple[Args, Kwargs, Any, Any, int]
"""Arguments, what it is filed under, the entry that was there under it, the occupancy."""

_Asked = tuple[Any, ...]
"""Operations whose hit waits for pages."""


class Watch:
    """The hooks on the scheduler's side of one cache. `ticked`, if any, is called at each of the engine's ticks."""

    def __init__(
        self, notes: Notes, teller: Teller, ranks: int, riders_with_kv: bool, ticked: Callable[[], None] | None
    ) -> None:  # fmt: skip
        self._notes, self._teller, self._ranks, self._ticked = notes, teller, ranks, ticked
        self._tree, self._controller, self._facts, self._scopes = notes.tree, notes.controller, notes.facts, notes.scopes
        self._note, self._told_issued, self._told_taken = notes.facts.append, teller.issued, teller.taken
        self._riders_with_kv = riders_with_kv
        self._page = notes.page_size
        self._ends = Ends(notes, teller)
        self._waits = hasattr(notes.controller, "prefetch_hit_queue")  # whether a hit waits there for its pages
        self._silent_revokes = False
        self._core = getattr(notes.tree, "tree_core", None)

    def attach(self, hooks: Hooks, pools: Mapping[str, Any]) -> dict[str, bool]:
        """Put the hooks on; return what can be seen, in words."""
        tree, controller, ends = self._tree, self._controller, self._ends
        around, behind = hooks.around, hooks.behind
        around(tree, "prefetch_from_storage", self._before_issue, self._after_issue, self._issue_refused)
        around(tree, "check_prefetch_progress", ends.before("check"), ends.after)
        around(tree, "release_aborted_request", ends.before("abort"), ends.after)
        around(tree, "_drain_storage_control_queues_impl", self._before_drain, self._after_drain)
        behind(tree, "pop_prefetch_loaded_tokens", self._after_pop)
        behind(tree, "pop_prefetch_loaded_span", self._after_pop)
        around(tree, "_handle_prefetch_result", ends.before_result, ends.after)
        for name, pool in pools.items():
            behind(pool, "alloc", self._allocated(name))
            behind(pool, "free", self._freed(name))
        core = getattr(tree, "tree_core", tree)
        insert = "insert_host" if hasattr(core, "insert_host") else "_insert_helper_host"
        revoke = "revoke_pending_prefetch" if hasattr(tree, "revoke_pending_prefetch") else "_revoke_pending_prefetch"
        revokes = around(tree, revoke, ends.before("revoke"), ends.after)
        self._silent_revokes = not revokes
        seen = {
            "which prefetches are revoked (told afterwards; unlock and tokens are taken for granted)": revokes,
            "what the tree took": behind(core, insert, ends.inserted),
            "where the counters were frozen": around(
                controller, "terminate_prefetch", ends.before_terminate, ends.after_terminate
            ),
            "which pages of other pools go back": len(pools) == 1
            or hooks.ahead(controller, "append_host_mem_release", ends.releasing),
        }
        if self._riders_with_kv:  # a thread of its own reduces, bit by bit, and the scheduler goes by what comes out
            seen["what each rank brought to the agreement (only what came of it)"] = False
        elif self._ranks > 1:  # alone, what this rank read is what is agreed
            seen["what the ranks agreed on"] = around(tree, "_all_reduce_attn_groups", ends.before_reduce, ends.after_reduce)
        if hasattr(tree, "dec_host_lock_ref"):
            behind(tree, "dec_host_lock_ref", ends.unlocked)
        return seen

    def _before_issue(self, args: Args, kwargs: Kwargs) -> _Issue:
        key = args[0] if args else first(args, kwargs)
        issue = args, kwargs, key, self._tree.ongoing_prefetch.get(key), self._controller.prefetch_tokens_occupied
        self._scopes.append(_ISSUE)
        return issue

    def _issue_refused(self, issue: _Issue, result: None) -> None:
        """Note nothing of a call that raised and began nothing: it was not declined, either."""
        _, _, key, before, _ = issue
        entry = self._tree.ongoing_prefetch.get(key)
        if entry is not None and entry is not before:
            self._after_issue(issue, result)
            return
        self._scopes.pop()
        self._notes.adopt_but(())
        if self._notes.over is not None:
            self._notes.over()

    def _after_issue(self, issue: _Issue, result: object) -> None:
        notes, tree = self._notes, self._tree
        self._scopes.pop()
        args, kwargs, key, before, occupied = issue
        given = len(args)
        anchor = args[1] if given > 1 else kwargs.get("last_host_node", kwargs.get("last_host_node_id"))
        last_key = args[3] if given > 3 else kwargs.get("last_hash")
        if self._riders_with_kv:
            matched = args[5] if given > 5 else kwargs.get("matched_prefix_tokens")
            start = len(matched or ()) // self._page
        else:
            start = self._depth(anchor)
        entry = tree.ongoing_prefetch.get(key)
        if entry is None or entry is before:
            tokens = len(args[2] if given > 2 else kwargs["new_input_tokens"])
            self._declined(key, anchor, start, tokens, occupied, last_key or "", before is not None)
        else:
            operation = getattr(entry, "operation", None) or operation_of(entry)
            groups = getattr(entry, "comp_xfers", None)
            transfers: tuple[Any, ...] = ()
            if groups:
                transfers = tuple(each for group in groups.values() for each in group if each.indices_from_pool is None)
            self._note((self._told_issued, _now_ns(), key, operation, anchor, start, entry[1],
                        self._controller.prefetch_tokens_occupied - occupied, last_key or ""))  # fmt: skip
            notes.pending[id(operation)] = (key, operation, transfers)
            if notes.fresh:
                notes.adopt_but([operation.host_indices, *(each.host_indices for each in transfers)])
        if notes.fresh:
            notes.adopt_but(())
        if notes.over is not None:
            notes.over()

    def _declined(
        self, key: Any, anchor: Any, start: int, tokens: int, occupied: int, last_key: str, again: bool
    ) -> None:  # fmt: skip
        pages = max(0, tokens - int(bool(getattr(self._tree, "is_eagle", False)))) // self._page
        if not pages or not getattr(self._tree, "enable_storage", True):
            return
        threshold = int(getattr(self._tree, "prefetch_threshold", self._controller.prefetch_threshold))
        limit = self._controller.prefetch_capacity_limit
        self._note((self._teller.declined, _now_ns(), key, anchor, start, pages, occupied, last_key,
                    pages * self._page < threshold, occupied >= limit, again))  # fmt: skip

    def _depth(self, anchor: Any) -> int:
        """Return how many pages the prefix up to an anchor has."""
        node = anchor if type(anchor) is not int or self._core is None else self._core.node_by_id(anchor)
        tokens = 0
        while node is not None and node.parent is not None:
            tokens += len(node.key)
            node = node.parent
        return tokens // self._page

    # --- plan ----------------------------------------------------------------------------------------------------------

    def _before_drain(self, args: Args, kwargs: Kwargs) -> _Asked:
        self._scopes.append(_DRAIN)
        waiting = self._controller.prefetch_hit_queue.queue if self._waits else None
        if not waiting:
            return ()
        asked = tuple(waiting)
        hits = self._notes.hits
        for operation in asked:
            hits[id(operation)] = operation.storage_hit_count
        return asked

    def _after_drain(self, asked: _Asked, result: object) -> None:
        notes = self._notes
        self._scopes.pop()
        if asked:
            for operation in asked:
                notes.capture(operation)
            notes.hits.clear()
        if self._silent_revokes:
            self._find_revoked()
        fresh = notes.fresh
        if fresh:
            if len(asked) == len(fresh) == 1 and asked[0].host_indices is fresh[0][1]:
                fresh.clear()  # as it mostly is
            else:
                self._adopt_but(asked)
        if notes.over is not None:
            notes.over()
        if len(self._facts) > MOST_WAITING:
            raise FellBehind(f"more than {MOST_WAITING} facts wait to be told")
        if self._ticked is not None:
            self._ticked()

    def _adopt_but(self, asked: _Asked) -> None:
        """Note what was given out in a drain and not to one of these operations as the engine's own."""
        notes = self._notes
        taken: list[Any] = []
        for operation in asked:
            taken.append(operation.host_indices)
            taken += [each.host_indices for each in getattr(operation, "pool_transfers", None) or ()]
        notes.adopt_but(taken)

    def _find_revoked(self) -> None:
        """Note prefetches that were revoked in a place where nobody can look."""
        for key, operation, _ in list(self._notes.pending.values()):
            entry = self._tree.ongoing_prefetch.get(key)
            if entry is None or operation_of(entry) is not operation:
                self._ends.gone(key, operation)

    def _allocated(self, pool: str) -> Behind:
        notes, scopes, fresh = self._notes, self._scopes, self._notes.fresh

        def allocated(args: Args, kwargs: Kwargs, indices: Any) -> None:
            if indices is not None:
                fresh.append((pool, indices))
                if not scopes:
                    notes.adopt_but(())
                    if notes.over is not None:
                        notes.over()

        return allocated

    def _freed(self, pool: str) -> Behind:
        notes, scopes, note = self._notes, self._scopes, self._note
        size, told = notes.sizes[pool], self._teller.freed

        def freed(args: Args, kwargs: Kwargs, result: object) -> None:
            indices = args[0] if args else first(args, kwargs)
            if not indices.numel():
                return
            slots = starts(indices, size)
            scope: Scope | None = scopes[-1] if scopes else None
            if scope is not None and scope.operation is not None:
                scope.frees = [*(scope.frees or ()), (pool, slots)]
                return
            note((told, _now_ns(), pool, slots))
            if scope is None and notes.over is not None:
                notes.over()

        return freed

    # --- after the end ---------------------------------------------------------------------------------------------------

    def _after_pop(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        tokens = result[0] if isinstance(result, tuple) else result
        self._note((self._told_taken, _now_ns(), args[0] if args else first(args, kwargs), tokens))
        if self._notes.over is not None and not self._scopes:
            self._notes.over()


class _Open:
    """A call that belongs to no prefetch."""

    operation = None

    def __init__(self, kind: str) -> None:
        self.kind = kind


_ISSUE, _DRAIN = _Open("issue"), _Open("drain")
