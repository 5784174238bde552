"""The benchmarks that have a command of their own, run as that command, and what they print turned into rows.

Those that compare with SGLang run in an environment that has it, or say that it is missing.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lifecycle.codec import encode
from tests.benchmarks import bench_audit
from tests.benchmarks.common import Row, median
from tests.benchmarks.goals import GOALS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NO_SGLANG = "SGLang is missing (tests/sglang/setup.sh builds an environment with it; --sglang PYTHON names another)"


def run(python: str, script: str, *options: str) -> str:
    """Run a benchmark's own command and return what it printed; raises `RuntimeError` with the end of it when it fails."""
    command = [python, str(HERE / script), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise RuntimeError(f"{script} failed with status {done.returncode}: {' / '.join(last)}")
    return done.stdout


def has_sglang(python: str) -> bool:
    """Say whether an interpreter can import SGLang."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    return subprocess.run([python, "-c", probe], check=False, capture_output=True).returncode == 0


def row(key: str, baseline: str, ours: str, ratio: str = "", met: bool | None = None, note: str = "") -> Row:
    """Return the row of a goal."""
    goal = GOALS[key]
    return Row(goal.bench, goal.what, goal.goal, baseline, ours, ratio, met, note, key)


# --- finalise and shadow ---


def finalise_rows(quick: bool, sglang: str) -> Iterator[Row]:
    """Yield the rows of `bench_finalise`."""
    printed = run(sglang, "bench_finalise.py", "--json", "--rounds", "75" if quick else "300")
    yield from finalised(json.loads(printed.strip().splitlines()[-1]))


def finalised(table: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """Turn medians in microseconds, by pages and side, into rows."""
    for pages, limit in (("32", 1.0), ("512", 0.3), ("2048", 0.1)):
        ours, theirs = table[pages]["ours"], table[pages].get("SGLang")
        key = f"finalise-{pages}"
        if theirs is None:
            yield row(key, "", f"{ours:.0f} us", note=NO_SGLANG)
        else:
            yield row(key, f"{theirs:.0f} us", f"{ours:.0f} us", f"{ours / theirs:.2f}x", ours / theirs <= limit)
    few, many = table["32"]["ours"], table["2048"]["ours"]
    yield row("finalise-flat", f"{few:.0f} us at 32", f"{many:.0f} us at 2,048", f"{many / few:.2f}x", many / few <= 1.5,
              "flat: up to 1.5x")  # fmt: skip


def shadow_rows(quick: bool, sglang: str) -> Iterator[Row]:
    """Yield the rows of `bench_shadow`."""
    what, goal = "what the shadow adds to SGLang's scheduler per prefetch", "<= 40 us + 1 us a page"
    if not has_sglang(sglang):
        yield Row("shadow", what, goal, "", "", "", None, NO_SGLANG)
        return
    printed = run(sglang, "bench_shadow.py", "--rounds", "75" if quick else "200")
    found = re.findall(r"^ *([\d,]+) pages.*shadow adds +([-\d.]+) us \(goal +(\d+)\)", printed, re.MULTILINE)
    if not found:
        raise RuntimeError(f"bench_shadow.py printed no figure: {printed[-200:]!r}")
    for pages, added, limit in found:
        yield Row("shadow", f"{what}, {pages} pages", f"<= {limit} us", "", f"{added} us", "", float(added) <= float(limit))


# --- audit ---


def audit_rows(quick: bool, sglang: str) -> Iterator[Row]:
    """Yield rate and peak of memory of `prefetch-audit verify`'s own code on clean logs, checked as `bench_audit` does."""
    events, repeat = (100_000, 3) if quick else (1_000_000, 3)
    rates, peaks = [], []
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as folder:
        for size in (events // 10, events):
            path, written = Path(folder) / f"{size}-rank0.jsonl", 0
            with path.open("wb") as file:
                for record in bench_audit.log(size, 0, 1, 64):
                    file.write(encode(record) + b"\n")
                    written += 1
            runs = [run(sys.executable, "bench_audit.py", "--check", str(path)).split() for _ in range(repeat)]
            rates.append(written / median([float(each[1]) for each in runs]))
            peaks.append(max(int(each[2]) for each in runs) / 1024)
    yield row("audit-rate", "", f"{rates[1]:,.0f} events/s", f"{rates[1] / bench_audit.GOAL:.2f}", rates[1] >= bench_audit.GOAL,
              f"{events:,} events of one rank, 64 in flight")  # fmt: skip
    yield row("audit-memory", f"{peaks[0]:.0f} MiB for {events // 10:,} events", f"{peaks[1]:.0f} MiB for {events:,}",
              f"{peaks[1] / peaks[0]:.2f}x", peaks[1] <= 1.1 * peaks[0], "the same: up to 1.1x")  # fmt: skip


# --- pages ---


def page_rows(quick: bool, sglang: str) -> Iterator[Row]:
    """Yield the rows of `bench_pages`: files where SGLang is, if anywhere; Mooncake in this environment."""
    python = sglang if has_sglang(sglang) else sys.executable
    repeats, threads = ("5", "1,4") if quick else ("15", "1,2,4,8")
    with tempfile.TemporaryDirectory(prefix="bench-pages-") as folder:
        path = Path(folder) / "pages.json"
        run(python, "bench_pages.py", "--only", "files", "--repeats", repeats, "--threads", threads, "--json", str(path))
        yield from file_rows(json.loads(path.read_text()))
        if importlib.util.find_spec("mooncake") is None:
            yield Row("pages", "Mooncake reads without verification, against its bare call", ">= 0.9x", "", "", "", None,
                      "Mooncake is missing (pip install 'prefetch-lifecycle[mooncake]')")  # fmt: skip
            return
        run(sys.executable, "bench_pages.py", "--only", "mooncake", "--repeats", repeats, "--json", str(path))
        yield from mooncake_rows(json.loads(path.read_text()))


def file_rows(lines: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Turn the lines of `bench_pages` about files into rows, each of the number of threads where it is worst."""
    for page_bytes, size, limit in ((1 << 20, "1mib", 0.7), (64 << 10, "64kib", 0.4)):
        of_size = [line for line in lines if line["page_bytes"] == page_bytes]
        ways = {way: [line for line in of_size if line["way"] == way] for way in {line["way"] for line in of_size}}
        for key, way, least in ((f"pages-{size}", "bare readv", limit), (f"pages-sglang-{size}", "SGLang HiCacheFile", 1.0)):
            base = {line["threads"]: line["mb_per_s"] for line in ways.get(way, ())}
            pairs = [(line, base.get(line["threads"])) for line in ways["store, verified"]]
            if any(rate is None for _, rate in pairs):
                note = NO_SGLANG if "SGLang" in way else f"bench_pages has no line {way!r}"
                yield row(key, "", f"{min(line['mb_per_s'] for line, _ in pairs):,.0f} MB/s", note=note)
                continue
            # To the bare call the benchmark's own ratio, taken turn by turn.
            ratios = [(line["ratio"] if way == "bare readv" else line["mb_per_s"] / rate, line, rate) for line, rate in pairs]
            worst, line, rate = min(ratios, key=lambda each: each[0])
            met = worst >= least if way == "bare readv" else worst > least
            counts = ", ".join(str(line["threads"]) for _, line, _ in ratios)
            yield row(key, f"{rate:,.0f} MB/s", f"{line['mb_per_s']:,.0f} MB/s", f"{worst:.2f}x", met,
                      f"{line['threads']} threads, the worst of {counts}")  # fmt: skip


def mooncake_rows(lines: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Turn the lines of `bench_pages` about Mooncake into rows."""
    for line in lines:
        if line["note"]:
            yield Row("pages", f"{line['what']}, {line['way']}", ">= 0.9x", "", "", "", None, line["note"])
        elif line["way"].startswith("store"):
            same = [each for each in lines if all(each[name] == line[name] for name in ("what", "page_bytes", "threads"))]
            base = next(each for each in same if each["way"] == "bare batch_get_into")
            goal = "" if line["goal"] is None else f">= {line['goal']}x"
            met = None if line["goal"] is None else line["ratio"] >= line["goal"]
            how = "verified" if "verified" in line["way"] else "not verified"
            room = "header room, " * ("header room" in line["way"])
            what = f"{line['what']}, {line['page_bytes'] >> 10} KiB, {room}{how}, against bare batch_get_into"
            rates = [f"{each['mb_per_s']:,.0f} MB/s" for each in (base, line)]
            yield Row("pages", what, goal, *rates, f"{line['ratio']:.2f}x", met)
