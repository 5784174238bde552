"""Jobs by the time since when they wait for an answer, to find those that nobody answers."""

from collections.abc import Iterator
from operator import attrgetter

from lifecycle.runtime.jobs import Job
from lifecycle.runtime.timeline import Timeline


class Overdue(Timeline[Job]):
    """The jobs that are out; an answered one is over."""

    def __init__(self) -> None:
        super().__init__(attrgetter("ended"))

    def watch(self, job: Job) -> None:
        """Watch a job from now on."""
        self.add(job.claimed_ns, job)

    def since(self, before_ns: int) -> Iterator[Job]:
        """Take out and yield the jobs that were claimed by then and are not answered."""
        for job in self.until(before_ns):
            if job.claimed_ns > before_ns:  # claimed since it was added; those behind it may be overdue
                self.watch(job)
            else:
                yield job
