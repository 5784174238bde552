"""`python -m lifecycle.audit LOG...`: check event logs against the laws.

Logs are grouped by run; a file may hold several runs. Prints every violation. Exit status: 0 clean, 1 violations, 2 a log
that cannot be read.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lifecycle.audit.verify import violations
from lifecycle.errors import LogError
from lifecycle.events import LogOpened, Record
from stores.events import LogReader

CLEAN, VIOLATED, UNREADABLE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Segment:
    """One run's part of a file: from its header to the next one."""

    path: str
    place: int  # which header of the file, from 0; -1 before the first
    rank: int | None

    def records(self) -> Iterator[Record]:
        """Yield its records."""
        place = -1
        for record in LogReader(self.path):
            place += isinstance(record.event, LogOpened)
            if place > self.place:
                return
            if place == self.place:
                yield record


def scan(paths: Sequence[str]) -> tuple[dict[str, list[Segment]], list[str]]:
    """Return the segments of each run, and what the files end with that is no event. Raises `LogError`."""
    runs: dict[str, list[Segment]] = {}
    torn: list[str] = []
    for path in paths:
        place = -1
        headless = False
        reader = LogReader(path)
        for record in reader:
            event = record.event
            if isinstance(event, LogOpened):
                place += 1
                runs.setdefault(event.run, []).append(Segment(path, place, event.rank))
            elif place < 0 and not headless:
                headless = True
                runs.setdefault(f"without a header in {path}", []).append(Segment(path, place, None))
        if reader.torn is not None:
            torn.append(str(reader.torn))
    return runs, torn


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the logs that are named; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lifecycle.audit", description="Check event logs against the laws.")
    parser.add_argument("logs", nargs="+", metavar="LOG", help="an event log: JSON lines (plain or gzipped) or SQLite")
    paths: list[str] = parser.parse_args(arguments).logs
    try:
        runs, torn = scan(paths)
        for tail in torn:
            print(f"note: {_plain(tail)}")
        found = sum([_check(run, segments) for run, segments in runs.items()])
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNREADABLE
    return VIOLATED if found else CLEAN


def _check(run: str, segments: list[Segment]) -> int:
    """Check one run, print what is found, and return how much that is."""
    segments = sorted(segments, key=lambda segment: -1 if segment.rank is None else segment.rank)
    found = 0
    for violation in violations([segment.records() for segment in segments]):
        print(violation)
        found += 1
    ranks = ", ".join("?" if segment.rank is None else str(segment.rank) for segment in segments)
    print(f"run {_plain(run)}: rank{'s' if len(segments) > 1 else ''} {ranks}: {found or 'no'} violation{'s' * (found != 1)}")
    return found


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
