"""What an event costs the scheduler's thread with the SQLite log attached, beside a plain list; the writer thread is at work.

    python -m tests.benchmarks.bench_append [--quick]

Ticks of 100 events and a flush each, as 5 prefetches make them, then 5 ms in which the thread sleeps as a scheduler does
while the device works. Counted are the appends and the flush: on the clock, and as time of the thread on a core. "Kept" is an
append by the coordinator: the record is made and its clock read, too.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lifecycle.events import AnyEvent, PagesLanded, ReadClaimed, ReadEnded, Record, TokensReturned
from stores.events import MemoryEventLog, SqliteEventLog
from tests.benchmarks.bed import Bed
from tests.benchmarks.common import Row, machine, median, show

BENCH = "append"
GOAL_US = 3.0
EVENTS = 100  # a tick
PAUSE_S = 0.005


class Listed:
    """The baseline: appends to a list that is handed over at the end of a tick."""

    def __init__(self) -> None:
        self._pending: list[Record] = []
        self.handed: list[Record] = []

    def append(self, record: Record) -> None:
        """Keep a record."""
        self._pending.append(record)

    def flush(self) -> None:
        """Hand over; drop what was handed over before."""
        self.handed, self._pending = self._pending, []

    def close(self) -> None:
        """Do nothing."""


def events(tick: int) -> list[AnyEvent]:
    """Return the events of a tick."""
    out: list[AnyEvent] = []
    for number in range(tick * EVENTS, (tick + 1) * EVENTS, 4):
        pages = (0, 32)
        out += [ReadClaimed(number, "kv", pages), PagesLanded(number, "kv", pages, 1 << 20)]
        out += [ReadEnded(number, "kv", pages), TokensReturned(number, 2_048)]
    return out


def appended(log: Any, tick: int) -> tuple[float, float]:
    """Append the records of a tick and flush; return microseconds an event, on the clock and on a core."""
    records = [Record(tick * EVENTS + place, time.monotonic_ns(), event) for place, event in enumerate(events(tick))]
    began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
    for record in records:
        log.append(record)
    log.flush()
    cpu, took = time.thread_time_ns() - began_cpu, time.perf_counter_ns() - began
    return took / 1e3 / EVENTS, cpu / 1e3 / EVENTS


def kept(rank: Any, tick: int) -> tuple[float, float]:
    """Have a rank keep the events of a tick and flush; return the same."""
    these = events(tick)
    began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
    for event in these:
        rank.append(event)
    rank.events.flush()
    cpu, took = time.thread_time_ns() - began_cpu, time.perf_counter_ns() - began
    return took / 1e3 / EVENTS, cpu / 1e3 / EVENTS


def measure(ticks: int) -> dict[str, list[tuple[float, float]]]:
    """Return the figures of each way, tick by tick; the ways take turns."""
    with tempfile.TemporaryDirectory(prefix="bench-append-") as folder:
        bare: dict[str, Any] = {
            "list": Listed(), "memory": MemoryEventLog(10 * ticks * EVENTS), "SQLite": SqliteEventLog(Path(folder) / "a.sqlite")
        }  # fmt: skip
        bed = Bed(events=lambda rank: SqliteEventLog(Path(folder) / "b.sqlite"))
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in (*bare, "kept")}
        for tick in range(ticks + 5):
            for name, log in bare.items():
                taken[name].append(appended(log, tick))
                time.sleep(PAUSE_S)
            taken["kept"].append(kept(bed.first._rank, tick))
            time.sleep(PAUSE_S)
        lost = bare["SQLite"].lost_events + bed.logs[0].lost_events
        assert not lost, f"{lost} events were lost"
        for log in bare.values():
            log.close()
        bed.close()
    return {name: took[5:] for name, took in taken.items()}


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    taken = measure(60 if quick else 400)
    clock = {name: median([wall for wall, _ in took]) for name, took in taken.items()}
    core = {name: median([cpu for _, cpu in took]) for name, took in taken.items()}
    base = f"{clock['list']:.2f} us, a list"
    for name, what in (("SQLite", "SQLite log"), ("kept", "kept by the coordinator, SQLite log"), ("memory", "log in memory")):
        us, goal = clock[name], name != "memory"
        yield Row(
            BENCH, f"event append on the scheduler thread, {what}", f"<= {GOAL_US:.0f} us" if goal else "", base,
            f"{us:.2f} us, of them {core[name]:.2f} on a core", f"{us / clock['list']:.1f}x",
            us <= GOAL_US if goal else None, "flush included", "append" if goal else "",
        )  # fmt: skip


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(machine())
    show(list(rows(options.quick)))


if __name__ == "__main__":
    main()
