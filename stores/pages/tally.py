"""Counts by cause, and warnings that a store gives at most once per cause and interval. Thread-safe."""

import threading
import time
from collections import Counter
from collections.abc import Mapping

from lifecycle.logger import Logger

WARN_EVERY_S = 10.0
log = Logger(__name__)

_TO_DO = {
    "page_unreadable": "see the cause and the code; the page counts as missing, and is written anew by whoever computes it",
    "page_not_written": "see the cause: make room, mend the rights, or give the store less to keep",
    "not_closed": "calls into the store hang; it is given up as it is, and ends with the process",
    "master_unreachable": "see that the master runs and can be reached; meanwhile all pages count as missing",
}
"""What an operator can do about each thing that a store warns of."""


class Tally:
    """What a store did, counted by cause: `read.ok`, `read.missing`, `write.ENOSPC`, `evicted`."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._warned_at: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        """Add what a batch did."""
        with self._lock:
            self._counts.update(counts)

    def counts(self) -> dict[str, int]:
        """Return a copy of the counts."""
        with self._lock:
            return dict(self._counts)

    def warn(self, event: str, cause: str, **facts: object) -> None:
        """Log a warning, at most one per event and cause every `WARN_EVERY_S`; the next says how many were not.

        `_TO_DO` knows the event.
        """
        name, now = f"{event}:{cause}", time.monotonic()
        with self._lock:
            last = self._warned_at.get(name)
            if last is not None and now - last < WARN_EVERY_S:
                self._unsaid[name] += 1
                return
            self._warned_at[name] = now
            unsaid = self._unsaid.pop(name, 0)
        log.warning(event, store=self._store, cause=cause, not_logged_since=unsaid, what_to_do=_TO_DO[event], **facts)
