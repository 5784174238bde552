"""Every event log against the contract, and what each has beside it."""

import gzip
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from event_log_contract import DiskLogContract, EventLogContract, seqs, wanted

from lifecycle.codec import encode
from lifecycle.errors import ConfigError, LogError, SchemaTooNew
from lifecycle.events import EventsLost, Record, RequestFinished
from stores.events import JsonLinesEventLog, LogReader, MemoryEventLog, SqliteEventLog, open_event_log, read_log


@pytest.fixture
def structlogs():
    with structlog.testing.capture_logs() as logs:
        yield logs


class TestMemory(EventLogContract):
    def open(self, tmp_path, limit=1_000_000):
        return MemoryEventLog(max_records=limit)


class TestJsonLines(DiskLogContract):
    kind = JsonLinesEventLog

    def path(self, tmp_path):
        return tmp_path / "rank0.jsonl"

    def files(self, name):
        return [name]

    def reader(self, tmp_path):
        return LogReader(self.path(tmp_path))

    def bodies(self, tmp_path):
        return self.path(tmp_path).read_bytes().splitlines()

    def test_a_torn_tail_is_cut_off_and_reported(self, open_log, tmp_path, structlogs):
        """Opening a log that a killed writer left behind drops the piece of a line and says where it was."""
        lines = b"".join(encode(record) + b"\n" for record in wanted(0, 3))
        self.path(tmp_path).write_bytes(lines + b'{"seq":3,"at_n')
        log = open_log()
        assert (log.torn.line, log.torn.at_byte, log.torn.nbytes) == (4, len(lines), 14)
        assert [entry["event"] for entry in structlogs] == ["event log had a torn tail, cut off"]
        log.append(wanted(3, 4)[0])
        log.close()
        assert list(self.reader(tmp_path)) == wanted(0, 4)

    def test_a_log_that_is_one_torn_line_is_continued(self, open_log, tmp_path):
        """A writer killed in its very first line left a log too."""
        self.path(tmp_path).write_bytes(b'{"se')
        log = open_log()
        assert log.torn.at_byte == 0
        log.append(wanted(0, 1)[0])
        assert list(log.records()) == wanted(0, 1)

    def test_a_whole_record_without_its_newline_is_kept(self, open_log, tmp_path):
        """A log cut exactly behind a record has lost nothing: the record is read, and appended behind."""
        self.path(tmp_path).write_bytes(encode(wanted(0, 1)[0]) + b"\n" + encode(wanted(1, 2)[0]))
        assert list(self.reader(tmp_path)) == wanted(0, 2)
        log = open_log()
        assert log.torn is None
        log.append(wanted(2, 3)[0])
        log.close()
        assert list(self.reader(tmp_path)) == wanted(0, 3)

    def test_a_write_that_fails_half_way_leaves_whole_lines(self, open_log, tmp_path, monkeypatch):
        """When the disk fills up within a line, the piece is cut off before the lines are written again."""
        log = open_log()
        log.append(wanted(0, 1)[0])
        list(log.records())
        real, failed = os.write, []

        def write(fd, data):
            if fd != log._fd or failed:
                return real(fd, data)
            if len(data) == len(encode(wanted(1, 2)[0])) + 1:
                return real(fd, data[:9])
            failed.append(self.path(tmp_path).read_bytes())
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", write)
        log.append(wanted(1, 2)[0])
        assert list(log.records()) == wanted(0, 2)
        assert not failed[0].endswith(b"\n")
        log.close()
        assert list(self.reader(tmp_path)) == wanted(0, 2)

    @pytest.mark.parametrize("content", [b"hello\n", b"hello", b"\x00" * 40, b'{"seq":0}\n'])
    def test_what_is_no_log_is_left_alone(self, open_log, tmp_path, content):
        """A file that is something else is refused, by name, and not touched."""
        self.path(tmp_path).write_bytes(content)
        with pytest.raises(LogError, match=r"rank0\.jsonl: .*\(move the file away\)"):
            open_log()
        assert self.path(tmp_path).read_bytes() == content

    @pytest.mark.parametrize("newline", [b"\n", b""])
    def test_a_log_of_a_newer_library_is_not_continued(self, open_log, tmp_path, newline):
        """Appending old events behind newer ones is refused, naming file and line."""
        content = encode(wanted(0, 1)[0]) + b'\n{"seq":1,"at_ns":0,"event":"wanted.9"}' + newline
        self.path(tmp_path).write_bytes(content)
        with pytest.raises(SchemaTooNew, match=r"rank0\.jsonl: .*'wanted\.9': this library reads wanted up to wanted\.1"):
            open_log()
        assert self.path(tmp_path).read_bytes() == content

    def test_a_fifo_is_refused(self, open_log, tmp_path):
        """A named pipe or a link in the place of the log is refused at once, instead of waited for or followed."""
        os.mkfifo(self.path(tmp_path))
        with pytest.raises(LogError, match="not a plain file"):
            open_log()
        self.path(tmp_path).unlink()
        self.path(tmp_path).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LogError, match="cannot open event log"):
            open_log()
        assert not (tmp_path / "elsewhere").exists()


class TestSqlite(DiskLogContract):
    kind = SqliteEventLog

    def path(self, tmp_path):
        return tmp_path / "rank0.sqlite"

    def files(self, name):
        return [name, name + "-wal", name + "-shm", name + ".lock"]

    def reader(self, tmp_path):
        return LogReader(self.path(tmp_path))

    def bodies(self, tmp_path):
        with closing(sqlite3.connect(self.path(tmp_path))) as shell:
            return [body for (body,) in shell.execute("SELECT body FROM events ORDER BY id")]

    def test_the_shell_sees_columns(self, open_log, tmp_path):
        """People ask by seq, time, prefetch and event, while the log is being written."""
        log = open_log()
        for record in wanted(0, 20):
            log.append(record)
        list(log.records())
        with closing(sqlite3.connect(self.path(tmp_path))) as shell:
            rows = shell.execute("SELECT seq, at_ns, prefetch, event FROM events WHERE prefetch = 7").fetchall()
            plan = str(shell.execute("EXPLAIN QUERY PLAN SELECT * FROM events WHERE prefetch = 7").fetchall())
        assert rows == [(7, 7_000, 7, "wanted.1")]
        assert "events_by_prefetch" in plan

    def test_a_shell_that_holds_the_database_costs_nothing(self, open_log, tmp_path):
        """While someone else has the database locked, records wait, and are written afterwards."""
        log = open_log()
        with closing(sqlite3.connect(self.path(tmp_path), isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            log.append(wanted(0, 1)[0])
            log.flush()
            self.wait_for(lambda: log._trouble is not None)
            assert "locked" in log._trouble
            shell.execute("ROLLBACK")
        assert list(log.records()) == wanted(0, 1)
        assert log.lost_events == 0

    @pytest.mark.parametrize("content", [b"hello, this is no database at all", b"SQLite format 3\x00" + b"\xff" * 4080])
    def test_what_is_no_database_is_left_alone(self, open_log, tmp_path, content):
        """A file that is something else is refused, by name, when it is written and when it is read."""
        self.path(tmp_path).write_bytes(content)
        with pytest.raises(LogError, match=r"rank0\.sqlite: "):
            open_log()
        with pytest.raises(LogError, match=r"rank0\.sqlite: "):
            list(self.reader(tmp_path))
        assert self.path(tmp_path).read_bytes() == content

    @pytest.mark.parametrize(
        "change",
        [
            "DROP TABLE events; CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)",
            "DROP TABLE events; CREATE VIEW events AS SELECT 1 AS id, 'x' AS body",
            "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
            "PRAGMA application_id = 7",
            "DROP TABLE events",
        ],
    )
    def test_another_database_is_left_alone(self, open_log, tmp_path, change):
        """A database that is not exactly an event log is refused: no view or trigger in it ever runs."""
        open_log().close()
        with closing(sqlite3.connect(self.path(tmp_path))) as shell:
            shell.executescript(change)
        with pytest.raises(LogError, match=r"rank0\.sqlite: this database is not an event log"):
            open_log()
        with pytest.raises(LogError, match=r"rank0\.sqlite: this database is not an event log"):
            list(self.reader(tmp_path))

    def test_a_newer_table_says_so(self, open_log, tmp_path):
        """A database of a newer schema is refused by name, for writing and for reading."""
        open_log().close()
        with closing(sqlite3.connect(self.path(tmp_path))) as shell:
            shell.execute("PRAGMA user_version = 2")
        for use in (open_log, lambda: list(self.reader(tmp_path))):
            with pytest.raises(SchemaTooNew, match=r"rank0\.sqlite: its schema is 2, this library reads up to 1"):
                use()

    def test_a_database_that_was_just_made_is_an_empty_log(self, open_log, tmp_path):
        """A writer killed before it made its table left a log without events, to be read and continued."""
        self.path(tmp_path).touch()
        assert list(self.reader(tmp_path)) == []
        log = open_log()
        log.append(wanted(0, 1)[0])
        assert list(log.records()) == wanted(0, 1)


class TestOpening:
    """`open_event_log` and its words."""

    @pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
    def test_the_file_is_named_by_rank(self, tmp_path, kind):
        """A log on disk is DIR/rank<n>.<kind>; a missing directory is made for this user alone."""
        log = open_event_log(f"{kind}:{tmp_path}/new/logs", 3)
        log.append(wanted(0, 1)[0])
        log.close()
        assert stat.S_IMODE((tmp_path / "new" / "logs").stat().st_mode) == 0o700
        assert list(read_log(tmp_path / "new" / "logs" / f"rank3.{kind}")) == wanted(0, 1)

    def test_memory_needs_no_place(self):
        """`memory` opens a log in memory."""
        assert isinstance(open_event_log("memory", 0), MemoryEventLog)

    @pytest.mark.parametrize("spec", ["", "kafka:here", "jsonl", "jsonl:", "sqlite:", "memory:", "/var/log"])
    def test_an_unknown_kind_is_refused(self, spec):
        """A word that is no log is refused with the words there are."""
        with pytest.raises(ConfigError, match="use one of memory, jsonl:DIR, sqlite:DIR"):
            open_event_log(spec, 0)

    def test_a_negative_rank_is_refused(self, tmp_path):
        """Ranks count from 0."""
        with pytest.raises(ConfigError, match="rank -1"):
            open_event_log(f"jsonl:{tmp_path}", -1)

    @pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
    def test_a_place_that_is_no_directory_is_refused(self, tmp_path, kind):
        """A directory that cannot be made is named in the error."""
        (tmp_path / "file").touch()
        with pytest.raises(LogError, match=str(tmp_path / "file" / "logs")):
            open_event_log(f"{kind}:{tmp_path}/file/logs", 0)

    @pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
    def test_a_directory_that_cannot_be_written_is_refused(self, read_only, kind):
        """A read-only directory is named in the error, at once, not when the first event is lost."""
        with pytest.raises(LogError, match=str(read_only)):
            open_event_log(f"{kind}:{read_only}", 0)


@pytest.fixture
def make_read_only(monkeypatch):
    """Take the right to write a directory away, from root as well; given back at the end."""
    taken = []

    def take(directory):
        for path in (directory, *directory.iterdir()):
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534)
        directory.chmod(0o555)
        parents = [parent for parent in directory.parents if not parent.stat().st_mode & 0o001]
        taken.append((directory, parents, [parent.stat().st_mode for parent in parents]))
        if os.geteuid() == 0:
            for parent in parents:
                parent.chmod(parent.stat().st_mode | 0o011)
            os.seteuid(65534)

    yield take
    if os.getuid() == 0:
        os.seteuid(0)
    for directory, parents, modes in taken:
        directory.chmod(0o700)
        for parent, mode in zip(parents, modes, strict=True):
            parent.chmod(stat.S_IMODE(mode))


@pytest.fixture
def read_only(tmp_path, make_read_only):
    directory = tmp_path / "archive"
    directory.mkdir()
    make_read_only(directory)
    return directory


class TestReading:
    """`LogReader` on what it may find."""

    def write(self, path, *lines):
        path.write_bytes(b"".join(lines))
        return LogReader(path)

    lines = [encode(record) + b"\n" for record in wanted(0, 3)]  # noqa: RUF012

    def test_a_torn_tail_is_reported_behind_what_is_good(self, tmp_path):
        """What was written whole is read; the rest is described with line and byte, once the reader came to it."""
        reader = self.write(tmp_path / "a.jsonl", *self.lines, b'{"seq":3')
        assert reader.torn is None
        assert list(reader) == wanted(0, 3)
        assert (reader.torn.line, reader.torn.at_byte, reader.torn.nbytes) == (4, len(b"".join(self.lines)), 8)
        assert "a.jsonl ends, at line 4" in str(reader.torn)

    @pytest.mark.parametrize("cut", range(1, 40))
    def test_a_log_cut_anywhere_is_read_up_to_there(self, tmp_path, cut):
        """Wherever the end is missing, all whole records before it are read and nothing raises."""
        data = b"".join(self.lines)[:-cut]
        reader = self.write(tmp_path / "a.jsonl", data)
        whole = data.count(b"\n") + (cut == 1)
        assert list(reader) == wanted(0, whole)
        assert (reader.torn is None) == (data.endswith((b"\n", b"}")))

    def test_a_corrupt_line_in_the_middle_names_its_place(self, tmp_path):
        """A line that is no event, with others behind it, is an error with file and line, after those before it."""
        reader = self.write(tmp_path / "a.jsonl", self.lines[0], b"{\x1b[31m}\n", self.lines[2])
        records = iter(reader)
        assert next(records) == wanted(0, 1)[0]
        with pytest.raises(LogError, match=r"a\.jsonl: line 2 \(byte \d+\): cannot read an event record") as raised:
            next(records)
        assert str(raised.value).isprintable()

    def test_a_newer_event_names_its_place(self, tmp_path):
        """An event of a newer library is its own error, with file and line."""
        reader = self.write(tmp_path / "a.jsonl", self.lines[0], b'{"seq":1,"at_ns":0,"event":"wanted.2"}\n')
        with pytest.raises(SchemaTooNew, match=r"a\.jsonl: line 2 .*'wanted\.2'"):
            list(reader)

    @pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
    def test_a_line_without_end_is_refused(self, tmp_path, suffix):
        """A line over the limit is an error before more of it is read, packed or not."""
        path = tmp_path / f"a.{suffix}"
        data = self.lines[0] + b" " * (17 << 20)
        path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
        with pytest.raises(LogError, match=r"line 2 .*longer than 16777216 bytes"):
            list(LogReader(path))

    def test_a_zipped_log_is_read(self, tmp_path):
        """A log that was packed away is read as it is, also when several were packed one behind the other."""
        reader = self.write(tmp_path / "a.jsonl.gz", *map(gzip.compress, self.lines))
        assert list(reader) == wanted(0, 3)
        assert reader.torn is None

    def test_a_cut_zipped_log_is_torn(self, tmp_path):
        """A packed log that ends early is read up to there, and the end reported."""
        many = b"".join(encode(record) + b"\n" for record in wanted(0, 5_000))
        reader = self.write(tmp_path / "a.jsonl.gz", gzip.compress(many)[:-4_000])
        records = list(reader)
        assert records == wanted(0, len(records))
        assert 0 < len(records) < 5_000
        assert "ends early" in reader.torn.why

    def test_a_damaged_zipped_log_names_its_place(self, tmp_path):
        """Packed bytes that are damaged are an error that names the file."""
        packed = bytearray(gzip.compress(b"".join(encode(record) + b"\n" for record in wanted(0, 5_000))))
        packed[len(packed) // 2] ^= 0xFF
        with pytest.raises(LogError, match=r"a\.jsonl\.gz: line \d+"):
            list(self.write(tmp_path / "a.jsonl.gz", packed))

    def test_the_content_decides_where_the_name_does_not(self, tmp_path):
        """A log under another name is recognised by its first bytes."""
        log = SqliteEventLog(tmp_path / "rank0.sqlite")
        log.append(wanted(0, 1)[0])
        log.close()
        (tmp_path / "rank0.sqlite").rename(tmp_path / "old.bak")
        assert list(read_log(tmp_path / "old.bak")) == wanted(0, 1)
        assert list(self.write(tmp_path / "zipped", gzip.compress(self.lines[0]))) == wanted(0, 1)

    def test_an_empty_log_has_no_records(self, tmp_path):
        """A file without a byte is a log without events."""
        reader = self.write(tmp_path / "a.jsonl")
        assert list(reader) == []
        assert reader.torn is None

    @pytest.mark.parametrize("name", ["none.jsonl", "none.sqlite", "."])
    def test_a_file_that_is_not_there_is_named(self, tmp_path, name):
        """A missing file is an error when the reader is made."""
        with pytest.raises(LogError, match="cannot read event log"):
            LogReader(tmp_path / name)

    @pytest.mark.parametrize("damage", [b"}", b"\xff", b"\x00", b"\x1b"])
    def test_a_corrupt_row_names_its_place(self, tmp_path, damage):
        """A row that is no event is an error with file and row; rows before it were given."""
        path = tmp_path / "rank0.sqlite"
        log = SqliteEventLog(path)
        log.append(wanted(0, 1)[0])
        log.append(wanted(1, 2)[0])
        log.close()
        body = encode(wanted(1, 2)[0])
        assert body in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(body, damage + body[1:]))
        records = read_log(path)
        assert next(records) == wanted(0, 1)[0]
        with pytest.raises(LogError, match=r"rank0\.sqlite: row 2"):
            next(records)

    def long_log(self, path):
        """Return what was appended to a SQLite log of several pages of rows."""
        log = SqliteEventLog(path)
        records = [Record(seq, seq, RequestFinished("x" * (seq % 7))) for seq in range(1500)]
        for record in records:
            log.append(record)
        log.close()
        assert not log.lost_events
        return records

    @pytest.mark.parametrize("change", ["DELETE FROM events WHERE id IN (300, 700)", "UPDATE events SET id = id + 5000"])
    def test_rows_with_gaps_between_their_ids_are_all_read(self, tmp_path, change):
        """Where rows were taken out, or do not begin at 1, each of the others is read once, in order."""
        path = tmp_path / "rank0.sqlite"
        records = self.long_log(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            shell.execute(change)
            ids = {row for (row,) in shell.execute("SELECT id FROM events")}
        kept = [each for row, each in enumerate(records, 1) if row in ids or row + 5000 in ids]
        assert len(kept) in (1498, 1500)
        assert list(read_log(path)) == kept

    def test_a_long_body_among_short_ones_is_read(self, tmp_path):
        """A page of rows in which one is long is read as any other."""
        path = tmp_path / "rank0.sqlite"
        records = self.long_log(path)
        long = Record(600, 600, RequestFinished("y" * 100_000))
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            shell.execute("UPDATE events SET body = ? WHERE id = 601", (encode(long).decode(),))
        assert list(read_log(path)) == [*records[:600], long, *records[601:]]

    @pytest.mark.parametrize("body", ["5", "{}", "[]", 5])
    @pytest.mark.parametrize("row", [1, 256, 257, 900, 1500])
    def test_a_bad_row_far_on_names_its_place(self, tmp_path, row, body):
        """Whatever a row of a long log holds instead of an event: rows before it are given, then it is named."""
        path = tmp_path / "rank0.sqlite"
        records, given = self.long_log(path), []
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            shell.execute("UPDATE events SET body = ? WHERE id = ?", (body, row))
        with pytest.raises(LogError, match=rf"rank0\.sqlite: row {row}\b"):
            given.extend(read_log(path))
        assert given == records[: row - 1]

    def test_a_row_of_two_events_is_refused(self, tmp_path):
        """One row is one event, also where the rows as a whole would add up."""
        path = tmp_path / "rank0.sqlite"
        log = SqliteEventLog(path)
        long = [Record(seq, seq, RequestFinished("x" * 200)) for seq in range(2)]
        for record in long:
            log.append(record)
        log.close()
        content = path.read_bytes()
        for record, body in zip(long, (b"".join(self.lines[:2]), b" "), strict=True):
            assert encode(record) in content
            content = content.replace(encode(record), body.strip(b"\n").rjust(len(encode(record))))
        path.write_bytes(content)
        with pytest.raises(LogError, match=r"rank0\.sqlite: row 1"):
            list(read_log(path))

    def test_a_log_in_an_archive_is_read(self, tmp_path, make_read_only):
        """A closed database is read where nothing can be written beside it."""
        (tmp_path / "archive").mkdir()
        path = tmp_path / "archive" / "rank0.sqlite"
        log = SqliteEventLog(path)
        log.append(wanted(0, 1)[0])
        log.close()
        make_read_only(path.parent)
        assert list(read_log(path)) == wanted(0, 1)

    def test_a_lost_event_is_no_gap(self, tmp_path):
        """The seq behind an `EventsLost` is its own plus what it counts."""
        log = JsonLinesEventLog(tmp_path / "a.jsonl", max_buffered=1)
        TestJsonLines.hold(None, log)
        for record in wanted(0, 4):
            log.append(record)
            log.flush()
        TestJsonLines.release(None, log)
        list(log.records())
        log.append(wanted(4, 5)[0])
        log.close()
        records = list(read_log(tmp_path / "a.jsonl"))
        assert [type(record.event) is EventsLost for record in records] == [False, True, False]
        assert seqs(records) == [0, 1, 2, 3, 4]


def test_a_row_with_the_last_id_there_can_be_is_read(tmp_path: Path) -> None:
    """An id beyond which no page of rows can be asked for ends the log, and nothing else."""
    path = tmp_path / "rank0.sqlite"
    log = SqliteEventLog(path)
    for seq in range(3):
        log.append(Record(seq, seq, RequestFinished(f"r{seq}")))
    log.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET id = ? WHERE id = (SELECT MAX(id) FROM events)", ((1 << 63) - 1,))
    assert [record.seq for record in read_log(path)] == [0, 1, 2]
