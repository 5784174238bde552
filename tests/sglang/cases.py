"""Random cases of one prefetch, run through the original classes and through our coordinator, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import originals
from originals import PAGE, Script, World
from ours import BATCH, LAYOUTS, WINDOW, Ours

from lifecycle.layout import KV, TrailingPages
from lifecycle.runtime.transport import Transport

KINDS = (
    ("unified", "kv_only"), ("unified", "dsa"), ("unified", "swa"), ("unified", "mamba"), ("unified", "deepseek_v4"),
    ("hiradix", "kv_only"), ("hiradix", "dsa"),
)  # fmt: skip
POINTS = ("never", "before_query", "after_query", "planned", "reading", "read")
PLENTY = 40


@dataclass(frozen=True)
class Case:
    """One prefetch. Pages; `good` has one flag per page of the span (all-pages pools) or per key of the window."""

    kind: str
    layout: str
    stop: str
    threshold: int
    anchor: int
    span: int
    hits: tuple[int, ...]  # per rank
    good: tuple[dict[str, tuple[bool, ...]], ...]  # per rank
    free: dict[str, int]  # per pool with slots, beyond what the anchor takes
    present: int  # pages after the anchor that the engine itself puts into the tree meanwhile
    point: str  # when it is cut short
    batch: int  # before which KV read, for "reading"
    how: str  # "abort" or "stop"


class Result(NamedTuple):
    """What is left of a prefetch at the end; `held` are pages per pool that are neither free nor were in use before."""

    usable: int
    held: dict[str, int]
    locks: int
    occupied_tokens: int
    loaded_tokens: int


def draw(dice: Random, ranks: int = 1) -> Case:
    """Return a case; nothing in it is known to differ (see `named` for what is)."""
    kind, layout = dice.choice(KINDS)
    pools = LAYOUTS[layout].pools
    windowed = any(isinstance(pool.coverage, TrailingPages) and pool.name != "mamba" for pool in pools)
    span = dice.randint(WINDOW if windowed else 1, 10)
    threshold = dice.choice((1, 1, 2, 3))
    least = max(threshold, WINDOW) if windowed else 1
    hits = tuple(dice.choice((span, span, dice.randint(0, span))) for _ in range(ranks))
    hits = tuple(0 if hit < least else hit for hit in hits)  # a hit shorter than the window is a named case
    stop = dice.choice(("best_effort", "wait_complete", "timeout"))
    points = POINTS if ranks == 1 else tuple(point for point in POINTS if point != "reading")
    point = dice.choice(("never", "never", *points))
    how = dice.choice(("abort", "stop")) if stop != "wait_complete" else "abort"
    present = dice.choice((0, 0, 1, 2, 5)) if len(LAYOUTS[layout].own) == 1 else 0
    free = {KV: PLENTY if present else dice.choice((PLENTY, PLENTY, span, dice.randint(0, span)))}
    if windowed and free[KV] < least:
        free[KV] = 0
    for pool in LAYOUTS[layout].own[1:]:
        free[pool.name] = dice.choice((PLENTY, 0, WINDOW))
    good = tuple(_good(dice, layout, span) for _ in range(ranks))
    return Case(
        kind, layout, stop, threshold, dice.choice((0, 1, 2, 3)), span, hits, good, free, min(present, span), point,
        dice.randint(0, 2), how,
    )  # fmt: skip


def _good(dice: Random, layout: str, span: int) -> dict[str, tuple[bool, ...]]:
    good = {}
    for pool in LAYOUTS[layout].pools:
        flags = [True] * span
        if dice.random() < 0.35:
            for _ in range(dice.choice((1, 1, 2))):
                flags[dice.randrange(span)] = False
        good[pool.name] = tuple(flags)
    return good


def engine_pages(case: Case) -> int:
    """Return up to where the engine itself fills the tree while the prefetch runs."""
    return case.anchor + case.present


def run_original(case: Case, rank: int = 0, groups: Sequence[Any] = (), world: World | None = None) -> tuple[Result, list[str]]:
    """Run a case through SGLang's classes; return what is left, and which pools were read."""
    capacity = {name: pages + case.anchor + case.present for name, pages in case.free.items()}
    build = originals.unified if case.kind == "unified" else originals.hiradix
    world = world or build(case.layout, capacity, case.threshold, groups)
    cache, controller = world.cache, world.controller
    cache.prefetch_stop_policy = case.stop
    _limit(cache, 1e9)
    prompt = originals.tokens_of(1, case.anchor + case.span)
    anchor = _own(world, prompt, case.anchor, world.root) if case.anchor else world.root
    for name, pool in world.pools.items():  # what the anchor takes of the other pools in ours is not there in the original
        if name != KV:
            pool.alloc((case.anchor + case.present) * pool.page_size)
    before = world.free_pages()
    script = world.storage.script = Script(case.hits[rank], dict(case.good[rank]))
    cut = _cut_original(case, world)
    script.during_kv = {case.batch: cut} if case.point == "reading" else {}
    cache.prefetch_from_storage("r", anchor, prompt[case.anchor * PAGE :], None)
    if case.present:
        _own(world, prompt, case.present, anchor, first=case.anchor)
        before = {name: pages - (case.present if name == KV else 0) for name, pages in before.items()}
    for point, step in (
        ("before_query", controller.step_queries), ("after_query", world.drain), ("planned", controller.step_reads),
        ("read", lambda: None),
    ):  # fmt: skip
        if case.point == point:
            cut()
        step()
    if case.stop == "best_effort" or case.point == "never":
        _limit(cache, 1e9)
    for _ in range(3):
        done = cache.check_prefetch_progress("r")
        world.drain()
    if not done:  # a prefetch that its policy does not end although all reads are over
        cut()
    world.drain()
    free = world.free_pages()
    result = Result(
        world.resident(prompt), {name: before[name] - free[name] for name in free}, world.locks(),
        controller.prefetch_tokens_occupied, cache.pop_prefetch_loaded_tokens("r"),
    )  # fmt: skip
    return result, world.storage.reads


def _limit(cache: Any, seconds: float) -> None:
    from sglang.srt.mem_cache.hicache_storage import PrefetchTimeoutConfig

    cache.prefetch_timeout_base, cache.prefetch_timeout_per_page = seconds, 0.0
    cache.prefetch_timeout_config = PrefetchTimeoutConfig(seconds, 0.0, seconds)


def _cut_original(case: Case, world: World) -> Callable[[], None]:
    def cut() -> None:
        if case.how == "abort":
            world.cache.release_aborted_request("r")
        else:
            _limit(world.cache, -1.0)
            world.cache.check_prefetch_progress("r")

    return cut


def _own(world: World, prompt: Sequence[int], pages: int, at: Any, first: int = 0) -> Any:
    """Have the engine itself put pages of the prompt into the tree; return the handle of the last one."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    tokens = prompt[first * PAGE : (first + pages) * PAGE]
    slots = world.pools[KV].alloc(pages * PAGE)
    hashes = [f"{first + page:064x}" for page in range(pages)]
    if hasattr(world.cache, "tree_core"):
        done = world.cache.tree_core.insert_host(at, RadixKey(tokens), slots, hashes)
        assert done.prefix_len == 0
        return done.inserted_host_node
    world.cache._insert_helper_host(at, RadixKey(tokens), slots, hashes)
    return at.children[RadixKey(tokens).child_key(PAGE)]


def run_ours(case: Case, reads: Sequence[str], rank: int = 0, transport: Transport | None = None) -> tuple[Result, Ours]:
    """Run a case through our coordinator, each pool delivering what it delivered to the original."""
    capacity = {name: pages + case.anchor + case.present for name, pages in case.free.items()}
    prompt = originals.tokens_of(1, case.anchor + case.span)
    ours = Ours(case.layout, capacity, case.stop, case.threshold, prompt, case.anchor, transport)
    coordinator, store = ours.coordinator, ours.store
    store.hit_pages = case.hits[rank]
    store.good = {
        pool: flags if pool in reads or pool == KV else (False,) * len(flags) for pool, flags in case.good[rank].items()
    }
    cut = ours.abort if case.how == "abort" else ours.stop
    store.during_kv = {case.batch: lambda: _in_time(ours, cut)} if case.point == "reading" else {}
    before = ours.free_pages()
    issued = ours.issue()
    if case.present:
        ours.own(ours.keys, engine_pages(case))
        before = {name: pages - (case.present if name == KV else 0) for name, pages in before.items()}
    if issued:
        for point, step in (
            ("before_query", ours.readers.work), ("after_query", coordinator.tick), ("planned", lambda: _read(ours)),
            ("read", coordinator.tick),
        ):  # fmt: skip
            if case.point == point:
                cut()
            step()
        coordinator.ready("r")
        for _ in range(3):
            _read(ours)
            coordinator.tick()
    prefetch = coordinator.book.replica.newest("r")
    if prefetch is not None and not prefetch.terminal:
        cut()
        coordinator.tick()
    free = ours.free_pages()
    loaded = coordinator.take_loaded("r")
    usable = ours.index.match(ours.keys, coordinator.tick_number, [KV]).pages
    occupied = coordinator.book.replica.occupied_tokens
    held = {name: before[name] - free[name] for name in free}
    result = Result(usable, held, ours.locks(), occupied, loaded)
    return result, ours


def _in_time(ours: Ours, cut: Callable[[], None]) -> None:
    ours.coordinator.tick()
    cut()


def _read(ours: Ours) -> None:
    plan = ours.coordinator.book.replica.newest("r")
    if plan is not None and plan.reserved:
        windows = {pool.name: pool.window(plan.start_page, plan.plan_page)[0] for pool in ours.layout.pools}
        ours.store.first = windows
    ours.readers.work()


__all__ = ["BATCH", "Case", "Result", "draw", "run_original", "run_ours"]
