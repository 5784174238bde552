"""The commands of `prefetch-audit`: each reads logs, prints, and returns its exit status."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec
from rich.console import Console

from lifecycle.audit import blast, differ, explain_text, redecide, sglang_commands, stats
from lifecycle.audit.evidence import gather
from lifecycle.audit.explain import explain, told
from lifecycle.audit.known import Known
from lifecycle.audit.laws import Violation
from lifecycle.audit.report import write_report
from lifecycle.audit.runs import Run, Scan, Segment, log_files, scan
from lifecycle.audit.seen import is_imported
from lifecycle.audit.tables import private_file, say
from lifecycle.audit.terms import terms_of
from lifecycle.audit.trace import write_trace
from lifecycle.audit.verify import violations
from lifecycle.audit.words import count_of, name, plain
from lifecycle.errors import LogError
from lifecycle.events import EventsLost, Issued, Record

CLEAN, VIOLATED, UNREADABLE = 0, 1, 2

Command = Callable[[argparse.Namespace, Console], int]


def as_json(value: object) -> str:
    """Return a value as one line of JSON, safe to print anywhere: what is not ASCII is escaped."""
    text = msgspec.json.encode(value).decode()
    return text if text.isascii() else "".join(c if c.isascii() else _escape(c) for c in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def read(given: argparse.Namespace, out: Console) -> Scan:
    """Return what the named files hold, having noted what they end with that is no event, and those that hold none."""
    for path in log_files(given.logs):
        if is_imported(path):
            raise sglang_commands.refuse(path, "use")
    found = scan(given.logs)
    if not given.json:
        say(out, (f"note: {plain(tail)}" for tail in found.torn))
        say(out, (f"note: {plain(path)} holds no event" for path in found.empty))
    return found


def imports(given: argparse.Namespace) -> list[str]:
    """Take the imported logs out of the named files, and return them."""
    files = log_files(given.logs)
    found = [path for path in files if is_imported(path)]
    given.logs = [path for path in files if path not in found]
    return found


def chosen(found: Scan, given: argparse.Namespace) -> list[Run]:
    """Return the runs that are asked for: the named one, or all."""
    return [found.pick(given.run)] if given.run is not None else found.runs


# --- verify ---------------------------------------------------------------------------------------------------------------


def verify(given: argparse.Namespace, out: Console) -> int:
    """Check every law on every run."""
    imported = imports(given)
    total = sum([sglang_commands.verify(given, out, path, as_json) for path in imported])
    if imported and not given.logs:
        return VIOLATED if total else CLEAN
    scanned = read(given, out)
    for run in chosen(scanned, given):
        known = Known(run.opened)
        gaps: dict[str, int] = {}
        found = known.faults(violations([_noting(segment, gaps) for segment in run.segments]))
        total += (_verify_json if given.json else _verify_text)(given, out, run, found, known, gaps)
    return VIOLATED if total else CLEAN


def _noting(segment: Segment, gaps: dict[str, int]) -> Iterator[Record]:
    """Yield the records of a log, counting by rank the events that it says were lost."""
    for record in segment.records():
        if type(record.event) is EventsLost:
            rank = "?" if segment.rank is None else str(segment.rank)
            gaps[rank] = gaps.get(rank, 0) + record.event.events
        yield record


def _unknown(run: Run, gaps: dict[str, int]) -> list[str]:
    """Return what the laws could not be held against, once the logs are read."""
    said = [
        f"rank {rank} lost {count_of(events, 'event')}: no law is held against what they said" for rank, events in gaps.items()
    ]
    if run.opened is None:
        said.append("no log has a header that can be used: layout, rule and policies are not known")
    return said


def _verify_text(
    given: argparse.Namespace, out: Console, run: Run, found: Iterable[Violation], known: Known, gaps: dict[str, int]
) -> int:
    count = 0
    for violation in found:
        count += 1
        if count <= given.most:
            out.print(str(violation))
    if count > given.most:
        out.print(f"and {count - given.most} more (--most {given.most})")
    for line in known.text():
        out.print(line)
    for line in _unknown(run, gaps):
        out.print(f"cannot tell: {line}")
    missing = f" (not here: rank {', '.join(map(str, run.missing[:8]))})" if run.missing and run.opened else ""
    out.print(f"run {name(run.id)}: {run.ranks}: {count_of(count, 'violation') if count else 'no violations'}{missing}")
    return count


def _verify_json(
    given: argparse.Namespace, out: Console, run: Run, found: Iterable[Violation], known: Known, gaps: dict[str, int]
) -> int:
    kept = [told(violation) for violation in islice(iter(found), given.most)]
    count = len(kept) + sum(1 for _ in found)
    facts = {"run": run.id, "ranks": [s.rank for s in run.segments], "missing_ranks": run.missing, "violations": count}
    out.print(as_json({**facts, "known_differences": known.counts, "unknown": _unknown(run, gaps), "found": kept}))
    return count


# --- one request, one prefetch ------------------------------------------------------------------------------------------


def explain_request(given: argparse.Namespace, out: Console) -> int:
    """Tell the story of a request, in every run that knows it."""
    worst = UNREADABLE
    for path in imports(given):
        bad_lines = sglang_commands.explain(given, out, path, as_json)
        if bad_lines is not None:
            worst = VIOLATED if bad_lines or worst == VIOLATED else CLEAN
    scanned = read(given, out)
    for run in chosen(scanned, given):
        evidence = gather(run, given.request)
        if not evidence.found:
            continue
        story = explain(evidence)
        if given.json:
            out.print(as_json(story))
        else:
            say(out, explain_text.text(story))
        bad = evidence.verdict in ("garbled", "at fault")
        worst = max(worst if worst != UNREADABLE else CLEAN, VIOLATED if bad else CLEAN)
    if worst == UNREADABLE:
        raise LogError(f"cannot explain request {name(given.request)}: {_known_requests(scanned)}")
    return worst


def _known_requests(scanned: Scan) -> str:
    """Return some requests that the logs know, the likeliest first."""
    known = dict[str, None]()
    for run in scanned.runs:
        for record in run.segments[0].records():
            if isinstance(record.event, Issued):
                known[name(record.event.request)] = None
                if len(known) >= 8:
                    return f"these logs know others, for example {', '.join(known)}"
    return f"these logs know {', '.join(known) or 'no request'}"


def blast_radius(given: argparse.Namespace, out: Console) -> int:
    """Tell who was served pages of a prefetch."""
    run = read(given, out).pick(given.run)
    found = blast.blast(run, given.prefetch, given.pages)
    if found is None:
        raise LogError(f"cannot find prefetch {given.prefetch} in run {name(run.id)}: it was never issued there")
    if given.json:
        out.print(as_json(found))
    else:
        say(out, blast.text(found))
    return CLEAN


# --- two logs -------------------------------------------------------------------------------------------------------------


def diff(given: argparse.Namespace, out: Console) -> int:
    """Tell where two logs part: the two files' newest runs, or two ranks of one file's run."""
    sides = [_newest(path, given) for path in given.logs]
    found = differ.difference(sides[0].records(), sides[1].records(), given.every, given.context)
    if given.json:
        out.print(as_json(found))
    else:
        say(out, differ.text(found, *(_title(side) for side in sides)))
    return VIOLATED if found.found else CLEAN


def _newest(path: str, given: argparse.Namespace) -> Segment:
    found = scan([path])
    run = found.pick(given.run if given.run is not None and any(r.id == given.run for r in found.runs) else None)
    return run.segments[-1]


def _title(side: Segment) -> str:
    if side.opened is None:
        return plain(side.path)
    return f"{plain(side.path)}: rank {side.opened.rank} of run {name(side.opened.run)}"


# --- numbers ----------------------------------------------------------------------------------------------------------------


def show_stats(given: argparse.Namespace, out: Console) -> int:
    """Tell what each rank did, in numbers."""
    for path in imports(given):
        facts, lines = sglang_commands.stats(path)
        if given.json:
            out.print(as_json({"imported": path, **facts}))
        else:
            say(out, lines)
    for run in chosen(read(given, out), given):
        for segment in run.segments:
            counted = stats.stats(segment.records())
            rank = "?" if segment.rank is None else segment.rank
            if given.json:
                out.print(as_json({"run": run.id, "rank": segment.rank, **counted.facts()}))
            else:
                say(out, stats.text(counted, f"run {name(run.id)}, rank {rank}"))
                out.print("")
    return CLEAN


def trace(given: argparse.Namespace, out: Console) -> int:
    """Write a Chrome trace."""
    runs = chosen(read(given, out), given)
    with private_file(given.output, log_files(given.logs)) as file:
        count = write_trace(file, runs)
    if given.json:
        out.print(as_json({"trace_events": count, "output": given.output}))
    else:
        out.print(f"{count_of(count, 'trace event')} in {plain(given.output)}: open it in ui.perfetto.dev or chrome://tracing")
    return CLEAN


def report(given: argparse.Namespace, out: Console) -> int:
    """Write a page of HTML."""
    runs = chosen(read(given, out), given)
    with private_file(given.output, log_files(given.logs)) as file:
        count = write_report(file, runs)
    if given.json:
        out.print(as_json({"violations": count, "output": given.output}))
    else:
        out.print(f"{count_of(count, 'violation') if count else 'no violations'}; the page is {plain(given.output)}")
    return VIOLATED if count else CLEAN


def decide_again(given: argparse.Namespace, out: Console) -> int:
    """Tell what another rule would have made of the logged facts."""
    changed = 0
    for run in chosen(read(given, out), given):
        if run.opened is None:
            raise LogError(f"cannot decide run {name(run.id)} again: it has no header, so layout and policy are not known")
        found = redecide.redecide(terms_of(run.opened), [segment.records() for segment in run.segments], given.rule)
        changed += len(found.changed)
        if given.json:
            out.print(as_json({"run": run.id, **msgspec.to_builtins(found)}))
        else:
            out.print(f"run {name(run.id)}: {run.ranks}")
            say(out, redecide.text(found))
    return VIOLATED if changed else CLEAN
