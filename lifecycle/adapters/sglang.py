"""Looking on at a live SGLang cache: what happens to its prefetches, recorded as our events, without changing anything.

Knows SGLang by the names of its methods alone and imports nothing of it. `shadow` records; `guard` (in `guard.py`) also
checks the laws as things happen. The engine's threads leave facts, copied where they are seen; a thread of the shadow's own
makes events of them and writes them down, so that the scheduler pays for little more than the look.
"""

import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from lifecycle.adapters.hooks import Hooks
from lifecycle.adapters.sglang_ends import Notes
from lifecycle.adapters.sglang_pools import Slots, host_pools, layout_of
from lifecycle.adapters.sglang_recorder import Recorder
from lifecycle.adapters.sglang_scribe import Scribe
from lifecycle.adapters.sglang_served import UNSEEN, Served
from lifecycle.adapters.sglang_threads import Threads
from lifecycle.adapters.sglang_told import Teller
from lifecycle.adapters.sglang_watch import Watch
from lifecycle.errors import ConfigError
from lifecycle.events import CoordinatorStopped, Event, LogOpened, Record
from lifecycle.logger import Logger
from lifecycle.policies import MOST_PAGES
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import EventLog

log = Logger(__name__)

CLOSE_S = 5.0

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
        self._pen = _Pen(events, listen)
        self._emit = self._pen.emit
        self.layout = layout_of(tree_cache, controller)
        pools = {name: pool for name, pool in host_pools(controller).items() if name in self.layout.index_of}
        slots = {name: Slots(pool) for name, pool in pools.items()}
        rank, ranks = _place(tree_cache)
        limit = int(getattr(controller, "prefetch_capacity_limit", MOST_PAGES))
        page_size = int(controller.page_size)
        self._open(tree_cache, controller, run, (rank, ranks), {name: each.capacity for name, each in slots.items()}, limit)
        self._hooks = Hooks("the shadow of an SGLang cache")
        self._at_once = listen is not None
        self._scribe = Scribe(self._pen.at, events.flush, self._hooks, self._at_once)
        self._recorder = Recorder(self.layout, slots, page_size, ranks, limit, self._emit, self._pen.now_ns)
        threads = Threads(self._scribe.facts, self._recorder.reads.said, page_size, self.layout.index_of)
        seen = threads.attach(self._hooks, controller)
        teller = Teller(self.layout, self._recorder, page_size, threads.batched, int(controller.prefetch_threshold))
        self._recorder.reads.planned = teller.planned
        sizes = {name: each.page_size for name, each in slots.items()}
        notes = Notes(tree_cache, controller, self._scribe.facts, sizes, teller, self._over if self._at_once else None)
        threads.capture = notes.capture
        watch = Watch(notes, teller, ranks, threads.batched, self._pen.flush if self._at_once else None)
        seen = {**watch.attach(self._hooks, pools), **Served(notes, teller).attach(self._hooks), **seen}
        unseen = [what for what, there in seen.items() if not there]
        if getattr(controller, "has_draft", False):
            unseen.append("draft pages, which ride along and are never waited for")
        self.unseen = (*unseen, UNSEEN)

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

    def _over(self) -> None:
        """Tell what was seen in a call of the engine's that is over, where things are told at once."""
        self._scribe.tell()

    @property
    def attached(self) -> bool:
        """Whether anything is recorded at the moment."""
        return self._hooks.live

    @property
    def failure(self) -> Exception | None:
        """What took the shadow off by itself, if anything did."""
        return self._hooks.failure

    def catch_up(self) -> None:
        """Tell and flush what was seen up to now, on this thread; without it that takes some hundredths of a second."""
        if self._at_once:
            self._scribe.tell()
            self._pen.flush()
        else:
            self._scribe.catch_up()

    def detach(self) -> None:
        """Take every hook off and tell what was seen. With nothing in flight the log gets its orderly end; may be called twice.

        Waits up to five seconds for a log that doesn't take what is written.
        """
        if not self._hooks.live:
            return
        self._hooks.remove()
        if not self._scribe.stop(CLOSE_S):
            log.error(
                "the shadow of an SGLang cache is off; its log does not take what was seen",
                seconds=CLOSE_S,
                what_to_do="see the disk of the event log; its end is missing",
            )
            return
        if self._hooks.failure is not None:
            return
        if not self._recorder.by_id:
            self._emit(CoordinatorStopped(Reason.SHUTDOWN, 0, dict.fromkeys((pool.name for pool in self.layout.own), 0)))
        self._pen.flush()


class _Pen:
    """Writes events as records, with the time at which the fact was left: never earlier than the one before."""

    def __init__(self, events: EventLog, listen: Callable[[Record], None] | None) -> None:
        self.flush = events.flush
        self._append, self._listen = events.append, listen
        self._seq = 0
        self._at_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time of the fact that is told."""
        return self._at_ns

    def at(self, at_ns: int) -> None:
        """Take it that what follows was at this time."""
        if at_ns > self._at_ns:  # two threads leave facts, and the clock was read before
            self._at_ns = at_ns

    def emit(self, event: Event) -> None:
        """Append an event."""
        record = Record(self._seq, self._at_ns, event)  # type: ignore[arg-type]  # every event class is in the union
        self._append(record)
        self._seq += 1
        if self._listen is not None:
            self._listen(record)


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

    Call it on the scheduler's thread, best before the first request; one log per rank, the shadow's alone until then. What is
    in flight already, and slots that are out already, are not followed. Raises `ConfigError` for a cache that it can't look at
    at all; what it can't see of one that it can is in `Shadow.unseen`.
    """
    return Shadow(tree_cache, events, run, None)
