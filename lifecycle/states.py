"""The states of a prefetch. Which moves are legal stands in `table.py` and nowhere else."""

from enum import StrEnum


class State(StrEnum):
    """Where a prefetch is between `issue` and its outcome."""

    ISSUED = "issued"
    """The anchor is locked, tokens are reserved, L3 has been asked; no host page is held."""

    TRANSFERRING = "transferring"
    """Host pages are reserved and reads are in flight."""

    TERMINATED = "terminated"
    """Counters are frozen and no further read is claimed. A read already claimed may still be writing."""

    SYNCED = "synced"
    """There is one usable length, the same on all ranks. Left at once, by the outcome rule."""

    COMMITTED = "committed"
    """Everything that was planned is published. Terminal."""

    CLAMPED = "clamped"
    """A shorter prefix is published. Terminal."""

    DISCARDED = "discarded"
    """Nothing is published; a reason says why. Terminal."""


TERMINAL = frozenset({State.COMMITTED, State.CLAMPED, State.DISCARDED})
