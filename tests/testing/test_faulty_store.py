"""The faulty store gives every fault it promises, in the measure asked for, and the same again for the same seed."""

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from lifecycle.errors import ConfigError
from lifecycle.keys import page_keys
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from lifecycle.testing.faulty_store import FaultMix, FaultyStore
from stores.pages import MemoryPageStore

NBYTES = 64
KEYS = page_keys(list(range(400)), 1)
QUIET = dict.fromkeys((name for name in FaultMix.__slots__ if not name.endswith("_s")), 0.0)


def true_page(place: int) -> bytes:
    return bytes([place % 251]) * NBYTES


@pytest.fixture
def inner() -> MemoryPageStore:
    """A store that holds the first 300 keys."""
    store = MemoryPageStore({"kv": NBYTES})
    store.write("kv", KEYS[:300], [memoryview(true_page(place)) for place in range(300)])
    return store


def only(inner: MemoryPageStore, seed: int = 1, rank: int = 0, **weights: float) -> FaultyStore:
    """Return a store that gives these faults and no others, as often as said."""
    return FaultyStore(inner, 1.0, seed, rank, FaultMix(**{**QUIET, **weights}))


def buffers_of(count: int, fill: int = 255) -> list[memoryview]:
    return [memoryview(bytearray([fill]) * NBYTES) for _ in range(count)]


def read(store: FaultyStore, keys: tuple[str, ...] = KEYS[:300]) -> tuple[list[PageResult], list[bytes]]:
    buffers = buffers_of(len(keys))
    results = store.read_into("kv", keys, buffers)
    return list(results), [bytes(buffer) for buffer in buffers]


@pytest.fixture
def started() -> Iterator[list[threading.Thread]]:
    """Threads to be joined at the end."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_at_rate_zero_nothing_goes_wrong(inner: MemoryPageStore) -> None:
    """Without faults the store is the inner one."""
    store = FaultyStore(inner, 0.0, 1, 0)
    results, pages = read(store)
    assert {result.code for result in results} == {None}
    assert pages == [true_page(place) for place in range(300)]
    assert store.restorable(KEYS, ["kv"])["kv"].tolist() == [True] * 300 + [False] * 100
    assert store.write("kv", KEYS[300:302], buffers_of(2)) == [True, True]
    assert store.delete("kv", KEYS[300:303]) == 2
    assert {fault for fault, count in store.counts.items() if count} == {"ok"}
    store.check_integrity()


@pytest.mark.parametrize("fault", ["missing", "short", "io_error", "lease_expired"])
def test_a_failed_page_leaves_its_buffer_as_it_was_or_dirty(inner: MemoryPageStore, fault: str) -> None:
    """Half of the failed pages have other bytes than before and than the page: published, they would be seen."""
    store = only(inner, **{fault: 0.5})
    results, pages = read(store)
    failed = [place for place, result in enumerate(results) if result.code is not None]
    assert {results[place].code for place in failed} == {ReadCode(fault)}
    assert 100 < len(failed) < 200
    assert store.counts[fault] == len(failed)
    assert all(pages[place] != true_page(place) for place in failed)
    untouched = [place for place in failed if pages[place][-1] == 255]
    assert 0.25 < len(untouched) / len(failed) < 0.75
    assert all(pages[place] == true_page(place) for place in range(300) if place not in failed)


def test_a_short_page_is_shorter_than_a_page_and_begins_well(inner: MemoryPageStore) -> None:
    """The bytes that came are those of the page."""
    results, pages = read(only(inner, short=1.0))
    for place, (result, data) in enumerate(zip(results, pages, strict=True)):
        assert 0 <= result.nbytes < NBYTES
        assert data[: result.nbytes] == true_page(place)[: result.nbytes]


def test_a_corrupt_page_differs_from_the_true_one(inner: MemoryPageStore) -> None:
    """Its bytes are scrambled, and its code says so."""
    results, pages = read(only(inner, corrupt=1.0))
    assert {result.code for result in results} == {ReadCode.CORRUPT}
    assert all(pages[place] != true_page(place) for place in range(300))


def test_a_result_of_the_wrong_length_is_shorter_or_longer(inner: MemoryPageStore) -> None:
    """Both happen, and never the right length."""
    store = only(inner, wrong_length=1.0)
    lengths = {len(store.read_into("kv", KEYS[at : at + 4], buffers_of(4))) for at in range(0, 200, 4)}
    assert lengths == {0, 3, 5, 8}
    assert len(store.read_into("kv", [], [])) == 1


def test_a_read_that_raises_may_have_written(inner: MemoryPageStore) -> None:
    """A RuntimeError comes with none, some or all pages in place."""
    store = only(inner, raises=1.0)
    in_place = set()
    for at in range(0, 200, 4):
        buffers = buffers_of(4)
        with pytest.raises(RuntimeError, match="injected"):
            store.read_into("kv", KEYS[at : at + 4], buffers)
        in_place.add(sum(bytes(buffer) == true_page(at + place) for place, buffer in enumerate(buffers)))
    assert in_place == {0, 1, 2, 3, 4}
    assert store.counts["raises"] == 50


@pytest.mark.parametrize("how", ["release_all", "close"])
def test_a_read_that_never_answers_writes_late(inner: MemoryPageStore, started: list[threading.Thread], how: str) -> None:
    """Its buffers stay as they were until it is released; then they are written, even if the inner store is closed."""
    store = only(inner, never=1.0)
    buffers, results = buffers_of(2), []
    started.append(threading.Thread(target=lambda: results.extend(store.read_into("kv", KEYS[:2], buffers))))
    started[0].start()
    assert store.wait_blocked(1)
    assert [bytes(buffer) for buffer in buffers] == [bytes([255]) * NBYTES] * 2
    assert results == []
    getattr(store, how)()
    started[0].join(timeout=20)
    assert [bytes(buffer) for buffer in buffers] == [true_page(0), true_page(1)]
    assert [result.code for result in results] == [None, None]
    assert store.blocked == 0


def test_release_lets_go_only_what_is_blocked_then(inner: MemoryPageStore, started: list[threading.Thread]) -> None:
    """A call that comes later blocks again; after close none does."""
    store = only(inner, never=1.0, query_never=1.0)
    store.release_all()
    for call in (lambda: read(store, KEYS[:2]), lambda: store.restorable(KEYS[:2], ["kv"])):
        started.append(threading.Thread(target=call))
        started[-1].start()
    assert store.wait_blocked(2)
    assert not store.wait_blocked(3, timeout_s=0)
    store.close()


def test_late_answers_are_right(inner: MemoryPageStore) -> None:
    """A late read or query answers what the inner store says."""
    store = only(inner, late=1.0, query_late=1.0, late_max_s=0.003)
    results, pages = read(store, KEYS[:3])
    assert [result.code for result in results] == [None] * 3
    assert pages == [true_page(place) for place in range(3)]
    assert store.restorable(KEYS[299:301], ["kv"])["kv"].tolist() == [True, False]
    assert store.counts["late"] == store.counts["query_late"] == 1


def test_queries_raise_and_lie(inner: MemoryPageStore) -> None:
    """A query may raise, claim what is not there and leave out what is."""
    with pytest.raises(RuntimeError, match="injected"):
        only(inner, query_raises=1.0).restorable(KEYS[:1], ["kv"])
    phantoms = only(inner, phantom=0.5)
    there = phantoms.restorable(KEYS, ["kv"])["kv"]
    assert there[:300].all()
    assert 20 < there[300:].sum() < 80
    assert phantoms.counts["phantom"] == there[300:].sum()
    omitting = only(inner, omitted=0.5)
    there = omitting.restorable(KEYS, ["kv"])["kv"]
    assert not there[300:].any()
    assert 100 < there[:300].sum() < 200
    assert inner.restorable(KEYS, ["kv"])["kv"].sum() == 300


def test_a_refused_write_stores_nothing(inner: MemoryPageStore) -> None:
    """False means that the page is not there, True that it is."""
    store = only(inner, unwritten=0.5)
    answers = store.write("kv", KEYS[300:], buffers_of(100))
    assert inner.restorable(KEYS[300:], ["kv"])["kv"].tolist() == answers
    assert store.counts["unwritten"] == answers.count(False)
    assert 20 < answers.count(False) < 80


def test_the_same_seed_and_rank_give_the_same_faults(inner: MemoryPageStore) -> None:
    """Batches go wrong alike in whatever order they are read; other ranks and seeds differ; a second try differs."""

    def codes(seed: int, rank: int, order: list[int]) -> dict[int, list[str]]:
        store = only(inner, seed, rank, missing=0.1, corrupt=0.1)
        return {at: [str(result.code) for result in read(store, KEYS[at : at + 20])[0]] for at in order}

    batches = list(range(0, 300, 20))
    assert codes(1, 0, batches) == codes(1, 0, batches[::-1])
    assert codes(1, 0, batches) != codes(1, 1, batches)
    assert codes(1, 0, batches) != codes(2, 0, batches)
    store = only(inner, missing=0.1)
    assert read(store)[0] != read(store)[0]


def test_at_rate_a_tenth_most_prefetches_of_20_pages_succeed_and_some_fail(inner: MemoryPageStore) -> None:
    """The default mix gives both outcomes, and every kind of fault of a batch in its measure."""
    mix = FaultMix(late_min_s=0.0, late_max_s=0.0, never=0.0)
    store = FaultyStore(inner, 0.1, 5, 0, mix)
    outcomes: Counter[str] = Counter()
    for _ in range(100):
        for at in range(0, 300, 20):
            try:
                results, _ = read(store, KEYS[at : at + 20])
            except RuntimeError:
                outcomes["raised"] += 1
                continue
            outcomes["right" if [result.code for result in results] == [None] * 20 else "wrong"] += 1
    assert 0.75 < outcomes["right"] / 1500 < 0.95
    assert store.counts["late"] / 1500 == pytest.approx(0.1, rel=0.3)
    assert store.counts["raises"] == outcomes["raised"]
    assert outcomes["raised"] / 1500 == pytest.approx(0.01, rel=0.6)
    assert {"missing", "short", "corrupt", "io_error", "lease_expired", "wrong_length"} <= set(store.counts)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_no_chance_is_refused(inner: MemoryPageStore, rate: float) -> None:
    """A rate lies between 0 and 1."""
    with pytest.raises(ConfigError, match="cannot use rate"):
        FaultyStore(inner, rate, 0, 0)


def test_a_mix_that_makes_no_sense_is_refused() -> None:
    """Weights are not negative and the latest answer is not before the earliest."""
    for wrong in ({"missing": -1.0}, {"late_min_s": 1.0}):
        with pytest.raises(ConfigError, match="cannot use FaultMix"):
            FaultMix(**wrong)


def test_the_inner_pages_are_never_touched(inner: MemoryPageStore) -> None:
    """Whatever is done to the buffers, the pages in the store stay good."""
    store = FaultyStore(inner, 1.0, 3, 0, FaultMix(never=0.0, late_max_s=0.002, corrupt=0.5, short=0.3))
    for at in range(0, 300, 20):
        try:
            read(store, KEYS[at : at + 20])
        except RuntimeError:
            assert store.counts["raises"]
    buffers = buffers_of(300)
    inner.read_into("kv", KEYS[:300], buffers)
    assert np.array_equal([bytes(buffer) for buffer in buffers], [true_page(place) for place in range(300)])
