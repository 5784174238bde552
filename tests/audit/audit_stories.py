"""Logs of real runs, and a tape to spoil them with."""

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec
from kit.rig import Rig

from lifecycle.audit import Violation, verify_logs
from lifecycle.events import AnyEvent, Capped, Event, Record
from lifecycle.policies import OnShortfall, Timeout
from lifecycle.states import State

E = TypeVar("E", bound=Event)


class Tape:
    """The events of one log, to be cut, doubled, moved and changed. `records()` numbers them afresh."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.events: list[AnyEvent] = [record.event for record in records]

    def find(self, kind: type[E], nth: int = 0, **facts: Any) -> int:
        """Return the place of the nth event of a kind with these facts."""
        places = [
            place for place, event in enumerate(self.events)
            if type(event) is kind and all(getattr(event, name) == value for name, value in facts.items())
        ]  # fmt: skip
        return places[nth]

    def get(self, kind: type[E], nth: int = 0, **facts: Any) -> E:
        """Return the nth event of a kind with these facts."""
        event: E = self.events[self.find(kind, nth, **facts)]  # type: ignore[assignment]
        return event

    def drop(self, kind: type[E], nth: int = 0, **facts: Any) -> E:
        """Cut an event out and return it."""
        event: E = self.events.pop(self.find(kind, nth, **facts))  # type: ignore[assignment]
        return event

    def double(self, kind: type[E], nth: int = 0, **facts: Any) -> None:
        """Say an event twice."""
        place = self.find(kind, nth, **facts)
        self.events.insert(place, self.events[place])

    def change(self, kind: type[E], nth: int = 0, new: dict[str, Any] | None = None, **facts: Any) -> None:
        """Change facts of an event."""
        place = self.find(kind, nth, **facts)
        self.events[place] = msgspec.structs.replace(self.events[place], **(new or {}))

    def put(self, event: Event, kind: type[Event], nth: int = 0, after: bool = True, **facts: Any) -> None:
        """Put an event directly after (or before) another."""
        self.events.insert(self.find(kind, nth, **facts) + after, event)  # type: ignore[arg-type]

    def records(self) -> list[Record]:
        """Return the log, numbered without gaps, a second between records: no limit is too early."""
        return [Record(seq, seq * 1_000_000_000, event) for seq, event in enumerate(self.events)]


def verify(*tapes: Tape) -> list[Violation]:
    """Return what the audit finds in the logs of one run."""
    return verify_logs([tape.records() for tape in tapes])


def _logs(rig: Rig) -> list[tuple[Record, ...]]:
    rig.tear_down()
    return [tuple(log.records()) for log in rig.logs]


@cache
def run(name: str) -> list[tuple[Record, ...]]:
    """Return the logs of a story, one per rank; each is run once."""
    return _logs(STORIES[name]())


def tape(name: str, rank: int = 0) -> Tape:
    """Return a fresh tape of a story."""
    return Tape(run(name)[rank])


def plain() -> Rig:
    """Two requests, one after the other, all read and published; the first is served and taken."""
    rig = Rig("swa", capacity=32)
    rig.run("a", 8)
    rig.take_loaded("a")
    match = rig.indexes[0].match(rig.prompts["a"], rig.ranks[0].tick_number)
    rig.ranks[0].served("a", match)
    rig.finish("a")
    rig.run("b", 6)
    return rig


def short() -> Rig:
    """A page of the indexer and a later one of kv are missing: published up to the first, clamped and tail released."""
    rig = Rig("dsa")
    keys = rig.prompt("r", 10)
    rig.stores[0].say("indexer", "11110", keys)
    rig.stores[0].say("kv", "1111111100", keys)
    rig.run("r", 10)
    return rig


def aborted() -> Rig:
    """Aborted while reads are out: they come back late."""
    rig = Rig("kv_only", batch_pages=3, readers=3)
    rig.stores[0].hold("kv")
    id_ = rig.issue("r", 8)
    rig.until_held("kv", 2)
    rig.tick()
    rig.abort()
    rig.tick(2)
    rig.stores[0].open_all()
    rig.until_closed(id_)
    rig.run("other", 4)
    return rig


def lost() -> Rig:
    """A read is never answered."""
    rig = Rig("kv_only", batch_pages=4, lost_read_s=1.0)
    rig.prompt("r", 8)
    rig.stores[0].hold("kv")
    id_ = rig.issue("r", 8)
    rig.until_held("kv")
    rig.stores[0].let_go("kv", page=0)
    rig.until_held("kv")
    rig.tick(2)
    rig.clock.advance(2)
    rig.until_closed(id_)
    return rig


def publish_under_a_read(rig: Rig, pages: int) -> int:
    """Publish while the read of an optional rider is out, and stays out; return the prefetch. The limit is a second."""
    rig.stores[0].hold("draft")
    id_ = rig.issue("r", pages)
    rig.until_held("draft")
    rig.tick(2)
    rig.clock.advance(2)
    rig.until_state(id_, State.COMMITTED)
    return id_


def late() -> Rig:
    """Published while the read of an optional rider is out; its answer comes after the hand-over."""
    rig = Rig("kv_only", draft=True, stop=Timeout(1.0, 0.0, 1.0))
    id_ = publish_under_a_read(rig, 8)
    rig.tick()
    rig.stores[0].open_all()
    rig.until_closed(id_)
    return rig


def tainted() -> Rig:
    """As `late`, but the answer never comes; then the pages are evicted."""
    rig = Rig("kv_only", draft=True, capacity=8, stop=Timeout(1.0, 0.0, 1.0), lost_read_s=5.0)
    id_ = publish_under_a_read(rig, 4)
    rig.clock.advance(9)
    rig.until_closed(id_)
    rig.stores[0].holding.clear()
    rig.run("next", 4)
    return rig


def twice() -> Rig:
    """Two requests with one prompt in flight at once: the second brings what is there already."""
    rig = Rig("kv_only")
    first, second = rig.issue("a", 6, prompt="p"), rig.issue("b", 6, prompt="p")
    rig.until_closed(first)
    rig.until_closed(second)
    return rig


def pressed() -> Rig:
    """Host memory is too small for all: pages are evicted, slots reused, one is declined, one superseded."""
    rig = Rig("mamba", capacity=8, limit_tokens=40, threshold_pages=2)
    for name in "abc":
        rig.run(name, 6)
    rig.issue("d", 1)
    rig.issue("e", 6)
    rig.issue("f", 6)
    rig.until_closed(rig.issue("e", 5, attempt=1))
    rig.tick(3)
    return rig


def refused() -> Rig:
    """A required sidecar falls short: nothing is published."""
    rig = Rig("mamba")
    rig.stores[0].say("mamba", "11111110", rig.prompt("r", 8))
    rig.run("r", 8)
    return rig


def degraded() -> Rig:
    """A sidecar that can be rebuilt falls short: kv is published without it."""
    rig = Rig("swa", shortfall=OnShortfall.DEGRADE)
    rig.stores[0].say("swa", "0" * 8, rig.prompt("r", 8))
    rig.run("r", 8)
    return rig


def capped() -> Rig:
    """Two ranks; a page fails on one of them, and the other is told to read no further."""
    rig = Rig("dsa", 2, batch_pages=1)
    rig.stores[1].say("kv", "1110", rig.prompt("r", 12))
    rig.stores[0].hold("kv")
    id_ = rig.issue("r", 12)
    rig.until(lambda: rig.events(Capped))
    rig.stores[0].open_all()
    rig.until_closed(id_)
    return rig


def ranked() -> Rig:
    """Two ranks and two requests; one rank gets less of the second. Then one is taken, served, finished."""
    rig = Rig("dsa", 2)
    rig.run("a", 8)
    rig.stores[1].say("kv", "11110", rig.prompt("b", 8))
    rig.run("b", 8)
    rig.take_loaded("a")
    rig.finish("a")
    return rig


STORIES = {
    story.__name__: story
    for story in (plain, short, aborted, lost, late, tainted, twice, pressed, refused, degraded, capped, ranked)
}
