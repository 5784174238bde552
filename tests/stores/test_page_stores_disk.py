"""The file store in trouble: disks that fail, are lost or read-only, folders that others change."""

import errno
import os
import time
from pathlib import Path

import pytest
import structlog
from page_files import file, open_store, page_file, read, store, temps
from page_store_contract import KEYS, blanks, pages

from lifecycle.errors import ConfigError, StoreError
from lifecycle.reasons import ReadCode
from stores.pages import FilePageStore

__all__ = ["file", "store"]  # fixtures


def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    """A store opened again drops first what was used longest ago before."""
    first = open_store(tmp_path, capacity_bytes=3 * 4352)
    first.write("kv", KEYS[:3], pages("kv", range(3)))
    first.read_into("kv", KEYS[:1], blanks("kv", 1))
    first.close()
    again = open_store(tmp_path, capacity_bytes=3 * 4352)
    assert again.used_bytes == 3 * 4352
    again.write("kv", KEYS[3:4], pages("kv", range(3, 4)))
    assert again.restorable(KEYS[:4], ["kv"])["kv"].tolist() == [True, False, True, True]


def test_a_smaller_capacity_is_met_at_start(tmp_path: Path) -> None:
    """What no longer fits is dropped when the store is opened; the files are gone and the bytes add up."""
    open_store(tmp_path).write("kv", KEYS[:5], pages("kv", range(5)))
    for place, key in enumerate(KEYS[:5]):
        os.utime(page_file(tmp_path, key=key), ns=(place, place))
    small = open_store(tmp_path, capacity_bytes=2 * 4352)
    assert small.restorable(KEYS[:5], ["kv"])["kv"].tolist() == [False, False, False, True, True]
    assert small.used_bytes == sum(path.stat().st_size for path in (tmp_path / "r0of2").rglob("*") if path.is_file())
    small.check_integrity()


def test_strange_files_in_the_folder_do_not_stop_the_start(tmp_path: Path, store: FilePageStore) -> None:
    """Files with other names, links and loose folders are neither counted nor removed."""
    base = tmp_path / "r0of2"
    (base / "README").write_text("hello")
    (base / "kv" / "README").write_text("hello")
    page_file(tmp_path).with_name("README").write_text("hello")
    page_file(tmp_path).with_name(KEYS[1]).symlink_to(base / "README")
    (base / "not a pool" / "aa").mkdir(parents=True)
    bounded = open_store(tmp_path, capacity_bytes=4352)
    assert bounded.used_bytes == 4352
    assert page_file(tmp_path).with_name("README").exists()


def test_a_file_that_vanishes_is_missing_and_no_longer_counted(tmp_path: Path) -> None:
    """When another process removes a page the read is a miss and its bytes are free."""
    bounded = open_store(tmp_path, capacity_bytes=2 * 4352)
    bounded.write("kv", KEYS[:2], pages("kv", range(2)))
    page_file(tmp_path).unlink()
    assert read(bounded).code is ReadCode.MISSING
    assert bounded.used_bytes == 4352
    bounded.write("kv", KEYS[2:3], pages("kv", range(2, 3)))
    assert read(bounded, key=KEYS[1]).code is None


def test_a_victim_that_has_vanished_makes_room_all_the_same(tmp_path: Path) -> None:
    """Two stores on one folder may drop each other's pages."""
    one, two = (open_store(tmp_path, capacity_bytes=2 * 4352) for _ in range(2))
    one.write("kv", KEYS[:2], pages("kv", range(2)))
    assert two.delete("kv", KEYS[:2]) == 2
    assert one.write("kv", KEYS[2:4], pages("kv", range(2, 4))) == [True, True]
    one.check_integrity()


def test_a_victim_that_cannot_be_removed_fails_the_write(tmp_path: Path) -> None:
    """Without room the page is refused, no temporary file stays, the next write tries another victim."""
    bounded = open_store(tmp_path, capacity_bytes=2 * 4352)
    bounded.write("kv", KEYS[:2], pages("kv", range(2)))
    page_file(tmp_path).unlink()
    page_file(tmp_path).mkdir()
    assert bounded.write("kv", KEYS[2:3], pages("kv", range(2, 3))) == [False]
    assert temps(tmp_path) == []
    bounded.check_integrity()
    assert bounded.write("kv", KEYS[2:3], pages("kv", range(2, 3))) == [True]
    bounded.check_integrity()


def test_a_page_that_cannot_be_deleted_is_reported(store: FilePageStore, file: Path) -> None:
    """Deleting says which file stayed and how many pages went."""
    file.unlink()
    file.mkdir()
    store.write("kv", KEYS[1:2], pages("kv", range(1)))
    with pytest.raises(StoreError, match=r"cannot delete .* \(1 pages were deleted\)"):
        store.delete("kv", [KEYS[1], KEYS[0]])


def test_a_full_disk_fails_the_page_and_leaves_nothing(
    store: FilePageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that runs out of space is False, warns with its cause once, is counted, and the old page stays."""
    writev = os.writev

    def full_writev(fd: int, parts: list[memoryview]) -> int:
        if os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return writev(fd, [memoryview(parts[0])[:100]])

    monkeypatch.setattr(os, "writev", full_writev)
    with structlog.testing.capture_logs() as logs:
        assert store.write("kv", KEYS[:3], pages("kv", range(3))) == [False] * 3
    monkeypatch.undo()
    assert temps(tmp_path) == []
    assert [(log["event"], log["cause"], log["log_level"]) for log in logs] == [("page_not_written", "ENOSPC", "warning")]
    assert store.stats()["write.ENOSPC"] == 3
    assert store.restorable(KEYS[:3], ["kv"])["kv"].tolist() == [True, False, False]
    assert read(store).code is None
    assert store.write("kv", KEYS[:3], pages("kv", range(3))) == [True] * 3


def test_a_failing_write_drops_no_other_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is made only for a page whose bytes are on the disk."""
    bounded = open_store(tmp_path, capacity_bytes=2 * 4352)
    bounded.write("kv", KEYS[:2], pages("kv", range(2)))

    def full_writev(fd: int, parts: list[memoryview]) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "writev", full_writev)
    assert bounded.write("kv", KEYS[2:6], pages("kv", range(2, 6))) == [False] * 4
    assert bounded.restorable(KEYS[:2], ["kv"])["kv"].all()


def test_a_folder_removed_under_the_store_is_made_again(store: FilePageStore, tmp_path: Path) -> None:
    """Somebody who clears the cache by hand does not stop it."""
    for path in sorted((tmp_path / "r0of2").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "r0of2").rmdir()
    assert read(store).code is ReadCode.MISSING
    store.check_integrity()
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]
    assert read(store).code is None


def test_a_root_that_has_gone_is_not_made_again(tmp_path: Path) -> None:
    """Where a disk was unmounted, pages must not fill the disk beneath."""
    store = open_store(tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "elsewhere")
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [False]
    assert not (tmp_path / "disk").exists()


def test_a_root_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A root that is a file, or lies under one, is refused when the store is opened."""
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=f"cannot open the page store in {root}"):
            open_store(root)


def test_a_read_only_root_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root where no file can be made is refused when the store is opened, not at the first write."""
    opening = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StoreError, match=f"cannot open the page store in {tmp_path}: .*Read-only file system"):
        open_store(tmp_path)


def test_a_full_disk_does_not_stop_the_start(store: FilePageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on a full disk can be read."""
    opening = os.open

    def full(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    assert read(open_store(tmp_path)).code is None


@pytest.mark.parametrize("shard", ["", ".", "..", "../r0of2", "a/b", "r0\n", "r" * 33, ".tmp", "r0of2\0"])
def test_a_shard_name_that_is_a_path_is_refused(tmp_path: Path, shard: str) -> None:
    """A shard is one plain name."""
    with pytest.raises(ConfigError, match="shard name"):
        open_store(tmp_path, shard)


def test_old_temporary_files_are_swept_at_start(tmp_path: Path) -> None:
    """What a killed writer left is removed after an hour; what may still be written stays."""
    open_store(tmp_path).close()
    old, young = tmp_path / "r0of2" / ".tmp" / "a.1", tmp_path / "r0of2" / ".tmp" / "b.1"
    for path in (old, young):
        path.write_bytes(b"half a page")
    os.utime(old, (time.time() - 7200,) * 2)
    store = open_store(tmp_path)
    assert temps(tmp_path) == ["b.1"]
    assert store.stats()["temp.swept"] == 1


def test_hostile_keys_leave_no_trace(tmp_path: Path) -> None:
    """A key that is a path makes no file anywhere."""
    store = open_store(tmp_path / "a" / "b")
    with pytest.raises(ValueError, match=r"cannot use '\.\./\.\./etc/passwd' as the key"):
        store.write("kv", ["../../etc/passwd"], blanks("kv", 1))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
