"""What every page store promises, one test per promise. A backend is a subclass with a `store` fixture."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from lifecycle.errors import BadKey, ConfigError, StoreError
from lifecycle.keys import page_keys
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageStore

PAGE_BYTES = {"kv": 4096, "indexer": 512}
KEYS = page_keys(list(range(240 * 4)), 4)

HOSTILE_KEYS = [
    "../../etc/passwd",
    "/etc/passwd",
    "",
    ".",
    "..",
    "\0" * 64,
    "a" * 63,
    "a" * 65,
    "A" * 64,
    "g" * 64,
    "../" * 21 + "a",
    "a" * 64 + "\n",
    "\u0661" * 64,
]


def page(pool: str, seed: int) -> bytes:
    """Return the bytes of a page that differs for each pool and seed."""
    return np.random.default_rng([len(pool), seed]).bytes(PAGE_BYTES[pool])


def pages(pool: str, seeds: range) -> list[memoryview]:
    """Return one page per seed."""
    return [memoryview(page(pool, seed)) for seed in seeds]


def blanks(pool: str, count: int) -> list[memoryview]:
    """Return buffers to read into."""
    return [memoryview(bytearray(PAGE_BYTES[pool])) for _ in range(count)]


class PageStoreContract:
    """The promises. The fixture `store` gives an empty store for `PAGE_BYTES` with room for all pages used here."""

    @pytest.fixture
    def store(self) -> PageStore:
        """Return the store under test."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _books_balance(self, store: PageStore) -> Iterator[None]:
        yield
        store.check_integrity()
        store.close()

    def test_pages_come_back_as_they_were_written(self, store: PageStore) -> None:
        """What was written is read back byte by byte, in the order of the keys, in every pool."""
        for pool in PAGE_BYTES:
            assert store.write(pool, KEYS[:5], pages(pool, range(5))) == [True] * 5
        for pool in PAGE_BYTES:
            buffers = blanks(pool, 5)
            results = store.read_into(pool, KEYS[4::-1], buffers)
            assert [bytes(buffer) for buffer in buffers] == [page(pool, seed) for seed in (4, 3, 2, 1, 0)]
            assert [(result.nbytes, result.code) for result in results] == [(PAGE_BYTES[pool], None)] * 5

    def test_a_checksum_is_that_of_the_bytes(self, store: PageStore) -> None:
        """A store that knows the checksum of a page gives the xxh3-64 of its bytes."""
        store.write("kv", KEYS[:1], pages("kv", range(1)))
        (result,) = store.read_into("kv", KEYS[:1], blanks("kv", 1))
        assert result.checksum in (None, xxhash.xxh3_64_intdigest(page("kv", 0)))

    def test_a_missing_page_does_not_fail_its_neighbours(self, store: PageStore) -> None:
        """Each key has an answer of its own."""
        store.write("kv", [KEYS[0], KEYS[2]], pages("kv", range(2)))
        buffers = blanks("kv", 3)
        results = store.read_into("kv", KEYS[:3], buffers)
        assert [result.code for result in results] == [None, ReadCode.MISSING, None]
        assert bytes(buffers[2]) == page("kv", 1)

    def test_an_empty_store_misses_every_page(self, store: PageStore) -> None:
        """Absence is an answer, not an error."""
        assert [result.code for result in store.read_into("kv", KEYS[:2], blanks("kv", 2))] == [ReadCode.MISSING] * 2

    def test_pools_do_not_share_pages(self, store: PageStore) -> None:
        """The same key in another pool is another page."""
        store.write("kv", KEYS[:1], pages("kv", range(1)))
        assert store.read_into("indexer", KEYS[:1], blanks("indexer", 1))[0].code is ReadCode.MISSING

    @pytest.mark.parametrize("count", [0, 1, 128, 220])
    def test_there_is_one_result_per_key(self, store: PageStore, count: int) -> None:
        """However many keys are given, also more than a batch, there are as many answers, and all of them count."""
        assert store.write("indexer", KEYS[:count], pages("indexer", range(count))) == [True] * count
        results = store.read_into("indexer", KEYS[:count], blanks("indexer", count))
        assert [result.code for result in results] == [None] * count
        there = store.restorable(KEYS[:count], ["indexer"])["indexer"]
        assert there.shape == (count,)
        assert there.all()

    def test_restorable_says_per_pool_what_seems_to_be_there(self, store: PageStore) -> None:
        """One bool per key and pool, in order."""
        store.write("kv", [KEYS[0], KEYS[2]], pages("kv", range(2)))
        store.write("indexer", [KEYS[1]], pages("indexer", range(1)))
        there = store.restorable(KEYS[:3], ["kv", "indexer"])
        assert {pool: answer.tolist() for pool, answer in there.items()} == {
            "kv": [True, False, True],
            "indexer": [False, True, False],
        }
        assert there["kv"].dtype == np.bool_

    def test_restorable_is_a_hint(self, store: PageStore) -> None:
        """A page that was claimed may be gone when it is read; that is a miss and nothing else."""
        store.write("kv", KEYS[:1], pages("kv", range(1)))
        assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [True]
        store.delete("kv", KEYS[:1])
        assert store.read_into("kv", KEYS[:1], blanks("kv", 1))[0].code is ReadCode.MISSING

    def test_a_page_is_copied_when_it_is_written(self, store: PageStore) -> None:
        """What happens to the writer's buffer afterwards does not matter."""
        buffer = bytearray(page("kv", 1))
        store.write("kv", KEYS[:1], [memoryview(buffer)])
        buffer[:] = bytes(len(buffer))
        read = blanks("kv", 1)
        store.read_into("kv", KEYS[:1], read)
        assert bytes(read[0]) == page("kv", 1)

    def test_writing_again_replaces_the_page(self, store: PageStore) -> None:
        """The last write of a key is the one that is read."""
        store.write("kv", KEYS[:1], pages("kv", range(1)))
        assert store.write("kv", KEYS[:1], pages("kv", range(7, 8))) == [True]
        buffers = blanks("kv", 1)
        store.read_into("kv", KEYS[:1], buffers)
        assert bytes(buffers[0]) == page("kv", 7)

    def test_delete_removes_pages_and_counts_them(self, store: PageStore) -> None:
        """Only what was there is counted, each page once; other pools keep theirs."""
        for pool in PAGE_BYTES:
            store.write(pool, KEYS[:2], pages(pool, range(2)))
        assert store.delete("kv", [KEYS[0], KEYS[5], KEYS[0]]) == 1
        assert store.restorable(KEYS[:2], ["kv"])["kv"].tolist() == [False, True]
        assert store.restorable(KEYS[:2], ["indexer"])["indexer"].tolist() == [True, True]

    def test_buffers_of_other_types_are_bytes(self, store: PageStore) -> None:
        """A view of floats or of a matrix is taken for its bytes."""
        source = np.random.default_rng(0).random((8, 64))
        target = np.zeros((8, 64))
        store.write("kv", KEYS[:1], [memoryview(source)])
        assert store.read_into("kv", KEYS[:1], [memoryview(target)])[0].code is None
        assert np.array_equal(source, target)

    @pytest.mark.parametrize("nbytes", [0, 4095, 4097, 512])
    def test_a_buffer_that_is_not_one_page_is_refused(self, store: PageStore, nbytes: int) -> None:
        """Reading and writing raise before anything is touched, and say both sizes."""
        buffers = [*blanks("kv", 1), memoryview(bytearray(nbytes))]
        with pytest.raises(ValueError, match=f"{nbytes} bytes, a page has 4096"):
            store.write("kv", KEYS[:2], buffers)
        assert not store.restorable(KEYS[:2], ["kv"])["kv"].any()
        with pytest.raises(ValueError, match=f"{nbytes} bytes, a page has 4096"):
            store.read_into("kv", KEYS[:2], buffers)

    def test_a_buffer_that_cannot_be_written_is_refused(self, store: PageStore) -> None:
        """Reading into a read-only buffer raises."""
        with pytest.raises(ConfigError, match="not writable"):
            store.read_into("kv", KEYS[:1], [memoryview(bytes(4096))])

    def test_keys_without_buffers_are_refused(self, store: PageStore) -> None:
        """There must be as many buffers as keys."""
        with pytest.raises(ConfigError, match=r"2 pages .* 1 buffers"):
            store.read_into("kv", KEYS[:2], blanks("kv", 1))

    def test_an_unknown_pool_is_refused(self, store: PageStore) -> None:
        """A pool that was not declared is the caller's fault, and the message says which there are."""
        for call in (
            lambda: store.restorable(KEYS[:1], ["mamba"]),
            lambda: store.read_into("mamba", KEYS[:1], blanks("kv", 1)),
            lambda: store.write("../kv", KEYS[:1], blanks("kv", 1)),
            lambda: store.delete("mamba", KEYS[:1]),
        ):
            with pytest.raises(ConfigError, match="this store has kv, indexer"):
                call()

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=range(len(HOSTILE_KEYS)))
    def test_what_is_not_a_page_key_is_refused(self, store: PageStore, key: str) -> None:
        """Every verb raises `BadKey` before it touches anything, also the good keys beside it."""
        keys, buffers = [KEYS[0], key], blanks("kv", 2)
        for call in (
            lambda: store.restorable(keys, ["kv"]),
            lambda: store.read_into("kv", keys, buffers),
            lambda: store.write("kv", keys, buffers),
            lambda: store.delete("kv", keys),
        ):
            with pytest.raises(BadKey):
                call()
        assert store.restorable(KEYS[:1], ["kv"])["kv"].tolist() == [False]

    @pytest.mark.parametrize("pair", [("a" * 63, "a" * 65), (" " * 64, "a" * 64), ("aA" * 32, "a" * 64), (b"a" * 64, "a" * 64)])
    def test_keys_are_checked_one_by_one(self, store: PageStore, pair: tuple[str, str]) -> None:
        """Two of which one is not a page key are refused, also if both together are as long as two."""
        with pytest.raises(BadKey):
            store.read_into("kv", pair, blanks("kv", 2))

    def test_readers_and_writers_at_once_see_whole_pages(self, store: PageStore) -> None:
        """While threads write, delete and read the same keys, a page read ok is one that somebody wrote for its key."""
        keys, faults = KEYS[:8], []
        legal = [{page("kv", 100 * place + turn) for turn in range(3)} for place in range(len(keys))]
        writing = threading.Event()
        writing.set()

        def write(first: int) -> None:
            for turn in range(24):
                for place, key in enumerate(keys):
                    store.write("kv", [key], pages("kv", range(100 * place + turn % 3, 100 * place + turn % 3 + 1)))
                if first == 0 and turn % 4 == 0:
                    store.delete("kv", keys[:2])

        def read() -> None:
            while writing.is_set():
                buffers = blanks("kv", len(keys))
                for place, result in enumerate(store.read_into("kv", keys, buffers)):
                    if result.code not in (None, ReadCode.MISSING):
                        faults.append(f"page {place}: {result}")
                    elif result.code is None and bytes(buffers[place]) not in legal[place]:
                        faults.append(f"page {place} is not one that was written")

        readers = [threading.Thread(target=read) for _ in range(2)]
        writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for thread in readers + writers:
            thread.start()
        for thread in writers:
            thread.join()
        writing.clear()
        for thread in readers:
            thread.join()
        assert not faults

    def test_close_may_be_called_twice(self, store: PageStore) -> None:
        """The second close changes nothing."""
        store.close()
        store.close()

    def test_a_closed_store_refuses_work(self, store: PageStore) -> None:
        """After close every verb says that the store is closed."""
        store.close()
        for call in (
            lambda: store.restorable(KEYS[:1], ["kv"]),
            lambda: store.read_into("kv", KEYS[:1], blanks("kv", 1)),
            lambda: store.write("kv", KEYS[:1], blanks("kv", 1)),
            lambda: store.delete("kv", KEYS[:1]),
        ):
            with pytest.raises(StoreError, match="closed"):
                call()
