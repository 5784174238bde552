"""Observers of a rank's records, live or from a log: an event log that hands each tick's records to them on a thread.

An observer is a consumer of records and nothing else: what it counts or says can be computed from any log (`replay`). It
never runs on the scheduler thread, and what it does wrong costs the log nothing. What it counts is its own affair.
"""

import queue
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from lifecycle.errors import ConfigError
from lifecycle.events import EventsLost, Record
from lifecycle.logger import Logger
from lifecycle.runtime.ports import EventLog

log = Logger(__name__)

_BATCH = 512  # records of a log that are handed over at once


class Observer(Protocol):
    """A consumer of the records of one rank. Both methods are called by one thread, in order."""

    def observe(self, records: Sequence[Record]) -> None:
        """Take the next records."""

    def close(self) -> None:
        """Say what is still to be said: no record comes any more."""


class ObservedEventLog:
    """An event log that also hands its records to observers, once they are flushed, on one daemon thread.

    At most `max_waiting` records wait for slow observers; what comes then reaches the inner log alone, and the observers
    get one `EventsLost` in its place. An observer that raises is reported once and gets nothing any more.
    """

    def __init__(self, inner: EventLog, *observers: Observer, max_waiting: int = 1_000_000, close_s: float = 5.0) -> None:
        if max_waiting < 1:
            raise ConfigError(f"cannot observe an event log with max_waiting={max_waiting}: use at least 1 record")
        if not 0 < close_s < threading.TIMEOUT_MAX:
            raise ConfigError(f"cannot observe an event log with close_s={close_s}: use more than 0 seconds")
        self._inner = inner
        self._observers = list(observers)
        self._max = max_waiting
        self._close_s = close_s
        # Of the scheduler thread:
        self._pending: list[Record] = []
        self._handed = 0
        self._inner_lost = inner.lost_events
        self._skipped: tuple[Record, int] | None = None  # the first record that the observers did not get, and how many
        self._closed = False
        # Between the two:
        self._queue: queue.SimpleQueue[list[Record] | None] = queue.SimpleQueue()
        self._moved = threading.Condition()
        # Of the observers' thread:
        self._seen = 0
        self._thread = threading.Thread(target=self._run, name="event-observers", daemon=True)
        self._thread.start()

    # --- the port ------------------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Keep a record, in order. Raises what the inner log raises; then no observer gets it either."""
        self._inner.append(record)
        self._pending.append(record)

    def flush(self) -> None:
        """Hand what was appended to the inner log's writer and to the observers; returns at once."""
        self._inner.flush()
        batch = self._pending
        if not batch:
            return
        self._pending = []
        if self._handed + len(batch) - self._seen > self._max:
            first, skipped = self._skipped or (batch[0], 0)
            self._skipped = first, skipped + len(batch)
            return
        losses = self._losses(batch[0])
        self._hand_over([*losses, *batch] if losses else batch)

    def records(self) -> Iterable[Record]:
        """Return what the inner log kept, in order."""
        return self._inner.records()

    @property
    def lost_events(self) -> int:
        """How many events the inner log could not keep."""
        return self._inner.lost_events

    def close(self) -> None:
        """Have the observers take what is left and close them, within `close_s`; then close the inner log."""
        if not self._closed:
            self._closed = True
            self.flush()
            if self._skipped is not None:
                self._hand_over(self._losses(self._skipped[0]))
            self._queue.put(None)
            self._thread.join(self._close_s)
            if self._thread.is_alive():
                log.error(
                    "observers did not end in time",
                    waiting_records=self._handed - self._seen,
                    close_s=self._close_s,
                    what_to_do="their last numbers are missing; replay the event log through them, or give them more close_s",
                )
        self._inner.close()

    # --- beside it -----------------------------------------------------------------------------------------------------

    def wait_observed(self, timeout_s: float = 5.0) -> bool:
        """Wait until the observers have taken all that was flushed; return whether they have within `timeout_s`."""
        with self._moved:
            return self._moved.wait_for(lambda: self._seen >= self._handed, timeout_s)

    def _losses(self, near: Record) -> list[Record]:
        """Return what the observers are told of events that they, or the inner log, did not get."""
        told = []
        if self._skipped is not None:
            first, skipped = self._skipped
            self._skipped = None
            told.append(Record(first.seq, first.at_ns, EventsLost(skipped, first.seq, "the observers fell behind")))
        lost = self._inner.lost_events
        if lost > self._inner_lost:
            cause = "the event log could not keep them (see its own entry)"
            # In a place of the past: the observers miss nothing by it.
            told.append(Record(near.seq - 1, near.at_ns, EventsLost(lost - self._inner_lost, near.seq, cause)))
            self._inner_lost = lost
        return told

    def _hand_over(self, batch: list[Record]) -> None:
        self._handed += len(batch)
        self._queue.put(batch)

    # --- the observers' thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            for observer in list(self._observers):
                self._call(observer, batch)
            with self._moved:
                self._seen += len(batch)
                self._moved.notify_all()
        for observer in list(self._observers):
            self._call(observer, None)

    def _call(self, observer: Observer, batch: list[Record] | None) -> None:
        try:
            if batch is None:
                observer.close()
            else:
                observer.observe(batch)
        except Exception as error:  # whatever it is, it must cost neither the log nor the other observers anything
            self._observers.remove(observer)
            log.error(
                "an observer raised; it gets no more events (the event log has them all)",
                observer=type(observer).__name__,
                first_seq=batch[0].seq if batch else None,
                what_to_do="see the error; replay the event log through it once it is mended",
                exc_info=error,
            )


def replay(records: Iterable[Record], *observers: Observer) -> None:
    """Have observers take the records of a log that was written before, for example of `stores.events.read_log`."""
    source = iter(records)
    while batch := list(islice(source, _BATCH)):
        for observer in observers:
            observer.observe(batch)
    for observer in observers:
        observer.close()
