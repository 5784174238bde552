"""One rank's log beside the others: its replicated events that are not compared yet, and what of an event is compared."""

from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from lifecycle.audit.rank import RankAudit
from lifecycle.events import EVENT_TYPES, Event, Record

Key = int | str
"""What an event is about."""

FACTS = {kind: attrgetter(*kind.REPLICATED) for kind in EVENT_TYPES.values() if kind.REPLICATED}
"""Takes what must be the same on all ranks out of an event, by its type."""

_KEY_OF = {
    kind: next((name for name in ("prefetch", "request", "pool") if name in kind.__struct_fields__), None) for kind in FACTS
}


def key_of(event: Event) -> Key:
    """Return what a replicated event is about: its prefetch, else its request or pool."""
    name = _KEY_OF[type(event)]
    if name == "prefetch":
        id_: int = event.prefetch  # type: ignore[attr-defined]  # it has, as the table says
        return id_
    return type(event).__name__ if name is None else f"{name} {getattr(event, name)!r}"


class Stream:
    """One rank's log, and its replicated events that are not compared yet."""

    __slots__ = ("ahead", "audit", "landed", "over", "records")

    def __init__(self, audit: RankAudit, records: Iterator[Record]) -> None:
        self.audit = audit
        self.records: Iterator[Record] | None = records
        self.ahead: deque[Record] = deque()
        self.over = False  # nothing more is to be compared
        self.landed: dict[int, dict[str, int]] = {}  # of prefetches that are terminated and not synced

    def find(self, key: Key) -> Record | None:
        """Return the next event of a key that is not compared yet."""
        return next((record for record in self.ahead if key_of(record.event) == key), None)

    def drop(self, key: Key, every: bool) -> None:
        """Leave out the next event of a key, or every one."""
        kept: deque[Record] = deque()
        dropped = False
        for record in self.ahead:
            if (every or not dropped) and key_of(record.event) == key:
                dropped = True
            else:
                kept.append(record)
        self.ahead = kept


def facts_of(record: Record | None) -> object:
    """Return what must be the same on all ranks of an event, its kind with it."""
    return None if record is None else (type(record.event), FACTS[type(record.event)](record.event))


def in_words(record: Record | None) -> str:
    """Return a replicated event for people."""
    if record is None:
        return "nothing"
    event = record.event
    facts = ", ".join(f"{name} {getattr(event, name)}" for name in event.REPLICATED if name not in ("prefetch", "request"))
    return f"{type(event).__name__} ({facts})" if facts else type(event).__name__
