"""Words for people: text from a log made harmless and short; pages, times and shares. Knows no law."""

from collections.abc import Iterable

from lifecycle import ranges as r
from lifecycle.ranges import Ranges

SHOWN = 96
"""A name from a log is cut to so many characters: nobody reads a request id of a megabyte."""


def plain(text: str, limit: int = 400) -> str:
    """Return one line that a terminal shows as it is: control characters escaped, what is too long cut and counted."""
    cut = text if len(text) <= limit else text[:limit]
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)
    return shown if len(text) <= limit else f"{shown}... ({len(text)} characters)"


def name(text: str) -> str:
    """Return an id from a log, as a name."""
    return plain(text, SHOWN)


def some(items: Iterable[object], limit: int = 8) -> str:
    """Return the first few items, and how many more there are."""
    words = [str(item) for item in items]
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def pages(runs: Ranges) -> str:
    """Return pages in words: `page 4`, `pages 4 to 7`, `pages 0 to 1, 5`; first and last page, both included."""
    if not runs:
        return "no page"
    words = some((f"{lo}" if hi == lo + 1 else f"{lo} to {hi - 1}") for lo, hi in runs)
    return f"page{'s' * (r.count(runs) > 1)} {words}"


def duration(ns: float | None) -> str:
    """Return a duration with three digits that count."""
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}" if abs(ns) < 1000 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.0f} ns"


def share(part: int, whole: int) -> str:
    """Return a share in percent."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: `1 page`, `2 pages`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
