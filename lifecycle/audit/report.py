"""A run as one page of HTML: violations first, then what happened. No script, no network; everything from a log is escaped."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import IO

from lifecycle.audit.drawings import Span, occupancy, timeline
from lifecycle.audit.known import Known
from lifecycle.audit.laws import Violation
from lifecycle.audit.runs import Run
from lifecycle.audit.stats import WAITS, Stats
from lifecycle.audit.story import Story, Teller
from lifecycle.audit.verify import violations
from lifecycle.audit.words import count_of, duration, name, plain, share
from lifecycle.events import Clamped, Committed, Discarded, Issued, Record

MOST_VIOLATIONS, MOST_SPANS = 500, 200

_STYLE = """
:root{color-scheme:light dark;--bad:#c0392b;--good:#1e8449;--line:#8885}
body{font:14px/1.45 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
th{border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.wrap{overflow-x:auto}.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
.cols{display:flex;flex-wrap:wrap;gap:0 3rem}td{overflow-wrap:break-word;max-width:32rem}svg{max-width:100%;height:auto}
svg text{fill:currentColor;font:11px system-ui,sans-serif}.dim{opacity:.7}
"""


def text(value: object, limit: int = 400) -> str:
    """Return a value as HTML text: harmless, short, escaped."""
    return escape(plain(str(value), limit), quote=True)


def write_report(file: IO[bytes], runs: Sequence[Run]) -> int:
    """Write the page of these runs; return how many violations it shows or counts."""
    total = 0
    _put(file, "<!doctype html><html lang=en><head><meta charset=utf-8>")
    _put(file, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">")
    _put(file, '<meta name=viewport content="width=device-width,initial-scale=1"><title>Prefetch audit</title>')
    _put(file, f"<style>{_STYLE}</style></head><body><h1>Prefetch audit</h1>")
    for run in runs:
        total += _run(file, run)
    _put(file, "</body></html>\n")
    return total


def _put(file: IO[bytes], html: str) -> None:
    file.write(html.encode("utf-8", "backslashreplace"))


def _run(file: IO[bytes], run: Run) -> int:
    found: list[Violation] = []
    count = 0
    known = Known(run.opened)
    for violation in known.faults(violations([segment.records() for segment in run.segments])):
        count += 1
        if len(found) < MOST_VIOLATIONS:
            found.append(violation)
    _put(file, f"<h2>Run {text(name(run.id))}, {text(run.ranks)}</h2>")
    if run.missing and run.opened is not None:
        _put(file, f"<p class=bad>Not here: the logs of rank {text(', '.join(map(str, run.missing[:16])))}.</p>")
    _put(file, f"<p class={'bad' if count else 'good'}>{count_of(count, 'violation') if count else 'No violations'}</p>")
    for line in known.text():
        _put(file, f"<p class=dim>{text(line)}</p>")
    if found:
        rows = [
            [v.law.value, str(v.rank), "" if v.prefetch is None else str(v.prefetch), name(v.request or ""),
             ", ".join(map(str, v.seqs[:8])), v.what, v.right]
            for v in found
        ]  # fmt: skip
        _put(file, _table(["law", "rank", "prefetch", "request", "records", "what happened", "what was right"], rows, ()))
        if count > len(found):
            _put(file, f"<p class=dim>and {count - len(found)} more</p>")
    faulty = {v.prefetch for v in found if v.prefetch is not None}
    for place, segment in enumerate(run.segments):
        stats, spans = Stats(), _Spans(faulty)
        for record in segment.records():
            stats.feed(record)
            if place == 0:
                spans.feed(record)
        rank = "?" if segment.rank is None else str(segment.rank)
        _put(file, f"<h2>Rank {text(rank)}</h2>" + "".join(_numbers(stats)))
        _put(file, "<h3>Occupied tokens</h3>" + occupancy(stats.occupied.points(), stats.occupied.peak, stats.occupied_tokens))
        if place == 0:
            kept = spans.kept()
            _put(file, f"<h3>Prefetches over time</h3><p class=dim>{text(spans.words(len(kept)))}</p>" + timeline(kept))
    return count


class _Spans:
    """Those prefetches that are drawn: the faulty ones, and the last."""

    def __init__(self, faulty: set[int]) -> None:
        self._faulty = faulty
        self._teller = Teller()
        self._bad: list[Span] = []
        self._last: list[Span] = []
        self.seen = 0

    def feed(self, record: Record) -> None:
        """Take a record."""
        story = self._teller.feed(record)
        if story is not None and story.over:
            self._keep(story)

    def _keep(self, story: Story) -> None:
        self.seen += 1
        bad = story.id in self._faulty
        kept = self._bad if bad else self._last
        kept.append(_span(story, bad))
        if len(kept) > MOST_SPANS:
            del kept[0]

    def kept(self) -> list[Span]:
        """Return what is drawn, by time."""
        for story in list(self._teller.open.values())[-MOST_SPANS:]:
            self._keep(story)
        room = MOST_SPANS - min(MOST_SPANS // 2, len(self._bad))
        return sorted(self._bad + self._last[-room:], key=lambda span: span.start_ns)

    def words(self, kept: int) -> str:
        """Return what is drawn, in words."""
        return f"{kept} of {self.seen} are drawn: those with violations, and the last; hover for the request"


def _span(story: Story, bad: bool) -> Span:
    start = story.at[Issued][1]
    kind = next((kind for kind in (Committed, Clamped, Discarded) if kind in story.at), None)
    stop = max(place[1] for place in story.at.values())
    outcome = story.at[kind][1] if kind is not None else stop
    state = kind.__name__.lower() if kind is not None else "open"
    reason = getattr(story.outcome, "reason", None)
    title = f"prefetch {story.id} of {name(story.issued.request)}: {state}{f' as {reason}' if reason else ''}"
    return Span(start, outcome, stop, state, bad, title)


def _numbers(stats: Stats) -> Iterator[str]:
    whole = sum(stats.outcomes.values())
    yield "<div class=cols>"
    if whole:
        rows = [[reason, str(n), share(n, whole)] for reason, n in stats.reasons.most_common(64)]
        yield _table(["outcome and reason", "prefetches", "share"], rows, (1, 2))
    if stats.declined:
        yield _table(["declined as", "times"], [[reason, str(n)] for reason, n in stats.declined.most_common(64)], (1,))
    pages, asked = stats.pages, stats.pages["asked"]
    rows = [[what, str(pages[what]), share(pages[what], asked)] for what in ("asked", "hit", "planned", "published")]
    yield _table(["kv pages", "pages", "of asked"], rows, (1, 2))
    rows = [[pool, str(n)] for pool, n in stats.landed.most_common(64)]
    rows += [[f"{what} (failed)", str(n)] for what, n in stats.failed.most_common(64)]
    if rows:
        yield _table(["read", "pages"], rows, (1,))
    if stats.wasted:
        yield _table(["read and thrown away", "pages"], [[w, str(n)] for w, n in stats.wasted.most_common(64)], (1,))
    rows = []
    for wait in WAITS:
        summary = stats.waits[wait].summary()
        rows.append([wait.replace("_", " "), *(duration(summary[each]) for each in ("p50", "p90", "p99", "max"))])
    yield _table(["time", "p50", "p90", "p99", "max"], rows, (1, 2, 3, 4))
    yield "</div>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    kinds = [" class=n" if place in numbers else "" for place in range(len(columns))]
    head = "".join(f"<th{kind}>{text(column)}</th>" for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{text(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f"<div class=wrap><table><tr>{head}</tr>{body}</table></div>"
