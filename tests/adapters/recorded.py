"""A cache that makes the calls that SGLang's classes once made of each other, and holds the facts that stood then.

What was recorded, and how, says `tests/sglang/record_calls.py`. Nothing here decides anything.
"""

from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

FILE = Path(__file__).resolve().parents[1] / "data" / "sglang" / "calls.json"
RECORDED: dict[str, Any] = msgspec.json.decode(FILE.read_bytes())


class Actor:
    """An object whose methods, when called, make the calls that were made inside them."""

    def __init__(self, player: "Player") -> None:
        self._player = player


def _method(name: str) -> Any:
    def method(self: Actor, *args: Any, **kwargs: Any) -> Any:
        return self._player.inside(name)

    return method


class Tree(Actor):
    """The cache."""

    enable_storage, disable = True, False


class Core(Actor):
    """The tree behind the cache."""


class Controller(Actor):
    """The cache controller."""


class Storage(Actor):
    """The storage backend."""


class Pool(Actor):
    """A host pool."""


METHODS = {
    Tree: ("prefetch_from_storage", "check_prefetch_progress", "release_aborted_request", "_revoke_pending_prefetch",
           "_drain_storage_control_queues_impl", "pop_prefetch_loaded_tokens", "_all_reduce_attn_groups", "dec_host_lock_ref",
           "_sync_and_check_hybrid_prefetch_result"),
    Controller: ("terminate_prefetch", "append_host_mem_release", "_storage_hit_query", "_page_transfer", "page_get_func"),
    Core: ("insert_host",),
    Storage: ("batch_get_v2",),
    Pool: ("alloc", "free"),
}  # fmt: skip
for _kind, _names in METHODS.items():
    for _name in _names:
        setattr(_kind, _name, _method(_name))


class Player:
    """Replays one recorded case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self._stack: list[dict[str, Any]] = []
        self._operations: dict[int, Any] = {}
        self._nodes: dict[int, Any] = {}
        self._tensors: dict[str, Any] = {}
        self.tree, self.controller, self.storage, self.core = Tree(self), Controller(self), Storage(self), Core(self)
        self.pools = {name: Pool(self) for name in case["capacity"]}
        self._set_up()
        self.take(case["first"])

    def _set_up(self) -> None:
        case, page = self.case, self.case["page_size"]
        tree: Any = self.tree
        controller: Any = self.controller
        for name, pool in self.pools.items():
            size = 1 if name == "mamba" else page
            pool.page_size, pool.size = size, case["capacity"][name] * size  # type: ignore[attr-defined]
        entries = [SimpleNamespace(name=name, host_pool=pool) for name, pool in self.pools.items()]
        controller.mem_pool_host = SimpleNamespace(entries=entries, anchor_entry=entries[0])
        controller.page_size, controller.storage_backend, controller.has_draft = page, self.storage, False
        controller.prefetch_threshold = case["threshold_tokens"]
        controller.prefetch_capacity_limit = case["limit_tokens"]
        controller.prefetch_hit_queue = Queue()
        tree.cache_controller, tree.prefetch_threshold = controller, case["threshold_tokens"]
        tree.prefetch_stop_policy, tree.sliding_window_size = case["stop"], case["window_tokens"]
        tree.ongoing_prefetch, tree.prefetch_loaded_tokens_by_reqid = {}, {}
        specs = [SimpleNamespace(pool_name=n, indices_from_pool=o, hit_policy=p) for n, o, p in case["sidecars"]]
        if case["kind"] == "unified":
            tree.tree_core, tree.sidecar_pool_specs = self.core, specs
            self.core.node_by_id = self._node_by_id  # type: ignore[attr-defined]
        else:
            tree._insert_helper_host = _method("_insert_helper_host").__get__(tree)
            extra = [SimpleNamespace(name=s.pool_name, indices_from_pool="kv", hit_policy="all_pages") for s in specs]
            tree._get_extra_pools = lambda: {"extra_pools": extra}

    def _node_by_id(self, id_: int) -> Any:
        root = SimpleNamespace(parent=None, key=())
        tokens = self.case["start"] * self.case["page_size"]
        return SimpleNamespace(parent=root, key=range(tokens)) if tokens else root

    # --- facts ---------------------------------------------------------------------------------------------------------

    def operation(self, place: int) -> Any:
        if place not in self._operations:
            made = SimpleNamespace(stopped=False, completed_tokens=0, hash_value=[], host_indices=None, storage_hit_count=0)
            made.is_terminated = lambda: made.stopped
            made.pool_storage_result = SimpleNamespace(extra_pool_hit_pages={})
            made.pool_transfers = []
            self._operations[place] = made
        return self._operations[place]

    def _node(self, place: int) -> Any:
        if place not in self._nodes:
            tokens = self.case["start"] * self.case["page_size"]
            root = SimpleNamespace(parent=None, key=())
            self._nodes[place] = SimpleNamespace(host_ref_counter=0, parent=root if tokens else None, key=range(tokens))
        return self._nodes[place]

    def live(self, plain: Any) -> Any:
        """Return what a recorded value stands for; the same slots are the same tensor."""
        if isinstance(plain, list):
            return [self.live(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        if "tensor" in plain:
            key = repr(plain["tensor"])
            return self._tensors.setdefault(key, torch.tensor(plain["tensor"], dtype=torch.int64))
        if "operation" in plain:
            return self.operation(plain["operation"])
        if "node" in plain:
            return self._node(plain["node"])
        if "transfer" in plain:
            return self._transfer(plain)
        if "dict" in plain:
            return {self.live(key): self.live(value) for key, value in plain["dict"]}
        if "tuple" in plain:
            return tuple(self.live(each) for each in plain["tuple"])
        if "length" in plain:
            return range(plain["length"])
        if "prefix_len" in plain:
            return SimpleNamespace(**plain)
        return plain["other"]

    def _transfer(self, plain: dict[str, Any]) -> Any:
        indices = self.live(plain["indices"])
        return SimpleNamespace(name=plain["transfer"], indices_from_pool=plain["from"], host_indices=indices)

    def take(self, news: dict[str, Any]) -> None:
        """Let the facts be as they were then."""
        for name, value in news.items():
            if name.startswith("operation "):
                self._take_operation(self.operation(int(name.split()[1])), value)
        tree: Any = self.tree
        controller: Any = self.controller
        if "occupied" in news:
            controller.prefetch_tokens_occupied = news["occupied"]
        if "loaded" in news:
            tree.prefetch_loaded_tokens_by_reqid = dict(news["loaded"])
        if "hits" in news:
            controller.prefetch_hit_queue.queue.clear()
            controller.prefetch_hit_queue.queue.extend(self.operation(each) for each in news["hits"])
        for place, count in enumerate(news.get("nodes", ())):
            self._node(place).host_ref_counter = count
        if "ongoing" in news:
            tree.ongoing_prefetch.clear()
            for key, entry in news["ongoing"].items():
                transfers = [self._transfer(each) for each in entry["transfers"]]
                tree.ongoing_prefetch[key] = _Entry(
                    self.live(entry["anchor"]), range(entry["length"]), self.operation(entry["operation"]), {"x": transfers}
                )

    def _take_operation(self, operation: Any, value: dict[str, Any]) -> None:
        operation.completed_tokens, operation.stopped = value["completed_tokens"], value["terminated"]
        operation.hash_value = [""] * value["hash_value"]
        operation.host_indices = self.live(value["host_indices"])
        operation.storage_hit_count = value["storage_hit_count"]
        operation.pool_storage_result.extra_pool_hit_pages = dict(value["counted"])
        operation.pool_transfers = [self._transfer(each) for each in value["transfers"]]

    # --- calls ---------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Make the calls."""
        for call in self.case["calls"]:
            self._make(call)

    def _make(self, call: dict[str, Any]) -> None:
        on = call["on"]
        actors = {"tree": self.tree, "controller": self.controller, "core": self.core, "storage": self.storage}
        actor: Any = self.pools[on.split()[1]] if on.startswith("pool ") else actors[on]
        self.take(call["ahead"])
        args = [self.live(each) for each in call["args"]]
        kwargs = {name: self.live(each) for name, each in call["kwargs"].items()}
        if call["name"] == "_all_reduce_attn_groups":
            args[0] = args[0].clone()
        self._stack.append({**call, "live_args": args})
        getattr(actor, call["name"])(*args, **kwargs)
        self._stack.pop()

    def inside(self, name: str) -> Any:
        """Do what happened inside the call that is being made."""
        call = self._stack[-1]
        assert call["name"] == name, f"{name} was called, {call['name']} was recorded"
        for each in call["inside"]:
            self._make(each)
        self.take(call["behind"])
        for given, then in zip([a for a in call["live_args"] if isinstance(a, torch.Tensor)], call["args_behind"], strict=True):
            given.copy_(torch.tensor(then["tensor"], dtype=given.dtype))
        return self.live(call["result"])


class _Entry(tuple[Any, ...]):
    """A bookkeeping entry: anchor, key, operation, and the transfers of other pools."""

    comp_xfers: dict[str, list[Any]]

    def __new__(cls, anchor: Any, key: Any, operation: Any, transfers: dict[str, list[Any]]) -> "_Entry":
        made = super().__new__(cls, (anchor, key, operation))
        made.comp_xfers = transfers
        return made
