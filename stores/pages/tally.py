"""Counts by cause, and warnings that a store gives at most once per cause and interval. Thread-safe."""

import threading
import time
from collections import Counter
from collections.abc import Mapping

import structlog

WARN_EVERY_S = 10.0


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
        """Log a warning, at most one per event and cause every `WARN_EVERY_S`; the next says how many were not."""
        name, now = f"{event}:{cause}", time.monotonic()
        with self._lock:
            last = self._warned_at.get(name)
            if last is not None and now - last < WARN_EVERY_S:
                self._unsaid[name] += 1
                return
            self._warned_at[name] = now
            unsaid = self._unsaid.pop(name, 0)
        structlog.get_logger().warning(event, store=self._store, cause=cause, not_logged_since=unsaid, **facts)
