"""Threads that help whoever has a long batch to read. Nobody waits for a helper that has not begun.

The caller works on its own batch, too, so that helpers that hang, or that a fork left behind, cost speed and nothing else.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

_MOST = 3
_Task = tuple["Future[None]", Callable[[], None]]


def spare_cores() -> int:
    """Return how many helpers are of use here: one for each core but the caller's, three at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST, cores - 1)


class Helpers:
    """Up to `count` daemon threads, started when they are first needed. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False

    def share(self, work: Callable[[int, int], None], parts: Iterable[tuple[int, int]]) -> None:
        """Call `work(start, stop)` for every part, on this thread and on those of the helpers that are free.

        All of it is over on return. Raises what `work` raised; further parts may be left undone then.
        """
        left = deque(parts)

        def run() -> None:
            while True:
                try:
                    part = left.popleft()
                except IndexError:
                    return
                work(*part)

        wanted = min(self._count, len(left) - 1) if self._tasks.qsize() < self._count else 0  # else they are busy, or hang
        asked = [self._ask(run) for _ in range(wanted)]
        try:
            run()
        finally:
            begun = [future for future in asked if not future.cancel()]
            left.clear()
            errors = [error for future in begun if (error := future.exception()) is not None]
        for error in errors:
            raise error

    def close(self) -> None:
        """Let the threads end once they are free; batches go on being read by their callers."""
        with self._lock:
            if self._started:
                for _ in range(self._count):
                    self._tasks.put(None)
            self._count, self._started = 0, False

    def _ask(self, run: Callable[[], None]) -> "Future[None]":
        future: Future[None] = Future()
        self._tasks.put((future, run))
        with self._lock:
            if not self._started:
                self._started = True
                for number in range(self._count):
                    threading.Thread(target=self._help, name=f"page-helper-{number}", daemon=True).start()
        return future

    def _help(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, run = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                run()
            except BaseException as error:  # handed to the caller, who raises it
                future.set_exception(error)
            else:
                future.set_result(None)
