"""An event log in a SQLite database: the default on disk. One table, made for the sqlite3 shell:

    select seq, event, body from events where prefetch = 7 order by id;

`body` is the record as one JSON object; the other columns are read out of it. WAL, mode 0600, one transaction for what
was flushed since the last one (at most 512 records); what was committed survives a kill. A log that is there already is
continued, as with JSON lines.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from lifecycle.errors import LogError
from lifecycle.events import Record
from stores.events.private import claim, open_private
from stores.events.rows import APPLICATION_ID, SCHEMA, TABLE, RowReader, check_ours
from stores.events.writer import WriterEventLog

_CREATE = f"""
BEGIN IMMEDIATE;
{TABLE};
CREATE INDEX events_by_prefetch ON events (prefetch) WHERE prefetch IS NOT NULL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA};
COMMIT;
"""


class SqliteEventLog(WriterEventLog):
    """A log in a SQLite database at `path`. See `WriterEventLog` for the limits."""

    def __init__(self, path: str | PathLike[str], max_buffered: int = 1_000_000, close_s: float = 30.0) -> None:
        """Raise `LogError` if the file cannot be opened or is no log, `SchemaTooNew` if a newer library wrote it."""
        super().__init__(Path(path), max_buffered, close_s)
        # A file of its own is locked: closing any descriptor of the database drops the locks that SQLite holds on it.
        lock = self.path.with_name(self.path.name + ".lock")
        self._lock_fd = open_private(lock)
        try:
            claim(self._lock_fd, self.path)
            os.close(open_private(self.path))  # SQLite gives its -wal and -shm the mode of this file
            self._connection = self._connect()
        except LogError:
            os.close(self._lock_fd)
            raise
        self._start()

    def _connect(self) -> sqlite3.Connection:
        connection = None
        try:
            connection = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
            if not check_ours(connection, self.path):
                connection.executescript(_CREATE)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._after: int = connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the driver decodes its message, which may quote the file
            if connection is not None:
                connection.close()
            raise LogError(f"cannot open event log {self.path}: {error} (choose another file)") from error
        except LogError:
            if connection is not None:
                connection.close()
            raise
        return connection

    def _write(self, lines: Sequence[bytes]) -> None:
        # One statement is one transaction, and lets the other threads run for as long as SQLite works on it.
        values = ",".join(["(?)"] * len(lines))
        try:
            bodies = [str(line, "utf-8") for line in lines]
            self._connection.execute(f"INSERT INTO events (body) VALUES {values}", bodies)
        except sqlite3.Error as error:
            raise LogError(f"cannot write event log {self.path}: {error}") from error

    def _finish(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error as error:
            raise LogError(f"cannot finish event log {self.path}: {error}") from error
        finally:
            os.close(self._lock_fd)

    def _read(self) -> Iterable[Record]:
        return RowReader(self.path, after=self._after)
