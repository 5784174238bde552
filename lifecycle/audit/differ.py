"""The first event at which two logs part: two ranks of a run, or one rank of two runs. Reads both in step."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter

import msgspec

from lifecycle.audit.words import count_of, plain
from lifecycle.events import EVENT_TYPES, Event, LogOpened, Record

_FACTS = {kind: attrgetter(*kind.REPLICATED) for kind in EVENT_TYPES.values() if kind.REPLICATED}
_OWN = {"duration_ns", "queued_ns", "library", "run", "rank", "wall_ns", "monotonic_ns", "capacity_pages"}
"""Facts that differ between ranks and runs as a matter of course."""


class Side(msgspec.Struct, frozen=True):
    """One log around the place."""

    before: tuple[str, ...]
    here: str | None  # None: the log ends
    after: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True):
    """Where two logs part; `same` events were alike before."""

    same: int
    facts: tuple[str, ...]  # the names of what differs, where both have an event of one kind
    left: Side | None = None
    right: Side | None = None

    @property
    def found(self) -> bool:
        """Return whether they part at all."""
        return self.left is not None


class _Stream:
    """One log's compared events, with what stood before each."""

    def __init__(self, records: Iterable[Record], every: bool, context: int) -> None:
        self._records = iter(records)
        self._every = every
        self.before: deque[Record] = deque(maxlen=context)

    def next(self) -> Record | None:
        """Return the next event that is compared."""
        for record in self._records:
            if self._every or type(record.event) in _FACTS or isinstance(record.event, LogOpened):
                return record
            self.before.append(record)
        return None

    def side(self, here: Record | None, context: int) -> Side:
        """Return what is told of this log."""
        after = tuple(line(record) for record in islice(self._records, context))
        return Side(tuple(map(line, self.before)), None if here is None else line(here), after)


def difference(left: Iterable[Record], right: Iterable[Record], every: bool = False, context: int = 4) -> Difference:
    """Return where two logs part, by what is the same on all ranks; `every`: by every event, but not by its time."""
    a, b = _Stream(left, every, context), _Stream(right, every, context)
    same = 0
    while True:
        one, other = a.next(), b.next()
        if one is None and other is None:
            return Difference(same, ())
        if one is None or other is None or _facts(one.event, every) != _facts(other.event, every):
            names: tuple[str, ...] = ()
            if one is not None and other is not None and type(one.event) is type(other.event):
                names = tuple(n for n in one.event.__struct_fields__ if _differs(n, one.event, other.event))
            return Difference(same, names, a.side(one, context), b.side(other, context))
        a.before.append(one)
        b.before.append(other)
        same += 1


def _facts(event: Event, every: bool) -> object:
    if every or isinstance(event, LogOpened):
        return type(event), tuple(getattr(event, n) for n in event.__struct_fields__ if n not in _OWN)
    return type(event), _FACTS[type(event)](event)


def _differs(name: str, one: Event, other: Event) -> bool:
    return name not in _OWN and getattr(one, name) != getattr(other, name)


def line(record: Record) -> str:
    """Return a record in one line."""
    event = record.event
    facts = ", ".join(f"{n} {getattr(event, n)!r}" for n in event.__struct_fields__ if getattr(event, n) not in (None, (), {}))
    return f"seq {record.seq}: {type(event).__name__} ({plain(facts, 300)})"


def text(found: Difference, left: str, right: str) -> Iterator[str]:
    """Yield what is printed."""
    if found.left is None or found.right is None:
        yield f"no difference in {count_of(found.same, 'event')}"
        return
    names = f", in {', '.join(found.facts)}" if found.facts else ""
    yield f"they part after {count_of(found.same, 'event')} alike{names}"
    for title, side in ((left, found.left), (right, found.right)):
        yield ""
        yield title
        yield from (f"    {each}" for each in side.before)
        yield f"  > {side.here if side.here is not None else 'the log ends here'}"
        yield from (f"    {each}" for each in side.after)
