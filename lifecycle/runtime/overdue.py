"""Jobs by the time since when they wait for an answer, to find those that nobody answers."""

import heapq
from collections.abc import Iterator
from itertools import count

from lifecycle.runtime.jobs import Job

_LEAST = 64


class Overdue:
    """Keeps no more than about twice the jobs that are out, also behind one that hangs: an answered one is dropped for good.

    Adding costs the same on average, however many are out.
    """

    def __init__(self) -> None:
        self._jobs: list[tuple[int, int, Job]] = []  # `claimed_ns` when it was looked at last, number
        self._number = count()
        self._sweep_at = _LEAST

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Watch a job from now on."""
        if len(self._jobs) >= self._sweep_at:
            self._jobs = [each for each in self._jobs if not each[2].ended]
            heapq.heapify(self._jobs)
            self._sweep_at = max(_LEAST, 2 * len(self._jobs))
        self._push(job)

    def since(self, before_ns: int) -> Iterator[Job]:
        """Take out and yield the jobs that were claimed by then and are not answered."""
        while self._jobs and (self._jobs[0][2].ended or self._jobs[0][0] <= before_ns):
            _, _, job = heapq.heappop(self._jobs)
            if job.ended:
                continue
            if job.claimed_ns > before_ns:  # claimed since it was added; those behind it may be overdue
                self._push(job)
            else:
                yield job

    def _push(self, job: Job) -> None:
        heapq.heappush(self._jobs, (job.claimed_ns, next(self._number), job))
