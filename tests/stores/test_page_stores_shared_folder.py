"""What bounded stores of two processes on one folder promise each other, and what they don't."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.pages import FilePageStore
from stores.pages.folder import ShardFolder
from stores.pages.header import HEADER_BYTES
from stores.pages.ledger import Ledger, PageId
from stores.pages.room import make_room

PAGE = {"kv": 4096}
KEYS = page_keys(list(range(16)), 1)
ROOM = 4 * (4096 + HEADER_BYTES)

# A store with room for four pages, in a process of its own, that does what it is told line by line: `write 0 1`, `read 0`.
PROCESS = f"""
import sys
from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.pages import FilePageStore
store = FilePageStore(sys.argv[1], {{"kv": 4096}}, EMPTY_NAMESPACE, "r0of1", {ROOM})
keys = page_keys(list(range(16)), 1)
print(store.used_bytes, flush=True)
for line in sys.stdin:
    verb, *pages = line.split()
    asked, buffers = [keys[int(page)] for page in pages], [memoryview(bytearray([1 + int(page)]) * 4096) for page in pages]
    if verb == "write":
        answers = store.write("kv", asked, buffers)
    else:
        wanted = [bytes(buffer) for buffer in buffers]
        for buffer in buffers:
            buffer[:] = bytes(4096)
        codes = [result.code for result in store.read_into("kv", asked, buffers)]
        answers = [code or ("same" if buffer == want else "garbled") for code, buffer, want in zip(codes, buffers, wanted)]
    store.check_integrity()
    print(*answers, store.used_bytes, flush=True)
"""


class Process:
    """The other end of such a process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.used_bytes = int(self._answer()[0])

    def tell(self, line: str) -> list[str]:
        """Have something done; return the answer for each page."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        *answers, used = self._answer()
        self.used_bytes = int(used)
        return answers

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()


@contextmanager
def process(root: Path) -> Iterator[Process]:
    """Run one."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROCESS, str(root)], stdin=pipe, stdout=pipe, text=True) as child:
        try:
            yield Process(child)
        finally:
            child.kill()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Process]:
    with process(tmp_path) as child:
        yield child


@pytest.fixture
def two(tmp_path: Path, one: Process) -> Iterator[Process]:
    with process(tmp_path) as child:
        yield child


def files(root: Path) -> set[str]:
    """Return the keys of the files there are."""
    return {path.name for path in (root / "r0of1" / "kv").rglob("*") if path.is_file()}


def test_each_reads_what_the_other_wrote(one: Process, two: Process) -> None:
    """A page is there for all processes as soon as one has written it."""
    assert one.tell("write 0 1") == ["True"] * 2
    assert two.tell("read 0 1 2") == ["same", "same", "missing"]


def test_capacity_bounds_each_process_and_not_the_folder(tmp_path: Path, one: Process, two: Process) -> None:
    """Two with room for four leave up to eight files, each counting its own; the next to be opened brings them to four."""
    assert one.tell("write 0 1 2 3 4 5") == ["True"] * 6
    assert two.tell("write 8 9 10 11 12") == ["True"] * 5
    assert files(tmp_path) == {KEYS[page] for page in (2, 3, 4, 5, 9, 10, 11, 12)}
    assert one.used_bytes == two.used_bytes == ROOM
    with process(tmp_path) as third:
        assert third.used_bytes == ROOM
        assert len(files(tmp_path)) == 4
    assert one.tell("write 6 7") == ["True"] * 2  # what the third has dropped is not there to be dropped, and no error
    assert one.used_bytes == ROOM


def test_a_page_that_another_process_has_used_since_is_spared(tmp_path: Path, one: Process) -> None:
    """The order of use is that of the files: what one reads again and again does not make room for what two writes."""
    assert one.tell("write 0 1") == ["True", "True"]
    with process(tmp_path) as two:
        assert two.used_bytes == ROOM // 2  # found at start, so that they are among what may go
        for page in range(8, 15):
            assert one.tell("read 0") == ["same"]
            assert two.tell(f"write {page}") == ["True"]
        assert two.used_bytes == ROOM
    assert files(tmp_path) == {KEYS[page] for page in (0, 12, 13, 14)}
    assert one.tell("read 0 1") == ["same", "missing"]


def test_what_another_process_has_dropped_is_a_miss_and_is_written_again(tmp_path: Path, one: Process) -> None:
    """A page that one has not used for longer than two has written makes room, and is not counted any more."""
    assert one.tell("write 0") == ["True"]
    with process(tmp_path) as two:
        assert two.tell("write 8 9 10 11") == ["True"] * 4
    assert one.tell("read 0") == ["missing"]
    assert one.used_bytes == 0
    assert one.tell("write 0") == ["True"]
    assert one.tell("read 0 8") == ["same", "same"]


def test_what_a_process_neither_wrote_nor_found_is_never_dropped_by_it(tmp_path: Path, one: Process, two: Process) -> None:
    """A process makes room among its own."""
    one.tell("write 0 1")
    for page in range(2, 16):
        assert two.tell(f"write {page}") == ["True"]
    assert {KEYS[0], KEYS[1]} <= files(tmp_path)
    assert FilePageStore(tmp_path, PAGE, EMPTY_NAMESPACE, "r0of1").restorable(KEYS[:2], ["kv"])["kv"].all()


def test_one_write_asks_for_the_times_of_few_files(tmp_path: Path) -> None:
    """However many files others use, a write that makes room looks at no more than it may pass over, and then removes one."""
    asked: list[PageId] = []

    class Busy(ShardFolder):
        def dated_ns(self, pool: str, key: str) -> int:
            asked.append((pool, key))
            return 1  # later than anything here

    ledger, done = Ledger(1000), Counter[str]()
    for page in range(1000):
        ledger.put(("kv", f"{page:064x}"), 1)
    make_room(ledger, Busy(tmp_path, "r0of1"), done, ("kv", "f" * 64), 1)
    assert done == {"spared": 64, "evicted": 1}
    assert len(asked) == 65
