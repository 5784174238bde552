"""The commands on imported SGLang logs: `import-sglang`, and what `verify`, `explain` and `stats` say of such a log."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator

from rich.console import Console

from lifecycle.audit.seen import ImportedLog, Seen, read_header, read_seen
from lifecycle.audit.sglang_checks import Finding, Level, check
from lifecycle.audit.sglang_import import import_sglang
from lifecycle.audit.tables import Line, say, table
from lifecycle.audit.words import count_of, name, plain, some
from lifecycle.errors import LogError

SILENT = (
    "such lines carry no pool, no page and no attempt, and nothing is printed for a prefetch that was declined as too short or"
    " rate limited: whether a page was garbled cannot be told from them"
)
NOTHING = (
    "no line of these is about a prefetch (SGLang prints how one ended at level info or warning, most others at debug): there"
    " is nothing to check"
)
MOST_STORIES = 1000

JsonOf = Callable[[object], str]


def import_logs(given: argparse.Namespace, out: Console) -> int:
    """Read SGLang server logs into an imported log."""
    reader, count = import_sglang(given.logs, given.output)
    if given.json:
        facts = {"observations": count, "lines": reader.lines, "files": reader.files, "output": given.output}
        out.print(json.dumps({**facts, "unread": reader.unread_count, "unread_at": reader.unread}))
        return 0
    lines, files = count_of(reader.lines, "line"), count_of(len(reader.files), "file")
    out.print(f"{count_of(count, 'observation')} from {lines} of {files}")
    if not count:
        out.print(f"cannot tell: {NOTHING}")
    for path, number in reader.unread:
        out.print(f"note: {plain(path)} line {number} begins like a line about a prefetch and is not whole: left out")
    if reader.unread_count > len(reader.unread):
        out.print(f"note: and {reader.unread_count - len(reader.unread)} more such lines")
    return 0


def verify(given: argparse.Namespace, out: Console, path: str, as_json: JsonOf) -> int:
    """Print what an imported log proves; return how many violations."""
    header = read_header(path)
    found: list[Finding] = []
    counts: Counter[Level] = Counter()

    def tell(finding: Finding) -> None:
        counts[finding.level] += 1
        if len(found) < given.most:
            found.append(finding)

    checks = check(read_seen(path), tell)
    if given.json:
        out.print(as_json({
            "imported": header.source, "observations": checks.observations, "ranks": checks.ranks,
            "violations": counts[Level.VIOLATION], "cannot_tell": counts[Level.CANNOT_TELL], "found": found,
            "silent": SILENT if checks.observations else NOTHING,
        }))  # fmt: skip
        return counts[Level.VIOLATION]
    for finding in sorted(found, key=lambda each: each.level is not Level.VIOLATION):
        out.print(_words(finding, header))
    left = sum(counts.values()) - len(found)
    if left:
        out.print(f"and {left} more (--most {given.most})")
    ranks = some((rank or "unnamed" for rank in checks.ranks), 16) or "no rank"
    out.print(
        f"imported from {plain(header.source)}, {count_of(checks.observations, 'observation')} of"
        f" {count_of(len(checks.requests), 'request')} on {ranks}: {count_of(counts[Level.VIOLATION], 'violation')},"
        f" {counts[Level.CANNOT_TELL]} that cannot be told"
    )
    out.print(f"cannot tell: {SILENT if checks.observations else NOTHING}")
    return counts[Level.VIOLATION]


def _words(finding: Finding, header: ImportedLog) -> str:
    places = some(f"{_file(header, file)}:{line}" for file, line in finding.places)
    whose = "" if finding.request is None else f" request {name(repr(finding.request))}"
    rank = f" {finding.rank}" if finding.rank else ""
    return plain(f"{finding.level}: {finding.law}:{rank}{whose}: {finding.what} (right: {finding.right}) at {places}", 1000)


def _file(header: ImportedLog, file: int) -> str:
    return plain(header.files[file], 120) if 0 <= file < len(header.files) else f"file {file}"


def explain(given: argparse.Namespace, out: Console, path: str, as_json: JsonOf) -> int | None:
    """Print every line about a request, and what is wrong with it; None if there is none."""
    header = read_header(path)
    mine: list[Seen] = []
    for seen in read_seen(path):
        if seen.request == given.request and len(mine) < MOST_STORIES:
            mine.append(seen)
    if not mine:
        return None
    found: list[Finding] = []
    check(read_seen(path), lambda finding: found.append(finding) if finding.request == given.request else None)
    bad = [finding for finding in found if finding.level is Level.VIOLATION]
    verdict = "at fault" if bad else "cannot tell"
    if given.json:
        out.print(as_json({"request": given.request, "verdict": verdict, "seen": mine, "found": found, "silent": SILENT}))
    else:
        out.print(f"request {name(given.request)}, imported from {plain(header.source)}")
        rows = [
            [f"{_file(header, seen.file)}:{seen.line}", seen.rank or "-", seen.kind, plain(_facts(seen), 120)] for seen in mine
        ]
        out.print(table(["line", "rank", "what", "facts"], rows, 2))
        say(out, (_words(finding, header) for finding in found))
        out.print(f"verdict   {verdict.upper()}: {SILENT}")
    return len(bad)


def _facts(seen: Seen) -> str:
    return " ".join(f"{fact}={value}" for fact, value in seen.facts.items())


def stats(path: str) -> tuple[dict[str, object], Iterator[Line]]:
    """Return what was printed how often, for programs and for people."""
    kinds: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for seen in read_seen(path):
        kinds[f"{seen.rank or '-'} {seen.kind}"] += 1
        for fact in ("completed", "completed_synced", "loaded", "released"):
            tokens[fact] += seen.number(fact) or 0
    rows = [[what, str(count)] for what, count in sorted(kinds.items())]
    return {"lines": kinds, "tokens": tokens}, iter([table(["rank and line", "times"], rows, numbers=("times",))])


def refuse(path: str, command: str) -> LogError:
    """Return what is said of an imported log where only our own events will do."""
    return LogError(f"cannot {command} {plain(path)}: it was imported, and holds no events (verify, explain and stats read it)")
