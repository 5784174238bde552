"""What the scheduler's thread does, counted instead of timed: bytecodes, locks, allocations, encoders, the disk."""

import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lifecycle import Timeout
from lifecycle import events as ev
from lifecycle.runtime.jobs import Job
from lifecycle.runtime.overdue import Overdue
from stores.events import SqliteEventLog
from tests.benchmarks.bed import Bed

Made = Callable[..., Bed]


@pytest.fixture
def bed_of() -> Iterator[Made]:
    """Build beds; at the end each is closed and its books checked."""
    beds: list[Bed] = []

    def build(*args: Any, **more: Any) -> Bed:
        beds.append(Bed(*args, **more))
        return beds[-1]

    yield build
    for bed in beds:
        bed.close()


class Counted:
    """Counts the bytecodes that this thread executes inside `here`."""

    def __init__(self) -> None:
        self.steps = 0

    @contextmanager
    def here(self) -> Iterator[None]:
        """Count what happens inside."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        self.steps += event == "opcode"
        return self._step


def steps_of_one(bed: Bed, pages: int) -> int:
    """Return the bytecodes of the scheduler for one prefetch from issue to close, once everything is warm."""
    for request in ("warm", "counted"):
        keys, counted = bed.prompt(pages), Counted()
        bed.watch = counted.here
        bed.issue(request, keys)
        bed.run([request])
    return counted.steps


@pytest.mark.parametrize("layout", ["kv_only", "dsa"])
def test_a_prefetch_takes_the_same_steps_whatever_its_pages(bed_of: Made, layout: str) -> None:
    """From issue to close no bytecode is executed per page: 128 pages in one batch take as many as 20."""
    few, many = (steps_of_one(bed_of(layout=layout), pages) for pages in (20, 128))
    assert few == many


def test_a_long_prefetch_takes_steps_by_the_batch(bed_of: Made) -> None:
    """Each batch more costs the same, also the sixty-fourth, and far less than its pages."""
    one, two, sixteen, sixty_four = (steps_of_one(bed_of(capacity=17_000), pages) for pages in (128, 256, 2_048, 8_192))
    assert sixteen - two == pytest.approx(14 * (two - one), rel=0.03)
    assert sixty_four - two == pytest.approx(62 * (two - one), rel=0.03)
    assert two - one < 128 * 20


def test_finalising_takes_the_same_steps_whatever_its_pages(bed_of: Made) -> None:
    """The tick that ends, agrees, publishes, hands over, unlocks, settles and closes: 2,048 pages as 256, but for the
    look at each batch."""

    def finalise(pages: int) -> int:
        bed = bed_of()
        for request in ("warm", "counted"):
            bed.issue(request, bed.prompt(pages))
            bed.work()
            bed.tick()
            bed.work()
            last = bed.readers[0].notes.pop()
            bed.tick()
            bed.readers[0].notes.append(last)
            counted = Counted()
            bed.watch = counted.here
            bed.tick()
            assert bed.everywhere(lambda rank: bed.ranks[rank].ready(request))  # noqa: B023  # called at once
            bed.watch = Bed.unwatched
        return counted.steps

    batches = (2_048 - 256) // 128
    assert finalise(2_048) - finalise(256) <= 60 * batches


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prefetch_takes_the_same_steps_however_many_are_in_flight(bed_of: Made, ranks: int) -> None:
    """One rank: beside 400 whose reads are out as beside 70. Several: a tick has as many rows, whatever is in flight."""
    found = []
    for others in (70, 400):
        bed = bed_of(ranks)
        bed.hold(others)
        if ranks == 1:
            found.append(steps_of_one(bed, 8))
        else:
            counted = Counted()
            bed.watch = counted.here
            bed.tick()
            found.append(counted.steps)
    assert found[1] == pytest.approx(found[0], abs=64)  # a bisection of more ids takes a few more


@pytest.mark.parametrize(("ranks", "layout"), [(1, "kv_only"), (2, "kv_only"), (2, "swa")])
def test_a_tick_allocates_the_same_however_much_is_in_flight(bed_of: Made, ranks: int, layout: str) -> None:
    """The peak of memory inside a tick does not grow with what is in flight."""

    def peak(others: int) -> int:
        bed = bed_of(ranks, layout, max_pages=64)
        bed.hold(others)
        tracemalloc.start()
        try:
            bed.tick()
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            bed.tick()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    few, many = peak(100), peak(2_000)
    assert many - few < 1_900  # less than a byte for each one more


class CountedLock:
    """Stands before a condition, and counts how often the thread that made this one takes it."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition, self._thread, self.taken = condition, threading.get_ident(), 0

    def __enter__(self) -> None:
        self.taken += threading.get_ident() == self._thread
        self._condition.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._condition.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._condition, name)


def test_a_tick_takes_one_lock_at_most(bed_of: Made) -> None:
    """However many prefetches are planned, ended and published in one tick, the readers' queue is locked once."""
    bed = bed_of()
    lock = CountedLock(bed.readers[0].queue._ready)
    ended = 0
    requests = [f"r{number}" for number in range(60)]
    for request in requests:
        bed.issue(request, bed.prompt(4))
    bed.readers[0].queue._ready = lock  # type: ignore[assignment]
    while bed.first.book.local:
        for _ in range(20):
            if bed.readers[0].claim() is not None:
                bed.readers[0].step()
        while bed.readers[0].out:
            bed.readers[0].step()
        before, lock.taken = len(bed.first.book.local), 0
        bed.tick()
        assert lock.taken <= 1
        ended = max(ended, before - len(bed.first.book.local))
    assert ended > 5, "several prefetches ended in one tick"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_scheduler_thread_neither_encodes_events_nor_touches_the_disk(bed_of: Made, tmp_path: Path, ranks: int) -> None:
    """Of all that its calls run, nothing is a JSON encoder, a database, a file or a system call on one; the log has it all."""
    called: set[str] = set()

    def see(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            owner = getattr(arg, "__self__", None)
            called.add(f"{getattr(owner, '__name__', type(owner).__module__ + '.' + type(owner).__name__)}.{arg.__name__}")

    @contextmanager
    def seen() -> Iterator[None]:
        sys.setprofile(see)
        try:
            yield
        finally:
            sys.setprofile(None)

    bed = bed_of(ranks, events=lambda rank: SqliteEventLog(tmp_path / f"rank{rank}.sqlite"))
    bed.watch = seen
    requests = [f"r{number}" for number in range(20)]
    for request in requests:
        bed.issue(request, bed.prompt(4))
    bed.run(requests)
    bed.watch = Bed.unwatched
    closed = [record.event for record in bed.logs[0].records() if isinstance(record.event, ev.Closed)]
    assert len(closed) == 20
    bad = [name for name in called if any(word in name for word in ("json", "sqlite", "io.", "posix", "fsync", "open"))]
    assert not bad
    assert any("SimpleQueue.put" in name for name in called), f"the handing over is seen: {sorted(called)}"


def test_answered_reads_are_not_kept_behind_one_that_hangs() -> None:
    """Of a thousand jobs that were answered while one hangs, about twice as many as are out are still known."""
    overdue, hung = Overdue(), Job(0, "kv", (0, 1), ())
    hung.claimed_ns = 10
    overdue.watch(hung)
    for number in range(1, 1_000):
        job = Job(number, "kv", (0, 1), ())
        job.claimed_ns = 10 + number
        overdue.watch(job)
        job.ended = True
        assert len(overdue) <= 65
    assert list(overdue.since(9)) == []
    assert list(overdue.since(10)) == [hung]
    assert list(overdue.since(2_000)) == []
    assert len(overdue) == 0


def test_limits_are_not_kept_of_what_is_closed(bed_of: Made) -> None:
    """After hundreds of prefetches that ended long before their limit, a few limits are still known, not hundreds."""
    bed = bed_of(stop=Timeout(base_s=1_000.0, max_s=1_000.0))
    bed.hold(10)
    for number in range(300):
        bed.issue(f"r{number}", bed.prompt(2))
        bed.run([f"r{number}"])
    limits = bed.first._ticks._deadlines.limits
    assert len(limits) <= 65
    assert set(limits) >= set(bed.first.book.local), "those of what is in flight are kept"
