"""A job for a reader, what running it means, and the notes that come of it. No thread, no state of a prefetch.

A job is an existence query or a batch of at most 128 pages: the pool with slots of its own first, then what rides on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import NamedTuple

import numpy as np

from lifecycle.coverage import Flags
from lifecycle.logger import Logger
from lifecycle.ranges import Range
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import HostMemory, PageResult, PageStore, SlotArray

log = Logger(__name__)


class Part(NamedTuple):
    """The pages [lo, hi) of one pool that a batch reads, and their slots."""

    pool: str
    pages: Range
    chain: Sequence[str]  # of the whole prompt, so that nothing is copied before a reader needs it
    slots: SlotArray

    @property
    def keys(self) -> Sequence[str]:
        """Return the keys of these pages."""
        return self.chain[slice(*self.pages)]


class Landing(NamedTuple):
    """Consecutive pages of one part that ended alike: in place and verified (`code` None), or failed."""

    pages: Range
    code: ReadCode | None
    checksums: tuple[int, ...] | None


class Job:
    """A read batch (with `parts`) or an existence query (without). Made by the scheduler, run by one reader."""

    __slots__ = ("chain", "claimed", "claimed_ns", "ended", "heard", "hung", "lost", "owner", "pages", "parts", "pools",
                 "prefetch", "replaced", "returned", "stopped")  # fmt: skip

    def __init__(
        self, prefetch: int, owner: str, pages: Range, parts: tuple[Part, ...], chain: Sequence[str] = (),
        pools: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.prefetch = prefetch
        self.owner = owner
        self.pages = pages
        self.parts = parts
        self.chain = chain  # of a query
        self.pools = pools
        self.claimed_ns = 0  # written once by the reader that claims it, before its note
        self.stopped = False  # written once by the scheduler: read nothing more
        self.replaced = False  # written once by the scheduler: another reader does this one's work
        self.claimed = self.ended = self.lost = self.hung = False  # the scheduler's own
        self.heard: tuple[str, ...] = ()  # pools whose part was answered; the scheduler's own
        self.returned = False  # whether its place in the queue's count is given back

    @property
    def keys(self) -> Sequence[str]:
        """Return the keys that a query asks for."""
        return self.chain[slice(*self.pages)]

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
    present: Mapping[str, Flags] | None = None


def run(job: Job, store: PageStore, memory: HostMemory) -> Iterator[Note]:
    """Run a claimed job, yielding its notes as they come. Never raises: a store's fault becomes a read code."""
    if job.is_query:
        yield _query(job, store)
    for part in job.parts:
        yield Note(job, "part", part, _read(job, part, store, memory))
    yield Note(job, "end")


def _query(job: Job, store: PageStore) -> Note:
    try:
        return Note(job, "part", present=_presence(store.restorable(job.keys, job.pools), job))
    except BaseException as error:  # a store's fault must not kill the reader: it becomes "not known", with its cause
        log.warning(
            "existence query raised",
            prefetch=job.prefetch,
            error=repr(error),
            what_to_do="see the error; what is not known to be there is not prefetched",
        )
        return Note(job, "part")


def _presence(answer: object, job: Job) -> Mapping[str, Flags] | None:
    """Return what a store said is there, or None if it did not say it for every key of every pool."""
    if not isinstance(answer, Mapping) or any(pool not in answer for pool in job.pools):
        return None
    present = {pool: np.asarray(answer[pool], dtype=np.bool_) for pool in job.pools}
    return present if all(flags.shape == (job.pages[1] - job.pages[0],) for flags in present.values()) else None


def _read(job: Job, part: Part, store: PageStore, memory: HostMemory) -> tuple[Landing, ...]:
    if job.stopped:
        return (Landing(part.pages, ReadCode.CANCELLED, None),)
    try:
        results = store.read_into(part.pool, part.keys, memory.buffers(part.pool, part.slots))
        return landings(part.pages, results, memory.page_bytes(part.pool))
    except BaseException as error:  # as above: every page of the part failed with an io error
        log.warning(
            "page read raised",
            prefetch=job.prefetch,
            pool=part.pool,
            error=repr(error),
            what_to_do="see the error; a store should answer for a bad page instead, key by key",
        )
        return (Landing(part.pages, ReadCode.IO_ERROR, None),)


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
            sums = None if None in known else tuple([index(value) for value in known])
        out.append(Landing((lo + place, lo + stop), codes[place], sums))
        place = stop
    return tuple(out)


def _code(result: object, page_bytes: int) -> ReadCode | None:
    if not isinstance(result, PageResult) or not (result.code is None or isinstance(result.code, ReadCode)):
        return ReadCode.BAD_RESULT
    if result.code is None and result.nbytes != page_bytes:
        return ReadCode.SHORT
    return result.code
