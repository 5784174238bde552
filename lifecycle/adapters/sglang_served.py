"""Which request is served which pages: noted where SGLang loads a prefix back for it, or else where it keeps what it computed.

What comes from device memory alone counts too, as far as the tree has a host copy of it to know it by.
"""

import time
from typing import Any

from lifecycle.adapters.hooks import Args, Hooks, Kwargs, first
from lifecycle.adapters.sglang_ends import Notes
from lifecycle.adapters.sglang_pools import starts
from lifecycle.adapters.sglang_told import Teller
from lifecycle.layout import KV

_now_ns = time.monotonic_ns

UNSEEN = "where pages came from that are served from device memory and have no host copy any more"
"""What can't be seen whatever the version."""


class Served:
    """The hooks on what a request is given. Runs on the scheduler's thread, once a request."""

    def __init__(self, notes: Notes, teller: Teller) -> None:
        self._notes, self._teller, self._note = notes, teller, notes.facts.append
        self._tree = notes.tree
        self._size = notes.sizes[KV]
        self._done: set[str] = set()  # requests whose prefix is noted, until they are finished

    def attach(self, hooks: Hooks) -> dict[str, bool]:
        """Put the hooks on; return what can be seen, in words."""
        tree, around, behind = self._tree, hooks.around, hooks.behind
        behind(tree, "init_load_back", self._loaded_back)
        keeps = around(tree, "cache_unfinished_req", self._before_keep, self._after_keep)
        ends = around(tree, "cache_finished_req", self._before_keep, self._after_finish)
        if not (keeps or ends):  # since 0.5.2x: one way to keep, and at the release the lock is gone already
            keeps = around(tree, "checkpoint", self._before_keep, self._after_keep)
            ends = around(tree, "on_release", first, self._after_finish)
        self._teller.finishes = ends
        return {"which request is served which pages": keeps and ends}

    def _loaded_back(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Note a load-back, if it went through."""
        if result is None:
            return
        params = first(args, kwargs)
        loaded = result[0] if isinstance(result[0], int) else len(result[0])
        request = getattr(params, "req", None)
        if loaded and request is not None:
            self._serve(request.rid, params.best_match_node)
        self._over()

    def _before_keep(self, args: Args, kwargs: Kwargs) -> Any:
        request = first(args, kwargs)
        if request.rid not in self._done:
            self._serve(request.rid, request.last_node)
        return request

    def _after_keep(self, request: Any, result: object) -> None:
        self._over()

    def _after_finish(self, request: Any, result: object) -> None:
        self._done.discard(request.rid)
        self._note((self._teller.finished, _now_ns(), request.rid))
        self._over()

    def _serve(self, request: str, node: Any) -> None:
        self._done.add(request)
        core = getattr(self._tree, "tree_core", None)
        if core is not None and isinstance(node, int):
            node = core.node_by_id(node)
        path = []
        while node is not None and node.parent is not None:
            held = node.component_data[0].host_value if hasattr(node, "component_data") else node.host_value
            path.append((len(node.key), None if held is None else starts(held, self._size)))
            node = node.parent
        self._note((self._teller.served, _now_ns(), request, path))

    def _over(self) -> None:
        if self._notes.over is not None and not self._notes.scopes:
            self._notes.over()
