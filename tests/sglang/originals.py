"""SGLang's own cache and controller classes on a CPU: their methods as they are, over pools and a storage that are stubs.

Nothing here decides anything: pools hand out pages, the storage answers what a script says, and the loops of the
controller's threads are stepped by hand so that a case runs the same way each time.
"""

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Queue
from threading import Event
from typing import Any

import torch

logging.getLogger("sglang").setLevel(logging.CRITICAL)

from sglang.srt.managers import cache_controller as controller_module  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    SidecarPoolSpec,
)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController  # noqa: E402
from sglang.srt.mem_cache.memory_pool_host import HostPoolGroup, PoolEntry  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from stub_pool import StubPool  # noqa: E402

PAGE = 4  # tokens
WINDOW = 2  # pages of a sliding window
BATCH = 4  # pages in one KV read

V4_KV = ("deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c128")
V4_SWA = ("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128_state")


@dataclass
class Script:
    """What the storage answers, and what happens while it reads."""

    hit_pages: int = 0
    good: dict[str, Sequence[bool]] = field(default_factory=dict)  # per pool, page of the span (or key of the window)
    during_kv: dict[int, Callable[[], None]] = field(default_factory=dict)  # before which batch
    during_sidecars: Callable[[], None] | None = None


class ScriptedStorage:
    """A storage backend that answers from a script."""

    def __init__(self) -> None:
        self.script = Script()
        self.asked: list[str] = []
        self.batches = 0
        self.reads: list[str] = []

    def batch_exists(self, keys: list[str], extra_info: object = None) -> int:
        return min(self.script.hit_pages, len(keys))

    def batch_exists_v2(self, keys: list[str], transfers: object = None, extra_info: object = None) -> PoolTransferResult:
        return PoolTransferResult(min(self.script.hit_pages, len(keys)), {})

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: object = None) -> list[bool]:
        if during := self.script.during_kv.get(self.batches):
            during()
        first = self.batches * BATCH
        self.batches += 1
        self.reads.append("kv")
        return list(self.script.good["kv"][first : first + len(keys)])

    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info: object = None) -> dict[str, list[bool]]:
        if self.script.during_sidecars:
            self.script.during_sidecars()
        self.reads += [str(each.name) for each in transfers]
        return {each.name: list(self.script.good[str(each.name)][: len(each.keys or ())]) for each in transfers}

    def get_stats(self) -> None:
        return None


class DrivenController(HybridCacheController):
    """The real controller without its constructor (which wants a device) and with its threads stepped by hand."""

    def __init__(self, pools: HostPoolGroup, storage: ScriptedStorage, threshold: int, groups: Sequence[object] = ()) -> None:
        from sglang.srt.mem_cache.utils import get_hash_str

        self.mem_pool_host = pools
        self.page_size = pools.page_size
        self.storage_backend = storage
        self.storage_backend_type = "dynamic"
        self.get_hash_str = get_hash_str
        self.enable_storage, self.has_draft = True, False
        self.tp_rank = self.pp_rank = self.dp_rank = 0
        self.write_policy = "write_through"
        self.io_backend = "direct"
        self.prefetch_threshold = threshold
        self.prefetch_capacity_limit = int(0.5 * pools.size)
        self.prefetch_tokens_occupied = 0
        self.prefetch_sync_groups = list(groups)
        self.page_get_func = self._page_get_zero_copy
        self.storage_stop_event = Event()
        self.write_queue, self.load_queue, self.ack_write_queue, self.ack_load_queue = [], [], [], []
        self.layer_done_counter = None
        self.reset_queues()

    def reset_queues(self) -> None:
        self.prefetch_queue, self.backup_queue, self.prefetch_buffer = Queue(), Queue(), Queue()
        self.prefetch_hit_queue, self.prefetch_revoke_queue, self.ack_backup_queue = Queue(), Queue(), Queue()
        self.host_mem_release_queue = Queue()
        self._init_extra_host_mem_release_queues()

    def reset(self) -> None:
        self.reset_queues()
        self.prefetch_tokens_occupied = 0

    def step_queries(self) -> None:
        """Run the query thread's loop until its queue is empty."""
        self.storage_stop_event.set()
        self.prefetch_thread_func()
        self.prefetch_io_aux_thread.join()
        self.storage_stop_event.clear()

    def step_reads(self) -> None:
        """Do what the transfer thread does, for each operation that waits."""
        while not self.prefetch_buffer.empty():
            operation = self.prefetch_buffer.get()
            if operation is None:
                continue
            self.storage_backend.batches = 0
            self._page_transfer(operation)
            self.append_host_mem_release(operation.host_indices[operation.completed_tokens :])


@dataclass
class World:
    """One cache with its controller, pools and storage."""

    cache: Any
    controller: DrivenController
    pools: dict[str, StubPool]
    storage: ScriptedStorage

    @property
    def root(self) -> Any:
        """The handle of the root as an anchor."""
        return self.cache.root_node if not hasattr(self.cache, "tree_core") else self.cache.root_node_handle()

    def drain(self) -> None:
        """Take what the threads have put into the queues."""
        self.cache.drain_storage_control_queues()

    def free_pages(self) -> dict[str, int]:
        """Return the free pages per pool with slots of its own."""
        return {name: pool.available_size() // pool.page_size for name, pool in self.pools.items()}

    def locks(self) -> int:
        """Return the host locks in the whole tree."""
        nodes, total = [self._root_node()], 0
        while nodes:
            node = nodes.pop()
            total += node.host_ref_counter if hasattr(node, "host_ref_counter") else node.component_data[0].host_lock_ref
            nodes += node.children.values()
        return total

    def _root_node(self) -> Any:
        return self.cache.tree_core.root_node if hasattr(self.cache, "tree_core") else self.cache.root_node

    def resident(self, tokens: Sequence[int]) -> int:
        """Return how many pages of KV the tree holds of a prompt."""
        node, page, pages = self._root_node(), 0, len(tokens) // PAGE
        while page < pages:
            head = tuple(tokens[page * PAGE : (page + 1) * PAGE])
            child = next((each for each in node.children.values() if tuple(each.key.token_ids[:PAGE]) == head), None)
            if child is None:
                return page
            held = list(child.key.token_ids)
            here = 0
            while here < len(held) // PAGE and held[here * PAGE : (here + 1) * PAGE] == list(
                tokens[(page + here) * PAGE : (page + here + 1) * PAGE]
            ):
                here += 1
            page += here
            if here < len(held) // PAGE:
                return page
            node = child
        return page


def _entry(name: str, pool: StubPool, first: bool) -> PoolEntry:
    return PoolEntry(PoolName(name), pool, None, lambda layer: layer, is_primary_index_anchor=first)


def sidecars(layout: str) -> list[SidecarPoolSpec]:
    """Return the sidecars that ride on another pool, as the original declares them."""
    if layout == "dsa":
        return [SidecarPoolSpec(PoolName.INDEXER, PoolName.KV)]
    if layout == "deepseek_v4":
        trailing = PoolHitPolicy.TRAILING_PAGES
        return [SidecarPoolSpec(PoolName(name), PoolName.KV) for name in V4_KV] + [
            SidecarPoolSpec(PoolName(name), PoolName.SWA, trailing) for name in V4_SWA
        ]
    return []


def _components(layout: str) -> tuple[Any, ...]:
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    extra = {"swa": (ComponentType.SWA,), "deepseek_v4": (ComponentType.SWA,), "mamba": (ComponentType.MAMBA,)}
    return (ComponentType.FULL, *extra.get(layout, ()))


def unified(layout: str, capacity: dict[str, int], threshold_pages: int = 1, groups: Sequence[Any] = ()) -> World:
    """Return a unified cache of one of the layouts kv_only, dsa, swa, mamba, deepseek_v4; pages per pool."""
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_cache.components.mamba_component import MambaComponent
    from sglang.srt.mem_cache.unified_cache.components.swa_component import SWAComponent
    from sglang.srt.mem_cache.unified_cache.components.tree_component import TreeComponent

    class Swa(SWAComponent):
        def __init__(self, cache: Any, params: Any) -> None:
            TreeComponent.__init__(self, cache, params)
            self._session_leaf_covered_len = {}
            self.sliding_window_size = params.sliding_window_size
            self._swa_kv_pool_host = None

    class Mamba(MambaComponent):
        def __init__(self, cache: Any, params: Any) -> None:
            TreeComponent.__init__(self, cache, params)
            self._mamba_pool_host = None

    pools = {name: StubPool(pages, 1 if name == "mamba" else PAGE) for name, pages in capacity.items()}
    group = HostPoolGroup([_entry(name, pool, name == "kv") for name, pool in pools.items()])
    storage = ScriptedStorage()
    controller = DrivenController(group, storage, threshold_pages * PAGE, groups)
    params = CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=PAGE,  # type: ignore[arg-type]
        tree_components=_components(layout), sliding_window_size=WINDOW * PAGE,
        component_registry_override={ComponentType.SWA: Swa, ComponentType.MAMBA: Mamba},
        tp_cache_group=groups[0] if groups else None,
    )  # fmt: skip
    cache = UnifiedRadixCache(params)
    cache.cache_controller, cache.host_pool_group = controller, group
    cache.components[ComponentType.FULL]._full_kv_pool_host = pools["kv"]
    if "swa" in pools:
        cache.components[ComponentType.SWA]._swa_kv_pool_host = pools["swa"]
    if "mamba" in pools:
        cache.components[ComponentType.MAMBA]._mamba_pool_host = pools["mamba"]
    for spec in sidecars(layout):
        cache.register_sidecar_pool(spec)
    cache.tree_core.set_hicache_enabled()
    cache.tree_core.has_swa_host_pool = "swa" in pools
    cache.enable_storage = True
    cache.write_through_threshold, cache.is_write_back, cache.load_back_threshold = 1, False, 10
    cache.prefetch_threshold = threshold_pages * PAGE
    return World(cache, controller, pools, storage)


def hiradix(layout: str, capacity: dict[str, int], threshold_pages: int = 1, groups: Sequence[Any] = ()) -> World:
    """Return a HiRadixCache of one of the layouts kv_only and dsa."""
    from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
    from sglang.srt.mem_cache.radix_cache import RadixCache

    pools = {"kv": StubPool(capacity["kv"], PAGE)}
    entries = [_entry("kv", pools["kv"], True)]
    group = HostPoolGroup(entries)
    storage = ScriptedStorage()
    controller = DrivenController(group, storage, threshold_pages * PAGE, groups)
    cache = HiRadixCache.__new__(HiRadixCache)
    cache.kv_cache = DSATokenToKVPool.__new__(DSATokenToKVPool) if layout == "dsa" else object()
    cache.page_size, cache.cache_controller, cache.token_to_kv_pool_host = PAGE, controller, group
    cache.tp_group, cache.attn_cp_group, cache.attn_tp_group, cache.pp_group = (groups[0] if groups else None), None, None, None
    cache.tp_world_size = torch.distributed.get_world_size(groups[0]) if groups else 1
    cache.pp_rank, cache.pp_size, cache.work_list = 0, 1, []
    cache.enable_storage, cache.enable_storage_metrics = True, False
    cache.prefetch_threshold, cache.prefetch_stop_policy = threshold_pages * PAGE, "best_effort"
    cache.is_prefetch_timeout = cache._prefetch_timeout_check_linear_func
    cache.ongoing_write_through, cache.ongoing_load_back, cache.ongoing_prefetch, cache.ongoing_backup = {}, {}, {}, {}
    cache.prefetch_loaded_tokens_by_reqid, cache.evictable_host_leaves = {}, set()
    cache.write_through_threshold, cache.load_back_threshold = 1, 10
    params = CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=PAGE,  # type: ignore[arg-type]
    )  # fmt: skip
    RadixCache.__init__(cache, params)
    return World(cache, controller, pools, storage)


def tokens_of(number: int, pages: int, shared: int = 0) -> array:
    """Return a prompt of `pages` pages; prompts share their first `shared` pages."""
    return array("q", [10_000 + i if i < shared * PAGE else number * 100_000 + i for i in range(pages * PAGE)])


controller_module.STORAGE_BATCH_SIZE = BATCH
