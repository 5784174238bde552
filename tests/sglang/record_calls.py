"""Records what SGLang's own classes call of each other in a few prefetches, for tests that run without SGLang.

    .venv-sglang/bin/python tests/sglang/record_calls.py > tests/data/sglang/calls.json

A call is its object, its name, plain arguments, the calls inside it, its result, and the facts that stood ahead of it and
behind it: occupancy, bookkeeping, operations. No line of the original is in it, only what was called with what.
"""

import json
import sys
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

import torch  # noqa: E402
from cases import run_original  # noqa: E402
from originals import World, hiradix, sidecars, unified  # noqa: E402

TREE = ("prefetch_from_storage", "check_prefetch_progress", "release_aborted_request", "_revoke_pending_prefetch",
        "_drain_storage_control_queues_impl", "pop_prefetch_loaded_tokens", "_all_reduce_attn_groups", "dec_host_lock_ref",
        "_insert_helper_host")  # fmt: skip
CONTROLLER = ("terminate_prefetch", "append_host_mem_release", "_storage_hit_query", "_page_transfer", "page_get_func")


class Tape:
    """Everything that was called, as plain values."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations: list[Any] = []
        self.nodes: list[Any] = []
        self.open: list[list[dict[str, Any]]] = [[]]
        self._facts: dict[str, Any] = {}
        for name in TREE:
            self._tape(world.cache, "tree", name)
        for name in CONTROLLER:
            self._tape(world.controller, "controller", name)
        if hasattr(world.cache, "tree_core"):
            self._tape(world.cache.tree_core, "core", "insert_host")
        self._tape(world.storage, "storage", "batch_get_v2")
        for name, pool in world.pools.items():
            self._tape(pool, f"pool {name}", "alloc")
            self._tape(pool, f"pool {name}", "free")

    def _tape(self, owner: Any, of: str, name: str) -> None:
        method = getattr(owner, name, None)
        if method is None:
            return

        @wraps(method)
        def taped(*args: Any, **kwargs: Any) -> Any:
            given = [self.plain(each) for each in args], {key: self.plain(each) for key, each in kwargs.items()}
            call: dict[str, Any] = {"on": of, "name": name, "args": given[0], "kwargs": given[1], "ahead": self.news()}
            self.open[-1].append(call)
            self.open.append([])
            result = method(*args, **kwargs)
            call["inside"] = self.open.pop()
            call["result"], call["behind"] = self.plain(result), self.news()
            call["args_behind"] = [self.plain(each) for each in args if isinstance(each, torch.Tensor)]
            return result

        setattr(owner, name, taped)

    def plain(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return str(value) if isinstance(value, str) else value
        if isinstance(value, torch.Tensor):
            return {"tensor": value.tolist()}
        if hasattr(value, "completed_tokens") and hasattr(value, "hash_value"):
            return {"operation": self._place(self.operations, value)}
        if hasattr(value, "prefix_len"):
            return {"prefix_len": value.prefix_len, "host_insert_dropped": value.host_insert_dropped}
        if hasattr(value, "host_ref_counter"):
            return {"node": self._place(self.nodes, value)}
        if hasattr(value, "indices_from_pool"):
            return self._transfer(value)
        if isinstance(value, dict):
            return {"dict": [[self.plain(key), self.plain(each)] for key, each in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [self.plain(each) for each in value]}
        if isinstance(value, list):
            return [self.plain(each) for each in value]
        if hasattr(value, "token_ids") or hasattr(value, "typecode"):
            return {"length": len(value)}
        return {"other": repr(value) if "RedOp" in repr(value) else type(value).__name__}

    def _transfer(self, value: Any) -> dict[str, Any]:
        source = value.indices_from_pool
        indices = self.plain(value.host_indices)
        return {"transfer": str(value.name), "from": None if source is None else str(source), "indices": indices}

    @staticmethod
    def _place(among: list[Any], value: Any) -> int:
        for place, each in enumerate(among):
            if each is value:
                return place
        among.append(value)
        return len(among) - 1

    def news(self) -> dict[str, Any]:
        """Return the facts that have changed since they were last told."""
        cache, controller = self.world.cache, self.world.controller
        ongoing = {}
        for key, entry in cache.ongoing_prefetch.items():
            operation = getattr(entry, "operation", None) or next(each for each in entry if hasattr(each, "completed_tokens"))
            groups = getattr(entry, "comp_xfers", {}).values()
            ongoing[key] = {
                "operation": self._place(self.operations, operation), "length": len(entry[1]), "anchor": self.plain(entry[0]),
                "transfers": [self._transfer(each) for group in groups for each in group],
            }  # fmt: skip
        facts: dict[str, Any] = {
            "occupied": controller.prefetch_tokens_occupied, "ongoing": ongoing,
            "loaded": dict(cache.prefetch_loaded_tokens_by_reqid),
            "hits": [self._place(self.operations, each) for each in controller.prefetch_hit_queue.queue],
            "nodes": [each.host_ref_counter for each in self.nodes],
        }  # fmt: skip
        for place, each in enumerate(self.operations):
            counted = getattr(each.pool_storage_result, "extra_pool_hit_pages", {})
            facts[f"operation {place}"] = {
                "completed_tokens": each.completed_tokens, "hash_value": len(each.hash_value),
                "host_indices": self.plain(each.host_indices), "storage_hit_count": each.storage_hit_count,
                "terminated": each.is_terminated(), "counted": {str(pool): pages for pool, pages in counted.items()},
                "transfers": [self._transfer(each) for each in each.pool_transfers or ()],
            }  # fmt: skip
        new = {key: value for key, value in facts.items() if self._facts.get(key) != value}
        self._facts = json.loads(json.dumps(facts))
        return json.loads(json.dumps(new))  # type: ignore[no-any-return]


def main() -> None:
    """Record and print."""
    from test_agreement import case

    wanted = {
        "all there": case("dsa", {"kv": "111111"}),
        "clamped by the indexer": case("dsa", {"kv": "111111", "indexer": "111100"}, "hiradix"),
        "a window short": case("swa", {"kv": "1111", "swa": "10"}, anchor=1),
        "a window whole": case("swa", {"kv": "1111", "swa": "11"}),
        "a state": case("mamba", {"kv": "111", "mamba": "1"}, anchor=2),
        "aborted": case("dsa", {"kv": "111111"}, point="reading", batch=1, how="abort"),
        "stopped while it is read": case("kv_only", {"kv": "1" * 10}, stop="best_effort", point="reading", batch=1),
        "nothing there": case("kv_only", {"kv": "111"}, hits=(0,)),
        "too short": case("kv_only", {"kv": "1"}, threshold=3),
        "there before": case("kv_only", {"kv": "11111"}, "hiradix", present=2),
        "no room": case("dsa", {"kv": "1111"}, free={"kv": 0}),
    }
    recorded = {}
    for name, one in wanted.items():
        capacity = {pool: pages + one.anchor + one.present for pool, pages in one.free.items()}
        world = (unified if one.kind == "unified" else hiradix)(one.layout, capacity, one.threshold)
        tape = Tape(world)
        first = tape.news()
        left, _ = run_original(one, world=world)
        recorded[name] = {
            "kind": one.kind, "layout": one.layout, "capacity": capacity,
            "threshold_tokens": world.controller.prefetch_threshold,
            "limit_tokens": world.controller.prefetch_capacity_limit, "page_size": world.controller.page_size,
            "stop": one.stop, "window_tokens": getattr(world.cache, "sliding_window_size", None), "start": one.anchor,
            "sidecars": [[str(s.pool_name), str(s.indices_from_pool), str(s.hit_policy.value)] for s in sidecars(one.layout)],
            "first": first, "calls": tape.open[0], "left": left._asdict(),
        }  # fmt: skip
    print(json.dumps(recorded, separators=(",", ":")))


if __name__ == "__main__":
    main()
