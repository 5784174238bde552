"""An explanation on a screen of text."""

from collections.abc import Iterator

from rich.text import Text

from lifecycle import ranges as r
from lifecycle.audit.explain import Explanation, PrefetchTold, ViolationTold, WaitTold, headline
from lifecycle.audit.tables import Line, table
from lifecycle.audit.words import count_of, duration, name, pages, plain, some
from lifecycle.reasons import Reason

MOST = 12
"""So many prefetches, violations and bad pages are printed; `--json` has all."""


def text(told: Explanation) -> Iterator[Line]:
    """Yield what is printed."""
    yield f"request {name(told.request)} in run {name(told.run)} ({told.ranks})"
    yield f"rule      {told.rule}"
    for attempt, reason in told.declined[:MOST]:
        yield f"attempt {attempt} was declined: {reason}"
    for wait in told.waits[:MOST]:
        yield _wait(wait)
    for each in told.prefetches[-MOST:]:
        yield from _prefetch(each, "")
    for served in told.served[-MOST:]:
        parts = some((f"[{lo}:{hi}) from {_source(source)}" for lo, hi, source in served.sources), MOST)
        yield f"served    attempt {served.attempt} got pages [0:{served.end_page}) at seq {served.seq}: {parts or 'nothing'}"
    for each in told.sources[-MOST:]:
        yield from _prefetch(each, f" of request {name(each.request)}")
    if told.bad:
        yield "bad pages"
        for b in told.bad[:MOST]:
            where = pages(b.pages) if b.pages else "pages"
            yield f"  rank {b.rank}: {where} of {b.pool}, brought by prefetch {b.prefetch}: {b.why}"
        if len(told.bad) > MOST:
            yield f"  and {len(told.bad) - MOST} more (--json has all)"
    yield from _violations("laws broken", told.violations)
    yield from _violations("laws broken in the run beside it", told.beside)
    for unknown in told.unknown:
        yield f"cannot tell: {plain(unknown)}"
    style = {"garbled": "bold red", "at fault": "bold yellow", "clean": "green"}.get(told.verdict, "cyan")
    yield Text.assemble("verdict   ", (told.verdict.upper(), style), f" - {headline(told)}")


def _wait(w: WaitTold) -> str:
    what = "for room" if w.reason == Reason.RATE_LIMITED else f"to ask L3 again ({w.reason})"
    asked = f", asked {count_of(w.queries, 'time')} so far" if w.queries else ""
    until = "" if w.to_tick is None else f" to {w.to_tick}, then {'tried' if w.end == 'tried' else f'over: {w.end}'}"
    return f"waited    attempt {w.attempt} {what}, {_tokens(w.tokens)}{asked}, from tick {w.from_tick}{until} (seq {w.seq})"


def _source(source: int) -> str:
    return f"prefetch {source}" if source else "the engine's own write-back"


def _prefetch(p: PrefetchTold, whose: str) -> Iterator[Line]:
    seqs = p.seqs
    yield f"prefetch {p.prefetch}{whose}, attempt {p.attempt}: pages [{p.start_page}:{p.end_page}), {p.reserved_tokens} tokens"
    hits = ", ".join(f"rank {rank} to page {page}" for rank, page in p.hit_page.items()) or "not known"
    misses = "".join(f"; rank {rank}: {miss}" for rank, miss in p.miss.items())
    yield f"  hit       {hits}{misses}"
    if p.plan_page is not None:
        left = f", left out {', '.join(p.left_out)}" if p.left_out else ""
        yield f"  plan      to page {p.plan_page}{left} (seq {seqs.get('PlanAgreed', '-')})"
    if p.pools:
        columns = ["rank", "pool", "asked", "landed", "failed", "leading run to", "agreed to"]
        rows = [
            [str(row.rank), row.pool, r.text(row.asked), plain(r.text(row.landed), 60),
             some((f"{pages((at,))} {code}" for at, code in row.failed), 3) or "-", str(row.run_page),
             "-" if row.agreed_page is None else str(row.agreed_page)]
            for row in p.pools[:64]
        ]  # fmt: skip
        yield table(columns, rows, indent=2)
    why = f" as {p.reason}" if p.reason else ""
    short = f", {name(p.short)} fell short" if p.short else ""
    at = next((seqs[kind] for kind in ("Committed", "Clamped", "Discarded") if kind in seqs), None)
    published = f", pages [{p.start_page}:{p.usable_page}) published" if p.outcome in ("committed", "clamped") else ""
    dropped = f", without {', '.join(map(name, p.dropped))}" if p.dropped else ""
    yield f"  outcome   {p.outcome}{why}{short}{published}{dropped}" + ("" if at is None else f" (seq {at})")
    yield f"  times     queued {duration(p.queued_ns)}, issue to outcome {duration(p.took_ns)}"
    gone = some(f"{r.text(at_)} of {name(pool)} as {part}" for pool, at_, part in p.released) or "nothing"
    yield f"  effects   released {gone}; returned {_tokens(p.returned_tokens)}; credited {_tokens(p.credited_tokens)}"


def _tokens(tokens: int | None) -> str:
    return "no tokens" if tokens is None else count_of(tokens, "token")


def _violations(title: str, found: tuple[ViolationTold, ...]) -> Iterator[Line]:
    if not found:
        return
    yield f"{title}: {len(found)}"
    for v in found[:MOST]:
        whose = "" if v.prefetch is None else f" prefetch {v.prefetch}:"
        where = f"rank {v.rank} seq {', '.join(map(str, v.seqs)) or '-'}"
        yield f"  {v.law}: {where}:{whose} {plain(v.what)} (right: {plain(v.right)})"
    if len(found) > MOST:
        yield f"  and {len(found) - MOST} more (--json has all)"
