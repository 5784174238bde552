"""What a tick begins with on each rank: the readers' answers are taken in, and what ports refused before is tried again."""

from lifecycle.runtime.rank import Rank
from lifecycle.states import State


def drain(rank: Rank) -> None:
    """Turn what came in into events, and settle what may be settled by now."""
    rank.transfers.drain()
    rank.residency.retry()
    due = sorted(rank.settler.retry | rank.transfers.dirty)
    for id_ in due:
        transfer = rank.transfers.of[id_]
        if transfer.local.shared.closed:
            rank.steps.forget(transfer)
        elif transfer.local.shared.state not in (State.ISSUED, State.TRANSFERRING):
            rank.settler.settle(transfer, rank.tick_number)
    if rank.alone:  # what was tried again may have settled, and is to be closed
        rank.transfers.dirty.update(id_ for id_ in due if id_ in rank.transfers.of)
    else:
        rank.transfers.dirty.clear()
