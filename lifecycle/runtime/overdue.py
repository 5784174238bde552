"""Jobs in the order in which they were sent, to find those that nobody answers."""

from collections import deque
from collections.abc import Iterator

from lifecycle.runtime.jobs import Job

_LEAST = 64


class Overdue:
    """Keeps no more than about twice the jobs that are out, also behind one that hangs: an answered one is dropped for good.

    Adding costs the same on average, however many are out.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._sweep_at = _LEAST

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Watch a job from now on."""
        if len(self._jobs) >= self._sweep_at:
            self._jobs = deque(each for each in self._jobs if not each.ended)
            self._sweep_at = max(_LEAST, 2 * len(self._jobs))
        self._jobs.append(job)

    def since(self, before_ns: int) -> Iterator[Job]:
        """Take out and yield the jobs that were claimed by then and are not answered."""
        while self._jobs and (self._jobs[0].ended or self._jobs[0].claimed_ns <= before_ns):
            job = self._jobs.popleft()
            if not job.ended:
                yield job
