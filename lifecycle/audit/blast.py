"""Who was served pages that one prefetch brought, and what was computed on top of them."""

from collections.abc import Iterator

import msgspec

from lifecycle import ranges as r
from lifecycle.audit.runs import Run
from lifecycle.audit.tables import Line, table
from lifecycle.audit.words import count_of, name
from lifecycle.events import Adopted, Clamped, Committed, Discarded, Issued, PageOverwritten, PrefixServed
from lifecycle.layout import KV
from lifecycle.ranges import EMPTY, Range, Ranges

MOST = 12
"""So many overwritten pages are printed."""


class Hit(msgspec.Struct, frozen=True):
    """One request that was served some of the pages."""

    request: str
    attempt: int
    rank: int
    seq: int
    at_ns: int
    pages: Ranges
    end_page: int  # of all that it was served
    adopted_pages: int  # kv pages that it computed on top of them and gave to the index
    overwritten: Ranges = ()  # of the pages of it, those that a scrub found overwritten in any pool on any rank


class OverwrittenTold(msgspec.Struct, frozen=True):
    """A page that a scrub found overwritten after it had landed."""

    rank: int
    seq: int
    pool: str
    page: int


class Blast(msgspec.Struct, frozen=True):
    """Every request that was served pages of a prefetch. Pages are absolute and half-open."""

    run: str
    prefetch: int
    request: str | None  # whose prefetch it was
    outcome: str | None
    pages: Range | None  # those asked about
    hits: tuple[Hit, ...]
    adopted_pages: int
    overwritten: tuple[OverwrittenTold, ...] = ()


def blast(run: Run, prefetch: int, pages: Range | None) -> Blast | None:
    """Return what the prefetch's pages reached, as the first rank's log has it; None if the log does not know it."""
    segment = run.segments[0]
    asked = None if pages is None else (pages,)
    request: str | None = None
    outcome: str | None = None
    known = False
    hits: list[Hit] = []
    reached: dict[str, int] = {}  # request -> the place of its last hit
    for record in segment.records():
        event = record.event
        if isinstance(event, Issued) and event.prefetch == prefetch:
            request, known = event.request, True
        elif isinstance(event, (Committed, Clamped, Discarded)) and event.prefetch == prefetch:
            outcome = type(event).__name__.lower()
        elif isinstance(event, PrefixServed):
            parts = [(lo, hi) for lo, hi, source in event.sources if source == prefetch and lo < hi]
            got: Ranges = ()
            for part in parts:
                got = r.union(got, (part,))
            if asked is not None:
                got = r.intersect(got, asked)
            if got:
                known = True
                reached[event.request] = len(hits)
                hits.append(Hit(event.request, event.attempt, segment.rank or 0, record.seq, record.at_ns, got,
                                event.end_page, 0))  # fmt: skip
        elif isinstance(event, Adopted) and event.request in reached:
            place = reached[event.request]
            more = hits[place].adopted_pages + event.pages.get(KV, 0)
            hits[place] = msgspec.structs.replace(hits[place], adopted_pages=more)
    if not known:
        return None
    overwritten = _overwritten(run, prefetch, asked)
    spoilt = EMPTY
    for each in overwritten:
        spoilt = r.union(spoilt, ((each.page, each.page + 1),))
    hits = [msgspec.structs.replace(hit, overwritten=r.intersect(hit.pages, spoilt)) for hit in hits]
    return Blast(
        run.id, prefetch, request, outcome, pages, tuple(hits), sum(hit.adopted_pages for hit in hits), tuple(overwritten)
    )


def _overwritten(run: Run, prefetch: int, asked: Ranges | None) -> list[OverwrittenTold]:
    """Return what scrubs found overwritten of the prefetch, on every rank, each page once."""
    found: dict[tuple[int, str, int], OverwrittenTold] = {}
    for place, segment in enumerate(run.segments):
        rank = place if segment.rank is None else segment.rank
        for record in segment.records():
            event = record.event
            if isinstance(event, PageOverwritten) and event.source == prefetch:
                told = OverwrittenTold(rank, record.seq, event.pool, event.page)
                found.setdefault((rank, event.pool, event.page), told)
    return [told for told in found.values() if asked is None or asked[0][0] <= told.page < asked[0][1]]


def text(told: Blast) -> Iterator[Line]:
    """Yield what is printed."""
    of = "" if told.request is None else f" of request {name(told.request)} ({told.outcome or 'no outcome yet'})"
    asked = "" if told.pages is None else f", pages [{told.pages[0]}:{told.pages[1]})"
    requests = len({hit.request for hit in told.hits})
    yield f"prefetch {told.prefetch}{of}{asked} in run {name(told.run)}: served to {count_of(requests, 'request')}"
    if told.hits:
        rows = [
            [name(hit.request), str(hit.attempt), str(hit.seq), r.text(hit.pages), f"[0:{hit.end_page})",
             str(hit.adopted_pages), r.text(hit.overwritten) if hit.overwritten else "-"]
            for hit in told.hits
        ]  # fmt: skip
        yield table(["request", "attempt", "seq", "pages of it", "served", "computed on top", "overwritten"], rows, 2)
    for each in told.overwritten[:MOST]:
        yield (
            f"  page {each.page} of {name(each.pool)} was overwritten on rank {each.rank} after it had landed"
            f" (found at seq {each.seq})"
        )
    if len(told.overwritten) > MOST:
        yield f"  and {len(told.overwritten) - MOST} more (--json has all)"
    if told.adopted_pages:
        yield (
            f"{count_of(told.adopted_pages, 'page')} computed on top of them went back into the index: whoever was served"
            " those may be reached, too, and the log does not say who"
        )
