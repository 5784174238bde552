"""How the scheduler's work for one prefetch grows with what is in flight and with its pages; log bytes; memory; the soak.

    python -m tests.benchmarks.bench_growth [--quick] [--soak 1000000 [--every 100000]]

Time is that of rank 0's thread on a core, in its own calls alone: issue (with the match), ticks, ready, take_loaded, finish.
Readers and the other rank are worked by hand between them. Medians; the sizes take turns.
"""

import argparse
import gc
import itertools
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stores.events import JsonLinesEventLog, SqliteEventLog
from tests.benchmarks.bed import Bed
from tests.benchmarks.common import Row, machine, median, show
from tests.benchmarks.soak import soak

BENCH = "growth"
PAGES = 4
IN_FLIGHT = (1, 100, 1_000, 10_000)
SPANS = (1, 8, 64, 512, 4_096, 8_192)
FLAT = 1.5


def together(ranks: int, count: int) -> float:
    """Return the microseconds of one of `count` prefetches that are issued, read and finished together."""
    bed = Bed(ranks, capacity=(count + 64) * PAGES)
    prompts = [bed.prompt(PAGES) for _ in range(count + 1)]
    bed.issue("warm", prompts.pop())
    bed.run(["warm"])
    bed.spent_ns = 0
    requests = [f"r{number}" for number in range(count)]
    for request, keys in zip(requests, prompts, strict=True):
        bed.issue(request, keys)
    bed.run(requests)
    bed.close()
    return bed.spent_ns / 1e3 / count


def beside(ranks: int, sizes: Sequence[int], times: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return the microseconds of one prefetch, and of its ticks, among so many: the reads of the others are out."""
    beds = {size: Bed(ranks, capacity=size + (times + 4) * PAGES) for size in sizes}
    for size, bed in beds.items():
        bed.hold(size - 1)
    gc.collect()
    gc.freeze()  # as a server does once it is up
    of_one: dict[int, list[float]] = {size: [] for size in sizes}
    of_tick: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(times + 2):
        for size, bed in beds.items():
            keys, before = bed.prompt(PAGES), bed.first.tick_number
            bed.spent_ns = 0
            bed.issue(f"r{number}", keys)
            bed.run([f"r{number}"])
            of_one[size].append(bed.spent_ns / 1e3)
            of_tick[size].append(bed.spent_ns / 1e3 / (bed.first.tick_number - before))
    gc.unfreeze()
    for bed in beds.values():
        bed.close()
    # The first ones warm up.
    return tuple({size: median(took[2:]) for size, took in each.items()} for each in (of_one, of_tick))  # type: ignore[return-value]


def flat(what: str, sizes: Sequence[int], unit: str, measured: dict[int, float], goal: bool, note: str = "") -> Row:
    """Return the row for a cost that should be flat over the sizes: the greatest beside that of the smallest."""
    base = measured[sizes[0]]
    worst = max(measured[size] for size in sizes) / base
    ours = ", ".join(f"{size:,}: {measured[size]:.0f}" for size in sizes)
    wanted = f"<= {FLAT}x" if goal else ""
    return Row(BENCH, what, wanted, f"{base:.0f} us at {sizes[0]}", f"us {unit} {ours}", f"{worst:.2f}x",
               worst <= FLAT if goal else None, note, "growth" if goal else "")  # fmt: skip


def in_flight_rows(sizes: Sequence[int], quick: bool) -> Iterator[Row]:
    """Yield the rows over how many are in flight."""
    times = 10 if quick else 40
    turns = {size: 1 if size > 1_000 else 3 for size in sizes}
    for ranks in (1, 2):
        found: dict[int, list[float]] = {size: [] for size in sizes}
        for turn in range(3):
            for size in sizes:
                if turn < turns[size]:
                    repeats = max(1, 200 // size) if not quick else max(1, 40 // size)
                    found[size] += [together(ranks, size) for _ in range(repeats)]
        cost = {size: median(values) for size, values in found.items()}
        yield flat(f"prefetches in flight together, {_ranks(ranks)}", sizes, "each, of", cost, True)
    cost, _ = beside(1, sizes, times)
    yield flat("one prefetch beside others whose reads are out, 1 rank", sizes, "each, among", cost, True)
    beyond = [size for size in sizes if size >= 100]  # from there on every round is full
    _, ticks = beside(2, beyond, 3)
    note = "64 rows each, whatever is in flight: a prefetch waits in turn, no tick gets longer"
    yield flat("one tick beside others whose reads are out, 2 ranks", beyond, "a tick, among", ticks, True, note)


def page_rows(spans: Sequence[int], times: int) -> Iterator[Row]:
    """Yield the row over the pages of one prefetch."""
    cost: dict[int, float] = {}
    for pages in spans:
        bed, took = Bed(capacity=pages * (times + 3), max_pages=max(spans)), list[float]()
        for number in range(times + 2):
            keys = bed.prompt(pages)
            bed.spent_ns = 0
            bed.issue(f"r{number}", keys)
            bed.run([f"r{number}"])
            took.append(bed.spent_ns / 1e3)
        bed.close()
        cost[pages] = median(took[2:])
    first, last = spans[0], spans[-1]
    per_page = (cost[last] - cost[first]) / (last - first)
    note = f"{per_page:.3f} us a page more"
    yield flat("pages of one prefetch, issue to close, 1 rank", spans, "each, of", cost, False, note)


def log_rows(count: int) -> Iterator[Row]:
    """Yield what one prefetch leaves in a log on disk."""
    kinds: dict[str, Callable[[Path], Any]] = {"JSON lines": JsonLinesEventLog, "SQLite": SqliteEventLog}
    for (name, build), ranks in itertools.product(kinds.items(), (1, 2)):
        with tempfile.TemporaryDirectory(prefix="bench-log-") as folder:
            bed = Bed(ranks, capacity=count * PAGES, events=lambda rank: build(Path(folder) / f"rank{rank}.log"))  # noqa: B023
            appended = _count_appended(bed)
            requests = [f"request-{number}" for number in range(count)]
            for request in requests:
                bed.issue(request, bed.prompt(PAGES))
            bed.run(requests)
            bed.close()
            size = sum(path.stat().st_size for path in Path(folder).glob("rank0.log*"))
        ours = f"{size / count:,.0f} bytes a prefetch, {appended[0] / count:.1f} events"
        yield Row(BENCH, f"log of one rank, {name}, {_ranks(ranks)}", "", "", ours, "", None, f"{PAGES} pages each, rounds too")


def _count_appended(bed: Bed) -> list[int]:
    counted, append = [0], bed.logs[0].append

    def counting(record: object) -> None:
        counted[0] += 1
        append(record)

    bed.logs[0].append = counting
    return counted


def memory_rows(count: int) -> Iterator[Row]:
    """Yield what one prefetch in flight takes in memory on one rank, and what is left of it."""
    bed, kept = Bed(capacity=count * PAGES), list[int]()
    tracemalloc.start()
    try:
        for turn in range(4):
            requests = [f"r{turn}.{number}" for number in range(count)]
            prompts = [bed.prompt(PAGES) for _ in range(count)]
            kept.append(_traced())
            for request, keys in zip(requests, prompts, strict=True):
                bed.issue(request, keys)
            bed.work()
            bed.tick()
            in_flight = _traced() - kept[-1]
            bed.run(requests)
        left = kept[3] - kept[2]  # the first turns fill the index and the tables; later ones evict as much as they bring
    finally:
        tracemalloc.stop()
    ours = f"{in_flight / count:,.0f} bytes"
    yield Row(BENCH, "memory of one prefetch in flight, its reads queued, 1 rank", "", "", ours, "", None, f"of {count:,}")
    ours, note = f"{left / count:+,.2f} bytes", f"after {count:,} more, which took the place of as many in the index"
    yield Row(BENCH, "memory of one prefetch after its close", "nothing kept", "", ours, "", left < count, note)


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _ranks(ranks: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)}"


def rows(quick: bool) -> Iterator[Row]:
    """Yield every row."""
    yield from in_flight_rows(IN_FLIGHT[:3] if quick else IN_FLIGHT, quick)
    yield from page_rows(SPANS, 5 if quick else 15)
    yield from log_rows(200 if quick else 1_000)
    yield from memory_rows(500 if quick else 2_000)


def main() -> None:
    """Print the rows, or run the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 in flight, fewer repeats")
    parser.add_argument("--soak", type=int, metavar="N", help="run N prefetches through one coordinator instead")
    parser.add_argument("--every", type=int, default=100_000, help="say how much memory there is after so many")
    options = parser.parse_args()
    if options.soak is not None:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            soak(options.soak, Path(folder), options.every)
        return
    print(machine())
    show(list(rows(options.quick)))


if __name__ == "__main__":
    main()
