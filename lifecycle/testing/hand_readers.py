"""Readers without threads: a test moves them by hand, so that an answer comes exactly when the test says."""

from collections import deque
from collections.abc import Callable, Iterator

from lifecycle.runtime.jobs import Job, Note, run
from lifecycle.runtime.ports import HostMemory, PageStore
from lifecycle.runtime.readers import ReadQueue


class HandReaders:
    """A `ReaderPool`: pass it as `readers`. `claim` takes a job, `step` makes its next answer, `work` does all there is."""

    def __init__(self, store: PageStore, memory: HostMemory, clock_ns: Callable[[], int], per_prefetch: int = 1_000) -> None:
        self.notes: deque[Note] = deque()
        self.queue = ReadQueue(clock_ns, self.notes, per_prefetch)
        self.out: list[tuple[Job, Iterator[Note]]] = []
        self.readers_added = 0
        self._store, self._memory = store, memory

    def claim(self) -> Job | None:
        """Claim the next job, if there is one; it answers nothing until it is stepped."""
        job = self.queue.claim()
        if job is not None:
            self.out.append((job, run(job, self._store, self._memory)))
        return job

    def step(self, place: int = 0) -> Note:
        """Make the next answer of the job at `place` among those that are out."""
        job, notes = self.out[place]
        answer = next(notes)
        if answer.kind == "end":
            del self.out[place]
            self.queue.done(job)
        self.notes.append(answer)
        return answer

    def work(self) -> None:
        """Answer everything that is out or waits."""
        while self.out or self.claim() is not None:
            while self.out:
                self.step()

    def add(self) -> None:
        """Count a reader that was asked for in place of a lost one."""
        self.readers_added += 1

    def close(self, timeout_s: float) -> int:
        """Claim nothing more; return how many jobs are out."""
        self.queue.close()
        return len(self.out)
