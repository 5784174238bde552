"""What all ranks together have done: counts from their logs and reports, every violation found, the table and the JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lifecycle.audit.verify import verify_logs
from lifecycle.events import (
    Adopted,
    AnyEvent,
    Clamped,
    Committed,
    Declined,
    Discarded,
    Evicted,
    Issued,
    LogOpened,
    PlanAgreed,
    Record,
)  # fmt: skip
from loop_options import Options
from loop_report import RankReport
from loop_trace import Request, reuse_bound
from stores.events import LogReader

MUST_BE_ZERO = (
    "garbled_pages",
    "leaked_pages",
    "open_obligations",
    "lock_refs",
    "occupied_tokens",
    "violations",
)


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of one run in a log that may hold earlier ones too; read anew by every iteration."""

    path: Path
    run: str

    def __iter__(self) -> Iterator[Record]:
        ours = False
        for record in LogReader(self.path):
            if isinstance(record.event, LogOpened):
                ours = record.event.run == self.run
            if ours:
                yield record


@dataclass(slots=True)
class LogCounts:
    """What one rank's log says of the whole run. Everything but `events` must be the same on all ranks."""

    events: int = 0
    issued: int = 0
    declined: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    pages: Counter[str] = field(default_factory=Counter)  # hit, planned, adopted and evicted
    outcomes: dict[int, tuple[str, str, int]] = field(default_factory=dict)  # prefetch: outcome, reason, usable page
    starts: dict[int, int] = field(default_factory=dict)  # prefetch: first page of its span

    def add(self, event: AnyEvent) -> None:
        """Count one event."""
        self.events += 1
        match event:
            case Issued():
                self.issued += 1
                self.starts[event.prefetch] = event.start_page
            case Declined():
                self.declined[event.reason] += 1
            case PlanAgreed():
                self.pages["hit"] += event.hit_page - self.starts[event.prefetch]
                self.pages["planned"] += event.plan_page - self.starts[event.prefetch]
            case Committed():
                self.outcomes[event.prefetch] = "committed", "completed", event.usable_page
            case Clamped():
                self.outcomes[event.prefetch] = "clamped", event.reason, event.usable_page
            case Discarded():
                self.outcomes[event.prefetch] = "discarded", event.reason, self.starts[event.prefetch]
                self.discarded[event.reason] += 1
            case Adopted():
                self.pages["adopted"] += sum(event.pages.values())
            case Evicted():
                self.pages["evicted"] += event.pages
            case _:
                pass

    def ended(self, outcome: str) -> int:
        """Return how many prefetches ended so."""
        return sum(found == outcome for found, _, _ in self.outcomes.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """One run: the object that `--json` writes, and what was violated, in words."""

    values: dict[str, Any]
    violations: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was garbled, leaked, left open or in violation."""
        return not any(self.values[name] for name in MUST_BE_ZERO)


def summarize(options: Options, requests: Sequence[Request], reports: Sequence[RankReport], wall_s: float) -> Summary:
    """Read every rank's log, check it and compare it with the others'."""
    logs = [RunRecords(Path(report.log), report.run) for report in reports]
    counts = [_count(log) for log in logs]
    violations = [str(violation) for violation in verify_logs(logs)]
    violations += [f"rank {report.rank}: {fault}" for report in reports for fault in report.broken]
    violations += _differences(reports, counts)
    own: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for report in reports:
        own.update(report.own)
        faults.update(report.faults)
    first, shared = counts[0], reports[0].replicated
    bound = reuse_bound(requests)
    reuse_tokens, loaded_tokens = shared["reuse_tokens"], shared["loaded_tokens"]
    values: dict[str, Any] = {
        **shared,
        "ranks": options.ranks,
        "layout": options.layout.name,
        "stop_policy": options.stop_policy,
        "page_size": options.page_size,
        "host_pages_per_rank": options.capacity_pages(requests),
        "issued": first.issued,
        "declined": dict(sorted(first.declined.items())),
        "committed": first.ended("committed"),
        "clamped": first.ended("clamped"),
        "discarded": dict(sorted(first.discarded.items())),
        "hit_tokens": first.pages["hit"] * options.page_size,
        "planned_tokens": first.pages["planned"] * options.page_size,
        "l2_tokens": reuse_tokens - loaded_tokens,
        "prompt_tokens": bound.all_tokens,
        "reuse_bound_tokens": bound.tokens,
        "reuse_ratio": round(reuse_tokens / bound.tokens, 4) if bound.tokens else None,
        **own,
        "adopted_pages": sum(log.pages["adopted"] for log in counts),
        "evicted_pages": sum(log.pages["evicted"] for log in counts),
        "upsets": dict(sorted(reports[0].upsets.items())),
        "faults": dict(sorted(faults.items())),
        "events": sum(log.events for log in counts),
        "violations": len(violations),
        "write_back_blocked_s": round(sum(report.write_back_blocked_s for report in reports), 3),
        "loop_s": round(max(report.wall_s for report in reports), 3),
        "wall_s": round(wall_s, 3),
    }
    if options.events != "memory":
        values["logs"] = [report.log for report in reports]
    return Summary(values, tuple(violations))


def _count(log: RunRecords) -> LogCounts:
    counts = LogCounts()
    for record in log:
        counts.add(record.event)
    return counts


def _replicated(report: RankReport, log: LogCounts) -> dict[str, object]:
    own = {"issued": log.issued, "declined": log.declined, "upsets": report.upsets}
    return {**report.replicated, **own, **{f"{name}_pages": count for name, count in log.pages.items()}}


def _differences(reports: Sequence[RankReport], counts: Sequence[LogCounts]) -> list[str]:
    """Return what should be the same on all ranks and is not."""
    found = []
    for report, log in zip(reports, counts, strict=True):
        here, there = _replicated(report, log), _replicated(reports[0], counts[0])
        found += [
            f"rank {report.rank} counted {here.get(name)} {name}, rank 0 {there.get(name)}"
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
        found += [
            f"prefetch {id_} is {log.outcomes.get(id_)} on rank {report.rank}, {counts[0].outcomes.get(id_)} on rank 0"
            for id_ in sorted(log.outcomes.keys() | counts[0].outcomes.keys())
            if log.outcomes.get(id_) != counts[0].outcomes.get(id_)
        ]
    return found


def print_table(summary: Summary, console: Console) -> None:
    """Print what a person wants to know of the run."""
    v = summary.values
    title = f"{v['layout']}, {v['ranks']} ranks, {v['stop_policy']}" if v["ranks"] > 1 else f"{v['layout']}, 1 rank"
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    bound = (
        f"{v['reuse_ratio']:.1%} of an unbounded cache's {v['reuse_bound_tokens']:,}" if v["reuse_ratio"] is not None else ""
    )
    rows = (
        ("requests", v["requests"], f"{v['ticks']:,} ticks, {v['collectives']:,} collectives, {v['wall_s']:.1f} s"),
        ("prompt tokens", v["prompt_tokens"], ""),
        ("  from cache", v["reuse_tokens"], bound),
        ("  loaded from L3", v["loaded_tokens"], f"of {v['hit_tokens']:,} hit there"),
        ("prefetches", v["issued"], _reasons("declined", v["declined"])),
        ("  committed", v["committed"], ""),
        ("  clamped", v["clamped"], ""),
        ("  discarded", sum(v["discarded"].values()), _reasons("", v["discarded"])),
        ("pages served", v["served_pages"], "every one compared, byte by byte, twice"),
        ("pages evicted", v["evicted_pages"], f"{v['host_pages']:,} fit, {v['quarantined_pages']:,} of them quarantined"),
        ("events", v["events"], "every log verified"),
    )
    for name, value, more in rows:
        table.add_row(name, f"{value:,}", more)
    table.add_section()
    for name in MUST_BE_ZERO:
        bad = bool(v[name])
        table.add_row(name.replace("_", " "), f"{v[name]:,}", "must be 0" if bad else "", style="red" if bad else "green")
    console.print(table)


def _reasons(what: str, reasons: dict[str, int]) -> str:
    text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    return f"{what} {text}".strip() if text else ""
