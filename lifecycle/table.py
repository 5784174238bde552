"""The legal moves of a prefetch: the only place where legality lives.

1. Triggers are sent by `evolve` alone, one for each event that moves a prefetch; nobody else may send one.
2. `plan`, `terminate`, `sync` and `discard` follow from a round (or, with one rank, from the local report in its place).
   `discard` also follows from a command: abort, a newer attempt, finish, close. A command wins over a round that was
   launched before it, because the round's row is then void.
3. `sync` and the outcome (`commit`, `clamp`, `discard`) happen in one step: nobody ever sees a prefetch rest in SYNCED.
4. A terminal state has an empty row. Debts may still be open then; they are obligations, not states.
5. A change here changes the diagram in the docs (printed from this table) and the walks of the tests, nothing else.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from lifecycle.states import State


class Trigger(StrEnum):
    """What moves a prefetch."""

    PLAN = "plan"  # hit agreed, plan made, pages reserved
    TERMINATE = "terminate"  # all read, all may stop, or one must
    SYNC = "sync"  # every rank's report is final
    COMMIT = "commit"  # u == P
    CLAMP = "clamp"  # a < u < P
    DISCARD = "discard"  # u == a, or a reason that fixes u = 0


TABLE: Mapping[State, Mapping[Trigger, State]] = MappingProxyType(
    {
        State.ISSUED: {
            Trigger.PLAN: State.TRANSFERRING,
            Trigger.TERMINATE: State.TERMINATED,
            Trigger.DISCARD: State.DISCARDED,
        },
        State.TRANSFERRING: {
            Trigger.TERMINATE: State.TERMINATED,
            Trigger.DISCARD: State.DISCARDED,
        },
        State.TERMINATED: {
            Trigger.SYNC: State.SYNCED,
            Trigger.DISCARD: State.DISCARDED,
        },
        State.SYNCED: {
            Trigger.COMMIT: State.COMMITTED,
            Trigger.CLAMP: State.CLAMPED,
            Trigger.DISCARD: State.DISCARDED,
        },
        State.COMMITTED: {},
        State.CLAMPED: {},
        State.DISCARDED: {},
    }
)
