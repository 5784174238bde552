"""What another outcome rule would have made of the logged facts: prefetch by prefetch, from what each rank really landed.

Starts from `PagesLanded`, never from what a rank said of itself: a log that an older version counted wrongly shows where.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from lifecycle import coverage
from lifecycle.audit.endings import COMMANDS, REFUSALS
from lifecycle.audit.story import Story, Teller
from lifecycle.audit.tables import Line, table
from lifecycle.audit.terms import Terms
from lifecycle.audit.words import count_of, name, share
from lifecycle.coverage import Outcome
from lifecycle.events import Clamped, Committed, Discarded, Record
from lifecycle.layout import KV

MOST_WAITING = 65536
"""Prefetches that one rank has ended and another has not said a word of: beyond it they are judged by what is known."""

_FIXED = COMMANDS | REFUSALS

Rule = Callable[[Terms, Story, Mapping[str, int]], Outcome]


def _today(terms: Terms, story: Story, agreed: Mapping[str, int]) -> Outcome:
    return _by_layout(terms, story, agreed, terms.degrade)


def _degrade(terms: Terms, story: Story, agreed: Mapping[str, int]) -> Outcome:
    return _by_layout(terms, story, agreed, True)


def _discard(terms: Terms, story: Story, agreed: Mapping[str, int]) -> Outcome:
    return _by_layout(terms, story, agreed, False)


def _by_layout(terms: Terms, story: Story, agreed: Mapping[str, int], degrade: bool) -> Outcome:
    left_out = () if story.plan is None else story.plan.left_out
    return coverage.outcome(terms.layout, degrade, story.issued.start_page, story.plan_page, left_out, agreed)


def _kv(terms: Terms, story: Story, agreed: Mapping[str, int]) -> Outcome:
    return Outcome(min(story.plan_page, agreed[KV]))


def _all_or_nothing(terms: Terms, story: Story, agreed: Mapping[str, int]) -> Outcome:
    start, plan = story.issued.start_page, story.plan_page
    for pool in terms.layout.required(terms.degrade):
        lo, hi = pool.window(start, plan)
        landed = coverage.landed_pages(pool, start, plan, agreed[pool.name])
        if lo < hi and landed != ((lo, hi),):
            return Outcome(start, short=pool.name)
    return Outcome(plan)


RULES: Mapping[str, tuple[Rule, str]] = {
    "today": (_today, "the rule of this library for the layout and policy in the log"),
    "discard": (_discard, "today's rule with shortfall=discard: a rebuildable sidecar is required"),
    "degrade": (_degrade, "today's rule with shortfall=degrade: a rebuildable sidecar is spared"),
    "all_or_nothing": (_all_or_nothing, "the whole plan in every required pool, or nothing"),
    "kv": (_kv, "what kv landed, whatever the sidecars did (unsafe: it shows what only the sidecars cost)"),
}


class Changed(msgspec.Struct, frozen=True):
    """A prefetch that would have ended otherwise. Pages are absolute ends."""

    prefetch: int
    request: str
    seq: int  # of the outcome on the first rank
    start_page: int
    plan_page: int
    was: str
    was_page: int
    now: str
    now_page: int
    short: str | None  # the pool that decides it
    ranks: int  # how many logs it is known from


class Redecided(msgspec.Struct, frozen=True):
    """What the rule makes of a run."""

    rule: str
    says: str
    decided: int  # prefetches to which the rule was applied
    fixed: int  # ended by a command, a lost anchor or without a plan: no rule has a say
    gained_pages: int
    lost_pages: int
    changed: tuple[Changed, ...]
    unknown: int  # not decided: events were lost meanwhile
    partial: int  # decided from fewer logs than the run had ranks


def redecide(terms: Terms, logs: Sequence[Iterable[Record]], rule: str) -> Redecided:
    """Apply a rule of `RULES` to the logs of one run, one log per rank. Raises `KeyError` for a rule that there is not."""
    apply, says = RULES[rule]
    decided = fixed = gained = lost = partial = unknown = 0
    changed: list[Changed] = []
    for stories in _joined(logs):
        first = stories[0]
        outcome = first.outcome
        reason = getattr(outcome, "reason", None)
        if first.plan is None or first.synced is None or (isinstance(outcome, Discarded) and reason in _FIXED):
            fixed += 1
            continue
        if any(story.gapped for story in stories):
            unknown += 1
            continue
        decided += 1
        partial += len(stories) < terms.ranks
        found = apply(terms, first, _agreed(terms, stories))
        start, was_page = first.issued.start_page, first.usable_page
        now_page = max(start, found.usable_page)
        now = "discarded" if now_page <= start else "committed" if now_page == first.plan_page else "clamped"
        was = type(outcome).__name__.lower()
        dropped = tuple(sorted(getattr(outcome, "dropped", ())))
        same_drops = now == "discarded" or rule in ("kv", "all_or_nothing") or tuple(sorted(found.dropped)) == dropped
        if (was, was_page) == (now, now_page) and same_drops:
            continue
        gained, lost = gained + max(0, now_page - was_page), lost + max(0, was_page - now_page)
        seq = first.at[type(outcome)][0] if outcome is not None else -1
        changed.append(Changed(first.id, first.issued.request, seq, start, first.plan_page, was, was_page, now, now_page,
                               found.short, len(stories)))  # fmt: skip
    return Redecided(rule, says, decided, fixed, gained, lost, tuple(changed), unknown, partial)


def _agreed(terms: Terms, stories: Sequence[Story]) -> dict[str, int]:
    """Return the least that any rank landed, and no more than was agreed: with a lag the rows are older than the freeze."""
    agreed = {}
    for pool in terms.layout.pools:
        least = min(story.run(terms.layout, pool.name) for story in stories)
        synced = stories[0].synced
        agreed[pool.name] = least if synced is None else min(least, synced.agreed.get(pool.name, least))
    return agreed


def _joined(logs: Sequence[Iterable[Record]]) -> Iterator[list[Story]]:
    """Yield each prefetch that has its outcome with its story on every rank, reading the logs in step."""
    streams = [_ended(log) for log in logs]
    waiting: dict[int, list[Story]] = {}
    live = dict(enumerate(streams))
    while live:
        for rank in list(live):
            story = next(live[rank], None)
            if story is None:
                del live[rank]
                continue
            known = waiting.setdefault(story.id, [])
            known.append(story)
            if len(known) == len(streams):
                yield waiting.pop(story.id)
        while len(waiting) > MOST_WAITING:
            yield waiting.pop(next(iter(waiting)))
    yield from waiting.values()


def _ended(records: Iterable[Record]) -> Iterator[Story]:
    teller = Teller()
    for record in records:
        story = teller.feed(record)
        if story is not None and isinstance(record.event, (Committed, Clamped, Discarded)) and record.event is story.outcome:
            yield story


def text(found: Redecided, most: int = 50) -> Iterator[Line]:
    """Yield what is printed."""
    yield f"rule {found.rule}: {found.says}"
    yield (
        f"{count_of(found.decided, 'prefetch')} decided again, {len(found.changed)} otherwise"
        f" ({share(len(found.changed), found.decided)}): {found.gained_pages} pages gained, {found.lost_pages} lost;"
        f" {found.fixed} ended by something that is no rule"
    )
    if found.unknown:
        yield f"cannot tell: of {count_of(found.unknown, 'prefetch')} events were lost, so that what landed is not known"
    if found.partial:
        yield f"note: {found.partial} of them from fewer logs than the run had ranks: one that is not here may have landed less"
    if found.changed:
        rows = [
            [str(c.prefetch), name(c.request), str(c.seq), f"[{c.start_page}:{c.plan_page})", f"{c.was} to {c.was_page}",
             f"{c.now} to {c.now_page}", name(c.short) if c.short else "-"]
            for c in found.changed[:most]
        ]  # fmt: skip
        yield table(["prefetch", "request", "seq", "plan", "was", "by this rule", "short pool"], rows)
    if len(found.changed) > most:
        yield f"and {len(found.changed) - most} more (--json has all)"
