"""The story of one request, ready to be printed or encoded: what each pool had on each rank, what was decided, and why."""

from collections.abc import Mapping

import msgspec

from lifecycle import ranges as r
from lifecycle.audit.evidence import Evidence
from lifecycle.audit.laws import Violation
from lifecycle.audit.story import Story
from lifecycle.audit.words import name, pages
from lifecycle.coverage import landed_pages
from lifecycle.events import (
    Clamped,
    Committed,
    Declined,
    Discarded,
    Issued,
    PrefixServed,
    RequestFinished,
    Terminated,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.layout import Layout, OutcomeRule
from lifecycle.ranges import EMPTY, Ranges


class PoolTold(msgspec.Struct, frozen=True):
    """What one pool had of a prefetch on one rank. Pages are absolute and half-open."""

    rank: int
    pool: str
    asked: Ranges
    landed: Ranges
    failed: tuple[tuple[tuple[int, int], str], ...]
    run_page: int  # where the leading run ends
    agreed_page: int | None  # where it ends by agreement of all ranks


class PrefetchTold(msgspec.Struct, frozen=True):
    """One prefetch, as the request's rank logs have it."""

    prefetch: int
    request: str
    attempt: int
    start_page: int
    end_page: int
    reserved_tokens: int
    hit_page: dict[int, int]  # by rank
    miss: dict[int, str]  # by rank
    plan_page: int | None
    left_out: tuple[str, ...]
    terminated: str | None
    outcome: str
    reason: str | None
    short: str | None  # the pool that fell short, where the log names one
    usable_page: int
    taken: Mapping[str, Ranges]
    dropped: tuple[str, ...]
    returned_tokens: int | None
    credited_tokens: int | None
    released: tuple[tuple[str, Ranges, str], ...]  # of the first rank: pool, pages, part
    queued_ns: int | None
    took_ns: int | None
    seqs: dict[str, int]  # of the first rank
    pools: tuple[PoolTold, ...]


class ServedTold(msgspec.Struct, frozen=True):
    """What the request was served, on the first rank that says so."""

    seq: int
    attempt: int
    end_page: int
    sources: tuple[tuple[int, int, int], ...]


class WaitTold(msgspec.Struct, frozen=True):
    """One wait of the request to be tried again, on the first rank. Ticks are those of the coordinator."""

    seq: int
    attempt: int
    reason: str
    tokens: int
    queries: int
    from_tick: int
    to_tick: int | None  # None where it ended otherwise: the request was issued, served or finished, or the log ends
    end: str | None  # `tried`, or why it is over


class BadTold(msgspec.Struct, frozen=True):
    """Pages that were served and are not what they should be."""

    rank: int
    pool: str
    pages: Ranges
    prefetch: int
    why: str
    seq: int


class ViolationTold(msgspec.Struct, frozen=True):
    """A violation, as programs read it."""

    law: str
    rank: int
    prefetch: int | None
    request: str | None
    seqs: tuple[int, ...]
    what: str
    right: str


class Explanation(msgspec.Struct, frozen=True):
    """Everything about one request."""

    run: str
    ranks: str
    request: str
    verdict: str
    rule: str
    prefetches: tuple[PrefetchTold, ...]
    sources: tuple[PrefetchTold, ...]  # of other requests
    declined: tuple[tuple[int, str], ...]  # attempt, reason
    waits: tuple[WaitTold, ...]
    served: tuple[ServedTold, ...]
    bad: tuple[BadTold, ...]
    violations: tuple[ViolationTold, ...]
    beside: tuple[ViolationTold, ...]
    unknown: tuple[str, ...]


def explain(found: Evidence) -> Explanation:
    """Return the story of the request that the evidence is about."""
    layout = found.layout
    own = [_prefetch(layout, found.told[id_]) for id_ in found.own if id_ in found.told]
    sources = [_prefetch(layout, found.told[id_]) for id_ in found.sources if id_ in found.told]
    declined = [(event.attempt, event.reason.value) for _, _, event in found.events if isinstance(event, Declined)]
    first = next(iter(sorted(found.served)), None)
    served = [
        ServedTold(seq, event.attempt, event.end_page, event.sources)
        for seq, event in found.served.get(first, [])  # type: ignore[arg-type]
    ]
    bad = [BadTold(b.rank, b.pool, b.pages, b.prefetch, b.why, b.served_seq) for b in found.bad]
    for rank, id_, late in found.late:
        at = EMPTY if late.page is None else r.span(late.page, late.page + late.slots[1] - late.slots[0])
        state = "was lost" if late.lost else "was not over"
        reader = f"a read of prefetch {late.by} (claimed at seq {late.claim_seq})"
        why = f"given away at seq {late.given_seq}, while {reader} {state}"
        bad.append(BadTold(rank, late.pool, at, id_, f"{why}: it may write slots {late.slots[0]} to {late.slots[1] - 1}",
                           late.given_seq))  # fmt: skip
    return Explanation(
        found.run.id, found.run.ranks, found.request, found.verdict, rule_of(found), tuple(own), tuple(sources),
        tuple(declined), tuple(_waits(found)), tuple(served), tuple(bad), tuple(map(told, found.violations)),
        tuple(map(told, found.beside)), tuple(found.unknown),
    )  # fmt: skip


def _waits(found: Evidence) -> list[WaitTold]:
    waits: list[WaitTold] = []
    goes_on = False  # whether the last one is not over
    for seq, _, event in found.events:
        if isinstance(event, WaitBegan):
            if goes_on and waits[-1].reason == event.reason:  # it waits on, for more room than before
                waits[-1] = msgspec.structs.replace(waits[-1], tokens=event.tokens)
                continue
            goes_on = True
            reason = event.reason.value
            waits.append(WaitTold(seq, event.attempt, reason, event.tokens, event.queries, event.tick, None, None))
        elif isinstance(event, WaitEnded):
            if goes_on:
                end = "tried" if event.reason is None else event.reason.value
                waits[-1] = msgspec.structs.replace(waits[-1], to_tick=event.tick, end=end)
            goes_on = False
        elif isinstance(event, (Issued, PrefixServed, RequestFinished)):
            goes_on = False
    return waits


def told(violation: Violation) -> ViolationTold:
    """Return a violation as programs read it."""
    v = violation
    return ViolationTold(v.law.value, v.rank, v.prefetch, v.request, v.seqs, v.what, v.right)


def rule_of(found: Evidence) -> str:
    """Return the outcome rule of the run, in words."""
    layout, terms = found.layout, found.terms
    if layout is None or terms is None:
        return "unknown"
    pools = [pool.name for pool in layout.required(terms.degrade)]
    match layout.rule(terms.degrade):
        case OutcomeRule.KV:
            return "kv: usable is the leading run of kv that all ranks landed"
        case OutcomeRule.CLAMP:
            return f"clamp: usable is the shortest leading run of {', '.join(pools)}, over all ranks"
        case _:
            return f"all_or_nothing: usable is the whole plan, if {', '.join(pools)} landed all of it on all ranks, or nothing"


def _prefetch(layout: Layout | None, by_rank: Mapping[int, Story]) -> PrefetchTold:
    rank = min(by_rank)
    story = by_rank[rank]
    issued, outcome = story.issued, story.outcome
    reason = getattr(outcome, "reason", None)
    if reason is None and story.terminated is not None:
        reason = story.terminated.reason
    begun, over = story.at[Issued][1], [story.at[kind][1] for kind in (Committed, Clamped, Discarded) if kind in story.at]
    seqs = {kind.__name__: at[0] for kind, at in story.at.items()}
    return PrefetchTold(
        issued.prefetch, issued.request, issued.attempt, issued.start_page, issued.end_page, issued.reserved_tokens,
        {each: told.hit.hit_page for each, told in sorted(by_rank.items()) if told.hit is not None},
        {each: told.hit.miss.value for each, told in sorted(by_rank.items()) if told.hit is not None and told.hit.miss},
        None if story.plan is None else story.plan.plan_page,
        () if story.plan is None else story.plan.left_out,
        None if story.terminated is None else story.terminated.reason.value,
        _state(story), None if reason is None else reason.value, getattr(outcome, "pool", None), story.usable_page,
        getattr(outcome, "taken", {}), getattr(outcome, "dropped", ()), story.returned, story.credited,
        tuple((each.pool, each.pages, each.part.value) for each in story.released), story.queued_ns,
        over[0] - begun if over else None, seqs,
        () if layout is None else tuple(_pools(layout, by_rank)),
    )  # fmt: skip


def _state(story: Story) -> str:
    if story.outcome is not None:
        return type(story.outcome).__name__.lower()
    if Terminated in story.at:
        return "terminated"
    return "transferring" if story.plan is not None else "issued"


def _pools(layout: Layout, by_rank: Mapping[int, Story]) -> list[PoolTold]:
    rows = []
    for rank, story in sorted(by_rank.items()):
        if story.plan is None:
            continue
        start, plan = story.issued.start_page, story.plan_page
        for pool in layout.pools:
            lo, hi = pool.window(start, plan)
            asked = EMPTY if pool.name in story.plan.left_out else r.span(lo, hi)
            agreed = None
            if story.synced is not None and pool.name in story.synced.agreed:
                agreed = _end(landed_pages(pool, start, plan, story.synced.agreed[pool.name]), lo)
            run = _end(landed_pages(pool, start, plan, story.run(layout, pool.name)), lo)
            failed = tuple((each.pages, each.code.value) for each, _ in story.failed if each.pool == pool.name)
            rows.append(PoolTold(rank, pool.name, asked, story.landed.get(pool.name, EMPTY), failed, run, agreed))
    return rows


def _end(landed: Ranges, first: int) -> int:
    return landed[-1][1] if landed else first


def headline(told_: Explanation) -> str:
    """Return the verdict in one sentence: which page of which pool on which rank, and the rule."""
    who = name(told_.request)
    if told_.bad:
        b = told_.bad[0]
        more = f"; {len(told_.bad) - 1} more below" if len(told_.bad) > 1 else ""
        where = pages(b.pages) if b.pages else "a page"
        laws = ", ".join(dict.fromkeys(v.law for v in told_.violations))
        broken = f"; broken: {laws} (rule {told_.rule.partition(':')[0]})" if laws else ""
        return f"{who} was served {where} of {b.pool} on rank {b.rank}, from prefetch {b.prefetch}: {b.why}{more}{broken}"
    if told_.verdict == "at fault":
        return f"{len(told_.violations)} law(s) broken around {who}; no page that it was served is known to be bad"
    if told_.verdict == "cannot tell":
        return f"no law is broken around {who}, as far as these logs go"
    if not told_.served:
        return f"no law is broken around {who}, and it was not served from the index"
    return f"no law is broken around {who}, and every page that it was served had landed before it was published"
