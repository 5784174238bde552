"""What an imported SGLang log can still prove, and what it cannot tell. No fact is assumed that a line does not carry.

What each count means differs by version and by word (see `sglang_lines`): with `dropped`, released is all that was completed
and nothing is loaded; `completed` alone is agreed by all ranks; of `discarded` it was this rank's own before 0.5.23.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from lifecycle.audit.seen import Seen

ENDS = frozenset({"success", "dropped", "discarded", "revoked", "declined", "finished"})
OUTCOMES = frozenset({"success", "dropped", "discarded"})
PATIENCE_NS = 60_000_000_000
MOST_REQUESTS = 100_000  # compared over ranks, or waited for, at any time; the oldest are given up
ONE_CLOCK_NS = 2_000_000_000  # a rank's lines in a newer file are no older than this before the last of an older one
QUIET_OUTCOMES = 8  # outcomes on a rank after which a floor that stays up says something
QUIET_TOUCHES = 3  # ... and how often the floor itself must be seen: a busy server has no such floor


class Level(StrEnum):
    """How much a finding proves."""

    VIOLATION = "violation"
    CANNOT_TELL = "cannot tell"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the lines contradict, or leave open."""

    level: Level
    law: str
    rank: str
    request: str | None
    places: tuple[tuple[int, int], ...]  # file, line
    what: str
    right: str


Tell = Callable[[Finding], None]


def contradictions(seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield what one line says against itself, and what would be right, by the rules of the version that printed it."""
    for name, value in seen.facts.items():
        if isinstance(value, int) and value < 0:
            yield f"{name}={value}", "0 or more" + (": returned twice" if name == "occupied" else "")
    number = seen.number
    local, synced, completed = number("completed_local"), number("completed_synced"), number("completed")
    agreed = synced if synced is not None else completed
    matched, loaded, released = number("matched"), number("loaded"), number("released")
    if local is not None and synced is not None and synced > local:
        yield f"completed_synced={synced} over completed_local={local}", "no more than any rank completed"
    if seen.kind == "success":
        if agreed is not None and matched is not None and loaded is not None and loaded != agreed - matched:
            yield f"loaded={loaded}", f"{agreed - matched}, completed less matched"
        if local is not None and synced is not None:
            for name in ("released", "tail_release"):
                value = number(name)
                if value is not None and value != local - synced:
                    yield f"{name}={value}", f"{local - synced}, what is completed here and not agreed"
    elif seen.kind == "dropped":
        if loaded:
            yield f"dropped with loaded={loaded}", "0: nothing of it was inserted"
        if released is not None and local is not None and released != local:
            yield f"dropped with released={released}", f"{local}, all that was completed"
    elif seen.kind == "discarded":
        requested = number("requested")
        if completed is not None and requested is not None and completed > requested:
            yield f"completed={completed} of requested={requested}", "no more than was requested"


def group_of(rank: str) -> str:
    """Return which ranks run the same requests: those of one data-parallel rank."""
    return " ".join(part for part in rank.split() if part.startswith("DP"))


@dataclass(slots=True)
class _Rank:
    """One rank's state, as its lines are read."""

    occupied: int | None = None
    lowest: int | None = None  # of all so far
    lowest_at: tuple[int, int] = (0, 0)
    since: int = 0  # outcomes since the lowest was last seen
    floor: int | None = None  # the lowest since then
    touches: int = 0
    at: tuple[int, int] = (0, 0)
    started: OrderedDict[str, Seen] = field(default_factory=OrderedDict)
    first: Seen | None = None
    last_ns: int | None = None
    file: int = 0  # in which it printed last
    newest: deque[int] = field(default_factory=lambda: deque(maxlen=QUIET_OUTCOMES))  # seqs of its last outcomes


class Checks:
    """Checks observations as they are fed; `finish` says what only the end shows."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._ranks: dict[str, _Rank] = defaultdict(_Rank)
        self._open: OrderedDict[tuple[str, str, int], dict[str, Seen]] = OrderedDict()
        self._nth: Counter[tuple[str, str]] = Counter()
        self._mixed = False  # a rank prints in two files at once: two servers, or one that set its clock back
        self.kinds: Counter[str] = Counter()
        self.requests: set[str] = set()
        self.observations = 0

    @property
    def ranks(self) -> list[str]:
        """Return the ranks that printed anything."""
        return sorted(self._ranks)

    def feed(self, seen: Seen) -> None:
        """Take one observation."""
        self.observations += 1
        self.kinds[seen.kind] += 1
        rank = self._ranks[seen.rank]
        rank.first = rank.first or seen
        self._one_server(rank, seen)
        if seen.at_ns is not None:
            rank.last_ns = max(rank.last_ns or 0, seen.at_ns)
        if seen.request is None:
            return
        if len(self.requests) < MOST_REQUESTS:
            self.requests.add(seen.request)
        for what, right in contradictions(seen):
            self._say(Level.VIOLATION, "counts", what, right, seen)
        if seen.kind == "started":
            rank.started[seen.request] = seen
            if len(rank.started) > MOST_REQUESTS:
                rank.started.popitem(last=False)
        elif seen.kind in ENDS:
            rank.started.pop(seen.request, None)
        if seen.kind in OUTCOMES:
            rank.newest.append(seen.seq)
            self._discards(seen)
            self._across(seen)
        if (occupied := seen.number("occupied")) is not None and occupied >= 0:
            self._occupancy(rank, occupied, (seen.file, seen.line))

    def _one_server(self, rank: _Rank, seen: Seen) -> None:
        newer, rank.file = seen.file != rank.file, seen.file
        if self._mixed or not newer or seen.at_ns is None or rank.last_ns is None:
            return
        if seen.at_ns < rank.last_ns - ONE_CLOCK_NS:
            self._mixed = True
            what = f"{seen.rank or 'an unnamed rank'} prints here before it has stopped in another file: two servers?"
            right = "one server at a time: nothing else that takes more than one line is told from here on"
            places = ((seen.file, seen.line),)
            self._tell(Finding(Level.CANNOT_TELL, "files", seen.rank, None, places, what, right))

    def _level(self, sure: bool) -> Level:
        return Level.VIOLATION if sure and not self._mixed else Level.CANNOT_TELL

    def _say(self, level: Level, law: str, what: str, right: str, *seen: Seen) -> None:
        last = seen[-1]
        places = tuple((each.file, each.line) for each in seen)
        self._tell(Finding(level, law, last.rank, last.request, places, what, right))

    def _discards(self, seen: Seen) -> None:
        if seen.kind != "discarded":
            return
        completed, requested = seen.number("completed"), seen.number("requested")
        if seen.facts.get("aux_pool_hit_pages"):
            return
        if completed is not None and completed == requested:
            what = f"discarded with all {requested} tokens of kv read: a sidecar fell short, or kv on another rank"
            self._say(Level.CANNOT_TELL, "discard", what, "the line names no pool", seen)

    # --- ranks against each other -----------------------------------------------------------------------------------------

    def _across(self, seen: Seen) -> None:
        """Keep the outcome until the others have theirs: the nth of a request on each rank of its group."""
        request = seen.request or ""
        nth = self._nth[(seen.rank, request)]
        self._nth[(seen.rank, request)] += 1
        sides = self._open.setdefault((group_of(seen.rank), request, nth), {})
        for other in sides.values():
            self._compare(other, seen)
            break  # one is enough: the first stands for those that are equal to it
        sides[seen.rank] = seen
        while len(self._open) > MOST_REQUESTS:
            _, old = self._open.popitem(last=False)
            self._least(old)
        while len(self._nth) > 4 * MOST_REQUESTS:
            del self._nth[next(iter(self._nth))]

    def _compare(self, one: Seen, other: Seen) -> None:
        if one.kind != other.kind:
            self._say(self._level(True), "ranks", f"{other.kind} here, {one.kind} on {one.rank or 'another rank'}",
                      "one outcome on all ranks", one, other)  # fmt: skip
            return
        agreed = ["completed_synced", "matched", "loaded", "occupied"]
        if one.shape == "0.5.23":
            agreed.append("completed")
        for name in agreed:
            here, there = other.number(name), one.number(name)
            if here is not None and there is not None and here != there:
                right = f"{there}, as on {one.rank or 'another rank'}"
                self._say(self._level(True), "ranks", f"{name}={here}", right, one, other)

    def _least(self, sides: dict[str, Seen]) -> None:
        """Compare what is agreed with the least that any rank completed."""
        known = [seen for seen in sides.values() if seen.number("completed_local") is not None]
        if not known:
            return
        least = min(known, key=lambda seen: seen.number("completed_local") or 0)
        first = known[0]
        synced, local = first.number("completed_synced"), least.number("completed_local")
        if synced is None or local is None or synced == local:
            return
        if synced > local:
            what = f"completed_synced={synced}, and {least.rank or 'a rank'} completed {local}"
            self._say(self._level(True), "ranks", what, f"at most {local}", least, first)
        else:
            what = f"completed_synced={synced}, and no rank that printed completed less than {local}"
            right = "a sidecar, or a rank that printed nothing: no line names it"
            self._say(Level.CANNOT_TELL, "shortfall", what, right, first)

    # --- occupancy --------------------------------------------------------------------------------------------------------

    def _occupancy(self, rank: _Rank, occupied: int, place: tuple[int, int]) -> None:
        rank.occupied, rank.at = occupied, place
        if rank.lowest is None or occupied <= rank.lowest:
            rank.lowest, rank.lowest_at, rank.since, rank.floor, rank.touches = occupied, place, 0, None, 0
            return
        rank.since += 1
        if rank.floor is None or occupied < rank.floor:
            rank.floor, rank.touches = occupied, 1
        elif occupied == rank.floor:
            rank.touches += 1

    # --- the end ----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Say what the end of the logs shows."""
        for sides in self._open.values():
            self._least(sides)
            self._absent(sides)
        for name, rank in sorted(self._ranks.items()):
            self._leak(name, rank)
            self._unended(rank)

    def _absent(self, sides: dict[str, Seen]) -> None:
        seen = next(iter(sides.values()))
        group = group_of(seen.rank)
        for name, rank in sorted(self._ranks.items()):
            if name in sides or group_of(name) != group or not seen.rank or not name:
                continue
            talks = len(rank.newest) == QUIET_OUTCOMES and rank.newest[0] > seen.seq and _ran(rank, seen)
            level = self._level(talks)
            right = f"an outcome on {name}, too" if talks else f"{name} printed too few since, or prints none"
            self._say(level, "ranks", f"no outcome on {name}", right, seen)

    def _leak(self, name: str, rank: _Rank) -> None:
        if rank.floor is None or rank.since < QUIET_OUTCOMES:
            return
        sure = rank.touches >= QUIET_TOUCHES
        what = f"occupied never came back to {rank.lowest} in the last {rank.since} outcomes: it was {rank.floor} or more"
        right = f"back to {rank.lowest} once nothing is in flight" if sure else "a server that never rests looks alike"
        where = (rank.lowest_at, rank.at)
        law = "occupancy"
        self._tell(Finding(self._level(sure), law, name, None, where, what, right))

    def _unended(self, rank: _Rank) -> None:
        for seen in rank.started.values():
            waited = None if seen.at_ns is None or rank.last_ns is None else rank.last_ns - seen.at_ns
            if waited is not None and waited >= PATIENCE_NS:
                what = f"{seen.number('pages')} pages were asked for, and nothing ended it in {waited // 1_000_000_000} s"
                right = "an outcome or a revoke (an abort prints none)"
                if not rank.newest:
                    right = "such lines print outcomes on this rank, which these do not, of any prefetch: a level or a version"
                self._say(self._level(bool(rank.newest)), "never ended", what, right, seen)
            else:
                self._say(Level.CANNOT_TELL, "never ended", "the log ends before its outcome", "a longer log", seen)


def _ran(rank: _Rank, seen: Seen) -> bool:
    """Return whether a rank was there when another printed this; one of a later start was not."""
    first = rank.first
    if first is None or first.file == seen.file:
        return first is not None
    return first.at_ns is not None and seen.at_ns is not None and first.at_ns <= seen.at_ns + PATIENCE_NS


def check(observations: Iterable[Seen], tell: Tell) -> Checks:
    """Check an imported log from its beginning to its end."""
    checks = Checks(tell)
    for seen in observations:
        checks.feed(seen)
    checks.finish()
    return checks
