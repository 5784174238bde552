"""The contract for each page store, and what the stores share."""

from pathlib import Path

import pytest
from page_store_contract import KEYS, PAGE_BYTES, PageStoreContract, blanks, page, pages

from lifecycle.errors import ConfigError, IntegrityError
from lifecycle.keys import EMPTY_NAMESPACE, Namespace
from lifecycle.reasons import ReadCode
from stores.pages import FilePageStore, MemoryPageStore, open_page_store

NAMESPACE = Namespace(model="m", dtype="bf16")


class TestMemoryPageStore(PageStoreContract):
    @pytest.fixture
    def store(self) -> MemoryPageStore:
        return MemoryPageStore(PAGE_BYTES)


class TestBoundedMemoryPageStore(PageStoreContract):
    @pytest.fixture
    def store(self) -> MemoryPageStore:
        return MemoryPageStore(PAGE_BYTES, capacity_bytes=240 * 4096)


class TestFilePageStore(PageStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FilePageStore:
        return FilePageStore(tmp_path / "pages", PAGE_BYTES, NAMESPACE, "r0of2")


class TestBoundedFilePageStore(PageStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FilePageStore:
        return FilePageStore(tmp_path / "pages", PAGE_BYTES, EMPTY_NAMESPACE, "r0of2", capacity_bytes=240 * 4352)


class TestUnverifiedFilePageStore(PageStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FilePageStore:
        return FilePageStore(tmp_path / "pages", PAGE_BYTES, NAMESPACE, "r0of2", verify=False)


@pytest.fixture(params=["memory", "file"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryPageStore | FilePageStore:
    """A store with room for three kv pages."""
    if request.param == "memory":
        return MemoryPageStore(PAGE_BYTES, capacity_bytes=3 * 4096)
    return FilePageStore(tmp_path, PAGE_BYTES, NAMESPACE, "r0of2", capacity_bytes=3 * 4352)


def there(store: MemoryPageStore | FilePageStore, count: int) -> list[int]:
    """Return which of the first keys are in kv."""
    return store.restorable(KEYS[:count], ["kv"])["kv"].nonzero()[0].tolist()


def test_the_page_used_longest_ago_makes_room(small: MemoryPageStore | FilePageStore) -> None:
    """Reading a page keeps it; writing over capacity drops the one that was neither read nor written longest."""
    small.write("kv", KEYS[:3], pages("kv", range(3)))
    small.read_into("kv", KEYS[:1], blanks("kv", 1))
    small.write("kv", KEYS[3:4], pages("kv", range(3, 4)))
    assert there(small, 4) == [0, 2, 3]
    assert small.stats()["evicted"] == 1
    small.check_integrity()


def test_capacity_holds_after_every_write(small: MemoryPageStore | FilePageStore) -> None:
    """However much is written, deleted and written again, the bytes held never exceed the capacity."""
    for turn in range(12):
        small.write("kv", KEYS[turn : turn + 2], pages("kv", range(turn, turn + 2)))
        small.write("indexer", KEYS[turn : turn + 3], pages("indexer", range(turn, turn + 3)))
        small.delete("kv", KEYS[turn : turn + 1])
        small.check_integrity()
        assert 0 < small.used_bytes <= 3 * 4352


def test_replacing_a_page_evicts_nothing(small: MemoryPageStore | FilePageStore) -> None:
    """A page written again takes the room of its older self."""
    small.write("kv", KEYS[:3], pages("kv", range(3)))
    assert small.write("kv", KEYS[:1], pages("kv", range(9, 10))) == [True]
    assert there(small, 3) == [0, 1, 2]
    assert "evicted" not in small.stats()


def test_an_evicted_page_is_missing(small: MemoryPageStore | FilePageStore) -> None:
    """A read of a page that made room is a miss, and its neighbours are read."""
    small.write("kv", KEYS[:4], pages("kv", range(4)))
    buffers = blanks("kv", 4)
    results = small.read_into("kv", KEYS[:4], buffers)
    assert [result.code for result in results] == [ReadCode.MISSING, None, None, None]
    assert bytes(buffers[3]) == page("kv", 3)


def test_books_that_do_not_add_up_are_reported(small: MemoryPageStore | FilePageStore) -> None:
    """`check_integrity` sees a wrong count of bytes."""
    small.write("kv", KEYS[:1], pages("kv", range(1)))
    small._ledger.used_bytes += 1
    with pytest.raises(IntegrityError, match="bytes are counted"):
        small.check_integrity()


@pytest.mark.parametrize(
    ("page_bytes", "capacity_bytes", "message"),
    [
        ({}, None, "without pools"),
        ({"kv": 0}, None, "pages of 0 bytes in pool 'kv'"),
        ({"../kv": 8}, None, "pool name '../kv'"),
        ({"kv": 4096}, 4095, "capacity_bytes=4095"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(
    tmp_path: Path, page_bytes: dict[str, int], capacity_bytes: int | None, message: str
) -> None:
    """Opening raises before a folder is made."""
    with pytest.raises(ConfigError, match=message):
        MemoryPageStore(page_bytes, capacity_bytes)
    with pytest.raises(ConfigError, match=message):
        FilePageStore(tmp_path / "pages", page_bytes, NAMESPACE, "r0of2", capacity_bytes)
    assert list(tmp_path.iterdir()) == []


def test_a_spec_opens_the_store_it_names(tmp_path: Path) -> None:
    """`memory` and `file:DIR` are specs; the folder may hold a colon."""
    assert isinstance(open_page_store("memory", PAGE_BYTES, NAMESPACE, "r0of2"), MemoryPageStore)
    store = open_page_store(f"file:{tmp_path}/a:b", PAGE_BYTES, NAMESPACE, "r0of2")
    assert isinstance(store, FilePageStore)
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    assert (tmp_path / "a:b" / "r0of2" / "kv").is_dir()


@pytest.mark.parametrize("spec", ["", "redis:6379", "file", "file:", "memory:x", "/some/folder"])
def test_an_unknown_spec_names_what_there_is(spec: str) -> None:
    """What cannot be opened is refused with the specs that can."""
    with pytest.raises(ConfigError, match="file:DIR"):
        open_page_store(spec, PAGE_BYTES, NAMESPACE, "r0of2")
