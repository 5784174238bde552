"""What the benchmarks of page reads share: ways to read that take turns, their lines, and the table."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from lifecycle.layout import preset
from stores.host import TorchHostMemory

SGLANG = "SGLang HiCacheFile"
BATCH_PAGES = 64
SIZES = {64 << 10: 512, 1 << 20: 64}  # bytes of a page: how many are read in a turn
GOALS = {  # DESIGN.md section 12, and >= 0.9 of Mooncake's own call without verification
    ("files", 64 << 10, "store, verified"): 0.4,
    ("files", 1 << 20, "store, verified"): 0.7,
    ("mooncake", 64 << 10, "store"): 0.9,
    ("mooncake", 1 << 20, "store"): 0.9,
    ("mooncake", 64 << 10, "store, header room"): 0.9,
    ("mooncake", 1 << 20, "store, header room"): 0.9,
}
Read = Callable[[Sequence[int]], None]
"""Reads the pages with these numbers, each into its own slot."""


@dataclass
class Line:
    """One line of the table."""

    what: str
    page_bytes: int
    threads: int
    way: str
    mb_per_s: float | None = None
    ratio: float | None = None  # to the bare call
    goal: float | None = None
    x_sglang: float | None = None  # to SGLang's backend
    cpu_us: float | None = None  # of this process, all its threads, per page
    note: str = ""


class Turns(NamedTuple):
    """What each repeat of a way took, in seconds: of the clock, and of all cores for this process."""

    wall: list[float]
    cpu: list[float]


def measure(ways: dict[str, Read], pages: int, threads: int, repeats: int, batch_pages: int = BATCH_PAGES) -> dict[str, Turns]:
    """Return what each repeat of each way took; the ways take turns."""
    parts = [range(pages)[place::threads] for place in range(threads)]
    names = list(ways)
    taken = {name: Turns([], []) for name in names}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(-1, repeats):  # the first one warms up and does not count
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                before, cpu_before = time.perf_counter(), time.process_time()
                for done in [pool.submit(_in_batches, ways[name], part, batch_pages) for part in parts]:
                    done.result()
                if turn >= 0:
                    taken[name].wall.append(time.perf_counter() - before)
                    taken[name].cpu.append(time.process_time() - cpu_before)
    return taken


def _in_batches(read: Read, part: Sequence[int], batch_pages: int) -> None:
    for start in range(0, len(part), batch_pages):
        read(part[start : start + batch_pages])


def lines_of(what: str, page_bytes: int, threads: int, pages: int, taken: dict[str, Turns]) -> Iterator[Line]:
    """Yield a line for each way; the first way is the bare call."""
    bare, sglang = next(iter(taken.values())), taken.get(SGLANG)
    for way, (wall, cpu) in taken.items():
        rate = pages * page_bytes / statistics.median(wall) / 1e6
        goal = GOALS.get((what.split(",")[0], page_bytes, way))
        x_sglang = _times(sglang.wall, wall) if sglang and way != SGLANG else None
        cpu_us = statistics.median(cpu) / pages * 1e6
        yield Line(what, page_bytes, threads, way, rate, _times(bare.wall, wall), goal, x_sglang, cpu_us)


def _times(base: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the median over the turns of how many times faster than the base."""
    return statistics.median(one / other for one, other in zip(base, seconds, strict=True))


def host(page_bytes: int, pages: int) -> tuple[NDArray[np.uint8], list[memoryview]]:
    """Return host memory as an engine has it, and a view of each slot."""
    memory = TorchHostMemory(preset("kv_only"), {"kv": pages}, {"kv": page_bytes})
    return memory.views("kv"), memory.buffers("kv", memory.allocate({"kv": pages})["kv"])


def store_read(store: Any, keys: Sequence[str], buffers: Sequence[memoryview]) -> Read:
    """Return a way to read through a page store."""

    def read(numbers: Sequence[int]) -> None:
        results = store.read_into("kv", [keys[number] for number in numbers], [buffers[number] for number in numbers])
        assert all(result.code is None for result in results), "a page was not read"

    return read


def show(lines: Sequence[Line], repeats: int) -> None:
    """Print the table."""
    cores = len(os.sched_getaffinity(0))
    table = Table(
        title=f"page reads into host memory; medians of {repeats} repeats, {cores} cores, load {os.getloadavg()[0]:.1f}"
    )
    for column, justify in (
        ("what", "left"), ("page", "right"), ("threads", "right"), ("way", "left"), ("MB/s", "right"), ("x bare", "right"),
        ("x SGLang", "right"), ("CPU us/page", "right"), ("goal", "right"), ("", "left"),
    ):  # fmt: skip
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for before, line in zip([None, *lines], lines, strict=False):
        if before is not None and (before.what, before.page_bytes, before.threads) != (
            line.what,
            line.page_bytes,
            line.threads,
        ):
            table.add_section()
        met = "" if line.goal is None or line.ratio is None else ("met" if line.ratio >= line.goal else "missed")
        table.add_row(
            line.what,
            f"{line.page_bytes >> 10} KiB",
            str(line.threads),
            line.way,
            "" if line.mb_per_s is None else f"{line.mb_per_s:,.0f}",
            "" if line.ratio is None else f"{line.ratio:.2f}",
            "" if line.x_sglang is None else f"{line.x_sglang:.2f}",
            "" if line.cpu_us is None else f"{line.cpu_us:.1f}",
            "" if line.goal is None else f">= {line.goal}",
            line.note or met,
        )
    Console(width=128).print(table)
