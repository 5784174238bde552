"""What the library must reach: one entry for each goal. The table of `python -m tests.benchmarks` has a line for every one."""

from typing import NamedTuple


class Goal(NamedTuple):
    """A goal, and the benchmark that measures it."""

    bench: str
    what: str
    goal: str


SGLANG = "SGLang 0.5.17's check_prefetch_progress, same stub pools"

GOALS = {
    "finalise-32": Goal("finalise", f"finalising one prefetch of 32 pages, logged, against {SGLANG}", "<= 1x"),
    "finalise-512": Goal("finalise", "the same of 512 pages", "<= 0.3x"),
    "finalise-2048": Goal("finalise", "the same of 2,048 pages", "<= 0.1x"),
    "finalise-flat": Goal("finalise", "the same, 2,048 pages beside 32", "flat"),
    "sync-64": Goal("sync", "agreeing on 64 ready prefetches, 2 ranks, against two all-reduces for each", ">= 30x less"),
    "sync-blocked": Goal(
        "sync", "scheduler blocked by a round, 2 ranks, 5 ms of other work a tick: lag 1 against lag 0", "<= 10 %"
    ),
    "growth": Goal("growth", "cost of a prefetch from 1 to 10,000 in flight", "<= 1.5x"),
    "append": Goal("append", "event append on the scheduler thread, SQLite log attached", "<= 3 us"),
    "audit-rate": Goal("audit", "audit verify, events a second of one core", ">= 200,000"),
    "audit-memory": Goal("audit", "audit verify, peak of memory for a log ten times as long", "the same"),
    "pages-1mib": Goal("pages", "file page reads, 1 MiB, verified, against bare readv", ">= 0.7x"),
    "pages-64kib": Goal("pages", "file page reads, 64 KiB, verified, against bare readv", ">= 0.4x"),
    "pages-sglang-1mib": Goal("pages", "file page reads, 1 MiB, verified, against SGLang's file backend", "> 1x"),
    "pages-sglang-64kib": Goal("pages", "file page reads, 64 KiB, verified, against SGLang's file backend", "> 1x"),
}
