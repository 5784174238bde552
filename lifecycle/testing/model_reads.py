"""Queries and reads of the model: asked, claimed, answered or lost; what comes of it is in `ModelRank.progress`."""

import numpy as np

from lifecycle import coverage
from lifecycle import events as ev
from lifecycle import ranges as r
from lifecycle.local import UNKNOWN
from lifecycle.reasons import ReadCode, Reason
from lifecycle.states import State
from lifecycle.testing.model_copy import CLAIMED, ENDED, LOST, QUEUED, Job
from lifecycle.testing.model_rank import ModelRank


def answer_query(rank: ModelRank, id_: int, missing: tuple[str, int] | None, failed: bool) -> None:
    """Answer what L3 has: everything but the page named, or nothing known."""
    reads, local = rank.reads[id_], rank.book.local[id_]
    span = local.shared.end_page
    required = rank.scope.layout.required(rank.scope.policies.degrade)
    present = {pool.name: np.ones(span, dtype=np.bool_) for pool in required}
    if missing is not None:
        present[missing[0]][missing[1]] = False
    lengths = np.zeros(span, dtype=np.bool_) if failed else coverage.restorable(rank.scope.layout, local.degrade, present)
    hit = coverage.longest(lengths, 0)
    miss = Reason.QUERY_FAILED if failed else coverage.miss_reason(present, hit, rank.scope.policies.threshold_pages)
    reads.lengths = lengths
    rank.emit(ev.HitResolved(id_, hit, {}, miss))


def claim(rank: ModelRank, id_: int) -> None:
    """Claim the next read."""
    reads = rank.reads[id_]
    job = next(job for job in reads.jobs if job.status == QUEUED)
    job.status = CLAIMED
    rank.emit(ev.ReadClaimed(id_, job.owner, job.pages))
    if reads.progress.started_ns is None:
        reads.progress.started_ns = 0


def answer(rank: ModelRank, id_: int, bad_page: int | None) -> None:
    """Answer the next part of the claimed read, with one failed page or none; the last part ends it."""
    job = claimed(rank, id_)
    assert job is not None, "only a claimed read is answered"
    pool, (lo, hi) = job.parts[job.answered]
    job.answered += 1
    if rank.book.local[id_].shared.state is State.TRANSFERRING:
        cut = hi if bad_page is None else bad_page
        for start, stop in r.span(lo, cut):
            rank.emit(ev.PagesLanded(id_, pool, (start, stop), 0))
        if bad_page is not None:
            rank.emit(ev.ReadFailed(id_, pool, (cut, cut + 1), ReadCode.MISSING))
            for start, stop in r.span(cut + 1, hi):
                rank.emit(ev.PagesLanded(id_, pool, (start, stop), 0))
    if job.answered == len(job.parts):
        job.status = ENDED
        rank.emit(ev.ReadEnded(id_, job.owner, job.pages))
        _end_late(rank, id_, job, lost=False)
    rank.progress(id_)


def lose(rank: ModelRank, id_: int) -> None:
    """Lose the claimed read."""
    job = claimed(rank, id_)
    assert job is not None, "only a claimed read is lost"
    job.status = LOST
    rank.emit(ev.ReadLost(id_, job.owner, job.pages))
    _end_late(rank, id_, job, lost=True)
    rank.progress(id_)


def claimed(rank: ModelRank, id_: int) -> Job | None:
    """Return the read that is out, if one is."""
    return next((job for job in rank.reads[id_].jobs if job.status == CLAIMED), None)


def _end_late(rank: ModelRank, id_: int, job: Job, lost: bool) -> None:
    late = r.intersect(rank.book.local[id_].obligations.late.get(job.owner, r.EMPTY), (job.pages,))
    if late:
        rank.emit(ev.LateWriteEnded(id_, job.owner, late, lost))


def open_query(rank: ModelRank, id_: int) -> bool:
    """Say whether the query may still be answered to some effect."""
    local = rank.book.local[id_]
    return local.shared.state is State.ISSUED and local.hit_page == UNKNOWN
