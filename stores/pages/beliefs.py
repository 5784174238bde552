"""What a store believes about pages that others may change: little, for a limited time, and corrected by what fails.

Believed stored is what a write said it stored, and nothing else. A failed read takes that back. A page that was there and
could not be read is believed absent for a while, so that not every request pays for it. Knows no engine.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from lifecycle.reasons import ReadCode

_T = TypeVar("_T")
_LIMIT = 1 << 16
_REPLACED = frozenset({ReadCode.SHORT, ReadCode.CORRUPT})
_AVOIDED = _REPLACED | {ReadCode.IO_ERROR}


class Beliefs:
    """Beliefs about pages by name; the oldest are forgotten beyond 65,536. Thread-safe."""

    def __init__(self, clock: Callable[[], float], absent_s: float) -> None:
        self._clock, self._absent_s = clock, absent_s
        self._lock = threading.Lock()
        self._stored: OrderedDict[str, int] = OrderedDict()  # the checksum that was written
        self._absent: OrderedDict[str, float] = OrderedDict()  # until when
        self._bad: OrderedDict[str, None] = OrderedDict()  # what the next write must replace

    def wrote(self, name: str, checksum: int) -> None:
        """Note that a write said that it stored the page."""
        with self._lock:
            self._absent.pop(name, None)
            self._bad.pop(name, None)
            _keep(self._stored, name, checksum)

    def not_written(self, name: str) -> None:
        """Note that a write failed: what is there now is not known."""
        with self._lock:
            self._stored.pop(name, None)

    def failed(self, name: str, code: ReadCode) -> None:
        """Note that a read failed. A lease that ran out says nothing about the page."""
        if code is ReadCode.LEASE_EXPIRED:
            return
        with self._lock:
            self._stored.pop(name, None)
            if code in _AVOIDED:
                _keep(self._absent, name, self._clock() + self._absent_s)
            if code in _REPLACED:
                _keep(self._bad, name, None)

    def deleted(self, names: Sequence[str]) -> None:
        """Forget pages that were removed."""
        with self._lock:
            for name in names:
                self._stored.pop(name, None)
                self._absent.pop(name, None)
                self._bad.pop(name, None)

    def absent(self, names: Sequence[str]) -> set[str]:
        """Return those that are believed absent now."""
        if not self._absent:
            return set()
        with self._lock:
            now = self._clock()
            for name in [name for name in names if self._absent.get(name, now + 1) <= now]:
                del self._absent[name]
            return {name for name in names if name in self._absent}

    def stored(self, name: str) -> bool:
        """Say whether the page is believed stored."""
        with self._lock:
            return name in self._stored

    def to_replace(self, names: Sequence[str], checksums: Sequence[int]) -> list[str]:
        """Return those that must go before they are written: found bad, or stored by us with other bytes."""
        with self._lock:
            return [
                name
                for name, checksum in zip(names, checksums, strict=True)
                if name in self._bad or self._stored.get(name, checksum) != checksum
            ]


def _keep(table: OrderedDict[str, _T], name: str, value: _T) -> None:
    table[name] = value
    table.move_to_end(name)
    if len(table) > _LIMIT:
        table.popitem(last=False)
