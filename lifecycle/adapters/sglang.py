"""Looking on at a live SGLang cache: what happens to its prefetches, recorded as our events, without changing anything.

Knows SGLang by the names of its methods alone and imports nothing of it. `shadow` records; `guard` (in `guard.py`) also
checks the laws as things happen. The cache's own scheduler thread does the recording; its transfer threads leave word.
"""

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import uuid4

from lifecycle.adapters.hooks import Hooks
from lifecycle.adapters.sglang_pools import Slots, host_pools, layout_of
from lifecycle.adapters.sglang_recorder import Recorder
from lifecycle.adapters.sglang_threads import Threads
from lifecycle.adapters.sglang_watch import Watch
from lifecycle.errors import ConfigError
from lifecycle.events import CoordinatorStopped, Event, LogOpened, Record
from lifecycle.policies import MOST_PAGES
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import EventLog

NEEDED = ("prefetch_from_storage", "check_prefetch_progress", "release_aborted_request", "_drain_storage_control_queues_impl",
          "pop_prefetch_loaded_tokens", "ongoing_prefetch", "prefetch_loaded_tokens_by_reqid")  # fmt: skip
"""What a cache must have for anything to be recorded."""


class Shadow:
    """An onlooker at one cache. `unseen` names what can't be seen of this version."""

    def __init__(self, tree_cache: Any, events: EventLog, run: str | None, listen: Callable[[Record], None] | None) -> None:
        controller = getattr(tree_cache, "cache_controller", None)
        if controller is None:
            raise ConfigError("cannot look at this cache: it has no cache_controller (hierarchical cache is off)")
        missing = [name for name in NEEDED if not hasattr(tree_cache, name)]
        if missing:
            raise ConfigError(f"cannot look at a {type(tree_cache).__name__}: it has no {', '.join(missing)}")
        if getattr(tree_cache, "host_memory_mode", "cache") != "cache":
            raise ConfigError("cannot look at this cache: host memory is a bounce buffer here, no tier of its own")
        self._events = events
        self._emit = self._emitter(events.append, listen)
        self.layout = layout_of(tree_cache, controller)
        pools = {name: pool for name, pool in host_pools(controller).items() if name in self.layout.index_of}
        slots = {name: Slots(pool) for name, pool in pools.items()}
        rank, ranks = _place(tree_cache)
        limit = int(getattr(controller, "prefetch_capacity_limit", MOST_PAGES))
        page_size = int(controller.page_size)
        self._recorder = Recorder(self.layout, slots, page_size, ranks, limit, self._emit)
        threads = Threads(self._recorder.reads, page_size, self.layout.index_of)
        self._open(tree_cache, controller, run, (rank, ranks), {name: each.capacity for name, each in slots.items()}, limit)
        self._hooks = Hooks("the shadow of an SGLang cache")
        seen = threads.attach(self._hooks, controller)
        watch = Watch(tree_cache, controller, self.layout, self._recorder, events.flush, ranks, threads.batched)
        seen = {**watch.attach(self._hooks, pools), **seen}
        unseen = [what for what, there in seen.items() if not there]
        if getattr(controller, "has_draft", False):
            unseen.append("draft pages, which ride along and are never waited for")
        self.unseen = (*unseen, "which request is served which pages")

    def _open(
        self, tree: Any, controller: Any, run: str | None, place: tuple[int, int], capacity: dict[str, int], limit: int
    ) -> None:
        page_size = int(controller.page_size)
        of_tree = int(getattr(tree, "prefetch_threshold", MOST_PAGES))
        threshold = min(int(getattr(controller, "prefetch_threshold", page_size)), of_tree)
        policies: dict[str, object] = {
            "observed": "sglang",
            "stop": {"name": str(getattr(tree, "prefetch_stop_policy", "unknown"))},
            "pressure": "shrink",
            "shortfall": "discard",
            "threshold_pages": max(1, -(-threshold // page_size)),
            "max_pages": MOST_PAGES,
            "limit_tokens": limit,
            "lag_ticks": 0,
        }
        version = getattr(sys.modules.get("sglang"), "__version__", "unknown")
        self._emit(
            LogOpened(
                f"sglang {version}", run or uuid4().hex, *place, self.layout.declaration(), policies, page_size, capacity,
                dict(capacity), time.time_ns(), time.monotonic_ns(),
            )
        )  # fmt: skip

    @staticmethod
    def _emitter(append: Callable[[Record], None], listen: Callable[[Record], None] | None) -> Callable[[Event], None]:
        """Return what appends events as records, at the price of the record: it runs some twenty times a prefetch."""
        next_seq, now_ns = count().__next__, time.monotonic_ns

        def emit(event: Event) -> None:
            append(Record(next_seq(), now_ns(), event))  # type: ignore[arg-type]  # every event class is in the union

        def emit_and_listen(event: Event) -> None:
            record = Record(next_seq(), now_ns(), event)  # type: ignore[arg-type]  # as above
            append(record)
            listen(record)  # type: ignore[misc]  # only where there is a listener

        return emit if listen is None else emit_and_listen

    @property
    def attached(self) -> bool:
        """Whether anything is recorded at the moment."""
        return self._hooks.live

    @property
    def failure(self) -> Exception | None:
        """What took the shadow off by itself, if anything did."""
        return self._hooks.failure

    def detach(self) -> None:
        """Take every hook off. With nothing in flight the log gets its orderly end; may be called twice."""
        if not self._hooks.live:
            return
        self._hooks.remove()
        self._recorder.reads.drain()
        if not self._recorder.by_id:
            self._emit(CoordinatorStopped(Reason.SHUTDOWN, 0, dict.fromkeys((pool.name for pool in self.layout.own), 0)))
        self._events.flush()


def _place(tree: Any) -> tuple[int, int]:
    """Return this rank's place among those that agree, as far as SGLang's groups say it."""
    rank, ranks = 0, 1
    named = [getattr(tree, name, None) for name in ("attn_cp_group", "attn_tp_group")]
    for group in [each for each in named if each is not None] or [getattr(tree, "tp_group", None)]:
        if group is not None:
            rank = rank * group.size() + group.rank()
            ranks *= group.size()
    return rank, ranks


def shadow(tree_cache: Any, events: EventLog, run: str | None = None) -> Shadow:
    """Record what happens to the prefetches of a live `UnifiedRadixCache` or `HiRadixCache` until `detach()`.

    Call it on the scheduler's thread, best before the first request; one log per rank. What is in flight already, and slots
    that are out already, are not followed. Raises `ConfigError` for a cache that it can't look at at all; what it can't see of
    one that it can is in `Shadow.unseen`.
    """
    return Shadow(tree_cache, events, run, None)
