"""Waiting in the model: the decisions of `decide.py`, in the order in which `runtime/issuing.py` takes them."""

from lifecycle import decide
from lifecycle.events import Declined, WaitEnded
from lifecycle.reasons import Reason
from lifecycle.testing.model_rank import ModelRank
from lifecycle.waiting import Waiter


def try_waiting(rank: ModelRank) -> None:
    """Begin a tick: try again whoever may be tried."""
    rank.tick += 1
    replica, policies = rank.book.replica, rank.scope.policies
    while (over := decide.given_up(replica, policies, rank.tick)) is not None:
        rank.emit(over)
    while (waiter := decide.next_for_room(replica, policies)) is not None:
        _try(rank, waiter)
    while (waiter := decide.next_to_ask(replica, rank.tick)) is not None:
        _try(rank, waiter)


def _try(rank: ModelRank, waiter: Waiter) -> None:
    decided = rank.decide_issue(waiter.request, waiter.attempt)
    assert not (waiter.for_room and isinstance(decided, Declined)), "there was room, and a span never grows here"
    rank.emit(WaitEnded(waiter.request, waiter.attempt, rank.tick, None))
    rank.begin(decided, tried=True)


def end_wait(rank: ModelRank, request: str, reason: Reason) -> None:
    """End a wait by command."""
    waiter = rank.book.replica.waiting.get(request)
    if waiter is not None:
        rank.emit(WaitEnded(request, waiter.attempt, rank.tick, reason))


def waits_key(rank: ModelRank) -> tuple[object, ...]:
    """Return what can differ of who waits and of what bounds it, with ticks counted from now."""
    if rank.scope.policies.retry is None:
        return ()
    replica, tick, most = rank.book.replica, rank.tick, rank.scope.policies.retry.give_up_ticks + 1
    waiters = [(w.request, w.attempt, w.reason, tick - w.since_tick, w.due_tick - tick, w.queries) for w in replica.waiting]
    requests = [  # beyond the bound it does not matter for how long
        (name, s.attempt, s.prefetch, s.queries, None if s.waits_since is None else min(most, tick - s.waits_since))
        for name, s in replica.requests.items()
    ]
    return tuple(waiters), tuple(requests)
