"""Page reads into host memory: the file and Mooncake stores beside the bare calls under them. One run, one table.

    python tests/benchmarks/bench_pages.py [--repeats 15] [--threads 1,2,4,8] [--only files|mooncake] [--json FILE]

All files are in the page cache. The ways to read the same pages take turns, the first one changing; what is shown is the
median over the repeats of the rate, and of the ratio to the bare call of the same turn. Run it on a quiet machine.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "stores")]

import mooncake_master  # noqa: E402  # after the path is right
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from lifecycle.keys import EMPTY_NAMESPACE, page_keys  # noqa: E402
from lifecycle.layout import preset  # noqa: E402
from stores.host import TorchHostMemory  # noqa: E402
from stores.pages import FilePageStore, MooncakePageStore  # noqa: E402
from stores.pages.header import HEADER_BYTES  # noqa: E402

BATCH_PAGES = 64
SIZES = {64 << 10: 512, 1 << 20: 64}  # bytes of a page: how many are read in a turn
GOALS = {  # DESIGN.md section 12, and >= 0.9 of Mooncake's own call without verification
    ("files", 64 << 10, "store, verified"): 0.4,
    ("files", 1 << 20, "store, verified"): 0.7,
    ("mooncake", 64 << 10, "store"): 0.9,
    ("mooncake", 1 << 20, "store"): 0.9,
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
    ratio: float | None = None
    goal: float | None = None
    note: str = ""


def main() -> int:
    """Run every part, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", default="1,2,4,8")
    parser.add_argument("--only", choices=("files", "mooncake"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads = [int(part) for part in options.threads.split(",")]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="bench-pages-") as folder:
        for page_bytes in SIZES if options.only != "mooncake" else ():
            lines += bench_files(Path(folder), page_bytes, threads, options.repeats)
        if options.only != "files":
            lines += bench_mooncake(Path(folder), threads[:1], options.repeats)
    show(lines, options.repeats)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return 0


def measure(ways: dict[str, Read], pages: int, threads: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each repeat for each way; the ways take turns."""
    parts = [range(pages)[place::threads] for place in range(threads)]
    names = list(ways)
    taken: dict[str, list[float]] = {name: [] for name in names}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(-1, repeats):  # the first one warms up and does not count
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                before = time.perf_counter()
                for done in [pool.submit(_in_batches, ways[name], part) for part in parts]:
                    done.result()
                if turn >= 0:
                    taken[name].append(time.perf_counter() - before)
    return taken


def _in_batches(read: Read, part: Sequence[int]) -> None:
    for start in range(0, len(part), BATCH_PAGES):
        read(part[start : start + BATCH_PAGES])


def lines_of(what: str, page_bytes: int, threads: int, pages: int, taken: dict[str, list[float]]) -> Iterator[Line]:
    """Yield a line for each way; the first way is the bare call."""
    bare = next(iter(taken.values()))
    for way, seconds in taken.items():
        ratio = statistics.median(one / other for one, other in zip(bare, seconds, strict=True))
        rate = pages * page_bytes / statistics.median(seconds) / 1e6
        yield Line(what, page_bytes, threads, way, rate, ratio, GOALS.get((what.split(",")[0], page_bytes, way)))


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


# --- files ---


def bench_files(folder: Path, page_bytes: int, threads: Sequence[int], repeats: int) -> Iterator[Line]:
    """Yield the lines for files with pages of this size."""
    pages = SIZES[page_bytes]
    memory, buffers = host(page_bytes, pages)
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.shape, np.uint8)
    keys = page_keys(range(pages), 1)
    root = folder / f"files-{page_bytes}"
    stores = {
        verify: FilePageStore(root, {"kv": page_bytes}, EMPTY_NAMESPACE, "r0of1", verify=verify) for verify in (False, True)
    }
    assert all(stores[True].write("kv", keys, buffers))
    paths = {path.name: str(path) for path in (root / "r0of1").rglob("*") if path.is_file()}

    def bare(numbers: Sequence[int]) -> None:
        header = bytearray(HEADER_BYTES)
        for number in numbers:
            fd = os.open(paths[keys[number]], os.O_RDONLY)
            os.readv(fd, [header, buffers[number]])
            os.close(fd)

    ways: dict[str, Read] = {
        "bare readv": bare,
        "store": store_read(stores[False], keys, buffers),
        "store, verified": store_read(stores[True], keys, buffers),
    }
    sglang = sglang_read(folder / f"sglang-{page_bytes}", memory, keys)
    if sglang is not None:
        ways["SGLang HiCacheFile"] = sglang
    for count in threads:
        yield from lines_of("files", page_bytes, count, pages, measure(ways, pages, count, repeats))
        if sglang is None:
            yield Line("files", page_bytes, count, "SGLang HiCacheFile", note="not installed")
    for store in stores.values():
        store.close()


def sglang_read(folder: Path, memory: NDArray[np.uint8], keys: Sequence[str]) -> Read | None:
    """Return a way to read through SGLang's file backend, None where it is not installed."""
    if importlib.util.find_spec("sglang") is None:
        return None
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "bench")
    backend = HiCacheFile(config, str(folder))
    slots = list(torch.from_numpy(memory))
    for key, slot in zip(keys, slots, strict=True):
        backend.set(key, slot)

    def read(numbers: Sequence[int]) -> None:
        got = backend.batch_get([keys[number] for number in numbers], [slots[number] for number in numbers])
        assert all(each is not None for each in got), "a page was not read"

    return read


# --- Mooncake ---

LENDER = """
import sys
from stores.pages.mooncake_engine import Address, connect
engine = connect(Address.parse(sys.argv[1]), sys.argv[2], 512 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def bench_mooncake(folder: Path, threads: Sequence[int], repeats: int) -> Iterator[Line]:
    """Yield the lines for Mooncake: pages that lie in this process, and in another one, over TCP."""
    if (reason := mooncake_master.why_not()) is not None:
        yield Line("mooncake", 0, 0, "store", note=reason)
        return
    for what, lender in (("mooncake, own memory", False), ("mooncake, other process", True)):
        with ExitStack() as stack:
            master = stack.enter_context(mooncake_master.running(folder))
            if lender:
                stack.enter_context(lending(master))
            engine = master.client(0 if lender else 512 << 20)
            stack.callback(engine.close)
            for page_bytes in SIZES:
                for count in threads:
                    yield from bench_engine(what, engine, page_bytes, count, repeats)


@contextmanager
def lending(master: mooncake_master.Master) -> Iterator[None]:
    """Run a process that lends its memory to the cluster."""
    command = [sys.executable, "-c", LENDER, str(master.address), master.metadata]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.stdin.close()


def bench_engine(what: str, engine: Any, page_bytes: int, threads: int, repeats: int) -> Iterator[Line]:
    """Yield the lines for one engine and page size."""
    pages = SIZES[page_bytes]
    keys = page_keys(range(pages), 1)
    stores, hosts = [], []
    for verify in (False, True):  # memory is registered with one store only
        hosts.append(host(page_bytes, pages))
        stores.append(MooncakePageStore(engine, {"kv": page_bytes}, EMPTY_NAMESPACE, "r0of1", verify))
        stores[-1].register([hosts[-1][0]])
    memory, buffers = hosts[0]
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.shape, np.uint8)
    names = [f"bare/{page_bytes}/{key}" for key in keys]
    addresses = [memory.ctypes.data + page_bytes * number for number in range(pages)]
    for start in range(0, pages, BATCH_PAGES):
        part = slice(start, start + BATCH_PAGES)
        assert set(engine.batch_put_from(names[part], addresses[part], [page_bytes] * len(names[part]))) == {0}
    assert all(stores[0].write("kv", keys, buffers))

    def bare(numbers: Sequence[int]) -> None:
        sizes = [page_bytes] * len(numbers)
        got = engine.batch_get_into([names[number] for number in numbers], [addresses[number] for number in numbers], sizes)
        assert got == sizes, "a page was not read"

    heads = np.zeros((BATCH_PAGES, HEADER_BYTES), np.uint8)
    assert engine.register_buffer(heads.ctypes.data, heads.nbytes) == 0
    head_at = range(heads.ctypes.data, heads.ctypes.data + heads.nbytes, HEADER_BYTES)
    objects = stores[0]._pools["kv"].names(keys)

    def bare_with_header(numbers: Sequence[int]) -> None:
        places = [[head, addresses[number]] for head, number in zip(head_at, numbers, strict=False)]
        sizes = [[HEADER_BYTES, page_bytes]] * len(numbers)
        got = engine.batch_get_into_multi_buffers([objects[number] for number in numbers], places, sizes)
        assert got == [HEADER_BYTES + page_bytes] * len(numbers), "a page was not read"

    ways = {
        "bare batch_get_into": bare,
        "bare, header beside": bare_with_header,
        "store": store_read(stores[0], keys, buffers),
        "store, verified": store_read(stores[1], keys, hosts[1][1]),
    }
    yield from lines_of(what, page_bytes, threads, pages, measure(ways, pages, threads, repeats))
    stores[0].delete("kv", keys)
    engine.batch_remove(names, True)
    engine.unregister_buffer(heads.ctypes.data)
    detours = {cause: count for store in stores for cause, count in store.stats().items() if cause.endswith("detour")}
    assert not detours, f"pages took a detour: {detours}"
    for store in stores:
        store.close()


# --- the table ---


def show(lines: Sequence[Line], repeats: int) -> None:
    """Print the table."""
    cores = len(os.sched_getaffinity(0))
    table = Table(
        title=f"page reads into host memory; medians of {repeats} repeats, {cores} cores, load {os.getloadavg()[0]:.1f}"
    )
    for column, justify in (
        ("what", "left"), ("page", "right"), ("threads", "right"), ("way", "left"), ("MB/s", "right"), ("x bare", "right"),
        ("goal", "right"), ("", "left"),
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
            "" if line.goal is None else f">= {line.goal}",
            line.note or met,
        )
    Console(width=128).print(table)


if __name__ == "__main__":
    sys.exit(main())
