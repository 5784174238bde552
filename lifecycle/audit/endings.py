"""Why things end, by who may say so. The audit's own sets: it would not notice a wrong one that it shared with the rules."""

from lifecycle.reasons import Reason

LAST_WORDS = frozenset({Reason.SHUTDOWN, Reason.SYNC_FAILED})
"""They end everything that is in flight or waits, and nothing begins to move afterwards."""

COMMANDS = LAST_WORDS | {Reason.ABORTED, Reason.SUPERSEDED}
"""Given at any moment, whatever landed."""

MISSES = frozenset(
    {Reason.QUERY_FAILED, Reason.SIDECAR_ABSENT, Reason.HEAD_MISSING, Reason.FULL_MISS, Reason.BELOW_THRESHOLD}
)
"""L3 was asked, and there was nothing to read."""

REVOKES = MISSES | {Reason.HOST_CAPACITY}
"""There is no plan."""

REFUSALS = frozenset({Reason.ANCHOR_LOST, Reason.INSERT_DROPPED})
"""By the index."""
