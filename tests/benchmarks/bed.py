"""Ranks whose readers move when told and whose rounds are reduced by hand: what is left is the scheduler's own work.

Real coordinators, host memory and prefix index; a store that has every page and copies none. All ranks are in this process,
and `Bed.spent_ns` counts the calls of rank 0 alone, so that neither readers nor other ranks are in it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifecycle import Policies, WaitComplete, page_keys, preset
from lifecycle.events import Record
from lifecycle.keys import KeyChain
from lifecycle.runtime import Coordinator, PageResult
from lifecycle.states import State
from lifecycle.testing.hand_readers import HandReaders
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex

PAGE_TOKENS = 16
PAGE_BYTES = 8
Watch = Callable[[], AbstractContextManager[object]]


class AllThere:
    """A page store that has every page and reads them in no time."""

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
        """Say so."""
        return {pool: np.ones(len(keys), dtype=np.bool_) for pool in pools}

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> list[PageResult]:
        """Touch nothing."""
        return [PageResult(PAGE_BYTES)] * len(keys)


class ForgetfulLog:
    """An event log that keeps nothing, for what the log itself is not part of."""

    lost_events = 0

    def append(self, record: Record) -> None:
        """Forget it."""

    def flush(self) -> None:
        """Do nothing."""

    def records(self) -> Iterable[Record]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""


class _Board:
    """A MIN over ranks that are threads while they open."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.buffers = threading.Barrier(ranks), dict[int, NDArray[Any]]()


class _Opening:
    """One rank's transport: for the opening exchange alone."""

    def __init__(self, board: _Board, rank: int, ranks: int) -> None:
        self._board, self.rank, self.ranks = board, rank, ranks

    def launch(self, buffer: NDArray[Any]) -> Callable[[], None]:
        """Reduce at once."""
        self._board.buffers[self.rank] = buffer.copy()
        self._board.barrier.wait()
        buffer[:] = np.minimum.reduce(list(self._board.buffers.values()))
        self._board.barrier.wait()
        return lambda: None


class Bed:
    """`ranks` coordinators with the same commands. `watch` wraps every call of rank 0's scheduler, to look at it."""

    def __init__(
        self, ranks: int = 1, layout: str = "kv_only", *, capacity: int = 4_096, max_pages: int = 8_192,
        events: Callable[[int], Any] = lambda rank: ForgetfulLog(), **settings: Any,
    ) -> None:  # fmt: skip
        self.layout = preset(layout)
        policies = Policies(**{"stop": WaitComplete(), "limit_tokens": 1 << 30, "max_pages": max_pages, **settings})
        sizes = {pool.name: PAGE_BYTES for pool in self.layout.pools}
        self.logs = [events(rank) for rank in range(ranks)]
        self.indexes = [RadixIndex(self.layout) for _ in range(ranks)]
        self.memories = [
            TorchHostMemory(self.layout, {pool.name: capacity for pool in self.layout.own}, sizes, pin=False)
            for _ in range(ranks)
        ]
        self.readers = [HandReaders(AllThere(), memory, time.monotonic_ns) for memory in self.memories]  # type: ignore[arg-type]
        board, self.ranks = _Board(ranks), [None] * ranks  # type: list[Any]

        def build(rank: int) -> None:
            self.ranks[rank] = Coordinator(
                self.layout, policies, PAGE_TOKENS, store=AllThere(), memory=self.memories[rank],  # type: ignore[arg-type]
                index=self.indexes[rank], events=self.logs[rank], readers=self.readers[rank],
                transport=_Opening(board, rank, ranks) if ranks > 1 else None,
            )  # fmt: skip

        threads = [threading.Thread(target=build, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.first: Coordinator = self.ranks[0]
        self.watch: Watch = self.unwatched
        self.spent_ns = 0
        self.held = 0
        self._prompts = 0

    @staticmethod
    def unwatched() -> AbstractContextManager[object]:
        """Look at nothing."""
        return nullcontext()

    def everywhere(self, call: Callable[[int], Any]) -> Any:
        """Make one call of each rank's scheduler; count the time of rank 0's, and return what it returned."""
        with self.watch():
            began = time.thread_time_ns()
            result = call(0)
            self.spent_ns += time.thread_time_ns() - began
        for rank in range(1, len(self.ranks)):
            call(rank)
        return result

    def prompt(self, pages: int) -> KeyChain:
        """Return the keys of a prompt that shares nothing with another."""
        self._prompts += 1
        return page_keys(np.arange(pages * PAGE_TOKENS) + self._prompts * 200_003, PAGE_TOKENS)

    def issue(self, request: str, keys: KeyChain) -> int:
        """Match and issue."""

        def go(rank: int) -> Any:
            index, coordinator = self.indexes[rank], self.ranks[rank]
            return coordinator.issue(request, 0, keys, index.match(keys, coordinator.tick_number).anchor)

        issued = self.everywhere(go)
        assert isinstance(issued, int), f"declined: {issued}"
        return issued

    def tick(self) -> None:
        """Run one tick on every rank."""
        if len(self.ranks) == 1:
            self.everywhere(lambda rank: self.first.tick())
            return
        rounds: dict[int, Any] = {}
        self.everywhere(lambda rank: rounds.update({rank: self.ranks[rank].begin_tick()}))
        reduced = np.minimum.reduce([each.buffer for each in rounds.values()])
        for each in rounds.values():
            each.buffer[:] = reduced
        seconds: dict[int, Any] = {}
        self.everywhere(lambda rank: seconds.update({rank: self.ranks[rank].end_tick(rounds[rank])}))
        if seconds[0] is not None:  # the sets of layouts with trailing pools
            reduced = np.minimum.reduce([each.buffer for each in seconds.values()])
            for each in seconds.values():
                each.buffer[:] = reduced
            self.everywhere(lambda rank: self.ranks[rank].end_exchange(seconds[rank]))

    def work(self) -> None:
        """Have the readers answer everything that is not held."""
        for readers in self.readers:
            while readers.claim() is not None:
                while len(readers.out) > self.held:
                    readers.step(self.held)

    def hold(self, count: int, pages: int = 1) -> None:
        """Issue that many, and leave the one read of each claimed and unanswered."""
        for number in range(count):
            self.issue(f"held-{number}", self.prompt(pages))
        self.work()
        in_flight = self.first.book.replica.in_flight
        while any(prefetch.state is State.ISSUED for prefetch in in_flight.values()):
            self.tick()
        for readers in self.readers:
            while readers.claim() is not None:
                pass
        self.held += count
        self.tick()  # takes the notes of the claims

    def run(self, requests: Sequence[str]) -> None:
        """Bring what was issued to its end, first come, first served: ready, loaded tokens taken, finished, closed."""
        waiting = deque(requests)
        while waiting or len(self.first.book.local) > self.held:
            self.work()
            self.tick()
            while waiting and self.everywhere(lambda rank: self.ranks[rank].ready(waiting[0])):
                self.everywhere(lambda rank: self._finish(rank, waiting[0]))
                waiting.popleft()

    def _finish(self, rank: int, request: str) -> None:
        self.ranks[rank].take_loaded(request)
        self.ranks[rank].finish(request)

    def close(self) -> None:
        """Close, and check the books."""
        self.held = 0
        for readers in self.readers:
            readers.work()
        for each in self.ranks:
            each.close()
            each.check_integrity(replay=False)
        for log in self.logs:
            log.close()
