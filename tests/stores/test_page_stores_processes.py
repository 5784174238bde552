"""Several processes on one folder: killed while they write, writing the same keys, dropping each other's pages.

`PAGE_KILLS=1000` kills that many writers instead of a hundred.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from lifecycle.reasons import ReadCode
from stores.pages import FilePageStore
from stores.pages.header import HEADER_BYTES

KILLS = int(os.environ.get("PAGE_KILLS", "100"))
PAGE = {"kv": 256 * 1024}
KEYS = page_keys(list(range(8)), 1)

WRITER = """
import sys
import numpy as np
from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.pages import FilePageStore
root, filler, capacity = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None
store = FilePageStore(root, {"kv": 256 * 1024}, EMPTY_NAMESPACE, "r0of1", capacity)
keys = page_keys(list(range(8)), 1)
print("ready", flush=True)
turn = 0
while True:
    fill = filler + turn % 50
    pages = [memoryview(np.full(256 * 1024, fill, np.uint8)) for _ in keys]
    if not all(store.write("kv", keys, pages)):
        print("a write failed", flush=True)
    turn += 1
"""


@contextmanager
def writer(root: Path, filler: int, capacity_bytes: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Run a process that writes all keys again and again, each page filled with one byte from `filler` on."""
    command = [sys.executable, "-c", WRITER, str(root), str(filler), str(capacity_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def read_all(store: FilePageStore) -> list[ReadCode | None]:
    """Read every key; a page read ok must be one that a writer wrote whole."""
    buffers = [np.zeros(PAGE["kv"], np.uint8) for _ in KEYS]
    results = store.read_into("kv", KEYS, [memoryview(buffer) for buffer in buffers])
    for buffer, result in zip(buffers, results, strict=True):
        if result.code is None:
            assert buffer[0] > 0
            assert (buffer == buffer[0]).all()
    return [result.code for result in results]


# Imports once and forks a writer for every line it is told, so that a kill costs milliseconds.
NURSERY = """
import os, sys
import numpy as np
from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.pages import FilePageStore
root, capacity = sys.argv[1], int(sys.argv[2])
keys = page_keys(list(range(8)), 1)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        store = FilePageStore(root, {"kv": 256 * 1024}, EMPTY_NAMESPACE, "r0of1", capacity)
        fill = int(line)
        print(os.getpid(), flush=True)
        while True:
            fill = 1 + fill % 250
            store.write("kv", keys, [memoryview(np.full(256 * 1024, fill, np.uint8))] * len(keys))
    print(os.WIFSIGNALED(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_writer_killed_at_a_hundred_moments_leaves_no_torn_page(tmp_path: Path) -> None:
    """After each kill -9 every page is whole or missing, the books are those of the folder, temporary files go."""
    room = 5 * (PAGE["kv"] + HEADER_BYTES)  # for five of the eight keys: writing evicts all the time
    dice, seen = random.Random(3), Counter[ReadCode | None]()
    command = [sys.executable, "-c", NURSERY, str(tmp_path), str(room)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for turn in range(KILLS):
            print(turn, file=nursery.stdin, flush=True)
            pid = int(nursery.stdout.readline())
            time.sleep(dice.uniform(0, 0.02))  # the moment of the kill is what is tried
            os.kill(pid, signal.SIGKILL)
            assert nursery.stdout.readline() == "True\n"
            store = FilePageStore(tmp_path, PAGE, EMPTY_NAMESPACE, "r0of1", room)
            files = [path for path in (tmp_path / "r0of1" / "kv").rglob("*") if path.is_file()]
            assert store.used_bytes == sum(path.stat().st_size for path in files) <= room
            seen.update(read_all(store))
            store.check_integrity()
        nursery.stdin.close()
    temps = list((tmp_path / "r0of1" / ".tmp").iterdir())
    assert 0 < len(temps) <= KILLS  # some came in the middle of a page, and none left more than that one
    assert set(seen) == {None, ReadCode.MISSING}
    for path in temps:
        os.utime(path, (0, 0))  # more than an hour later
    assert FilePageStore(tmp_path, PAGE, EMPTY_NAMESPACE, "r0of1").stats()["temp.swept"] == len(temps)
    assert not list((tmp_path / "r0of1" / ".tmp").iterdir())


def test_two_processes_that_write_the_same_keys_serve_whole_pages(tmp_path: Path) -> None:
    """A reader beside two writers of the same keys sees pages of the one or the other, never of both."""
    store = FilePageStore(tmp_path, PAGE, EMPTY_NAMESPACE, "r0of1")
    with writer(tmp_path, 1) as one, writer(tmp_path, 101) as two:
        for _ in range(60):
            assert set(read_all(store)) <= {None, ReadCode.MISSING}
        assert one.poll() is None
        assert two.poll() is None
    assert read_all(store) == [None] * len(KEYS)


def test_two_processes_that_drop_each_others_pages_do_not_crash(tmp_path: Path) -> None:
    """Bounded stores on one folder evict under each other; a page gone is a miss, no write fails."""
    capacity = 3 * (PAGE["kv"] + 256)
    store = FilePageStore(tmp_path, PAGE, EMPTY_NAMESPACE, "r0of1", capacity)
    pages = [memoryview(bytes([7]) * PAGE["kv"])] * len(KEYS)
    with writer(tmp_path, 1, capacity) as one, writer(tmp_path, 101, capacity) as two:
        for _ in range(20):
            assert all(store.write("kv", KEYS, pages))
            assert set(read_all(store)) <= {None, ReadCode.MISSING}
        for process in (one, two):
            assert process.poll() is None
            process.kill()
            assert process.stdout is not None
            assert process.stdout.read() == ""
    store.check_integrity()


@pytest.fixture
def _file_limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("_file_limit")
def test_a_write_that_the_system_stops_halfway_leaves_nothing(tmp_path: Path) -> None:
    """A page cut by a real limit of the system is False and missing, and smaller pages are stored."""
    store = FilePageStore(tmp_path, {**PAGE, "indexer": 512}, EMPTY_NAMESPACE, "r0of1")
    assert store.write("kv", KEYS[:1], [memoryview(bytes(PAGE["kv"]))]) == [False]
    assert store.stats()["write.EFBIG"] == 1
    assert os.listdir(tmp_path / "r0of1" / ".tmp") == []
    assert store.write("indexer", KEYS[:1], [memoryview(bytes(512))]) == [True]
    store.check_integrity()
