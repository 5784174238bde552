"""Reading an event log kept in SQLite. Opens it read-only and believes nothing in it."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from lifecycle.codec import UPCASTERS, BadRecord, Upcaster, decode, decode_lines
from lifecycle.errors import LogError, SchemaTooNew
from lifecycle.events import Record
from stores.events.lines import MAX_LINE_BYTES, TornTail, plain

MAGIC = b"SQLite format 3\x00"
APPLICATION_ID = 0x50464C45
"""`PFLE`, in the header of every log."""
SCHEMA = 1
"""The version of the table, in `user_version`; events have versions of their own."""
TABLE = """CREATE TABLE events (
    id       INTEGER PRIMARY KEY,
    seq      INTEGER GENERATED ALWAYS AS (json_extract(body, '$.seq')) VIRTUAL,
    at_ns    INTEGER GENERATED ALWAYS AS (json_extract(body, '$.at_ns')) VIRTUAL,
    prefetch INTEGER GENERATED ALWAYS AS (json_extract(body, '$.prefetch')) VIRTUAL,
    event    TEXT    GENERATED ALWAYS AS (json_extract(body, '$.event')) VIRTUAL,
    body     TEXT    NOT NULL
)"""
"""A database is used only if its table is this one, to the letter, and there are no triggers: no code in it runs."""

_BLOCK_BYTES = 1 << 13  # as in `lines`
_BLOCK_ROWS = 64  # about as many
_LAST_ROW = (1 << 63) - 1
_PAGE_ROWS = 256  # per query, so that a slow reader does not keep the writer from emptying its WAL
_SHORT_BYTES = 1 << 14  # a body of so many is short: a page of them is held at once


class RowReader:
    """The records of a SQLite log with a row id above `after`. SQLite rolls a torn write back, so `torn` stays None."""

    def __init__(self, path: Path, upcasters: Mapping[str, Upcaster] = UPCASTERS, after: int = 0) -> None:
        self._path, self._upcasters, self._after = path, upcasters, after
        self.torn: TornTail | None = None

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in order; raises `LogError` naming file and row, or `SchemaTooNew`."""
        row = self._after
        try:
            with closing(_connect(self._path)) as connection:
                if not check_ours(connection, self._path):
                    return
                while True:
                    if bodies := _page_of_short(connection, row):
                        for at in range(0, _PAGE_ROWS, _BLOCK_ROWS):
                            some = bodies[at : at + _BLOCK_ROWS]
                            yield from self._records(range(row + 1, row + 1 + len(some)), some)
                            row += len(some)
                        continue
                    before = row
                    page = connection.execute("SELECT id, body FROM events WHERE id > ? ORDER BY id LIMIT ?", (row, _PAGE_ROWS))
                    for ids, some in _blocks(page):
                        yield from self._records(ids, some)
                        row = ids[-1]
                    if row == before:
                        return
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the driver decodes its own message, which may quote the file
            raise LogError(f"cannot read event log {self._path}: after row {row}: {error}") from error

    def _records(self, ids: Sequence[int], bodies: Sequence[object]) -> Iterable[Record]:
        try:
            records = decode_lines(b"\n".join(bodies) + b"\n")  # type: ignore[arg-type]  # a body may be no bytes: below
        except (TypeError, BadRecord):
            records = []
        # A body may hold a newline, and then two records: one by one, too.
        return records if len(records) == len(bodies) else map(self._record, ids, bodies)

    def _record(self, row: int, body: object) -> Record:
        if not isinstance(body, bytes):
            raise LogError(f"cannot read {self._path}: row {row} holds no event but a {type(body).__name__}")
        try:
            return decode(body, self._upcasters)
        except SchemaTooNew as error:
            raise SchemaTooNew(f"cannot read {self._path}: row {row}: {plain(error)}") from error
        except BadRecord as error:
            raise LogError(f"cannot read {self._path}: row {row}: {plain(error)}") from error


def _page_of_short(connection: sqlite3.Connection, row: int) -> list[object]:
    """Return the bodies of the next rows, if each id of a whole page is there and each body is short; else none.

    Without the ids a row costs half as much. What is left, and what cannot be read, is for the slow way.
    """
    if row > _LAST_ROW - _PAGE_ROWS:  # no whole page of ids is left
        return []
    longest = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SHORT_BYTES)
    try:
        page = connection.execute("SELECT body FROM events WHERE id > ? AND id <= ? ORDER BY id", (row, row + _PAGE_ROWS))
        bodies = [body for (body,) in page]
    except (sqlite3.Error, UnicodeDecodeError):
        return []
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    return bodies if len(bodies) == _PAGE_ROWS else []


def _blocks(rows: Iterable[tuple[int, object]]) -> Iterator[tuple[list[int], list[object]]]:
    """Yield ids and bodies in lists of a bounded length in bytes, for a body may be long."""
    ids: list[int] = []
    bodies: list[object] = []
    nbytes = 0
    for row, body in rows:
        ids.append(row)
        bodies.append(body)
        nbytes += len(body) if isinstance(body, bytes) else 0
        if nbytes >= _BLOCK_BYTES:
            yield ids, bodies
            ids, bodies, nbytes = [], [], 0
    if bodies:
        yield ids, bodies


def check_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Say whether the database is an event log; False if it is empty.

    Raises `LogError` if it is something else, `SchemaTooNew` if a newer library made it.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    ours = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'events' AND sql = ?", (TABLE,))
    triggers = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'")
    if application == APPLICATION_ID:
        if version > SCHEMA:
            raise SchemaTooNew(
                f"cannot read event log {path}: its schema is {version}, this library reads up to {SCHEMA}"
                " (use a newer library)"
            )
        if ours.fetchone()[0] == 1 and not triggers.fetchone()[0]:
            return True
    elif not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return False
    raise LogError(f"cannot open event log {path}: this database is not an event log (choose another file)")


def _connect(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LogError(f"cannot read event log {path}: there is no such file")
    try:
        return _open(path, "mode=ro")
    except sqlite3.OperationalError:
        # A directory that cannot be written has no room for the index of the WAL. Without a WAL none is needed.
        if path.with_name(path.name + "-wal").exists():
            raise
        return _open(path, "mode=ro&immutable=1")


def _open(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{options}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.text_factory = bytes  # a body that is not UTF-8 is then a bad record, not an error of the driver
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES + 1024)
        connection.execute("PRAGMA schema_version")  # opens the file
    except sqlite3.Error:
        connection.close()
        raise
    return connection
