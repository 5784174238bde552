"""Logs on disk when the process is killed, ends without a word, or runs out of disk."""

import random
import signal
import subprocess
import sys

import pytest
from event_log_contract import seqs, wanted

from lifecycle.errors import LogError
from lifecycle.events import EventsLost
from stores.events import LogReader, open_event_log

KINDS = ["jsonl", "sqlite"]

ENDLESS = """
import itertools, sys
from lifecycle.events import Record, RequestFinished
from stores.events import open_event_log
log = open_event_log(sys.argv[1], 0)
print("open", flush=True)
for seq in itertools.count():
    log.append(Record(seq, seq, RequestFinished("request " + "x" * (seq * 7919 % 4000))))
    if seq % 10 == 9:
        log.flush()
    if seq % 1000 == 999:
        list(itertools.islice(log.records(), 1))
        print(seq + 1, flush=True)
"""

FULL = """
import itertools, resource, sys
from lifecycle.events import Record, RequestFinished
from stores.events import JsonLinesEventLog, SqliteEventLog
path = sys.argv[1]
log = {"jsonl": JsonLinesEventLog, "sqlite": SqliteEventLog}[path.rpartition(".")[2]](path, max_buffered=2_000)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
seq = itertools.count()
def tick():
    log.append(Record(next(seq), 0, RequestFinished("x" * 100)))
    log.flush()
while log.lost_events < 5_000 or log._gap is None or log._gap.cause != log._trouble:
    tick()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
list(itertools.islice(log.records(), 1))
for _ in range(100):
    tick()
log.close()
print(log.lost_events, next(seq))
"""

FORGOTTEN = """
import sys
from lifecycle.events import Record, Wanted
from stores.events import open_event_log
log = open_event_log(sys.argv[1], 0)
for seq in range(20_000):
    log.append(Record(seq, 1_000 * seq, Wanted(seq)))
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_writer_leaves_a_whole_log(tmp_path, kind, seed):
    """After kill -9 at any moment all that `records` had waited for is there, without gaps, and the log is continued."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS, f"{kind}:{tmp_path}"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        sure = 0
        for _ in range(random.Random(seed).randint(0, 6)):
            sure = int(process.stdout.readline())
        process.kill()
    assert process.returncode == -signal.SIGKILL
    path = tmp_path / f"rank0.{kind}"
    reader = LogReader(path)
    count = len(records := list(reader))
    assert seqs(records) == list(range(count))
    assert count >= sure

    log = open_event_log(f"{kind}:{tmp_path}", 0)
    assert (log.torn is None) == (reader.torn is None)
    log.append(wanted(0, 1)[0])
    log.close()
    assert list(LogReader(path)) == records + wanted(0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_loses_events_by_number(tmp_path, kind):
    """While no byte more fits, nothing raises; afterwards the log goes on and says which seqs are missing."""
    path = tmp_path / f"rank0.{kind}"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    lost, appended = map(int, done.stdout.splitlines()[-1].split())
    records = list(LogReader(path))
    gaps = [record.event for record in records if isinstance(record.event, EventsLost)]
    assert seqs(records) == list(range(appended))
    assert sum(gap.events for gap in gaps) == lost >= 5_000
    assert str(path) in gaps[-1].cause
    assert done.stderr.count("trying on") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_close_loses_nothing(tmp_path, kind):
    """A process that ends in order without closing its log, or flushing it, has written everything."""
    subprocess.run([sys.executable, "-c", FORGOTTEN, f"{kind}:{tmp_path}"], check=True)
    assert list(LogReader(tmp_path / f"rank0.{kind}")) == wanted(0, 20_000)


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_may_not_write_the_same_log(tmp_path, kind):
    """Two engines that were given one directory do not mix their events: the second is refused."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS, f"{kind}:{tmp_path}"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(LogError, match="it is being written already"):
            open_event_log(f"{kind}:{tmp_path}", 0)
        process.kill()
