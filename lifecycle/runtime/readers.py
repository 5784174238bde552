"""Reader threads: they claim jobs from one queue and put notes on another that the tick drains. Nothing else is shared.

A job is an existence query or a batch of at most 128 pages: the pool with slots of its own first, then what rides on it.
Knows no state and takes no decision.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from lifecycle.ranges import Range
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import HostMemory, PageResult, PageStore, SlotArray

log = structlog.get_logger(__name__)


class Part(NamedTuple):
    """The pages [lo, hi) of one pool that a batch reads, and their slots."""

    pool: str
    pages: Range
    keys: Sequence[str]
    slots: SlotArray


class Landing(NamedTuple):
    """Consecutive pages of one part that ended alike: in place and verified (`code` None), or failed."""

    pages: Range
    code: ReadCode | None
    checksums: tuple[int, ...] | None


class Job:
    """A read batch (with `parts`) or an existence query (without). Made by the scheduler, run by one reader."""

    __slots__ = ("claimed", "claimed_ns", "ended", "keys", "lost", "owner", "pages", "parts", "pools", "prefetch",
                 "returned", "stopped")  # fmt: skip

    def __init__(
        self, prefetch: int, owner: str, pages: Range, parts: tuple[Part, ...], keys: Sequence[str] = (),
        pools: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.prefetch = prefetch
        self.owner = owner
        self.pages = pages
        self.parts = parts
        self.keys = keys
        self.pools = pools
        self.claimed_ns = 0  # written once by the reader that claims it, before its note
        self.stopped = False  # written once by the scheduler: read nothing more
        self.claimed = self.ended = self.lost = False  # the scheduler's own
        self.returned = False  # whether its place in the queue's count is given back

    @property
    def is_query(self) -> bool:
        """Whether this asks what is there instead of reading it."""
        return not self.parts


class Note(NamedTuple):
    """What a reader says: a claim (`kind` "claim"), one part read ("part"), or the job is over ("end")."""

    job: Job
    kind: str
    part: Part | None = None
    landings: tuple[Landing, ...] = ()
    present: object = None


class ReadQueue:
    """Jobs by prefetch, handed out in turn so that none holds up the rest; at most `per_prefetch` claimed at a time."""

    def __init__(self, clock_ns: Callable[[], int], notes: deque[Note], per_prefetch: int) -> None:
        self._clock_ns = clock_ns
        self._notes = notes
        self._per_prefetch = per_prefetch
        self._ready = threading.Condition()
        self._lanes: dict[int, deque[Job]] = {}
        self._turns: deque[int] = deque()
        self._running: dict[int, int] = {}
        self._closed = False

    def put(self, jobs: Sequence[Job]) -> None:
        """Add the jobs of one prefetch, in order."""
        with self._ready:
            for job in jobs:
                lane = self._lanes.get(job.prefetch)
                if lane is None:
                    lane = self._lanes[job.prefetch] = deque()
                    self._turns.append(job.prefetch)
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
                    job.claimed_ns = self._clock_ns()
                    self._notes.append(Note(job, "claim"))
                    return job
                self._ready.wait()

    def _next(self) -> Job | None:
        for _ in range(len(self._turns)):
            prefetch = self._turns.popleft()
            lane = self._lanes[prefetch]
            if self._running.get(prefetch, 0) >= self._per_prefetch:
                self._turns.append(prefetch)
                continue
            job = lane.popleft()
            self._running[prefetch] = self._running.get(prefetch, 0) + 1
            if lane:
                self._turns.append(prefetch)
            else:
                del self._lanes[prefetch]
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
                self._turns.remove(prefetch)
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
            try:
                self._query(job) if job.is_query else self._read(job)
            finally:
                self.queue.done(job)
                self.notes.append(Note(job, "end"))

    def _query(self, job: Job) -> None:
        try:
            present = self._store.restorable(job.keys, job.pools)
        except Exception as error:  # a store's fault must not kill the reader: it becomes "not known", with its cause
            log.warning("existence query raised", prefetch=job.prefetch, error=repr(error))
            self.notes.append(Note(job, "part"))
        else:
            self.notes.append(Note(job, "part", present=present))

    def _read(self, job: Job) -> None:
        for part in job.parts:
            if job.stopped:
                results: object = [PageResult(0, ReadCode.CANCELLED)] * len(part.keys)
            else:
                try:
                    results = self._store.read_into(part.pool, part.keys, self._memory.buffers(part.pool, part.slots))
                except Exception as error:  # as above: every page of the part failed with an io error
                    log.warning("page read raised", prefetch=job.prefetch, pool=part.pool, error=repr(error))
                    results = [PageResult(0, ReadCode.IO_ERROR)] * len(part.keys)
            page_bytes = self._memory.page_bytes(part.pool)
            self.notes.append(Note(job, "part", part, landings(part.pages, results, page_bytes)))

    def close(self, timeout_s: float) -> int:
        """Stop; wait up to `timeout_s` in all; return how many readers are still in a read."""
        self.queue.close()
        deadline = threading.TIMEOUT_MAX if timeout_s < 0 else timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline / max(1, len(self._threads))))
        return sum(thread.is_alive() for thread in self._threads)


def landings(pages: Range, results: object, page_bytes: int) -> tuple[Landing, ...]:
    """Return what a store's results say, as runs. Not one result per key: the whole part failed. An acknowledgement is not
    a success: ok without a whole page is short."""
    lo, hi = pages
    if not isinstance(results, Sequence) or len(results) != hi - lo:
        return (Landing(pages, ReadCode.BAD_RESULT, None),)
    codes = [_code(result, page_bytes) for result in results]
    out: list[Landing] = []
    place = 0
    while place < len(codes):
        stop = place + 1
        while stop < len(codes) and codes[stop] is codes[place]:
            stop += 1
        sums = None
        if codes[place] is None:
            known = [result.checksum for result in results[place:stop]]
            sums = tuple(known) if all(value is not None for value in known) else None
        out.append(Landing((lo + place, lo + stop), codes[place], sums))
        place = stop
    return tuple(out)


def _code(result: object, page_bytes: int) -> ReadCode | None:
    if not isinstance(result, PageResult):
        return ReadCode.BAD_RESULT
    if result.code is None and result.nbytes != page_bytes:
        return ReadCode.SHORT
    return result.code
