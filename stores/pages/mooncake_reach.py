"""Whether the master can be reached, as far as is known. Spares every caller the seconds that a dead one costs.

A call to a dead master blocks for more than four seconds (0.3.13: three attempts to connect). So after one call said that
the master did not answer, no other call is made until something listens there again, which one caller finds out at a time.
"""

import threading
from collections.abc import Callable

from stores.pages.mooncake_engine import Address


class Reach:
    """Open until a call was not answered; then closed for `retry_s`, and until the master listens. Thread-safe.

    Without an address to look at it opens again after `retry_s`.
    """

    def __init__(self, master: Address | None, clock: Callable[[], float], retry_s: float) -> None:
        self._master, self._clock, self._retry_s = master, clock, retry_s
        self._lock = threading.Lock()
        self._look_at: float | None = None  # None: open

    def is_open(self) -> bool:
        """Say whether a call may be made; looks at the master where it is time to."""
        if self._look_at is None:
            return True
        with self._lock:
            if self._look_at is None:
                return True
            now = self._clock()
            if now < self._look_at:
                return False
            self._look_at = now + self._retry_s  # while this caller looks, the others do not
        if self._master is not None and not self._master.answers():
            return False
        with self._lock:
            self._look_at = None
        return True

    def lost(self) -> None:
        """Note that the master did not answer a call."""
        with self._lock:
            self._look_at = self._clock() + self._retry_s
