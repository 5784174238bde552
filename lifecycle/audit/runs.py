"""Which run and which rank each part of a log file belongs to. Reads files again and again, never holds one."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from lifecycle.audit.words import name
from lifecycle.codec import BadRecord, decode
from lifecycle.errors import LogError, SchemaTooNew
from lifecycle.events import LogOpened, Record
from stores.events import MAX_LINE_BYTES, LogReader

_FIRST = b'{"seq":0,'
_HEADER = b'"event":"log_opened.'
_BLOCK_BYTES = 1 << 20

SUFFIXES = (".jsonl", ".sqlite", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Segment:
    """One run's part of a file: from its header to the next one."""

    path: str
    place: int  # which header of the file, from 0; -1 before the first
    opened: LogOpened | None
    whole: bool = False  # whether it is all that the file holds

    @property
    def rank(self) -> int | None:
        """Return the rank that wrote it, if it has a header."""
        return None if self.opened is None else self.opened.rank

    def records(self) -> Iterator[Record]:
        """Return its records. Raises `LogError` where they cannot be read."""
        return iter(LogReader(self.path)) if self.whole else self._cut()

    def _cut(self) -> Iterator[Record]:
        place = -1
        for record in LogReader(self.path):
            place += isinstance(record.event, LogOpened)
            if place > self.place:
                return
            if place == self.place:
                yield record


@dataclass(slots=True)
class Run:
    """The logs of one run, by rank."""

    id: str
    segments: list[Segment] = field(default_factory=list)

    @property
    def opened(self) -> LogOpened | None:
        """Return the first header there is."""
        return next((segment.opened for segment in self.segments if segment.opened is not None), None)

    @property
    def ranks(self) -> str:
        """Return the ranks whose logs are here, in words."""
        known = ", ".join("?" if segment.rank is None else str(segment.rank) for segment in self.segments)
        return f"rank{'s' if len(self.segments) > 1 else ''} {known}"

    @property
    def missing(self) -> list[int]:
        """Return the ranks of the run whose logs are not here."""
        opened = self.opened
        here = {segment.rank for segment in self.segments}
        return [] if opened is None else [rank for rank in range(min(opened.ranks, 1 << 16)) if rank not in here]


@dataclass(frozen=True, slots=True)
class Scan:
    """What the files hold: runs in the order of their headers, what is no event at the end of a file, and who has none."""

    runs: list[Run]
    torn: list[str]
    empty: list[str]

    def pick(self, run: str | None) -> Run:
        """Return the run of that id, by default the newest; raises `LogError` if there is none."""
        if run is not None:
            found = next((each for each in self.runs if each.id == run), None)
            if found is None:
                known = ", ".join(name(each.id) for each in self.runs[-8:])
                raise LogError(f"cannot find run {name(run)}: these logs hold {known or 'no run'}")
            return found
        if not self.runs:
            raise LogError("cannot find a run: these logs hold no event")
        return max(self.runs, key=lambda each: -1 if each.opened is None else each.opened.wall_ns)


def scan(paths: Sequence[str]) -> Scan:
    """Look through the files, to find their runs. Raises `LogError` for what cannot be read, and where no file has an event.

    What a sound file of JSON lines holds beside its headers is not decoded here: reading the records says what is wrong.
    """
    runs: dict[str, Run] = {}
    torn: list[str] = []
    empty: list[str] = []
    files = log_files(paths)
    for path in files:
        headers = _headers(path)
        if headers is not None:
            for place, header in enumerate(headers):
                segment = Segment(path, place, header, len(headers) == 1)
                runs.setdefault(header.run, Run(header.run)).segments.append(segment)
            continue
        place = -1
        headless = False
        found = False
        reader = LogReader(path)
        for record in reader:
            found = True
            event = record.event
            if isinstance(event, LogOpened):
                place += 1
                runs.setdefault(event.run, Run(event.run)).segments.append(Segment(path, place, event))
            elif place < 0 and not headless:
                headless = True
                id_ = f"without a header in {path}"
                runs.setdefault(id_, Run(id_)).segments.append(Segment(path, place, None))
        if reader.torn is not None:
            torn.append(str(reader.torn))
        if not found:
            empty.append(path)
    if files and not runs:
        rest = f"; {torn[0]}" if torn else ""
        raise LogError(f"cannot find a run: {', '.join(files[:8])} hold{'s' if len(files) == 1 else ''} no event{rest}")
    for run in runs.values():
        run.segments.sort(key=lambda segment: -1 if segment.rank is None else segment.rank)
    return Scan(list(runs.values()), torn, empty)


def _headers(path: str) -> list[LogOpened] | None:
    """Return the headers of a file of JSON lines that begins with one and ends with a whole line; None of any other file."""
    headers: list[LogOpened] = []
    try:
        with Path(path).open("rb") as file:
            if file.read(len(_FIRST)) != _FIRST:
                return None
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                return None
            end = file.tell()
            for at in _places(file, end):
                file.seek(at)
                line = file.readline(MAX_LINE_BYTES)
                header = decode(line).event
                if not isinstance(header, LogOpened) or (not headers and at):
                    return None
                headers.append(header)
    except (OSError, BadRecord, SchemaTooNew):
        return None  # the slow way says what is wrong, and where
    return headers or None


def _places(file: IO[bytes], end: int) -> Iterator[int]:
    """Yield where the lines that may be headers begin. A quote inside a string is escaped, so that an id is none."""
    at = begun = 0  # of the block; of the line at its start
    told = -1
    while at < end:
        file.seek(at)
        block = file.read(min(_BLOCK_BYTES, end - at))
        found = block.find(_HEADER)
        while found >= 0:
            start = block.rfind(b"\n", 0, found) + 1
            line = at + start if start else begun
            if line != told:
                told = line
                yield line
            found = block.find(_HEADER, found + 1)
        # The next block overlaps this one, so that no mark is cut in two.
        step = len(block) if at + len(block) == end else len(block) - len(_HEADER)
        last = block.rfind(b"\n", 0, step)
        begun = at + last + 1 if last >= 0 else begun
        at += step


def log_files(paths: Sequence[str]) -> list[str]:
    """Return the log files that are named, or lie in the folders that are named. Raises `LogError` for an empty folder."""
    files: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            files.append(path)
            continue
        found = sorted(str(file) for file in Path(path).iterdir() if file.name.endswith(SUFFIXES))
        if not found:
            raise LogError(f"cannot read {path}: no event log lies in this folder ({', '.join(SUFFIXES)})")
        files += found
    return files
