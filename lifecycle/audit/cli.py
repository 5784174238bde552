"""`prefetch-audit COMMAND LOG...`: find out what happened from event logs.

Exit status: 0 clean, 1 violations (or a difference), 2 something that cannot be read or makes no sense.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from lifecycle.audit import commands, sglang_commands
from lifecycle.audit.commands import CLEAN, UNREADABLE, VIOLATED
from lifecycle.audit.redecide import RULES
from lifecycle.audit.tables import console
from lifecycle.audit.words import plain
from lifecycle.errors import LifecycleError

__all__ = ["CLEAN", "UNREADABLE", "VIOLATED", "main"]

_LOG = "an event log (JSON lines, plain or gzipped, or SQLite), or a folder of them"
_SERVER_LOG = "what an SGLang server printed, as it is: ANSI colours, rotated, gzipped"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # an id may hold what this terminal cannot show
    given = _parser().parse_args(arguments)
    command: commands.Command = given.command
    try:
        status = command(given, console())
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREADABLE
    except OverflowError as error:
        print(f"error: a number in these logs is beyond every real one: {error}", file=sys.stderr)
        return UNREADABLE
    except (LifecycleError, OSError) as error:
        print(f"error: {plain(str(error), 600)}", file=sys.stderr)
        return UNREADABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefetch-audit", description="Find out from event logs what happened to prefetches, and why.",
        epilog="exit status: 0 clean, 1 violations or differences, 2 unreadable", allow_abbrev=False,
    )  # fmt: skip
    subs = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, command: commands.Command, words: str, logs: str | int = "+", what: str = _LOG
    ) -> argparse.ArgumentParser:
        sub = subs.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.", allow_abbrev=False)
        sub.add_argument("logs", nargs=logs, metavar="LOG", help=what)
        sub.add_argument("--run", metavar="ID", help="this run alone")
        sub.add_argument("--json", action="store_true", help="for programs: one JSON object a line")
        sub.set_defaults(command=command)
        return sub

    verify = add("verify", commands.verify, "check every law, each rank alone and all against each other")
    verify.add_argument("--most", type=_natural, default=1000, metavar="N", help="print at most N a run (%(default)s)")
    explain = add("explain", commands.explain_request, "tell the story of one request, and the verdict")
    explain.add_argument("--request", required=True, metavar="ID")
    radius = add("blast-radius", commands.blast_radius, "tell every request that was served pages of a prefetch")
    radius.add_argument("--prefetch", required=True, type=_natural, metavar="ID")
    radius.add_argument("--pages", type=_pages, metavar="A-B", help="these pages of the prompt alone, first and last")
    diff = add("diff", commands.diff, "tell the first event at which two ranks, or two runs, part", 2)
    diff.add_argument("--every", action="store_true", help="compare every event, not only what is the same on all ranks")
    diff.add_argument("--context", type=_natural, default=4, metavar="N", help="events around it (%(default)s)")
    add("stats", commands.show_stats, "count outcomes, reasons, hits, waste, waits and occupancy")
    said = "read SGLang server logs, for verify, explain and stats"
    sglang = add("import-sglang", sglang_commands.import_logs, said, what=_SERVER_LOG)
    sglang.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write it (mode 0600)")
    drawn = add("trace", commands.trace, "write a Chrome trace, which opens in Perfetto")
    page = add("report", commands.report, "write one self-contained page of HTML")
    for each in (drawn, page):
        each.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write it (mode 0600)")
    again = add("redecide", commands.decide_again, "apply a rule to the logged facts, and list what would end differently")
    again.add_argument("--rule", choices=list(RULES), default="today", help="; ".join(f"{k}: {v[1]}" for k, v in RULES.items()))
    return parser


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{plain(text, 40)} is no whole number of at least 0")
    return int(text)


def _pages(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    lo = _natural(first)
    hi = _natural(last) if dash else lo
    if hi < lo:
        raise argparse.ArgumentTypeError(f"{text} ends before it begins")
    return lo, hi + 1
