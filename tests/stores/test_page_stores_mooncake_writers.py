"""Two processes that write the same keys to a real Mooncake, beside one that reads them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import mooncake_master
import numpy as np
import pytest

from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from lifecycle.reasons import ReadCode
from stores.pages import MooncakePageStore

REASON = mooncake_master.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

NBYTES = 65536
KEYS = page_keys(list(range(16)), 1)

WRITER = """
import sys
import numpy as np
from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.pages import open_page_store
store = open_page_store(sys.argv[1], {"kv": 65536}, EMPTY_NAMESPACE, "r0of1", capacity_bytes=0)
keys = page_keys(list(range(16)), 1)
first = int(sys.argv[2])
written = turn = 0
print("ready", flush=True)
while sys.stdin.readline():  # one line, one turn
    turn += 1
    pages = [memoryview(np.full(65536, first + turn % 100, np.uint8)) for _ in keys]
    print(sum(store.write("kv", keys, pages)), flush=True)
store.check_integrity()
store.close()
print("closed", flush=True)
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[mooncake_master.Master]:
    with mooncake_master.running(tmp_path) as master:
        yield master


def test_two_processes_that_write_the_same_keys_serve_whole_pages(master: mooncake_master.Master) -> None:
    """Each replaces its own pages under the other's hands: what is read is whole, of the one or of the other, or a miss."""
    engine = master.client()
    store = MooncakePageStore(engine, {"kv": NBYTES}, EMPTY_NAMESPACE, "r0of1", master=master.address, owns_engine=True)
    memory = np.zeros((len(KEYS), NBYTES), np.uint8)
    store.register([memory])
    seen, read, stored = set(), 0, [0, 0]
    pipe = subprocess.PIPE
    quiet = {**os.environ, "GLOG_minloglevel": "3"}
    with ExitStack() as stack:
        writers = []
        for first in (1, 101):
            command = [sys.executable, "-c", WRITER, master.spec, str(first)]
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=quiet))
            stack.callback(process.kill)
            writers.append(process)
        lines = [process.stdout for process in writers]
        tells = [process.stdin for process in writers]
        for line in lines:
            assert line is not None
            assert line.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while read < 800 or min(stored) == 0:
            assert time.monotonic() < deadline, (read, stored, store.stats())
            for tell in tells:
                assert tell is not None
                print(file=tell, flush=True)  # both at once, and the reader beside them
            results = store.read_into("kv", KEYS, [row.data for row in memory])
            for row, result in zip(memory, results, strict=True):
                assert result.code in (None, ReadCode.MISSING)
                if result.code is None:
                    assert row[0] > 0
                    assert (row == row[0]).all()
                    seen.add(int(row[0]) > 100)
                    read += 1
            for place, line in enumerate(lines):
                assert line is not None
                stored[place] += int(line.readline())
        for tell, line in zip(tells, lines, strict=True):
            assert tell is not None
            assert line is not None
            tell.close()
            assert line.readline() == "closed\n"
    assert seen == {False, True}  # pages of both were served
    store.check_integrity()
    store.close()
