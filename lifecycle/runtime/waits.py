"""What a prefetch in flight waits for, in words, and since when. Looks only; safe beside a scheduler that goes on."""

from collections.abc import Mapping
from typing import NamedTuple

from lifecycle import ranges as r
from lifecycle.local import UNKNOWN, Local
from lifecycle.runtime.jobs import Job
from lifecycle.runtime.transfer import Transfer
from lifecycle.states import State

_INDEX = frozenset({"hand over", "lock what was handed over", "anchor", "resident lock"})


class Wait(NamedTuple):
    """The missing step. `since_ns` is when the last step before it was taken whose time is known: issue, or a read sent."""

    step: str
    since_ns: int | None  # None where that is not known


def wait_of(local: Local, transfer: Transfer | None, ranks: int, refused: Mapping[str, int]) -> Wait:
    """Return what a prefetch waits for. `refused`: how often a port refused each of its obligations."""
    if transfer is None:  # just issued, or closed by an end of the run that could not discharge everything
        step = "closed with what is open here; only a fresh start frees it" if local.shared.closed else "just issued"
        return Wait(step, None)
    issued_ns = transfer.progress.issued_ns
    jobs = [job for job in transfer.jobs if not (job.ended or job.lost)]
    sent = [job for job in jobs if job.claimed_ns]
    last_ns = max((job.claimed_ns for job in transfer.jobs), default=0) or issued_ns
    if refused:
        what, tries = max(refused.items(), key=lambda item: item[1])
        return Wait(f"{'index' if what in _INDEX else 'host memory'} refuses ({what}): tried {tries} times", last_ns)
    state = local.shared.state
    if state is State.ISSUED:
        return _wait_for_hit(transfer, ranks)
    if sent and state is not State.TERMINATED:
        return _wait_for_read(min(sent, key=lambda job: job.claimed_ns))
    if state is State.TRANSFERRING:
        if transfer.progress.reserve_failed:
            return Wait("host memory refused the planned pages; waiting for all ranks to stop", issued_ns)
        if jobs:
            return Wait(f"{len(jobs)} reads queued, no reader is free", last_ns)
    if ranks == 1 or not (local.settled or not local.shared.terminal):
        return Wait("waiting for the next tick", last_ns)
    if local.shared.terminal:
        return Wait("waiting for the other ranks to settle", last_ns)
    return Wait("waiting for the other ranks' final reports", last_ns)


def _wait_for_hit(transfer: Transfer, ranks: int) -> Wait:
    issued_ns, query = transfer.progress.issued_ns, transfer.query
    if transfer.local.hit_page != UNKNOWN:
        return Wait("waiting for the next tick" if ranks == 1 else "waiting for the other ranks' hits", issued_ns)
    if query is None or query.claimed_ns <= issued_ns:  # not written by a reader yet
        return Wait("existence query queued, no reader is free", issued_ns)
    return Wait("existence query sent, no answer", query.claimed_ns)


def _wait_for_read(job: Job) -> Wait:
    return Wait(f"read of {job.owner} pages {r.text((job.pages,))} sent, no answer", job.claimed_ns)
