"""Reading SGLang server logs, plain, gzipped and rotated, into an imported log. Lines that say nothing are passed over."""

import zlib
from collections.abc import Iterator, Sequence

from lifecycle.audit.seen import ImportedLog, Seen, open_read, write_seen
from lifecycle.audit.sglang_lines import MAX_CHARS, read_line, time_of
from lifecycle.audit.tables import private_file
from lifecycle.audit.words import plain
from lifecycle.errors import LogError
from lifecycle.version import VERSION


class Importer:
    """Reads files in the order of the first time in each; counts what it passed over."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.files = _in_order(paths)
        self.lines = 0
        self.unread: list[tuple[str, int]] = []  # the first few places of lines that are cut off
        self.unread_count = 0

    def seen(self) -> Iterator[Seen]:
        """Yield every observation. Raises `LogError` for a file that cannot be read."""
        seq = 0
        for place, path in enumerate(self.files):
            for number, text in _lines(path):
                self.lines += 1
                if "etch" not in text and "HiCache" not in text and "to storage" not in text:
                    continue
                found, broken = read_line(text, text.endswith("\n"))
                if broken:
                    self.unread_count += 1
                    if len(self.unread) < 8:
                        self.unread.append((path, number))
                for at_ns, rank, kind, request, shape, facts in found:
                    yield Seen(seq, kind, place, number, request, at_ns, rank, shape, facts)
                    seq += 1


def import_sglang(paths: Sequence[str], target: str) -> tuple[Importer, int]:
    """Write what the files say into an imported log at `target`; return what was read and how many observations it has."""
    counting = Importer(paths)
    for _ in counting.seen():  # the header comes first and says how much was read
        pass
    reader = Importer(paths)
    header = ImportedLog("sglang", VERSION, tuple(reader.files), counting.lines, counting.unread_count)
    with private_file(target, paths) as file:
        count = write_seen(file, header, reader.seen())
    return reader, count


def _in_order(paths: Sequence[str]) -> list[str]:
    """Return the files by the first time that each prints; one without a time stays behind the one before it."""
    keyed = []
    last = -1
    for place, path in enumerate(paths):
        first = _first_time(path)
        last = last if first is None else first
        keyed.append((last, place, path))
    return [path for _, _, path in sorted(keyed)]


def _first_time(path: str) -> int | None:
    for number, text in _lines(path):
        if number > 100_000:
            return None
        if (at_ns := time_of(text)) is not None:
            return at_ns
    return None


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line; of a line that is too long its beginning. A torn gzip ends where it is torn."""
    number = 0
    try:
        with open_read(path) as file:
            whole = True
            while line := file.readline(MAX_CHARS):
                if whole:
                    number += 1
                    yield number, line.decode(errors="replace")
                whole = line.endswith(b"\n")
    except EOFError:
        return
    except (OSError, zlib.error) as error:
        raise LogError(f"cannot read {plain(path)}: line {number + 1}: {plain(str(error))}") from error
