"""Drives the unified cache of 0.5.2x (the only one there is) under the guard, and prints what was seen and what was not.

    PYTHONPATH=.venv-sglang/versions/0.5.23 .venv-sglang/bin/python tests/sglang/newest.py

That version keeps its own books of progress: transfer threads acknowledge bit by bit and a thread of its own reduces.
"""

import json
import logging
import sys
from array import array
from collections import Counter
from pathlib import Path
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]
logging.getLogger("sglang").setLevel(logging.CRITICAL)

from sglang.srt.managers import cache_controller as controller_module  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransferResult, SidecarPoolSpec  # noqa: E402
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController  # noqa: E402
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache import component_type as components  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from stub_pool import StubPool  # noqa: E402

from lifecycle.adapters.guard import guard  # noqa: E402
from stores.events import MemoryEventLog  # noqa: E402

PAGE, BATCH, WINDOW = 4, 4, 2
V4_KV = ("deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c128")
V4_SWA = ("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128_state")
SIDECARS = {
    "dsa": [SidecarPoolSpec(PoolName.INDEXER, PoolName.KV)],
    "deepseek_v4": [
        *(SidecarPoolSpec(PoolName(name), PoolName.KV) for name in V4_KV),
        *(SidecarPoolSpec(PoolName(name), PoolName.SWA, PoolHitPolicy.TRAILING_PAGES) for name in V4_SWA),
    ],
}


class Storage:
    """Has what it is told to have."""

    def __init__(self) -> None:
        self.hit_pages = 0
        self.good: dict[str, list[bool]] = {}
        self.at: Counter[str] = Counter()

    def batch_exists(self, keys: list[str], extra_info: object = None) -> int:
        return min(self.hit_pages, len(keys))

    def batch_exists_v2(self, keys: list[str], transfers: Any = None, extra_info: object = None) -> PoolTransferResult:
        pages = min(self.hit_pages, len(keys))
        return PoolTransferResult(pages, {each.name: pages for each in transfers or ()})

    def _read(self, pool: str, count: int) -> list[bool]:
        first = self.at[pool]
        self.at[pool] += count
        return self.good[pool][first : first + count]

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: object = None) -> list[bool]:
        return self._read("kv", len(keys))

    def batch_get_v2(self, transfers: list[Any], extra_info: object = None) -> dict[str, list[bool]]:
        return {each.name: self._read(str(each.name), len(each.keys or ())) for each in transfers}


class Driven(HybridCacheController):
    """The real controller without its constructor, its threads stepped by hand."""

    def __init__(self, group: HostPoolGroup, storage: Storage) -> None:
        self.mem_pool_host, self.page_size, self.storage_backend = group, PAGE, storage
        self.enable_storage, self.has_draft, self.host_memory_mode = True, False, "cache"
        self.prefetch_threshold, self.prefetch_tokens_occupied = PAGE, 0
        self.prefetch_capacity_limit = group.size
        self.storage_stop_event = Event()
        self.page_get_func = self._page_get_zero_copy
        self.pp_prefetch_command_group = None
        self.pp_prefetch_decisions: dict[str, Any] = {}
        self.pp_prefetch_states: dict[str, Any] = {}
        self.prefetch_hits_sync_groups: list[Any] = []
        self.prefetch_completion_sync_groups: list[Any] = []
        for name in ("prefetch_queue", "prefetch_buffer", "prefetch_hit_queue", "prefetch_sync_queue", "ack_prefetch_queue",
                     "ack_backup_queue", "host_mem_release_queue", "backup_queue"):  # fmt: skip
            setattr(self, name, Queue())
        self._init_extra_host_mem_release_queues()

    def get_prefetch_submission(self, rid: str) -> None:
        return None

    def reset(self) -> None:
        """Start with nothing."""

    def step(self) -> None:
        """Run the query, transfer and reduction threads until their queues are empty."""
        self.storage_stop_event.set()
        self.prefetch_thread_func()
        while not self.prefetch_buffer.empty():
            operation = self.prefetch_buffer.get()
            self._page_transfer(operation)
            self.prefetch_sync_queue.put(
                controller_module.PrefetchAck(rid=operation.request_id, completed_req=True, operation=operation)
            )
        while not self.prefetch_sync_queue.empty():
            ack = self.prefetch_sync_queue.get()
            self._reduce_prefetch_ack(ack)
            self.ack_prefetch_queue.put(ack)
        self.storage_stop_event.clear()


def _components() -> dict[Any, Any]:
    """Return the components of windows and states without their constructors, which want a device."""
    from sglang.srt.mem_cache.unified_cache.components.base import TreeComponent
    from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent
    from sglang.srt.mem_cache.unified_cache.components.swa import SWAComponent

    class Swa(SWAComponent):
        def __init__(self, cache: Any, params: Any) -> None:
            TreeComponent.__init__(self, cache, params)
            self._session_leaf_covered_len = {}
            self.sliding_window_size, self.gates_prefix_match = params.sliding_window_size, True
            self.full_window_pages = -(-params.sliding_window_size // PAGE)
            self._swa_kv_pool_host = None

    class Mamba(MambaComponent):
        def __init__(self, cache: Any, params: Any) -> None:
            TreeComponent.__init__(self, cache, params)
            self.mamba_cache_chunk_size = self.mamba_checkpoint_grid = PAGE
            self.mamba_max_states_per_path = 0
            self._mamba_pool_host = None

    return {components.ComponentType.SWA: Swa, components.ComponentType.MAMBA: Mamba}


def build(layout: str) -> tuple[Any, Driven, Storage, dict[str, StubPool]]:
    """Return a cache of kv alone, with an indexer, with a window, with a state, or as DeepSeek-V4 has it."""
    kinds, storage = components.ComponentType, Storage()
    extra = {"swa": kinds.SWA, "deepseek_v4": kinds.SWA, "mamba": kinds.MAMBA}.get(layout)
    pools = {"kv": StubPool(40, PAGE)}
    if extra is not None:
        name = "mamba" if layout == "mamba" else "swa"
        pools[name] = StubPool(8, 1 if name == "mamba" else PAGE)
    group = HostPoolGroup(
        [
            PoolEntry(PoolName(name), pool, None, lambda layer: layer, is_primary_index_anchor=name == "kv")
            for name, pool in pools.items()
        ]
    )
    controller = Driven(group, storage)
    params = CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=PAGE,  # type: ignore[arg-type]
        tree_components=(kinds.FULL, *((extra,) if extra is not None else ())), sliding_window_size=WINDOW * PAGE,
        component_registry_override=_components(),
    )  # fmt: skip
    cache = UnifiedRadixCache(params)
    cache.cache_controller, cache.host_pool_group = controller, group
    cache.components[kinds.FULL]._full_kv_pool_host = pools["kv"]
    if "swa" in pools:
        cache.components[kinds.SWA]._swa_kv_pool_host = pools["swa"]
    if "mamba" in pools:
        cache.components[kinds.MAMBA]._mamba_pool_host = pools["mamba"]
    for spec in SIDECARS.get(layout, ()):
        cache.register_sidecar_pool(spec)
    cache.tree_core.set_hicache_enabled()
    cache.tree_core.has_swa_host_pool = "swa" in pools
    cache.enable_storage, cache.prefetch_threshold = True, PAGE
    cache.write_through_threshold, cache.is_write_back = 1, False
    return cache, controller, storage, pools


def run(layout: str, good: dict[str, list[bool]], cut: str = "") -> dict[str, Any]:
    """Return what came of one prefetch of eight pages, and what the guard saw."""
    cache, controller, storage, pools = build(layout)
    events = MemoryEventLog()
    cache.checkpoint = lambda req, *, up_to: None  # the rest of them wants a device
    cache.on_release = lambda req, *, checkpointed: None
    watch = guard(cache, events)
    cache.prefetch_stop_policy = "wait_complete" if not cut else "best_effort"
    storage.hit_pages, storage.good = 8, good
    handle = CacheRequestHandle("r", 0)
    cache.prefetch_from_storage(handle, cache.root_node_handle(), array("q", range(32)), None)
    assert handle in cache.ongoing_prefetch
    controller.step()
    if cut == "abort early":
        cache.release_aborted_request(handle)
    cache.drain_storage_control_queues()
    if cut == "abort":
        cache.release_aborted_request(handle)
    controller.step()
    cache.drain_storage_control_queues()
    cache.check_prefetch_progress(handle)
    controller.step()
    cache.drain_storage_control_queues()
    loaded = cache.pop_prefetch_loaded_tokens(handle)
    cache.drain_storage_control_queues()
    if loaded:
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", range(32)))))
        request = SimpleNamespace(rid="r", last_node=match.best_match_node)
        cache.checkpoint(request, up_to=32)
        cache.on_release(request, checkpointed=True)
    watch.detach()
    if watch.failure is not None:
        raise watch.failure
    kinds = Counter(type(record.event).__name__ for record in events.records())
    return {
        "loaded": loaded // PAGE, "used": {name: pool.in_use for name, pool in pools.items()},
        "occupied": controller.prefetch_tokens_occupied, "said": [str(each) for each in watch.violations],
        "known": dict(watch.known), "unseen": list(watch.unseen), "events": dict(kinds), "open": len(watch._recorder.by_id),
        "served": [[r.event.end_page, r.event.sources] for r in events.records() if type(r.event).__name__ == "PrefixServed"],
        "ends": [str(r.event) for r in events.records() if type(r.event).__name__ in ("Committed", "Clamped", "Discarded")],
    }  # fmt: skip


def main() -> None:
    """Print one JSON object."""
    good, short = [True] * 8, [True] * 5 + [False] * 3
    dsa = {"kv": good, "indexer": good}
    v4 = {"kv": good, **dict.fromkeys(V4_KV, good), **dict.fromkeys(("swa", *V4_SWA), [True] * WINDOW)}
    print(
        json.dumps(
            {
                "where": str(Path(controller_module.__file__).parents[3]),
                "all there": run("dsa", dsa),
                "kv alone, short": run("kv_only", {"kv": short}),
                "the indexer ends early": run("dsa", {"kv": good, "indexer": short}),
                "aborted before its plan": run("dsa", dsa, "abort early"),
                "aborted": run("dsa", dsa, "abort"),
                "cut short": run("dsa", dsa, "best effort"),
                "a window": run("swa", {"kv": good, "swa": [True] * WINDOW}),
                "a window, short": run("swa", {"kv": good, "swa": [True, False]}),
                "a window behind a short kv": run("swa", {"kv": short, "swa": [True] * WINDOW}),
                "a window, aborted": run("swa", {"kv": good, "swa": [True] * WINDOW}, "abort"),
                "a state": run("mamba", {"kv": good, "mamba": [True]}),
                "a state, missing": run("mamba", {"kv": good, "mamba": [False]}),
                "deepseek v4": run("deepseek_v4", v4),
                "deepseek v4, one rider short": run("deepseek_v4", {**v4, V4_KV[1]: short}),
                "deepseek v4, one state short": run("deepseek_v4", {**v4, V4_SWA[2]: [False, True]}),
            }
        )
    )


if __name__ == "__main__":
    main()
