"""What the benchmarks share: a row of the table, medians, and where the numbers come from."""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

WIDTH = 180
PAGE_BYTES_RSS = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `ratio` is what `goal` is about where there is a baseline, else `ours` is.

    `key` names the goal in `goals.GOALS`, if it is one of those. `met` is None where there is no goal, or nothing to compare
    with: `note` says which.
    """

    bench: str
    what: str
    goal: str
    baseline: str
    ours: str
    ratio: str
    met: bool | None
    note: str = ""
    key: str = ""


def median(values: Sequence[float]) -> float:
    """Return the median, NaN of nothing."""
    return statistics.median(values) if values else float("nan")


def machine() -> str:
    """Return where this runs, and how busy it is now."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    model = next((line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores of {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}, load {load}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES_RSS


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through at least two points."""
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    table = Table(show_lines=False)
    for name in ("bench", "what", "goal", "baseline", "ours", "ratio", ""):
        table.add_column(name, overflow="fold")
    before = ""
    for row in rows:
        if before and row.bench != before:
            table.add_section()
        before = row.bench
        verdict = "" if row.met is None else "met" if row.met else "MISSED"
        table.add_row(row.bench, row.what, row.goal, row.baseline, row.ours, row.ratio, f"{verdict} {row.note}".strip())
    Console(width=WIDTH).print(table)
