"""What only the file store promises: nothing bad in its folder is served, and nothing there makes it raise."""

import errno
import os
import random
import stat
import struct
import time
from pathlib import Path

import pytest
import structlog
import xxhash
from page_store_contract import KEYS, PAGE_BYTES, blanks, page, pages

from lifecycle.errors import ConfigError, StoreError
from lifecycle.keys import EMPTY_NAMESPACE, Namespace
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from stores.pages import FilePageStore
from stores.pages.header import FIELDS, HEADER_BYTES

NAMESPACE = Namespace(model="m", dtype="bf16")


def open_store(root: Path, shard: str = "r0of2", namespace: Namespace = NAMESPACE, **options: object) -> FilePageStore:
    return FilePageStore(root, PAGE_BYTES, namespace, shard, **options)


@pytest.fixture
def store(tmp_path: Path) -> FilePageStore:
    """A store that holds the kv page of the first key."""
    store = open_store(tmp_path)
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    return store


@pytest.fixture
def file(tmp_path: Path, store: FilePageStore) -> Path:
    """The file of that page."""
    return page_file(tmp_path)


def page_file(root: Path, shard: str = "r0of2", pool: str = "kv", key: str = KEYS[0]) -> Path:
    return root / shard / pool / key[:2] / key[2:4] / key


def read(store: FilePageStore, pool: str = "kv", key: str = KEYS[0]) -> PageResult:
    (result,) = store.read_into(pool, [key], blanks(pool, 1))
    return result


def temps(root: Path, shard: str = "r0of2") -> list[str]:
    return os.listdir(root / shard / ".tmp")


def resealed(data: bytes) -> bytes:
    """Return the file with a header checksum that fits its header: as a forger would leave it."""
    head = data[: HEADER_BYTES - 8]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + data[HEADER_BYTES:]


def test_files_and_folders_are_for_their_owner_only(file: Path, tmp_path: Path) -> None:
    """Page files are 0600, folders 0700."""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    folders = [path for path in (tmp_path / "r0of2").rglob("*") if path.is_dir()] + [tmp_path / "r0of2"]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_a_page_outlives_the_store(store: FilePageStore, tmp_path: Path) -> None:
    """A new store on the same folder reads what an older one wrote."""
    store.close()
    buffers = blanks("kv", 1)
    assert open_store(tmp_path).read_into("kv", KEYS[:1], buffers)[0].code is None
    assert bytes(buffers[0]) == page("kv", 0)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 4095])
def test_a_truncated_file_is_short(store: FilePageStore, file: Path, length: int) -> None:
    """A file cut anywhere is SHORT with the payload bytes it has, its neighbours are read, nothing raises."""
    store.write("kv", KEYS[1:2], pages("kv", range(1, 2)))
    os.truncate(file, length)
    results = store.read_into("kv", KEYS[:2], blanks("kv", 2))
    assert results[0] == PageResult(max(0, length - HEADER_BYTES), ReadCode.SHORT)
    assert results[1].code is None


def test_a_file_that_is_too_long_is_corrupt(store: FilePageStore, file: Path) -> None:
    """Bytes behind the payload mean that something else wrote there."""
    with file.open("ab") as handle:
        handle.write(b"x")
    assert read(store) == PageResult(0, ReadCode.CORRUPT)
    assert store.stats()["read.corrupt.too_long"] == 1


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("sealed", [False, True])
def test_an_edited_header_is_corrupt(store: FilePageStore, file: Path, field: str, sealed: bool) -> None:
    """One bit flipped in any header field is CORRUPT, whether or not the header's own checksum was made to fit."""
    data = bytearray(file.read_bytes())
    data[FIELDS[field][0]] ^= 1
    file.write_bytes(resealed(bytes(data)) if sealed and field != "header_checksum" else bytes(data))
    assert read(store).code is ReadCode.CORRUPT
    cause = "payload" if sealed and field == "payload_checksum" else field
    cause = "header_checksum" if not sealed and field == "payload_checksum" else cause
    assert store.stats()[f"read.corrupt.{cause}"] == 1


def test_an_edited_byte_between_the_header_fields_is_corrupt(store: FilePageStore, file: Path) -> None:
    """No byte of the header is ignored."""
    data = file.read_bytes()
    for place in range(HEADER_BYTES):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])
        assert read(store).code is ReadCode.CORRUPT
    file.write_bytes(data)
    assert read(store).code is None


@pytest.mark.parametrize("place", [0, 1, 2047, 4095])
def test_an_edited_payload_is_corrupt(store: FilePageStore, file: Path, place: int) -> None:
    """One bit flipped anywhere in the payload is CORRUPT."""
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + place] ^= 1
    file.write_bytes(data)
    assert read(store) == PageResult(0, ReadCode.CORRUPT)


def test_without_verify_the_header_is_checked_still(file: Path, tmp_path: Path) -> None:
    """`verify=False` spares the payload's checksum, not the header, and gives no checksum."""
    loose = open_store(tmp_path, verify=False)
    assert read(loose) == PageResult(4096, None, None)
    data = bytearray(file.read_bytes())
    data[FIELDS["key"][0]] ^= 1
    file.write_bytes(data)
    assert read(loose).code is ReadCode.CORRUPT


@pytest.mark.parametrize("other", [EMPTY_NAMESPACE, Namespace(model="m", dtype="fp8"), Namespace(model="m", salt="s")])
def test_a_page_of_another_namespace_is_corrupt(store: FilePageStore, tmp_path: Path, other: Namespace) -> None:
    """A page written for another model, type or salt is never served, even under the same key."""
    assert read(open_store(tmp_path, namespace=other)).code is ReadCode.CORRUPT


@pytest.mark.parametrize("field", ["shard", "pool", "key"])
def test_a_file_moved_to_another_place_is_corrupt(tmp_path: Path, field: str) -> None:
    """A whole page under the name of another shard, pool or key is not served there."""
    sizes = {"kv": 4096, "draft": 4096}
    here = FilePageStore(tmp_path, sizes, NAMESPACE, "r0of2")
    here.write("kv", KEYS[:1], pages("kv", range(1)))
    target = {"shard": ("r1of2", "kv", KEYS[0]), "pool": ("r0of2", "draft", KEYS[0]), "key": ("r0of2", "kv", KEYS[1])}
    shard, pool, key = target[field]
    there = FilePageStore(tmp_path, sizes, NAMESPACE, shard)
    place = page_file(tmp_path, shard, pool, key)
    place.parent.mkdir(parents=True)
    os.link(page_file(tmp_path), place)
    (result,) = there.read_into(pool, [key], blanks("kv", 1))
    assert result.code is ReadCode.CORRUPT
    assert there.stats()[f"read.corrupt.{field}"] == 1


def test_other_shards_do_not_see_the_page(store: FilePageStore, tmp_path: Path) -> None:
    """Ranks that share a folder keep their shards apart."""
    other = open_store(tmp_path, "r1of2")
    assert read(other).code is ReadCode.MISSING
    assert other.delete("kv", KEYS[:1]) == 0
    assert read(store).code is None


@pytest.mark.parametrize("kind", ["symlink", "dangling", "folder", "pipe", "file as parent"])
def test_what_is_not_a_plain_file_is_never_served(store: FilePageStore, file: Path, tmp_path: Path, kind: str) -> None:
    """A link, a folder, a pipe or a file for a folder is an error of that page, not claimed and not waited for."""
    kept = tmp_path / "kept"
    file.rename(kept)
    if kind == "symlink":
        file.symlink_to(kept)
    elif kind == "dangling":
        file.symlink_to(tmp_path / "nowhere")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.parent.rmdir()
        file.parent.write_bytes(b"")
    assert read(store).code in (ReadCode.IO_ERROR, ReadCode.CORRUPT)
    assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [False]


def test_writing_over_a_link_replaces_the_link(store: FilePageStore, file: Path, tmp_path: Path) -> None:
    """A write never goes through a link that lies in the place of a page."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    file.unlink()
    file.symlink_to(target)
    assert store.write("kv", KEYS[:1], pages("kv", range(1))) == [True]
    assert target.read_bytes() == b"precious"
    assert read(store).code is None


def test_a_folder_in_the_place_of_a_page_fails_only_that_write(store: FilePageStore, file: Path, tmp_path: Path) -> None:
    """The page that cannot be put in place is False, its neighbour is stored, no temporary file stays."""
    file.unlink()
    file.mkdir()
    assert store.write("kv", KEYS[:2], pages("kv", range(2))) == [False, True]
    assert temps(tmp_path) == []
    store.check_integrity()


def test_a_page_found_bad_is_not_claimed_until_it_is_replaced(store: FilePageStore, file: Path) -> None:
    """A bad page does not make the same prefetch fail for ever: it counts as absent until somebody writes it again."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [True]
    assert read(store).code is ReadCode.CORRUPT
    assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [False]
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [True]
    assert read(store).code is None


def test_a_page_is_not_there_while_it_is_being_written(
    tmp_path: Path, store: FilePageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until all bytes are in the file the page is neither claimed nor read."""
    writev, seen = os.writev, []

    def slow_writev(fd: int, parts: list[memoryview]) -> int:
        seen.append((store.restorable(KEYS[1:2], ["kv"])["kv"].tolist(), read(store, key=KEYS[1]).code))
        return writev(fd, [memoryview(parts[0])[:100]])

    monkeypatch.setattr(os, "writev", slow_writev)
    assert store.write("kv", KEYS[1:2], pages("kv", range(1))) == [True]
    assert len(seen) > 10
    assert set(map(str, seen)) == {str(([False], ReadCode.MISSING))}
    assert read(store, key=KEYS[1]).code is None


def test_a_read_in_pieces_is_whole(store: FilePageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that answers with fewer bytes than asked for is asked again."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [memoryview(parts[0])[:200]], at))
    buffers = blanks("kv", 1)
    assert store.read_into("kv", KEYS[:1], buffers)[0].code is None
    assert bytes(buffers[0]) == page("kv", 0)


def test_a_device_error_fails_only_its_page(store: FilePageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the device is IO_ERROR for the page that had it."""
    store.write("kv", KEYS[1:3], pages("kv", range(1, 3)))
    preadv, calls = os.preadv, []

    def failing_preadv(fd: int, parts: tuple[bytearray | memoryview, ...], at: int) -> int:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.EIO, "the disk is on fire")
        return preadv(fd, parts, at)

    monkeypatch.setattr(os, "preadv", failing_preadv)
    results = store.read_into("kv", KEYS[:3], blanks("kv", 3))
    assert [result.code for result in results] == [None, ReadCode.IO_ERROR, None]
    assert store.stats()["read.io_error.EIO"] == 1


def test_no_descriptor_is_left_open(store: FilePageStore, file: Path) -> None:
    """Good, bad and missing pages alike give their descriptor back."""
    before = len(os.listdir("/proc/self/fd"))
    os.truncate(file, 10)
    for _ in range(3):
        store.read_into("kv", KEYS[:3], blanks("kv", 3))
        store.write("kv", KEYS[1:2], pages("kv", range(1)))
    assert len(os.listdir("/proc/self/fd")) == before


def test_fuzzed_files_are_never_served_and_never_raise(store: FilePageStore, file: Path) -> None:
    """Of 400 files cut, grown, edited or filled with noise only those with the very bytes of the page are read."""
    good, dice, served = file.read_bytes(), random.Random(7), 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(data)) if data else 0
            kind = dice.randrange(5)
            if kind == 0:
                del data[at:]
            elif kind == 1:
                data[at:at] = dice.randbytes(dice.randrange(1, 300))
            elif kind == 2 and data:
                data[at] ^= 1 << dice.randrange(8)
            elif kind == 3:
                data[at : at + 8] = struct.pack("<Q", dice.choice((0, 1, 2**63, 2**64 - 1)))
            else:
                data = bytearray(dice.randbytes(dice.randrange(2 * len(good))))
        forged = resealed(bytes(data)) if dice.random() < 0.5 and len(data) >= HEADER_BYTES else bytes(data)
        file.write_bytes(forged)
        buffers = blanks("kv", 1)
        (result,) = store.read_into("kv", KEYS[:1], buffers)
        assert (result.code is None) == (forged == good)
        served += result.code is None
    assert served < 20


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
