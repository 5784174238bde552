"""Drawings of a report, as SVG: occupancy over time, prefetches over time. Numbers in, markup out; titles are escaped."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from lifecycle.audit.words import duration, plain

_WIDTH, _LEFT = 1060, 4
_COLOURS = {"committed": "#1e8449", "clamped": "#b7950b", "discarded": "#7f8c8d", "open": "#2471a3"}


class Span(NamedTuple):
    """One prefetch: from issue to outcome, and to the end of its debts. Times in ns."""

    start_ns: int
    outcome_ns: int
    stop_ns: int
    state: str
    bad: bool
    title: str


def occupancy(points: Sequence[tuple[int, int]], peak: int, last: int) -> str:
    """Return a curve of (ns, tokens)."""
    height = 90
    if not points or peak <= 0:
        return "<p class=dim>Nothing was reserved.</p>"
    if len(points) == 1:
        return f"<p class=dim>Peak {peak} tokens, {last} at the end; the run was too short for a curve.</p>"
    end = points[-1][0] + points[1][0]
    step = " ".join(f"{_x(at, 0, end):.1f},{_y(value, peak, height):.1f}" for at, value in points)
    words = f"peak {peak} tokens, {last} at the end, over {duration(end)}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height + 20}" role=img aria-label="{escape(words)}">'
        f'<polyline points="{step}" fill="none" stroke="#2471a3" stroke-width="1.5"/>'
        f'<line x1="0" x2="{_WIDTH}" y1="{height}" y2="{height}" stroke="currentColor" stroke-opacity=".3"/>'
        f'<text x="{_LEFT}" y="{height + 15}">{escape(words)}</text></svg>'
    )


def timeline(spans: Sequence[Span]) -> str:
    """Return one bar for each prefetch: solid up to its outcome, pale until its last debt is paid."""
    if not spans:
        return "<p class=dim>No prefetch.</p>"
    row = 7
    start, end = min(span.start_ns for span in spans), max(span.stop_ns for span in spans)
    end = max(end, start + 1)
    height = len(spans) * row + 24
    bars = []
    for place, span in enumerate(spans):
        y = place * row + 1
        x, middle, stop = (_x(at, start, end) for at in (span.start_ns, span.outcome_ns, span.stop_ns))
        colour = "#c0392b" if span.bad else _COLOURS.get(span.state, "#2471a3")
        bars.append(
            f"<g><title>{escape(plain(span.title))}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{max(1.5, middle - x):.1f}" height="{row - 2}" fill="{colour}"/>'
            f'<rect x="{middle:.1f}" y="{y}" width="{max(0.5, stop - middle):.1f}" height="{row - 2}" fill="{colour}"'
            ' fill-opacity=".3"/></g>'
        )
    legend = "green committed, yellow clamped, grey discarded, blue open, red with violations"
    words = f"{duration(end - start)}; {legend}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role=img aria-label="{escape(words)}">{"".join(bars)}'
        f'<text x="{_LEFT}" y="{height - 6}">{escape(words)}</text></svg>'
    )


def _x(at: int, start: int, end: int) -> float:
    return (_WIDTH - 2 * _LEFT) * min(1.0, max(0, at - start) / (end - start)) + _LEFT


def _y(value: int, peak: int, height: int) -> float:
    return (height - 4) * (1 - min(1.0, max(0, value) / peak)) + 2
