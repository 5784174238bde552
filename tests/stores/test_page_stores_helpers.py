"""Long batches are shared with helper threads; nobody waits for a helper that has not begun."""

import threading
from pathlib import Path

import pytest
from page_files import NAMESPACE, page_file
from page_store_contract import KEYS

from lifecycle.reasons import ReadCode
from stores.pages import FilePageStore
from stores.pages.helpers import Helpers, spare_cores

PAGE = 512 << 10
PARTS = [(start, start + 1) for start in range(8)]


class Meeting:
    """Work that, from its second part on, waits until two threads are at it."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2, timeout=30)
        self.threads: dict[int, str] = {}

    def __call__(self, start: int, stop: int) -> None:
        self.threads[start] = threading.current_thread().name
        if start < 2:
            self.both.wait()


def test_a_helper_takes_part() -> None:
    """Two parts are worked on at once, one of them by the caller, and every part once."""
    helpers, meeting = Helpers(1), Meeting()
    helpers.share(meeting, PARTS)
    assert sorted(meeting.threads) == list(range(8))
    assert set(meeting.threads.values()) == {threading.current_thread().name, "page-helper-0"}
    helpers.close()


def test_a_helper_that_hangs_holds_up_only_the_batch_it_is_in() -> None:
    """Other callers work alone, and what they asked for does not pile up."""
    helpers, begun, gate = Helpers(1), threading.Event(), threading.Event()

    def hang(start: int, stop: int) -> None:
        if threading.current_thread().name.startswith("page-helper"):
            begun.set()
            gate.wait()
        else:
            begun.wait(30)

    stuck = threading.Thread(target=helpers.share, args=(hang, PARTS[:2]))
    stuck.start()
    assert begun.wait(30)
    done: list[int] = []
    try:
        for _ in range(50):
            helpers.share(lambda start, stop: done.append(start), PARTS)
        asked, alive = helpers._tasks.qsize(), stuck.is_alive()
    finally:
        gate.set()
        stuck.join()
    assert done == list(range(8)) * 50
    assert asked <= 1
    assert alive
    helpers.close()


@pytest.mark.parametrize("who", ["MainThread", "page-helper-0"])
def test_an_error_reaches_the_caller(who: str) -> None:
    """What the work raises, on whichever thread, is raised once every thread is through with it."""
    helpers, meeting = Helpers(1), Meeting()

    def fail(start: int, stop: int) -> None:
        meeting(start, stop)
        if threading.current_thread().name == who:
            raise ValueError(f"part {start}")

    with pytest.raises(ValueError, match=r"part [01]"):
        helpers.share(fail, PARTS[:2])
    helpers.share(lambda start, stop: None, PARTS)
    helpers.close()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_without_helpers_or_after_the_end_the_caller_works_alone(count: int) -> None:
    """No thread is started for nothing, and a closed crew asks nobody."""
    helpers, done = Helpers(count), []
    helpers.close()
    helpers.share(lambda start, stop: done.append(threading.current_thread().name), PARTS)
    helpers.share(lambda start, stop: done.append("nothing"), [])
    assert set(done) == {threading.current_thread().name}
    assert not helpers._started


def test_threads_end_with_the_crew() -> None:
    """Closing lets them go; there are none before there is work for two."""
    helpers = Helpers(2)
    helpers.share(lambda start, stop: None, PARTS[:1])
    assert not helpers._started
    before = set(threading.enumerate())
    helpers.share(lambda start, stop: None, PARTS)
    threads = set(threading.enumerate()) - before
    helpers.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_helpers_are_for_the_other_cores() -> None:
    """One for each core but the caller's, three at most."""
    assert 0 <= spare_cores() <= 3


def test_a_long_batch_has_an_answer_for_each_key_in_order(tmp_path: Path) -> None:
    """Shared or not, good, short, bad and missing pages answer in their own place, and all are counted."""
    for helpers in (0, 3):
        root = tmp_path / f"{helpers}"
        store = FilePageStore(root, {"kv": PAGE}, NAMESPACE, "r0of2", helpers=helpers)
        pages = [memoryview(bytes([place]) * PAGE) for place in range(24)]
        assert store.write("kv", KEYS[:24], pages) == [True] * 24
        for place in range(24):
            file = page_file(root, key=KEYS[place])
            if place % 4 == 1:
                file.write_bytes(file.read_bytes()[:-1])
            elif place % 4 == 2:
                file.write_bytes(file.read_bytes()[:-1] + b"x")
            elif place % 4 == 3:
                file.unlink()
        buffers = [memoryview(bytearray(PAGE)) for _ in range(24)]
        results = store.read_into("kv", KEYS[:24], buffers)
        assert [result.code for result in results] == [None, ReadCode.SHORT, ReadCode.CORRUPT, ReadCode.MISSING] * 6
        assert [bytes(buffers[place]) == bytes(pages[place]) for place in range(0, 24, 4)] == [True] * 6
        counts = {"write.ok": 24, "read.ok": 6, "read.short": 6, "read.corrupt.payload": 6, "read.missing": 6, "temp.swept": 0}
        assert store.stats() == counts
        store.close()
