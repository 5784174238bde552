"""What only the file store promises: nothing bad in its folder is served, and nothing there makes it raise."""

import errno
import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from freezegun import freeze_time
from page_files import NAMESPACE, file, open_store, page_file, read, resealed, store, temps
from page_store_contract import KEYS, blanks, page, pages

from lifecycle.keys import EMPTY_NAMESPACE, Namespace
from lifecycle.layout import preset
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from stores.host import TorchHostMemory
from stores.pages import FilePageStore
from stores.pages.header import FIELDS, HEADER_BYTES

__all__ = ["file", "store"]  # fixtures


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


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("symlink", "io_error.ELOOP"),
        ("dangling", "io_error.ELOOP"),
        ("folder", "io_error.EISDIR"),
        ("pipe", "io_error.ESPIPE"),
        ("file as parent", "io_error.ENOTDIR"),
    ],
)
def test_what_is_not_a_plain_file_is_never_served(
    store: FilePageStore, file: Path, tmp_path: Path, kind: str, cause: str
) -> None:
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
    assert read(store) == PageResult(0, ReadCode.IO_ERROR)
    assert store.stats()[f"read.{cause}"] == 1
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


def test_a_page_that_could_not_be_read_is_asked_for_again_after_a_while(
    store: FilePageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the device is not paid for by every request, nor held against the page for ever."""

    def failing_preadv(fd: int, parts: tuple[bytearray | memoryview, ...], at: int) -> int:
        raise OSError(errno.EIO, "the disk is on fire")

    with freeze_time("2030-01-01") as clock:
        with monkeypatch.context() as burning:
            burning.setattr(os, "preadv", failing_preadv)
            assert read(store).code is ReadCode.IO_ERROR
        assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [False]
        clock.tick(9.9)
        assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [False]
        clock.tick(0.2)
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


@pytest.mark.parametrize("helpers", [0, 2])
def test_pages_are_read_straight_into_their_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helpers: int) -> None:
    """The kernel is given the address of the slot itself, once a page, and nothing as large as a page is allocated."""
    nbytes, layout = 1 << 20, preset("kv_only")
    memory = TorchHostMemory(layout, {"kv": 32}, {"kv": nbytes})
    store = FilePageStore(tmp_path, {"kv": nbytes}, NAMESPACE, "r0of2", helpers=helpers)
    slots = memory.allocate({"kv": 8})["kv"][::-1]
    buffers = memory.buffers("kv", slots)
    for seed, buffer in enumerate(buffers):
        buffer[:] = np.random.default_rng(seed).bytes(nbytes)
    before = [bytes(buffer) for buffer in buffers]
    assert store.write("kv", KEYS[:8], buffers) == [True] * 8
    memory.views("kv")[:] = 0
    preadv, places = os.preadv, []

    def watched_preadv(fd: int, parts: tuple[bytearray | memoryview, ...], at: int) -> int:
        assert [memoryview(part).nbytes for part in parts] == [HEADER_BYTES, nbytes, 1]
        places.append(np.frombuffer(parts[1], np.uint8).ctypes.data)
        return preadv(fd, parts, at)

    monkeypatch.setattr(os, "preadv", watched_preadv)
    tracemalloc.start()
    store.read_into("kv", KEYS[:8], buffers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    first = memory.tensor("kv").data_ptr()
    assert sorted(places) == sorted(first + int(slot) * nbytes for slot in slots)
    assert [bytes(buffer) for buffer in buffers] == before
    assert peak < nbytes / 2
    store.close()


def test_no_descriptor_is_left_open(store: FilePageStore, file: Path) -> None:
    """Good, bad and missing pages alike give their descriptor back."""
    before = len(os.listdir("/proc/self/fd"))
    os.truncate(file, 10)
    for _ in range(3):
        store.read_into("kv", KEYS[:3], blanks("kv", 3))
        store.write("kv", KEYS[1:2], pages("kv", range(1)))
    assert len(os.listdir("/proc/self/fd")) == before
