"""The queue of reads: handed out in turn, never too many of one prefetch at a time, taken back before they are claimed."""

from collections import deque

from lifecycle.runtime.jobs import Job, Note
from lifecycle.runtime.readers import ReadQueue
from lifecycle.testing.clock import VirtualClock


def queue_of(per_prefetch: int) -> tuple[ReadQueue, deque[Note]]:
    """Return an empty queue and the notes that it leaves."""
    notes: deque[Note] = deque()
    return ReadQueue(VirtualClock(), notes, per_prefetch), notes


def jobs(prefetch: int, count: int) -> list[Job]:
    """Return reads of one page each."""
    return [Job(prefetch, "kv", (page, page + 1), ()) for page in range(count)]


def claimed(queue: ReadQueue) -> list[int]:
    """Claim all that can be claimed now; return whose it was."""
    found = []
    while (job := queue.claim()) is not None:
        found.append(job.prefetch)
    return found


def test_prefetches_take_turns() -> None:
    """One with many reads is overtaken by those that came after it, read by read."""
    queue, notes = queue_of(per_prefetch=9)
    queue.put(jobs(1, 4))
    queue.put(jobs(2, 1))
    queue.put(jobs(3, 2))
    assert claimed(queue) == [1, 2, 3, 1, 3, 1, 1]
    assert [note.kind for note in notes] == ["claim"] * 7


def test_a_prefetch_has_no_more_than_its_share_of_readers() -> None:
    """What is beyond it waits for an answer, and holds up nobody else."""
    queue, _ = queue_of(per_prefetch=2)
    first = jobs(1, 4)
    queue.put(first)
    queue.put(jobs(2, 1))
    assert claimed(queue) == [1, 2, 1]
    assert queue.unclaimed() == 2
    queue.done(first[0])
    queue.done(first[0])  # a second time frees no second place
    assert claimed(queue) == [1]


def test_what_is_taken_back_is_claimed_by_nobody() -> None:
    """From a page on, or all; what was claimed stays claimed."""
    queue, _ = queue_of(per_prefetch=9)
    queue.put(jobs(1, 4))
    assert queue.claim() is not None
    assert [job.pages[0] for job in queue.withdraw(1, from_page=2)] == [2, 3]
    assert [job.pages[0] for job in queue.withdraw(1)] == [1]
    assert queue.withdraw(1) == []
    assert claimed(queue) == []
