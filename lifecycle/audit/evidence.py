"""What is known of one request: its prefetches on every rank, what it was served from which, and what is wrong with that.

Reads the logs twice: once to find which prefetches matter, once to follow those alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lifecycle import ranges as r
from lifecycle.audit.known import Known
from lifecycle.audit.laws import Violation
from lifecycle.audit.runs import Run
from lifecycle.audit.story import Story, Teller
from lifecycle.audit.terms import BadHeader, Terms, terms_of
from lifecycle.audit.verify import violations
from lifecycle.audit.writers import LateWrite, Writers
from lifecycle.events import (
    Declined,
    Event,
    EventsLost,
    Issued,
    LoadedTaken,
    PageOverwritten,
    PagesScrubbed,
    PrefixServed,
    Record,
    RequestFinished,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.layout import KV, Layout, Pool
from lifecycle.ranges import EMPTY, Ranges

MOST = 1000
"""So many violations are kept of each kind."""

MOST_OVERWRITTEN = 1 << 16
"""So many overwritten pages are kept; there are that many only if the whole memory was lost."""

_OF_REQUEST = (Issued, Declined, WaitBegan, WaitEnded, PrefixServed, LoadedTaken, RequestFinished)

Placed = tuple[int, int, Event]
"""Seq, time and event."""


@dataclass(frozen=True, slots=True)
class BadPages:
    """Pages that were served and should not have been: on this rank nothing good was in their place."""

    rank: int
    pool: str
    pages: Ranges
    prefetch: int
    served_seq: int
    why: str


@dataclass(frozen=True, slots=True)
class Overwrite:
    """A resident page of a rank that a scrub found changed."""

    found_seq: int
    whole_seq: int  # of the last scrub before that compared every page, and found this one whole; -1 if there is none

    def why(self, served_seq: int) -> str | None:
        """Return why whoever was served the page got something else; None if it was whole afterwards."""
        if served_seq < self.whole_seq:
            return None
        when = "before it was served" if self.found_seq < served_seq else "and whether before it was served, nobody saw"
        return f"overwritten after it had landed whole (found by a scrub, seq {self.found_seq}), {when}"


@dataclass(slots=True)
class Evidence:
    """Everything that the logs of one run say of a request."""

    run: Run
    request: str
    terms: Terms | None
    own: list[int] = field(default_factory=list)  # prefetches of the request
    sources: list[int] = field(default_factory=list)  # prefetches that brought what it was served, beside its own
    told: dict[int, dict[int, Story]] = field(default_factory=dict)  # prefetch -> rank -> story
    events: list[Placed] = field(default_factory=list)  # of the request itself, on the first rank
    served: dict[int, list[tuple[int, PrefixServed]]] = field(default_factory=dict)  # rank -> seq, event
    bad: list[BadPages] = field(default_factory=list)
    late: list[tuple[int, int, LateWrite]] = field(default_factory=list)  # rank, prefetch
    overwritten: dict[tuple[int, int], dict[tuple[str, int], Overwrite]] = field(default_factory=dict)
    """By rank and prefetch, then by pool and page."""
    overwritten_pages: int = 0
    violations: list[Violation] = field(default_factory=list)
    beside: list[Violation] = field(default_factory=list)  # of the run as a whole: of no prefetch and no request
    any_served: bool = False  # whether the logs say what any request was served
    unknown: list[str] = field(default_factory=list)  # why something cannot be told

    @property
    def found(self) -> bool:
        """Return whether the logs mention the request at all."""
        return bool(self.own or self.events)

    @property
    def layout(self) -> Layout | None:
        """Return the layout of the run."""
        return None if self.terms is None else self.terms.layout

    @property
    def verdict(self) -> str:
        """Return `garbled`, `at fault`, `cannot tell` or `clean`."""
        if self.bad or self.late:
            return "garbled"
        if self.violations:
            return "at fault"
        return "cannot tell" if self.unknown else "clean"


def gather(run: Run, request: str) -> Evidence:
    """Return what the logs of a run say of a request."""
    found = Evidence(run, request, _terms(run))
    for place, segment in enumerate(run.segments):
        rank = place if segment.rank is None else segment.rank
        _find(found, rank, segment.records(), first=place == 0)
    if not found.found:
        return found
    wanted = frozenset(found.own) | frozenset(found.sources)
    for place, segment in enumerate(run.segments):
        _follow(found, place if segment.rank is None else segment.rank, segment.records(), wanted)
    for each in Known(run.opened).faults(violations([segment.records() for segment in run.segments])):
        mine = each.request == request or each.prefetch in wanted
        kept = found.violations if mine else found.beside
        if (mine or (each.prefetch is None and each.request is None)) and len(kept) < MOST:
            kept.append(each)
    _judge_served(found)
    _say_unknown(found, wanted)
    return found


def _terms(run: Run) -> Terms | None:
    if run.opened is None:
        return None
    try:
        return terms_of(run.opened)
    except BadHeader:
        return None  # the audit of the header says why


def _find(found: Evidence, rank: int, records: Iterable[Record], first: bool) -> None:
    own, sources = dict.fromkeys(found.own), dict.fromkeys(found.sources)
    whole_seq = -1
    for record in records:
        event = record.event
        if type(event) is PrefixServed:
            found.any_served = True
        elif type(event) is PageOverwritten and found.overwritten_pages < MOST_OVERWRITTEN:
            of = found.overwritten.setdefault((rank, event.source), {})
            found.overwritten_pages += (event.pool, event.page) not in of
            of.setdefault((event.pool, event.page), Overwrite(record.seq, whole_seq))
        elif type(event) is PagesScrubbed and not event.unknown:
            whole_seq = record.seq
        if type(event) is EventsLost:
            found.unknown.append(f"rank {rank} lost {event.events} events at seq {record.seq}")
        elif getattr(event, "request", None) == found.request:
            if type(event) is Issued:
                own[event.prefetch] = None
            elif type(event) is PrefixServed:
                found.served.setdefault(rank, []).append((record.seq, event))
                sources.update(dict.fromkeys(source for _, _, source in event.sources if source))
            if first and isinstance(event, _OF_REQUEST):
                found.events.append((record.seq, record.at_ns, event))
    found.own, found.sources = list(own), [id_ for id_ in sources if id_ not in own]


def _follow(found: Evidence, rank: int, records: Iterable[Record], wanted: frozenset[int]) -> None:
    teller, writers = Teller(wanted), Writers()
    for record in records:
        story = teller.feed(record)
        if story is not None:
            found.told.setdefault(story.id, {})[rank] = story
        for late in writers.feed(record):
            id_ = getattr(record.event, "prefetch", 0)
            if id_ in wanted:
                found.late.append((rank, id_, late))


def _judge_served(found: Evidence) -> None:
    layout, terms = found.layout, found.terms
    if layout is None or terms is None:
        return
    for rank, served in found.served.items():
        for seq, event in served:
            for start, stop, source in event.sources:
                story = found.told.get(source, {}).get(rank)
                if story is None:
                    continue
                found.bad += _overwritten_pages(found, layout, rank, seq, event, (start, stop), story)
                bad = bad_pages(layout, terms.degrade, rank, seq, event, (start, stop), story)
                if not story.gapped:
                    found.bad += bad
                elif bad:
                    what = f"prefetch {story.id} on rank {rank} is not seen to land all that was served, and events were lost"
                    found.unknown.append(what)


def bad_pages(
    layout: Layout, degrade: bool, rank: int, seq: int, event: PrefixServed, pages: tuple[int, int], story: Story
) -> list[BadPages]:
    """Return the pages of one source that a request was served on this rank and that never landed here, per pool."""
    bad = []
    for pool in layout.required(degrade):
        missing = r.subtract(_needed(layout, pool, event, pages, story), story.landed.get(pool.name, EMPTY))
        if missing:
            page = missing[0][0]
            bad.append(BadPages(rank, pool.name, missing, story.id, seq, story.fate(pool.name, page)))
    return bad


def _needed(layout: Layout, pool: Pool, event: PrefixServed, pages: tuple[int, int], story: Story) -> Ranges:
    """Return what a serving of [0, end_page) takes of a pool, of these pages of one source."""
    needed = r.intersect((pages,), r.span(*pool.window(0, event.end_page)))
    owner = layout.owner(pool.name)
    if owner == KV:
        return needed
    # The sources are those of kv: of other slots, only what this prefetch handed over is its own.
    return r.intersect(needed, getattr(story.outcome, "taken", {}).get(owner, EMPTY))


def _overwritten_pages(
    found: Evidence, layout: Layout, rank: int, seq: int, event: PrefixServed, pages: tuple[int, int], story: Story
) -> list[BadPages]:
    """Return the pages of one source that a request was served on this rank, and that a scrub found overwritten."""
    why: dict[tuple[str, str], Ranges] = {}
    for (pool, page), overwrite in found.overwritten.get((rank, story.id), {}).items():
        words = overwrite.why(seq)
        if words is not None and pool in layout.index_of and pages[0] <= page < pages[1]:
            needed = _needed(layout, layout.pool(pool), event, (page, page + 1), story)
            why[pool, words] = r.union(why.get((pool, words), EMPTY), needed)
    return [BadPages(rank, pool, at, story.id, seq, words) for (pool, words), at in why.items() if at]


def _say_unknown(found: Evidence, wanted: frozenset[int]) -> None:
    if found.terms is None:
        found.unknown.append("no log has a header that can be used: layout and rule are not known")
    missing = found.run.missing
    if missing:
        found.unknown.append(f"the logs of rank{'s' if len(missing) > 1 else ''} {_some(missing)} are not here")
    strangers = sorted(id_ for id_ in wanted if id_ not in found.told)
    if strangers:
        found.unknown.append(f"prefetch {_some(strangers)} was served from and is not in these logs")
    if not found.any_served:
        found.unknown.append("nothing says what requests were served: the engine does not call `served`")


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
