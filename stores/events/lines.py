"""Reading JSON lines, plain or gzipped, one block of lines in memory at a time.

What a log ended with that is not a whole event is reported, not raised: a killed writer leaves that behind.
"""

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lifecycle.codec import UPCASTERS, BadRecord, Upcaster, decode, decode_lines
from lifecycle.errors import LifecycleError, LogError, SchemaTooNew
from lifecycle.events import Record

MAX_LINE_BYTES = 16 << 20
"""No record is longer, its newline not counted: it is neither written nor read."""

GZIP = b"\x1f\x8b"

_BLOCK_BYTES = 1 << 13  # its records stay in the cache of the processor until they are looked at


@dataclass(frozen=True, slots=True)
class TornTail:
    """What a log ended with that is not a whole event. Everything before it is good."""

    path: str
    line: int  # from 1
    at_byte: int  # where it begins; in a gzipped log, in the text
    nbytes: int
    why: str

    def __str__(self) -> str:
        where = f"at line {self.line} (byte {self.at_byte})"
        return f"{self.path} ends, {where}, with {self.nbytes} bytes that are no event: {self.why}"


class LineReader:
    """The records of a JSON-lines log from `start_byte` on; `torn` is known once they were read to the end."""

    def __init__(self, path: Path, upcasters: Mapping[str, Upcaster] = UPCASTERS, start_byte: int = 0) -> None:
        self._path, self._upcasters, self._start = path, upcasters, start_byte
        self.torn: TornTail | None = None

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in order; raises `LogError` naming file and line, or `SchemaTooNew`."""
        self.torn = None
        with _open(self._path) as file:
            number, at = 1, self._start
            if at:
                number += count_lines(self._path, at)
                file.seek(at)
            rest = b""  # of a line that the last block began
            while block := self._block(file, number, at, rest):
                end = block.rfind(b"\n") + 1
                self._check_length(len(rest) + (block.find(b"\n") if end else len(block)), number, at)
                if not end:
                    rest += block
                    continue
                lines, rest = rest + block[:end], block[end:]
                try:
                    records = decode_lines(lines)
                except BadRecord:
                    yield from self._one_by_one(lines, number, at)
                    number += lines.count(b"\n")
                else:
                    yield from records
                    number += len(records)
                at += len(lines)
            if rest and self.torn is None and (record := self._record(rest, number, at)) is not None:
                yield record

    def _block(self, file: io.BufferedIOBase, number: int, at: int, rest: bytes) -> bytes:
        try:
            return file.read1(_BLOCK_BYTES)
        except EOFError:
            self.torn = TornTail(str(self._path), number, at, len(rest), "the compressed stream ends early")
            return b""
        except (OSError, zlib.error) as error:
            raise LogError(f"cannot read {self._path}: line {number} (byte {at}): {error}") from error

    def _check_length(self, nbytes: int, number: int, at: int) -> None:
        if nbytes > MAX_LINE_BYTES:
            raise LogError(f"cannot read {self._path}: line {number} (byte {at}) is longer than {MAX_LINE_BYTES} bytes")

    def _one_by_one(self, lines: bytes, number: int, at: int) -> Iterator[Record]:
        for line in io.BytesIO(lines):
            record = self._record(line, number, at)
            assert record is not None, "only a line without its end is torn"
            yield record
            number, at = number + 1, at + len(line)

    def _record(self, line: bytes, number: int, at: int) -> Record | None:
        try:
            return decode(line, self._upcasters)
        except SchemaTooNew as error:
            raise SchemaTooNew(f"cannot read {self._path}: line {number} (byte {at}): {plain(error)}") from error
        except BadRecord as error:
            if line.endswith(b"\n"):
                raise LogError(f"cannot read {self._path}: line {number} (byte {at}): {plain(error)}") from error
            self.torn = TornTail(str(self._path), number, at, len(line), plain(error))
            return None


def count_lines(path: Path, end: int) -> int:
    """Return how many lines of a plain file end before byte `end`."""
    count = 0
    with path.open("rb") as file:
        while end > 0 and (block := file.read(min(1 << 20, end))):
            count, end = count + block.count(b"\n"), end - len(block)
    return count


def plain(error: LifecycleError) -> str:
    """Return what an error says, short and without the control characters that a hostile log may put into it."""
    text = str(error)
    text = text if len(text) <= 300 else text[:297] + "..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _open(path: Path) -> io.BufferedIOBase:
    try:
        file = path.open("rb")
    except OSError as error:
        raise LogError(f"cannot read event log {path}: {error.strerror}") from error
    if file.peek(len(GZIP))[: len(GZIP)] != GZIP:
        return file
    return _Unzipped(file)


class _Unzipped(gzip.GzipFile):
    """A gzipped file that closes the file under it."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._under = file

    def close(self) -> None:
        super().close()
        self._under.close()
