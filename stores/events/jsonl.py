"""An event log as JSON lines: greppable, one record a line, in a file of mode 0600.

A log that is there already is continued: the coordinator writes a fresh `LogOpened`. Its torn tail, if it has one, is
cut off first and reported. What is not an event log, or was written by a newer library, is refused and left as it is.
"""

import os
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from lifecycle.codec import BadRecord, decode
from lifecycle.errors import LogError, SchemaTooNew
from lifecycle.events import Record
from stores.events.lines import MAX_LINE_BYTES, LineReader, TornTail, count_lines, plain
from stores.events.private import claim, open_private
from stores.events.writer import WriterEventLog

_BEGIN = b'{"seq":'  # of every record
_BLOCK_BYTES = 64 << 10


class JsonLinesEventLog(WriterEventLog):
    """A log of JSON lines at `path`. See `WriterEventLog` for the limits."""

    def __init__(self, path: str | PathLike[str], max_buffered: int = 1_000_000, close_s: float = 30.0) -> None:
        """Raise `LogError` if the file cannot be opened or is no log, `SchemaTooNew` if a newer library wrote it."""
        super().__init__(Path(path), max_buffered, close_s)
        self._fd = open_private(self.path)
        try:
            claim(self._fd, self.path)
            self._end = self._first = self._recover()
        except OSError as error:
            os.close(self._fd)
            raise LogError(f"cannot open event log {self.path}: {error.strerror} (use a place that can be written)") from error
        except LogError:
            os.close(self._fd)
            raise
        self._whole = True  # nothing stands in the file behind `_end`
        self._start()

    def _write(self, lines: Sequence[bytes]) -> None:
        data = memoryview(b"\n".join(lines) + b"\n")
        try:
            self._cut()
            self._whole = False
            rest = data
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise LogError(f"cannot write event log {self.path}: {error.strerror}") from error
        self._end += len(data)
        self._whole = True

    def _cut(self) -> None:
        """Drop what a failed write left behind the last whole line."""
        if not self._whole and os.fstat(self._fd).st_size > self._end:
            os.ftruncate(self._fd, self._end)

    def _finish(self) -> None:
        try:
            self._cut()
            os.fsync(self._fd)
        except OSError as error:
            raise LogError(f"cannot finish event log {self.path}: {error.strerror}") from error
        finally:
            os.close(self._fd)

    def _read(self) -> Iterable[Record]:
        return LineReader(self.path, start_byte=self._first)

    # --- what is there already

    def _recover(self) -> int:
        """Check that the file is a log, cut its torn tail off; return where to go on."""
        size = os.fstat(self._fd).st_size
        if not size:
            return 0
        with open(self._fd, "rb", closefd=False) as file:
            line = file.readline(MAX_LINE_BYTES + 1)
        if line.endswith(b"\n"):
            self._check(line, "first", 0)
        elif not (line.startswith(_BEGIN) or _BEGIN.startswith(line)):
            raise self._refused("it begins with no event", 0)
        tail_at = self._after_newline(size)
        if tail_at:
            last_at = self._after_newline(tail_at - 1)
            self._check(os.pread(self._fd, tail_at - 1 - last_at, last_at), "last", last_at)
        if tail_at == size:
            return size
        tail = os.pread(self._fd, size - tail_at, tail_at)
        try:
            decode(tail)
        except BadRecord as error:
            self.torn = TornTail(str(self.path), 1 + count_lines(self.path, tail_at), tail_at, len(tail), plain(error))
            os.ftruncate(self._fd, tail_at)
            self._log.warning(
                "event log had a torn tail, cut off",
                torn=str(self.torn),
                what_to_do="nothing: whoever wrote it was stopped in the middle of a line; events before it are whole",
            )
            return tail_at
        except SchemaTooNew as error:
            raise SchemaTooNew(f"cannot append to event log {self.path}: at byte {tail_at}: {plain(error)}") from error
        os.write(self._fd, b"\n")  # a whole record that lacks only this
        return size + 1

    def _check(self, line: bytes, which: str, at: int) -> None:
        try:
            decode(line)
        except SchemaTooNew as error:
            number = 1 + count_lines(self.path, at)
            raise SchemaTooNew(f"cannot append to event log {self.path}: line {number}: {plain(error)}") from error
        except BadRecord as error:
            raise self._refused(f"its {which} line is no event: {plain(error)}", at) from error

    def _refused(self, why: str, at: int) -> LogError:
        return LogError(f"cannot append to event log {self.path}: at byte {at}: {why} (move the file away)")

    def _after_newline(self, end: int) -> int:
        """Return the place after the last newline before `end`, or 0."""
        at = end
        while at:
            start = max(0, at - _BLOCK_BYTES)
            found = os.pread(self._fd, at - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
            if end - at > MAX_LINE_BYTES:
                raise self._refused(f"a line is longer than {MAX_LINE_BYTES} bytes", at)
        return 0
