"""How fast the audit checks a log, and in how much memory: events a second on one core, from the file and from memory.

    python tests/benchmarks/bench_audit.py [--events 1000000] [--ranks 1] [--format jsonl] [--in-flight 64] [--repeat 3]
    python tests/benchmarks/bench_audit.py --events 10000000 --repeat 1     # 1.2 GB in the folder for temporary files

Writes clean logs of a tenth of the events and of all of them: made-up prefetches that overlap (`--in-flight` at once; every
fifth is short, every eleventh aborted with a read out), in the order and with the facts that the coordinator logs. Checks them
with the code of `prefetch-audit verify`, each in a process of its own, and prints medians and the peak of resident memory.
"""

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lifecycle.audit.verify import violations
from lifecycle.codec import encode
from lifecycle.events import (
    AnchorUnlocked,
    AnyEvent,
    Capped,
    Clamped,
    Closed,
    Committed,
    CoordinatorStopped,
    Discarded,
    Evicted,
    HitResolved,
    HostHandedOver,
    HostReleased,
    HostReserved,
    Issued,
    LoadedTaken,
    LogOpened,
    PagesLanded,
    PagesUnlocked,
    PlanAgreed,
    PrefixServed,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    Record,
    RequestFinished,
    RoundDone,
    Settled,
    Synced,
    Terminated,
    TokensCredited,
    TokensReturned,
    TransferStarted,
)  # fmt: skip
from lifecycle.layout import dsa
from lifecycle.policies import Policies
from lifecycle.reasons import Part, ReadCode, Reason
from stores.events import SqliteEventLog, read_log

PAGES, PAGE_TOKENS, KEY = 32, 64, "ab" * 32
GOAL = 200_000


def story(id_: int, slots: tuple[int, int], ranks: int) -> Iterator[AnyEvent | str]:
    """Yield the events of one prefetch; at "pause" others have their turn."""
    request, tokens = f"request-{id_}", PAGES * PAGE_TOKENS
    short, aborted = id_ % 5 == 0, id_ % 11 == 0
    landed = PAGES - 4 if short else PAGES
    yield Issued(id_, request, 0, 0, PAGES, KEY, "", tokens)
    yield "pause"
    yield HitResolved(id_, PAGES, {"kv": PAGES, "indexer": PAGES}, None)
    yield "pause"
    yield PlanAgreed(id_, PAGES, PAGES, None, {"kv": (0, PAGES)}, ())
    yield HostReserved(id_, "kv", (0, PAGES), (slots,))
    yield "pause"
    yield ReadClaimed(id_, "kv", (0, PAGES))
    yield TransferStarted(id_, 1000)
    if aborted:
        yield Discarded(id_, Reason.ABORTED, None)
        yield TokensReturned(id_, tokens)
        yield AnchorUnlocked(id_)
        yield "pause"
        yield ReadEnded(id_, "kv", (0, PAGES))
        yield HostReleased(id_, "kv", ((0, PAGES),), Part.TAIL)
        yield Settled(id_)
        yield "pause"
        yield Closed(id_)
        yield RequestFinished(request)
        return
    yield PagesLanded(id_, "kv", (0, PAGES), PAGES * 4096)
    yield "pause"
    yield PagesLanded(id_, "indexer", (0, landed), landed * 1024)
    if short:
        yield ReadFailed(id_, "indexer", (landed, PAGES), ReadCode.MISSING)
    yield ReadEnded(id_, "kv", (0, PAGES))
    yield "round"
    if short:
        yield Capped(id_, landed)
    yield Terminated(id_, Reason.READ_FAILED if short else Reason.COMPLETED, {"kv": PAGES, "indexer": landed})
    yield Synced(id_, {"kv": PAGES, "indexer": landed}, ranks, -1)
    taken = {"kv": ((0, landed),)}
    yield Clamped(id_, landed, taken, (), Reason.READ_FAILED) if short else Committed(id_, PAGES, taken, ())
    yield TokensCredited(id_, landed * PAGE_TOKENS)
    yield TokensReturned(id_, tokens)
    yield HostHandedOver(id_, "kv", ((0, landed),), ())
    yield AnchorUnlocked(id_)
    if short:
        yield HostReleased(id_, "kv", ((landed, PAGES),), Part.CLAMPED)
    yield Settled(id_)
    yield PrefixServed(request, 0, landed, ((0, landed, id_),))
    yield LoadedTaken(request, 0, landed * PAGE_TOKENS)
    yield "pause"
    yield Closed(id_)
    yield PagesUnlocked(id_)
    yield RequestFinished(request)
    yield Evicted("kv", landed, ((slots[0], slots[0] + landed),), ())


def log(events: int, rank: int, ranks: int, in_flight: int) -> Iterator[Record]:
    """Yield the records of one rank, at least `events` of them, all prefetches at their ends."""
    capacity = {"kv": in_flight * PAGES}
    stop = {"name": "wait_complete"}
    policies: dict[str, object] = {
        "stop": stop, "pressure": "shrink", "shortfall": "discard", "threshold_pages": 1, "max_pages": 4096,
        "limit_tokens": Policies().limit_tokens, "lag_ticks": 0,
    }  # fmt: skip
    layout = dsa().declaration()
    seq = id_ = number = 0

    def record(event: AnyEvent) -> Record:
        nonlocal seq
        seq += 1
        return Record(seq - 1, seq * 1000, event)

    yield record(LogOpened("bench", "bench", rank, ranks, layout, policies, PAGE_TOKENS, capacity, capacity, 0, 0))
    turns: deque[tuple[Iterator[AnyEvent | str], tuple[int, int]]] = deque()
    places = [(at * PAGES, (at + 1) * PAGES) for at in range(in_flight)]
    while turns or seq < events:
        if places and seq < events:
            id_ += 1
            slots = places.pop()
            turns.append((story(id_, slots, ranks), slots))
        begun, slots = turns.popleft()
        for step in begun:
            if step == "pause":
                turns.append((begun, slots))
                break
            if step == "round":
                number += 1
                yield record(RoundDone(number, min(64, len(turns) + 1), 0, ranks, 500_000))
            elif isinstance(step, Synced):
                yield record(Synced(step.prefetch, step.agreed, ranks, number))
            else:
                yield record(step)  # type: ignore[arg-type]  # every word is handled above
        else:
            places.append(slots)
    yield record(CoordinatorStopped(Reason.SHUTDOWN, 0, {"kv": 0}))


def write_lines(path: str, records: Iterator[Record], gz: bool = False) -> int:
    """Write a log as JSON lines; return how many records it has."""
    count = 0
    with gzip.open(path, "wb", 1) if gz else Path(path).open("wb") as file:
        for record in records:
            file.write(encode(record) + b"\n")
            count += 1
    return count


def write_rows(path: str, records: Iterator[Record]) -> int:
    """Write a log into SQLite; return how many records it has."""
    count = 0
    log = SqliteEventLog(path)
    for record in records:
        log.append(record)
        count += 1
        if count % 100_000 == 0:
            next(iter(log.records()))  # waits until all is written
    log.close()
    assert not log.lost_events, "a log with gaps is no clean log"
    return count


WRITERS = {"jsonl": write_lines, "sqlite": write_rows, "jsonl.gz": partial(write_lines, gz=True)}


def check(paths: list[str]) -> None:
    """Check the logs of one run once and print seconds, those of this process alone, and the peak of memory in KiB."""
    began, began_cpu = time.perf_counter(), time.process_time()
    found = list(violations([read_log(path) for path in paths]))
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    assert not found, f"a clean log is at fault: {found[0]}"
    print(took, took_cpu, peak_kib())


def peak_kib() -> int:
    """Return the peak of this process's own memory: `ru_maxrss` begins with that of the process which started it."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Write the logs, check each size in a process of its own, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--format", choices=WRITERS, default="jsonl")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--check", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.check:
        check(given.check)
        return
    print(f"python {sys.version.split()[0]}, {given.format}, {given.ranks} rank(s), {given.in_flight} prefetches in flight")
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as folder:
        for events in (given.events // 10, given.events):
            paths, written = [], 0
            for rank in range(given.ranks):
                paths.append(str(Path(folder) / f"{events}-rank{rank}.{given.format}"))
                written += WRITERS[given.format](paths[-1], log(events, rank, given.ranks, given.in_flight))
            command = [sys.executable, __file__, "--check", *paths]
            runs = [
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(given.repeat)
            ]
            took, cpu = (statistics.median(float(run[place]) for run in runs) for place in (0, 1))
            peak = max(int(run[2]) for run in runs)
            rate = written / cpu
            print(
                f"{written:>10,} events: {took:6.2f} s, of them {cpu:6.2f} on a core: {rate:>9,.0f} events/s of one core"
                f" ({rate / GOAL:.2f} of the goal), peak {peak / 1024:.0f} MiB, load {os.getloadavg()[0]:.1f}"
            )
            for path in paths:
                Path(path).unlink()


if __name__ == "__main__":
    main()
