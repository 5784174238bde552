"""What was seen in the log of another engine: its own words as facts, nothing added. A fact that a line does not carry is
absent. Kept as JSON lines, like an event log, under wire names of its own.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from lifecycle.audit.words import plain
from lifecycle.errors import LogError

Fact = int | float | str | None | dict[str, int]

MAX_LINE_BYTES = 1 << 20


class ImportedLog(msgspec.Struct, frozen=True, tag_field="event", tag="imported_log.1"):
    """The header of an imported log. `times_utc`: printed times have no zone and are taken as UTC."""

    source: str
    library: str
    files: tuple[str, ...]
    lines: int
    unread: int  # lines that begin like one that is known and are not whole
    times_utc: bool = True


class Seen(msgspec.Struct, frozen=True, tag_field="event", tag="sglang_seen.1", omit_defaults=True):
    """One line of an engine's log that says something about a prefetch."""

    seq: int
    kind: str
    file: int  # place in the header's `files`
    line: int  # from 1
    request: str | None = None
    at_ns: int | None = None
    rank: str = ""  # as it is printed: `TP3`, `DP0 TP1`; empty where nothing is
    shape: str = ""  # which version prints such a line, where that is known
    facts: dict[str, Fact] = {}

    def number(self, fact: str) -> int | None:
        """Return a count, or None if the line does not carry it."""
        value = self.facts.get(fact)
        return value if isinstance(value, int) else None


_HEADER = msgspec.json.Decoder(ImportedLog)
_SEEN = msgspec.json.Decoder(Seen)
_MARK = b"imported_log.1"
_UNREAD = (OSError, EOFError, zlib.error)


def is_imported(path: str) -> bool:
    """Say whether a file begins with the header of an imported log."""
    try:
        with open_read(path) as file:
            return _MARK in file.read(64)
    except _UNREAD:
        return False  # whoever reads it says why it cannot be


def write_seen(file: IO[bytes], header: ImportedLog, seen: Iterable[Seen]) -> int:
    """Write an imported log; return how many observations it has."""
    file.write(msgspec.json.encode(header) + b"\n")
    count = 0
    for each in seen:
        file.write(msgspec.json.encode(each) + b"\n")
        count += 1
    return count


def read_header(path: str) -> ImportedLog:
    """Return the header of an imported log. Raises `LogError`."""
    try:
        with open_read(path) as file:
            return _HEADER.decode(file.readline(MAX_LINE_BYTES))
    except (*_UNREAD, msgspec.DecodeError) as error:
        raise LogError(f"cannot read imported log {plain(path)}: line 1: {plain(str(error))}") from error


def read_seen(path: str) -> Iterator[Seen]:
    """Yield the observations of an imported log. Raises `LogError` naming the line."""
    number = 1
    try:
        with open_read(path) as file:
            file.readline(MAX_LINE_BYTES)
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                yield _SEEN.decode(line)
    except (*_UNREAD, msgspec.DecodeError) as error:
        raise LogError(f"cannot read imported log {plain(path)}: line {number}: {plain(str(error))}") from error


def open_read(path: str) -> IO[bytes]:
    """Open a file, gzipped or not; the caller closes it."""
    file = Path(path).open("rb")  # noqa: SIM115
    if file.peek(2)[:2] == b"\x1f\x8b":
        file.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]  # it reads like one
    return file
