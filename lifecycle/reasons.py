"""The closed enumerations shared by events, rounds, metrics and docs: why a prefetch ended, why a read failed.

Holds no rule: which reason applies is decided in `decide.py`.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why a prefetch ended as it did, or why it never began.

    The order matters in one place: where ranks give different reasons in one round, the one declared first wins (the
    row's `reason` is reduced by MIN over `code`).
    """

    # Given by a command, alike on all ranks.
    ABORTED = "aborted"  # the scheduler aborted the request, or finished it while this was in flight
    SUPERSEDED = "superseded"  # a newer attempt of the same request was issued
    SHUTDOWN = "shutdown"  # the coordinator was closed
    SYNC_FAILED = "sync_failed"  # a round failed; nothing is published afterwards
    # Proposed by a rank that must stop; the most telling one first.
    LOST_READ = "lost_read"  # a read of a required pool was not answered within `lost_read_s`
    READ_FAILED = "read_failed"  # a read of a required pool failed and ended the plan early
    HOST_CAPACITY = "host_capacity"  # host memory holds no useful prefix of the hit
    TIMEOUT = "timeout"  # the transfer limit ran out
    QUEUE_TIMEOUT = "queue_timeout"  # the queue limit ran out before a read was claimed
    # Proposed by a rank whose shard of L3 holds too little.
    QUERY_FAILED = "query_failed"  # the existence query raised or was never answered: absence is not known
    SIDECAR_ABSENT = "sidecar_absent"  # KV is there, a required sidecar is not
    HEAD_MISSING = "head_missing"  # later KV pages are there, the first one is not
    FULL_MISS = "full_miss"  # no KV page of the span is there
    BELOW_THRESHOLD = "below_threshold"  # something is there, less than is worth a prefetch
    # The ordinary ends.
    BEST_EFFORT = "best_effort"  # admission wanted the request before all was read
    COMPLETED = "completed"  # everything planned was read
    # Found when the outcome is decided.
    SHORTFALL = "shortfall"  # an all-or-nothing layout landed less than its plan
    ANCHOR_LOST = "anchor_lost"  # what the prefetch hangs under is no longer in the index
    INSERT_DROPPED = "insert_dropped"  # the index would not take the pages
    # Declined before a prefetch exists.
    DUPLICATE = "duplicate"  # this attempt, or a newer one, was issued before
    TOO_SHORT = "too_short"  # the span is shorter than the threshold
    RATE_LIMITED = "rate_limited"  # the tokens in flight leave no room under the limit, or others wait for it
    READERS_LOST = "readers_lost"  # too many reads were lost; readers are no longer replaced

    @property
    def code(self) -> int:
        """The row value of this reason: its place in the declaration, from 1."""
        return _CODES[self]

    @staticmethod
    def of_code(code: int) -> "Reason":
        """Return the reason of a row value, or raise `ValueError`."""
        if not 1 <= code <= len(_BY_CODE):
            raise ValueError(f"cannot read reason code {code}: known codes are 1 to {len(_BY_CODE)}")
        return _BY_CODE[code - 1]


_BY_CODE = tuple(Reason)
_CODES = {reason: place for place, reason in enumerate(_BY_CODE, start=1)}


class ReadCode(StrEnum):
    """Why the read of a single page failed. Absent is not the same as failed."""

    MISSING = "missing"  # the store has no such page
    SHORT = "short"  # fewer bytes than a page
    CORRUPT = "corrupt"  # header, namespace or checksum do not match
    LEASE_EXPIRED = "lease_expired"  # the store's lease ran out before the bytes came
    IO_ERROR = "io_error"  # the store or the device reported an error
    BAD_RESULT = "bad_result"  # the store answered with something that is not one result per key
    CANCELLED = "cancelled"  # withdrawn before it touched any byte


class Part(StrEnum):
    """Which part of the partition law a released page belongs to."""

    TAIL = "tail"  # reserved, not landed
    CLAMPED = "clamped"  # landed, not usable
    DUPLICATE = "duplicate"  # usable, the index holds it already
