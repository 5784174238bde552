"""Reading an event log of any format, as a stream."""

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

from lifecycle.codec import UPCASTERS, Upcaster
from lifecycle.errors import LogError
from lifecycle.events import Record
from stores.events.lines import LineReader, TornTail
from stores.events.rows import MAGIC, RowReader


class LogReader:
    """The records of a log file, in order: `for record in reader`. JSON lines (plain or gzipped) or SQLite.

    Every iteration begins at the start and holds one block of records at a time. Nothing is verified but that each record
    is one: a file that several runs were appended to holds several `LogOpened`, each with `seq` from its own beginning.
    """

    def __init__(self, path: str | PathLike[str], upcasters: Mapping[str, Upcaster] = UPCASTERS) -> None:
        """Raise `LogError` if there is no such file, or it cannot be opened."""
        self.path = Path(path)
        self._reader = (RowReader if _is_sqlite(self.path) else LineReader)(self.path, upcasters)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records; raises `LogError` naming file and line (or row), `SchemaTooNew` for a newer event."""
        return iter(self._reader)

    @property
    def torn(self) -> TornTail | None:
        """What the log ended with that is not a whole event; known once it was read to the end."""
        return self._reader.torn


def read_log(path: str | PathLike[str], upcasters: Mapping[str, Upcaster] = UPCASTERS) -> Iterator[Record]:
    """Return the records of a log file of any format; a torn tail is left out (`LogReader` reports it)."""
    return iter(LogReader(path, upcasters))


def _is_sqlite(path: Path) -> bool:
    # By name first: opening and closing the file of a log that this process is writing would drop SQLite's own locks.
    if path.suffix == ".sqlite" and path.is_file():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise LogError(f"cannot read event log {path}: {error.strerror}") from error
