"""What every event log promises, one test per promise. A backend is a subclass with an `open` of its own."""

import json

import pytest

from lifecycle.errors import ConfigError, LogError
from lifecycle.events import EventsLost, ObligationStuck, Record, RequestFinished, Wanted


def wanted(start, stop):
    """Records with the seqs [start, stop)."""
    return [Record(seq, 1_000 * seq, Wanted(seq)) for seq in range(start, stop)]


def seqs(records):
    """The seqs that records account for: their own, and those that were lost."""
    out = []
    for record in records:
        lost = record.event.events if isinstance(record.event, EventsLost) else 1
        out += range(record.seq, record.seq + lost)
    return out


class EventLogContract:
    """The promises. `open_log(limit=…)` of a subclass opens a log that can hold `limit` records back."""

    @pytest.fixture
    def open_log(self, tmp_path):
        opened = []

        def open_log(**options):
            opened.append(self.open(tmp_path, **options))
            return opened[-1]

        yield open_log
        for log in opened:
            log.close()

    def hold(self, log):
        """Make the log unable to write, from now on."""

    def test_a_fresh_log_is_empty(self, open_log):
        """Nothing was appended: there are no records and no losses."""
        log = open_log()
        assert list(log.records()) == []
        assert log.lost_events == 0

    def test_records_come_back_in_order(self, open_log):
        """What was appended, over several flushes, is what is kept: equal, in order, without gaps."""
        log = open_log()
        records = wanted(0, 3_000)
        for start in range(0, 3_000, 700):
            for record in records[start : start + 700]:
                log.append(record)
            log.flush()
        assert list(log.records()) == records
        assert log.lost_events == 0

    def test_records_waits_for_what_was_not_flushed(self, open_log):
        """`records` includes what was appended since the last flush, and later appends go on."""
        log = open_log()
        log.append(wanted(0, 1)[0])
        assert seqs(log.records()) == [0]
        log.append(wanted(1, 2)[0])
        assert seqs(log.records()) == [0, 1]

    def test_flushing_nothing_does_nothing(self, open_log):
        """A flush with nothing appended writes nothing."""
        log = open_log()
        log.flush()
        log.flush()
        assert list(log.records()) == []

    def test_lost_events_are_counted_and_stand_in_their_place(self, open_log):
        """What does not fit is one `EventsLost` with the seq of the first that is missing; nothing raises."""
        log = open_log(limit=5)
        self.hold(log)
        for record in wanted(0, 9):
            log.append(record)
            log.flush()
        assert log.lost_events == 4
        self.release(log)
        records = list(log.records())
        assert seqs(records) == list(range(9))
        assert records[:5] == wanted(0, 5)
        assert (records[5].seq, records[5].at_ns) == (5, 5_000)
        assert (records[5].event.events, records[5].event.first_seq) == (4, 5)
        assert records[5].event.cause
        assert len(records) == 6

    def release(self, log):
        """Let the log write again."""

    def test_closing_twice_is_once(self, open_log):
        """`close` writes what is left, may be repeated, and what was kept can still be read."""
        log = open_log()
        log.append(wanted(0, 1)[0])
        log.close()
        log.close()
        log.flush()
        assert list(log.records()) == wanted(0, 1)
        assert log.lost_events == 0

    def test_appending_after_close_is_refused(self, open_log):
        """A record that nobody will write is an error, and no loss."""
        log = open_log()
        log.close()
        with pytest.raises(LogError, match=r"cannot append to .*: it is closed"):
            log.append(wanted(0, 1)[0])
        assert log.lost_events == 0
        assert list(log.records()) == []

    @pytest.mark.parametrize(
        "request_id",
        [
            pytest.param('a\nb\r\n{"seq":9}', id="newline"),
            pytest.param("\x1b[2J\x00\x7f\x9b", id="escape"),
            pytest.param("\u2028\u2029\x85\x0b\x0c", id="separators"),
            pytest.param("é€😀", id="unicode"),
            pytest.param("x\n" * 500_000, id="long"),
            pytest.param("'); drop table events; --", id="sql"),
            pytest.param("", id="empty"),
        ],
    )
    def test_a_hostile_request_id_is_one_record(self, open_log, request_id):
        """A request id may hold anything: it comes back as it was and its neighbours are untouched."""
        log = open_log()
        records = [wanted(0, 1)[0], Record(1, 1, RequestFinished(request_id)), wanted(2, 3)[0]]
        for record in records:
            log.append(record)
        assert list(log.records()) == records

    def test_a_limit_of_nothing_is_refused(self, open_log):
        """A log that could keep no record is refused when it is built."""
        with pytest.raises(ConfigError, match=r"0 records"):
            open_log(limit=0)


class DiskLogContract(EventLogContract):
    """What every log on disk promises besides. Subclasses give `open`, `path` and `kind`."""

    def open(self, tmp_path, limit=1_000_000, close_s=30.0):
        return self.kind(self.path(tmp_path), max_buffered=limit, close_s=close_s)

    def hold(self, log):
        """The disk is full."""

        def full(lines):
            raise LogError(f"cannot write event log {log.path}: no space left")

        log._real_write, log._write = log._write, full

    def release(self, log):
        log._write = log._real_write

    def test_a_log_is_continued(self, open_log, tmp_path):
        """Opening a log again adds to it; the reader gives both runs, `records` only this one."""
        first = open_log()
        for record in wanted(0, 700):
            first.append(record)
        first.close()
        second = open_log()
        second.append(wanted(0, 1)[0])
        assert list(second.records()) == wanted(0, 1)
        second.close()
        assert list(self.reader(tmp_path)) == wanted(0, 700) + wanted(0, 1)

    def test_a_log_is_written_by_one(self, open_log):
        """A second writer of the same file is refused, and the first goes on."""
        log = open_log()
        log.append(wanted(0, 1)[0])
        with pytest.raises(LogError, match="it is being written already"):
            open_log()
        log.append(wanted(1, 2)[0])
        assert seqs(log.records()) == [0, 1]

    def test_only_the_owner_may_read(self, open_log, tmp_path):
        """Every file of the log has mode 0600, and one that was looser is tightened."""
        path = self.path(tmp_path)
        path.touch(0o644)
        path.chmod(0o644)
        log = open_log()
        log.append(wanted(0, 1)[0])
        list(log.records())
        assert {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {
            name: "0o600" for name in self.files(path.name)
        }

    def test_an_event_that_cannot_be_encoded_is_lost_alone(self, open_log):
        """A record that is no JSON, or too long, is an `EventsLost` of one; those around it are kept."""
        log = open_log()
        log.append(wanted(0, 1)[0])
        log.append(Record(1, 1, RequestFinished(object())))
        log.append(Record(2, 2, RequestFinished("x" * (16 << 20))))
        log.append(wanted(3, 4)[0])
        records = list(log.records())
        assert seqs(records) == [0, 1, 2, 3]
        assert log.lost_events == 2
        assert [type(record.event) for record in records] == [Wanted, EventsLost, EventsLost, Wanted]
        assert records[1].event.cause.startswith("RequestFinished: it cannot be encoded")
        assert "more than 16777216" in records[2].event.cause

    def test_a_disk_that_never_works_again_does_not_hold_up_the_end(self, open_log, tmp_path):
        """`close` tries once more, then counts what is not written as lost and leaves the rest of the log whole."""
        log = open_log(limit=10, close_s=5.0)
        log.append(wanted(0, 1)[0])
        list(log.records())
        self.hold(log)
        for record in wanted(1, 14):
            log.append(record)
            log.flush()
        log.close()
        assert log.lost_events == 13
        assert list(self.reader(tmp_path)) == wanted(0, 1)

    def test_records_does_not_wait_for_ever(self, open_log):
        """While the disk takes nothing, `records` says so, with the cause, instead of hanging."""
        log = open_log(close_s=0.05)
        self.hold(log)
        log.append(wanted(0, 1)[0])
        with pytest.raises(LogError, match=r"1 records are not written yet: .*no space left"):
            log.records()

    def test_a_loss_does_not_blind_records(self, open_log):
        """What stands for lost events is waited for like a record, and no later record is taken for it."""
        log = open_log(limit=1, close_s=0.05)
        self.hold(log)
        for record in wanted(0, 3):
            log.append(record)
        self.release(log)
        assert seqs(log.records()) == [0, 1, 2]
        self.hold(log)
        log.append(wanted(3, 4)[0])
        with pytest.raises(LogError, match="1 records are not written yet"):
            log.records()

    def test_a_failing_disk_is_reported_once(self, open_log, structlogs):
        """However often a write is tried, one line says that it fails and one that it works again."""
        log = open_log(limit=2)
        self.hold(log)
        for record in wanted(0, 50):
            log.append(record)
            log.flush()
        self.wait_for(lambda: any("trying on" in entry["event"] for entry in structlogs))
        self.release(log)
        list(log.records())
        told = [entry["event"] for entry in structlogs]
        assert told.count("event log cannot be written, trying on") == 1
        assert told.count("event log is losing events") == 1
        assert told.count("event log is written again") == 1

    def test_a_body_is_plain_json(self, open_log, tmp_path):
        """What stands in the file is one JSON object a record, with the event's wire name."""
        log = open_log()
        log.append(Record(3, 4, ObligationStuck(1, "anchor lock", 8, "OSError: \x1b[31m")))
        list(log.records())
        (body,) = self.bodies(tmp_path)
        assert json.loads(body) == {
            "seq": 3, "at_ns": 4, "event": "obligation_stuck.1",
            "prefetch": 1, "obligation": "anchor lock", "tries": 8, "error": "OSError: \x1b[31m",
        }  # fmt: skip

    @staticmethod
    def wait_for(true):
        """Return once `true()`; the whole test has a timeout."""
        while not true():
            pass
