"""The half of a log on disk that is the same for every format: a bounded buffer and one writer thread.

The scheduler thread appends to a list and hands the list over; it takes no lock, encodes nothing and never waits. The
writer thread encodes, writes and tries again while the disk fails. What the buffer cannot hold meanwhile is lost: it is
counted, and written as one `EventsLost` in its place once there is room again.
"""

import atexit
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from lifecycle.codec import encode
from lifecycle.errors import ConfigError, LogError
from lifecycle.events import EventsLost, Record
from lifecycle.logger import Logger
from stores.events.lines import MAX_LINE_BYTES, TornTail, plain

_CHUNK_RECORDS = 512  # encoded and written at once, some 0.5 ms of this thread's work between two breaths
_CHUNK_BYTES = 4 << 20
_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 1.0  # between two tries of a write that failed
_UNENCODABLE = (TypeError, ValueError, OverflowError, AttributeError, RecursionError, msgspec.MsgspecError)


class _Gap:
    """A run of events that the buffer could not hold."""

    __slots__ = ("at_ns", "cause", "events", "first_seq")

    def __init__(self, record: Record, cause: str) -> None:
        self.first_seq, self.at_ns, self.cause, self.events = record.seq, record.at_ns, cause, 0


class WriterEventLog(ABC):
    """A log on disk. All methods are called by one thread; `_write` and `_finish` run on the writer thread.

    At most `max_buffered` records wait for the disk. `close_s` bounds `close`, and how long `records` waits for a
    writer that makes no progress. Records may not be changed once appended: they are encoded later.
    """

    torn: TornTail | None = None
    """What the file ended with that was no whole event, and was cut off, when it was opened."""

    def __init__(self, path: Path, max_buffered: int, close_s: float) -> None:
        _check_limits(path, max_buffered, close_s)
        self.path = path
        self._max = self._limit = max_buffered
        self._close_s = close_s
        self._log = Logger(__name__, path=str(path))
        # Of the appending thread:
        self._pending: list[Record] = []
        self._appended = 0  # records and `EventsLost` put into the buffer
        self._gap: _Gap | None = None
        self._dropped = 0
        self._closed = self._stuck = False
        # Between the two:
        self._queue: queue.SimpleQueue[list[Record]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._progress = threading.Condition()
        # Of the writer thread:
        self._stored = 0  # of `_appended`, how many left the buffer
        self._spoilt = 0  # of those, events that could not be encoded, or not written before the end
        self._trouble: str | None = None  # why the disk does not take anything at present
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"event-log {path.name}", daemon=True)

    def append(self, record: Record) -> None:
        """Keep a record, in order; what the buffer cannot hold is lost and counted. Raises `LogError` after `close`."""
        if self._appended - self._stored >= self._limit:
            self._refuse(record)
            return
        if self._gap is not None:
            self._end_gap()
        self._pending.append(record)
        self._appended += 1

    def flush(self) -> None:
        """Hand what was appended to the writer; returns at once."""
        if self._gap is not None and self._appended - self._stored < self._limit:
            self._end_gap()
        if self._pending:
            self._queue.put(self._pending)
            self._pending = []

    def records(self) -> Iterable[Record]:
        """Return what was kept since this log was opened, in order; waits until everything appended is written.

        Raises `LogError` if the writer makes no progress for `close_s`.
        """
        if not self._closed:
            self._end_gap()
            self.flush()
            self._drain()
        return self._read()

    @property
    def lost_events(self) -> int:
        """How many events could not be kept; after a `close` that ran out of time, all not known to be written."""
        unknown = self._appended - self._stored if self._stuck else 0
        return self._dropped + self._spoilt + unknown

    def close(self) -> None:
        """Write what is left and stop, within `close_s`. What could not be written is counted, logged and left."""
        if self._closed:
            return
        self._end_gap()
        self.flush()
        self._closed, self._limit = True, 0
        self._closing.set()
        self._queue.put([])
        self._thread.join(self._close_s)
        atexit.unregister(self.close)
        self._stuck = self._stuck or self._thread.is_alive()
        if self.lost_events:
            self._log.error(
                "event log closed with losses",
                lost_events=self.lost_events,
                cause=self._trouble,
                what_to_do="see the cause; what this log says of the time around its last events is not complete",
            )

    # --- for the formats

    @abstractmethod
    def _write(self, lines: Sequence[bytes]) -> None:
        """Write all of the lines or none; raises `LogError` if it cannot."""

    @abstractmethod
    def _finish(self) -> None:
        """Give the file back; raises `LogError` if the end of it may not be on disk."""

    @abstractmethod
    def _read(self) -> Iterable[Record]:
        """Return the records written since the log was opened."""

    def _start(self) -> None:
        self._thread.start()
        atexit.register(self.close)  # a forgotten close would lose what the last ticks handed over

    # --- the appending thread

    def _refuse(self, record: Record) -> None:
        if self._closed:
            raise LogError(f"cannot append to event log {self.path}: it is closed (open it again)")
        if self._gap is None:
            self._gap = _Gap(record, f"the buffer of {self._max} records was full")
            if not self._dropped:
                self._log.error(
                    "event log is losing events",
                    first_seq=record.seq,
                    cause=self._trouble or self._gap.cause,
                    what_to_do="make room on the disk, or give the log a faster one; the log says where its gap is",
                )
        self._gap.cause = self._trouble or self._gap.cause
        self._gap.events += 1
        self._dropped += 1

    def _end_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None:
            event = EventsLost(events=gap.events, first_seq=gap.first_seq, cause=gap.cause)
            self._pending.append(Record(gap.first_seq, gap.at_ns, event))
            self._appended += 1

    def _drain(self) -> None:
        with self._progress:
            moving = True
            while moving and self._stored < self._appended and not self._ended:
                moving = self._progress.wait(self._close_s)
        if self._stored < self._appended:
            raise LogError(
                f"cannot read event log {self.path}: {self._appended - self._stored} records are not written yet:"
                f" {self._trouble or 'the disk does not answer'}"
            )

    # --- the writer thread

    def _run(self) -> None:
        backlog: deque[Record] = deque()
        try:
            while self._fill(backlog):
                count = len(backlog)
                lines = self._encode(backlog)
                count -= len(backlog)
                if not self._store(lines):
                    self._give_up(count, lines, backlog)
                    return
                self._advance(count)
        except BaseException as error:
            self._stuck, self._trouble = True, f"the writer stopped: {error!r}"
            raise
        finally:
            try:
                self._finish()
            except LogError as error:
                self._trouble = plain(error)
                self._log.error(
                    "event log not closed in order",
                    error=self._trouble,
                    what_to_do="see the error; the audit says what is missing",
                )
            with self._progress:
                self._ended = True
                self._progress.notify_all()

    def _fill(self, backlog: deque[Record]) -> bool:
        """Wait for records; say whether there are any, or False after `close`."""
        while not backlog:
            if self._closing.is_set() and self._queue.empty():
                return False
            backlog.extend(self._queue.get())
        while len(backlog) < _CHUNK_RECORDS:
            try:
                backlog.extend(self._queue.get_nowait())
            except queue.Empty:
                break
        return True

    def _encode(self, backlog: deque[Record]) -> list[bytes]:
        lines: list[bytes] = []
        nbytes = 0
        while backlog and len(lines) < _CHUNK_RECORDS and nbytes < _CHUNK_BYTES:
            record = backlog.popleft()
            try:
                line = encode(record)
            except _UNENCODABLE as error:
                line = self._spoil(record, f"it cannot be encoded: {error}")
            if len(line) > MAX_LINE_BYTES:
                line = self._spoil(record, f"its {len(line)} bytes are more than {MAX_LINE_BYTES}")
            lines.append(line)
            nbytes += len(line)
        return lines

    def _spoil(self, record: Record, why: str) -> bytes:
        cause = f"{type(record.event).__name__}: {why}"[:300]
        self._spoilt += 1
        self._log.error(
            "event lost", seq=record.seq, cause=cause, what_to_do="report it: an event could not be encoded, and was left out"
        )
        return encode(Record(record.seq, record.at_ns, EventsLost(events=1, first_seq=record.seq, cause=cause)))

    def _store(self, lines: list[bytes]) -> bool:
        """Write the lines, trying again while the log is open and once after; say whether they are written."""
        delay_s = _FIRST_DELAY_S
        while True:
            last = self._closing.is_set()
            try:
                self._write(lines)
            except LogError as error:
                if self._trouble is None:
                    self._log.error(
                        "event log cannot be written, trying on",
                        error=plain(error),
                        what_to_do="make room on the disk or mend it; events are buffered meanwhile",
                    )
                self._trouble = plain(error)
                if last:
                    return False
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_DELAY_S)
            else:
                if self._trouble is not None:
                    self._log.info("event log is written again")
                    self._trouble = None
                return True

    def _give_up(self, count: int, lines: list[bytes], backlog: deque[Record]) -> None:
        while not self._queue.empty():
            backlog.extend(self._queue.get())
        # What was lost before and is marked in these lines has been counted already.
        marks = sum(b'"event":"events_lost.' in line[:100] for line in lines)
        marks += sum(isinstance(record.event, EventsLost) for record in backlog)
        self._spoilt += count + len(backlog) - marks
        self._advance(count + len(backlog))

    def _advance(self, count: int) -> None:
        with self._progress:
            self._stored += count
            self._progress.notify_all()


def _check_limits(path: Path, max_buffered: int, close_s: float) -> None:
    if max_buffered < 1:
        raise ConfigError(f"cannot open event log {path}: a buffer of {max_buffered} records holds nothing (use 1 or more)")
    if not 0 < close_s < threading.TIMEOUT_MAX:
        raise ConfigError(f"cannot open event log {path}: close_s is {close_s} (use more than 0 seconds)")
