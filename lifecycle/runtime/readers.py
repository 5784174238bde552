"""Reader threads: they claim jobs from one queue and put notes on another that the tick drains. Nothing else is shared.

Knows no state of a prefetch and takes no decision.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from lifecycle.runtime.jobs import Job, Note, run
from lifecycle.runtime.ports import HostMemory, PageStore


class ReadQueue:
    """Jobs by prefetch, handed out in turn so that none holds up the rest; at most `per_prefetch` claimed at a time."""

    def __init__(self, clock_ns: Callable[[], int], notes: deque[Note], per_prefetch: int) -> None:
        self._clock_ns = clock_ns
        self._notes = notes
        self._per_prefetch = per_prefetch
        self._ready = threading.Condition()
        self._lanes: OrderedDict[int, deque[Job]] = OrderedDict()  # the first one has the next turn
        self._running: dict[int, int] = {}
        self._closed = False

    def put(self, jobs: Sequence[Job]) -> None:
        """Add jobs, those of one prefetch in order."""
        with self._ready:
            for job in jobs:
                lane = self._lanes.get(job.prefetch)
                if lane is None:
                    lane = self._lanes[job.prefetch] = deque()
                lane.append(job)
            self._ready.notify(len(jobs))

    def take(self) -> Job | None:
        """Claim the next job, waiting for one; None once closed. Called by readers."""
        with self._ready:
            while True:
                if self._closed:
                    return None
                job = self._next()
                if job is not None:
                    return job
                self._ready.wait()

    def claim(self) -> Job | None:
        """Claim the next job if there is one."""
        with self._ready:
            return None if self._closed else self._next()

    def _next(self) -> Job | None:
        for _ in range(len(self._lanes)):
            prefetch, lane = next(iter(self._lanes.items()))
            running = self._running.get(prefetch, 0)
            if running >= self._per_prefetch:
                self._lanes.move_to_end(prefetch)
                continue
            job = lane.popleft()
            self._running[prefetch] = running + 1
            if lane:
                self._lanes.move_to_end(prefetch)
            else:
                del self._lanes[prefetch]
            job.claimed_ns = self._clock_ns()
            self._notes.append(Note(job, "claim"))
            return job
        return None

    def done(self, job: Job) -> None:
        """Note that a claimed job is over, or given up as lost."""
        with self._ready:
            if job.returned:
                return
            job.returned = True
            left = self._running[job.prefetch] - 1
            if left:
                self._running[job.prefetch] = left
            else:
                del self._running[job.prefetch]
            if job.prefetch in self._lanes:
                self._ready.notify()

    def withdraw(self, prefetch: int, from_page: int = -1) -> list[Job]:
        """Take back the unclaimed jobs of a prefetch that begin at `from_page` or later, and return them."""
        with self._ready:
            lane = self._lanes.get(prefetch)
            if lane is None:
                return []
            gone = [job for job in lane if job.pages[0] >= from_page]
            kept = deque(job for job in lane if job.pages[0] < from_page)
            if kept:
                self._lanes[prefetch] = kept
            else:
                del self._lanes[prefetch]
            return gone

    def withdraw_all(self) -> list[Job]:
        """Take back every unclaimed job, and return them by prefetch."""
        with self._ready:
            gone = [job for _, lane in sorted(self._lanes.items()) for job in lane]
            self._lanes.clear()
            return gone

    def unclaimed(self) -> int:
        """Return how many jobs wait for a reader."""
        with self._ready:
            return sum(len(lane) for lane in self._lanes.values())

    def close(self) -> None:
        """Wake every reader with nothing to do."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()


class ReaderPool(Protocol):
    """Whatever claims jobs from a queue and leaves notes: threads, or a simulator's step."""

    queue: ReadQueue
    notes: deque[Note]

    def add(self) -> None:
        """Have one more reader, in place of one that a lost read holds."""

    def close(self, timeout_s: float) -> int:
        """Stop; wait up to `timeout_s` in all; return how many readers are still in a read."""


class Readers:
    """A few daemon threads over one page store and one host memory."""

    def __init__(
        self, store: PageStore, memory: HostMemory, clock_ns: Callable[[], int], count: int = 4, name: str = "reader"
    ) -> None:
        self._store = store
        self._memory = memory
        self._name = name
        self.notes: deque[Note] = deque()
        self.queue = ReadQueue(clock_ns, self.notes, per_prefetch=max(1, count - 1))
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Start one more reader (in place of one that a lost read holds)."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self.queue.take()) is not None:
            for note in run(job, self._store, self._memory):
                if note.kind == "end":
                    self.queue.done(job)
                self.notes.append(note)
            if job.replaced:
                return

    def close(self, timeout_s: float) -> int:
        """Stop; wait up to `timeout_s` in all; return how many readers are still in a read."""
        self.queue.close()
        deadline = threading.TIMEOUT_MAX if timeout_s < 0 else timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline / max(1, len(self._threads))))
        return sum(thread.is_alive() for thread in self._threads)
