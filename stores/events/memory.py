"""An event log in memory, for tests and for engines that look at the last run only."""

from collections.abc import Iterable

from lifecycle.errors import ConfigError, LogError
from lifecycle.events import EventsLost, Record


class MemoryEventLog:
    """Keeps the first `max_records` records; what comes after is counted and reported at the end, as lost."""

    def __init__(self, max_records: int = 1_000_000) -> None:
        if max_records < 1:
            raise ConfigError(f"cannot keep {max_records} records in an event log in memory: use at least 1")
        self._max = self._room = max_records
        self._records: list[Record] = []
        self._lost: Record | None = None
        self._lost_events = 0
        self._closed = False

    def append(self, record: Record) -> None:
        """Keep a record, in order. Raises `LogError` after `close`."""
        if len(self._records) >= self._room:
            self._refuse(record)
            return
        self._records.append(record)

    def flush(self) -> None:
        """Do nothing: there is no writer."""

    def records(self) -> Iterable[Record]:
        """Return what was kept, in order, and last an `EventsLost` if that is not everything."""
        if self._lost is None:
            return tuple(self._records)
        cause = f"the log keeps {self._max} records in memory"
        event = EventsLost(events=self._lost_events, first_seq=self._lost.seq, cause=cause)
        return (*self._records, Record(self._lost.seq, self._lost.at_ns, event))

    @property
    def lost_events(self) -> int:
        """How many events were not kept."""
        return self._lost_events

    def close(self) -> None:
        """Refuse further records; what was kept can still be read. May be called twice."""
        self._closed, self._room = True, 0

    def _refuse(self, record: Record) -> None:
        if self._closed:
            raise LogError("cannot append to the event log in memory: it is closed (open a new one)")
        if self._lost is None:
            self._lost = record
        self._lost_events += 1
