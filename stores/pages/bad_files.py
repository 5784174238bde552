"""Which files are not worth asking for: found bad, or not readable a moment ago. Opens nothing."""

import math
import os
import threading
import time
from collections.abc import Callable

_LIMIT = 4096


class BadFiles:
    """Remembers files by path, inode and time of change, so that one that was replaced is another one. Thread-safe.

    The oldest are forgotten beyond 4,096.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.monotonic()) -> None:  # late, so that a frozen one is seen
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, int, float]] = {}

    def add(self, path: str, found: os.stat_result, for_s: float = math.inf) -> None:
        """Avoid this file for so long, or until it is replaced."""
        with self._lock:
            if len(self._known) >= _LIMIT:
                del self._known[next(iter(self._known))]
            self._known[path] = found.st_ino, found.st_mtime_ns, self._clock() + for_s

    def has(self, path: str, found: os.stat_result) -> bool:
        """Say whether this file is to be avoided now."""
        if not self._known:
            return False
        inode, at_ns, until = self._known.get(path, (0, 0, 0.0))
        return (inode, at_ns) == (found.st_ino, found.st_mtime_ns) and self._clock() < until
