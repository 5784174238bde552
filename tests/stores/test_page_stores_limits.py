"""The file store where rights are lost, a real disk fills up, and clocks step back."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_files import FILE_BYTES, open_store, page_file, read, temps
from page_store_contract import KEYS, blanks, pages

from lifecycle.errors import StoreError
from lifecycle.reasons import ReadCode

_NOBODY = 65_534

# --- rights ---


@pytest.fixture
def own() -> Iterator[Path]:
    """A folder of whoever runs the test, who gives up root's power to read everything for its length."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        if user == 0:
            os.chown(folder, _NOBODY, -1)
            os.seteuid(_NOBODY)
        try:
            if not os.access(folder, os.W_OK, effective_ids=True):
                pytest.skip("temporary folders lie below one that only root may enter")
            yield Path(folder)
        finally:
            os.seteuid(user)


def test_a_file_that_may_not_be_read_is_an_error_of_its_page(own: Path) -> None:
    """Rights lost on one file are IO_ERROR for that page, not claimed any more; its neighbour is read."""
    store = open_store(own)
    store.write("kv", KEYS[:2], pages("kv", range(2)))
    page_file(own).chmod(0)
    results = store.read_into("kv", KEYS[:2], blanks("kv", 2))
    assert [result.code for result in results] == [ReadCode.IO_ERROR, None]
    assert store.stats()["read.io_error.EACCES"] == 1
    assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [False, True]
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]  # a new file in its place
    assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [True, True]
    assert read(store).code is None


def test_a_folder_that_may_not_be_entered_holds_nothing(own: Path) -> None:
    """Rights lost on a folder: its pages are not claimed, a read is IO_ERROR, a write is False; with them back all is there."""
    store = open_store(own, capacity_bytes=4 * FILE_BYTES)
    store.write("kv", KEYS[:2], pages("kv", range(2)))
    folder = own / "r0of2" / "kv"
    folder.chmod(0)
    try:
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [False, False]
        assert read(store).code is ReadCode.IO_ERROR
        assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [False]
        with pytest.raises(StoreError, match=r"cannot delete .*Permission denied"):
            store.delete("kv", KEYS[:1])
        store.check_integrity()
        counts = store.stats()
        assert [counts[cause] for cause in ("query.EACCES", "read.io_error.EACCES", "write.EACCES")] == [2, 1, 1]
    finally:
        folder.chmod(0o700)
    assert temps(own) == []
    assert [result.code for result in store.read_into("kv", KEYS[:2], blanks("kv", 2))] == [None, None]
    store.check_integrity()


def test_a_shard_that_may_not_be_written_is_read_all_the_same(own: Path) -> None:
    """Writes are False and leave nothing, reads go on; a store that is opened then says what is wrong."""
    store = open_store(own)
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    temp = own / "r0of2" / ".tmp"
    temp.chmod(0o500)
    try:
        assert store.write("kv", KEYS[1:3], pages("kv", range(2))) == [False, False]
        assert store.stats()["write.EACCES"] == 2
        assert read(store).code is None
        with pytest.raises(StoreError, match=r"cannot open the page store in .*Permission denied"):
            open_store(own)
    finally:
        temp.chmod(0o700)
    assert store.write("kv", KEYS[1:3], pages("kv", range(2))) == [True, True]
    store.check_integrity()


# --- room ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB. Needs the right to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_keeps_what_it_has(small_disk: Path) -> None:
    """On a real disk without room writes are False with their cause and leave nothing; deleting makes room again."""
    store = open_store(small_disk)
    written = [store.write("kv", [key], pages("kv", range(1)))[0] for key in KEYS[:24]]
    stored = written.count(True)
    assert 0 < stored < 24
    assert store.stats() == {"temp.swept": 0, "write.ok": stored, "write.ENOSPC": 24 - stored}
    assert temps(small_disk) == []
    assert store.restorable(KEYS[:24], ["kv"])["kv"].tolist() == written
    again = open_store(small_disk)  # opens, too
    assert [result.code is None for result in again.read_into("kv", KEYS[:24], blanks("kv", 24))] == written
    store.delete("kv", [KEYS[0]])
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]
    store.check_integrity()


def test_a_capacity_larger_than_the_disk_is_not_believed(small_disk: Path) -> None:
    """A bounded store on a disk that is full before its capacity is refuses pages, and counts only what is there."""
    store = open_store(small_disk, capacity_bytes=1 << 20)
    for key in KEYS[:24]:
        store.write("kv", [key], pages("kv", range(1)))
    files = [path for path in (small_disk / "r0of2" / "kv").rglob("*") if path.is_file()]
    assert store.used_bytes == sum(path.stat().st_size for path in files) == store.stats()["write.ok"] * FILE_BYTES
    assert store.stats()["write.ENOSPC"] == 24 - len(files)
    store.check_integrity()


# --- time ---


def test_a_clock_that_steps_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page used after the step counts as used later, in this store and in the next one on the folder."""
    store = open_store(tmp_path, capacity_bytes=3 * FILE_BYTES)
    store.write("kv", KEYS[:3], pages("kv", range(3)))
    day_before = time.time_ns() - 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: day_before)
    monkeypatch.setattr(time, "time", lambda: day_before / 1e9)
    assert read(store).code is None
    store.write("kv", KEYS[3:4], pages("kv", range(3, 4)))
    assert store.restorable(KEYS[:4], ["kv"])["kv"].tolist() == [True, False, True, True]
    again = open_store(tmp_path, capacity_bytes=3 * FILE_BYTES)
    again.write("kv", KEYS[4:5], pages("kv", range(4, 5)))
    assert again.restorable(KEYS[:5], ["kv"])["kv"].tolist() == [True, False, False, True, True]
    again.check_integrity()


@pytest.mark.parametrize("at_ns", [-(2**40), 0, 2**62, 2**63 - 1])
def test_a_page_of_any_date_is_read(tmp_path: Path, at_ns: int) -> None:
    """A date before 1970, or centuries ahead, neither stops the store nor what it dates next."""
    open_store(tmp_path).write("kv", KEYS[:1], pages("kv", range(1)))
    os.utime(page_file(tmp_path), ns=(at_ns, at_ns))
    store = open_store(tmp_path, capacity_bytes=2 * FILE_BYTES)
    assert read(store).code is None
    assert store.write("kv", KEYS[1:3], pages("kv", range(1, 3))) == [True, True]
    assert store.stats().keys() == {"temp.swept", "read.ok", "write.ok", "evicted"}
    assert page_file(tmp_path, key=KEYS[2]).stat().st_mtime < time.time() + 2 * 365 * 86_400
    store.check_integrity()


def test_temporary_files_from_the_future_are_swept(tmp_path: Path) -> None:
    """What a killed writer left before the clock stepped back does not stay for ever."""
    open_store(tmp_path).close()
    old = tmp_path / "r0of2" / ".tmp" / "a.1"
    old.write_bytes(b"half a page")
    os.utime(old, (time.time() + 7200,) * 2)
    open_store(tmp_path)
    assert temps(tmp_path) == []
