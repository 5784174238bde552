"""What SGLang's transfer threads do, noted where they do it: queries, reads, answers. Leaves word; tells nothing itself."""

import threading
import time
from collections import deque
from collections.abc import Callable, Container
from typing import Any

from lifecycle.adapters.hooks import Args, Hooks, Kwargs, first
from lifecycle.adapters.sglang_pools import name_of
from lifecycle.adapters.sglang_scribe import Fact

Flags = dict[str, tuple[bool, ...]]


class _Batch:
    """One read batch on this thread, where sidecars are read with it (since 0.5.2x)."""

    __slots__ = ("at", "count", "kv", "sides")

    def __init__(self, at: int, count: int) -> None:
        self.at, self.count = at, count
        self.kv: int | None = None
        self.sides: Flags = {}


class _Here(threading.local):
    """What this thread is about. Nothing, in the middle of a transfer that began before anybody looked."""

    operation: Any = None
    at = 0
    batch: _Batch | None = None


class Threads:
    """The hooks on the transfer threads' side of one controller."""

    def __init__(self, facts: deque[Fact], said: Callable[..., None], page_size: int, pools: Container[str]) -> None:
        self._facts, self._said = facts, said
        self._page = page_size
        self.capture: Callable[[Any], None] | None = None  # notes the plan of an operation, if nobody has
        self._pools = pools
        self._here = _Here()
        self.batched = False  # whether sidecars that ride on kv are read with it, batch by batch

    def attach(self, hooks: Hooks, controller: Any) -> dict[str, bool]:
        """Put the hooks on; return what can be seen, in words."""
        around = hooks.around
        backend = getattr(controller, "storage_backend", None)
        self.batched = hasattr(controller, "_page_transfer_kv_batch")
        sides = backend is not None and hasattr(backend, "batch_get_v2")
        reads = around(controller, "page_get_func", self._before_read, self._after_read)
        if self.batched:
            reads = reads and around(controller, "_page_transfer_kv_batch", self._before_batch, self._after_batch)
        return {
            "how much of L3's answer this rank had": hooks.behind(controller, "_storage_hit_query", self._after_query),
            "which reads are in flight, page by page": reads
            and around(controller, "_page_transfer", self._before_transfer, self._after_transfer),
            "results of sidecar reads, page by page": backend is not None
            and (not sides or around(backend, "batch_get_v2", self._before_sides, self._after_sides)),
        }

    def _note(self, *word: Any) -> None:
        self._facts.append((self._said, time.monotonic_ns(), *word))

    def _after_query(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        if result is not None:
            self._note("hit", first(args, kwargs), int(result[1]) // self._page)

    def _before_transfer(self, args: Args, kwargs: Kwargs) -> Any:
        self._here.operation, self._here.at, self._here.batch = args[0], 0, None
        if self.capture is not None:
            self.capture(args[0])
        return args[0]

    def _after_transfer(self, operation: Any, result: object) -> None:
        self._here.operation = None
        self._note("over", operation)

    # --- kv ------------------------------------------------------------------------------------------------------------

    def _before_read(self, args: Args, kwargs: Kwargs) -> tuple[Any, int, int] | None:
        if self.batched or self._here.operation is None:
            return None
        at, count = self._here.at, len(args[1])
        self._here.at = at + count
        self._note("reading", args[0], at, count)
        return args[0], at, count

    def _after_read(self, token: tuple[Any, int, int] | None, result: Any) -> None:
        if token is None:
            if self._here.batch is not None:
                self._here.batch.kv = int(result or 0)
            return
        operation, at, count = token
        completed = int(operation.completed_tokens)
        to_come = bool(getattr(operation, "pool_transfers", None)) and completed == (at + count) * self._page
        self._note("read", operation, at, count, completed, to_come)

    def _before_batch(self, args: Args, kwargs: Kwargs) -> Any:
        if self._here.operation is None:
            return None
        at, count = self._here.at, len(args[1])
        self._here.at = at + count
        self._here.batch = _Batch(at, count)
        self._note("reading", args[0], at, count)
        return args[0]

    def _after_batch(self, operation: Any, result: Any) -> None:
        batch, self._here.batch = self._here.batch, None
        if batch is None:
            return
        pages = batch.kv if batch.kv is not None else int(result or 0)
        self._note("read batch", operation, batch.at, batch.count, pages, batch.sides)

    # --- sidecars ------------------------------------------------------------------------------------------------------

    def _before_sides(self, args: Args, kwargs: Kwargs) -> Any:
        operation = self._here.operation
        names = tuple(name for each in first(args, kwargs) if (name := name_of(each.name)) in self._pools)
        if operation is None or not names:
            return None
        if self._here.batch is None:
            self._note("reading sides", operation, names)
        return operation

    def _after_sides(self, operation: Any, result: Any) -> None:
        if operation is None:
            return
        results = {name_of(pool): tuple(map(bool, flags)) for pool, flags in (result or {}).items()}
        if self._here.batch is None:
            self._note("read sides", operation, results)
        else:
            self._here.batch.sides.update(results)
