"""The main job: a request trace through a small scheduler on N ranks, with the prefetch lifecycle embedded.

    python examples/scheduler_loop.py --help

Each rank runs `loop_scheduler.Scheduler`: the file to read for how an engine embeds the library. Exits with 1 if anything
was garbled, leaked, left open or in violation, 2 for options that make no sense, 130 when interrupted.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from lifecycle.errors import ConfigError, LifecycleError
from loop_launch import RankDied, is_joined, is_spawned, run_joined, run_spawned, spawn
from loop_options import Options, check_places, parse_options, refuse
from loop_report import RankReport
from loop_summary import print_table, summarize
from loop_trace import Request, TraceError


def main(argv: Sequence[str]) -> int:
    """Run with these options and return the exit status."""
    started = time.monotonic()
    options = parse_options(argv)
    try:
        requests = options.read_requests() if is_spawned() else check_places(options)
    except (LifecycleError, TraceError) as error:
        refuse(error)
    if is_spawned():
        run_spawned(options, requests)
        return 0
    with ExitStack() as stack:
        if is_joined():
            try:
                reports = run_joined(options, requests, stack)
            except ConfigError as error:
                refuse(error)
            return 0 if reports is None else _conclude(options, requests, reports, started)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scheduler-loop-")))
        try:
            return _conclude(options, requests, spawn(argv, options.ranks, folder), started)
        except RankDied as error:
            print(f"scheduler_loop.py: {error}", file=sys.stderr)
            return 1
        finally:
            if sys.stdout.isatty():
                Console().show_cursor()  # a rank that died may have left it hidden


def _conclude(options: Options, requests: Sequence[Request], reports: Sequence[RankReport], started: float) -> int:
    """Add the ranks up, print the table, write the JSON; return the exit status."""
    summary = summarize(options, requests, reports, time.monotonic() - started)
    print_table(summary, Console())
    for violation in summary.violations[:20]:
        print(f"violation: {violation}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(summary.values, indent=2) + "\n", encoding="utf-8")
    return 0 if summary.is_clean else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
