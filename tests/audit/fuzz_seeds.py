"""Real logs to begin fuzzing with: every story of the tests, packed and in SQLite too, and lines of SGLang's."""

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from audit_stories import STORIES, run
from fuzz_target import RUNS
from test_audit_sglang import SHAPES

from lifecycle.codec import encode
from lifecycle.events import LogOpened, PageOverwritten, PagesScrubbed, PrefixServed, Record
from stores.events import SqliteEventLog


def seeds() -> Iterator[bytes]:
    """Yield inputs: each begins with the byte of a command."""
    imports = [place for place, command in enumerate(RUNS) if command[0] == "import-sglang"]
    ours = [place for place in range(len(RUNS)) if place not in imports]
    for number, log in enumerate(logs()):
        for place in (ours[number % len(ours)], 0):
            yield bytes((place,)) + log
    lines = "".join(f"{line}\n" for line, *_ in SHAPES).encode()
    for place in imports:
        yield bytes((place,)) + lines
        yield bytes((place,)) + gzip.compress(lines, mtime=0)


def logs() -> Iterator[bytes]:
    """Yield real logs as files hold them."""
    for story in STORIES:
        for records in run(story):
            yield _lines(records)
    records = run("plain")[0]
    yield _lines(run("plain")[0]) + _lines(run("short")[0])
    yield gzip.compress(_lines(records), mtime=0)
    more = [PrefixServed("a", 0, 8, ((0, 8, 1),)), PageOverwritten(1, "kv", 3, 3, 1, 2), PagesScrubbed(8, 0, 1)]
    tail = [Record(len(records) - 1 + place, 1 << 40, event) for place, event in enumerate(more)]
    yield _lines([*records[:-1], *tail])
    opened = records[0].event
    assert isinstance(opened, LogOpened)
    observed = msgspec.structs.replace(opened, policies={**opened.policies, "observed": "sglang"})
    yield _lines([Record(0, records[0].at_ns, observed), *records[1:]])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.sqlite"
        log = SqliteEventLog(path)
        for record in records:
            log.append(record)
        log.close()
        yield path.read_bytes()


def _lines(records: list[Record] | tuple[Record, ...]) -> bytes:
    return b"".join(encode(record) + b"\n" for record in records)
