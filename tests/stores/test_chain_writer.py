"""Chains are written head first, in turns: what was refused or lost comes again, and a broken store is left in peace."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lifecycle.coverage import longest, restorable
from lifecycle.errors import ConfigError, StoreError
from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from lifecycle.layout import PRESETS, Layout, dsa, kv_only, swa
from lifecycle.runtime.ports import PageResult
from lifecycle.testing.faulty_store import FaultMix, FaultyStore
from stores.pages import ChainWriter, FilePageStore, MemoryPageStore, Turn, WriteRetry
from stores.pages.header import HEADER_BYTES

NBYTES = 64
KEYS = page_keys(list(range(12)), 1)
LONG = page_keys(list(range(600)), 1)
RETRY = WriteRetry(every_ticks=4, attempts=3, rest_ticks=100)


def page_of(pool: str, page: int) -> bytes:
    """Return what a page holds."""
    return f"{pool} {page} ".encode().ljust(NBYTES, b".")


def pages_of(pool: str, pages: Sequence[int]) -> list[memoryview]:
    """Give the bytes of pages that are held."""
    return [memoryview(page_of(pool, page)) for page in pages]


def held(layout: Layout, pages: int) -> dict[str, NDArray[np.bool_]]:
    """Host memory has every page of every pool."""
    return {pool.name: np.ones(pages, np.bool_) for pool in layout.pools}


class Fickle(MemoryPageStore):
    """Refuses the pages that it is told to, loses those it is told to, notes every call, and may not answer queries."""

    def __init__(self, layout: Layout) -> None:
        super().__init__({pool.name: NBYTES for pool in layout.pools})
        self.refuses: set[tuple[str, str]] = set()
        self.refuses_all = self.mute = False
        self.calls: list[tuple[str, list[int]]] = []

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Ask, unless nobody answers."""
        if self.mute:
            raise StoreError("nobody answers")
        return super().restorable(keys, pools)

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Write all but the pages that are refused."""
        self.calls.append((pool, [LONG.index(key) if key in LONG else -1 for key in keys]))
        kept = [not self.refuses_all and (pool, key) not in self.refuses for key in keys]
        for key, buffer, keep in zip(keys, buffers, kept, strict=True):
            if keep:
                super().write(pool, [key], [buffer])
        return kept

    def has(self, pool: str, chain: Sequence[str] = KEYS) -> list[int]:
        """Return the pages that are there."""
        return np.flatnonzero(super().restorable(chain, [pool])[pool]).tolist()


class WrongLength(Fickle):
    """Answers for one page fewer than were written."""

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Write all, answer for some."""
        return super().write(pool, keys, buffers)[1:]


def test_a_chain_is_written_kv_first_and_once() -> None:
    """The first turn writes every page; the second finds all there and writes nothing."""
    layout = dsa()
    store = Fickle(layout)
    writer = ChainWriter(store, layout)
    assert writer.write(KEYS, held(layout, 12), pages_of, 0) == Turn(24, 0, 0, 0, True)
    assert store.calls == [("kv", list(range(12))), ("indexer", list(range(12)))]
    assert writer.write(KEYS, held(layout, 12), pages_of, 1) == Turn(0, 0, 0, 0, True)
    assert len(store.calls) == 2
    (result,) = store.read_into("indexer", KEYS[3:4], [buffer := memoryview(bytearray(NBYTES))])
    assert result.code is None
    assert bytes(buffer) == page_of("indexer", 3)


def test_a_head_that_l3_has_lost_is_written_again_and_nothing_else() -> None:
    """A head that is in host memory and gone from L3 is written in the next turn; it is no longer believed stored before."""
    layout = kv_only()
    store = Fickle(layout)
    writer = ChainWriter(store, layout)
    writer.write(KEYS, held(layout, 12), pages_of, 0)
    store.delete("kv", KEYS[:1])
    assert writer.stored("kv", KEYS[0])
    assert writer.write(KEYS, held(layout, 12), pages_of, 1) == Turn(1, 0, 0, 1, True)
    assert store.calls[1:] == [("kv", [0])]
    assert writer.stored("kv", KEYS[0])


def test_nothing_is_written_behind_a_batch_with_a_refused_page() -> None:
    """In later batches, and of other pools in the same one, pages behind the refused one are held back."""
    layout = dsa()
    store = Fickle(layout)
    store.refuses = {("kv", LONG[100])}
    turn = ChainWriter(store, layout).write(LONG, held(layout, 600), pages_of, 0)
    assert store.calls == [("kv", list(range(128))), ("indexer", list(range(100)))]
    assert turn == Turn(127 + 100, 1, 1200 - 228, 0, True)


def test_after_a_refusal_batches_begin_at_one_page() -> None:
    """A store that refused something is tried with one page, and twice as many each time it takes all."""
    layout = kv_only()
    store = Fickle(layout)
    store.refuses = {("kv", LONG[0])}
    writer = ChainWriter(store, layout, retry=RETRY)
    writer.write(LONG, held(layout, 600), pages_of, 0)
    store.refuses.clear()
    store.calls.clear()
    writer.write(LONG, held(layout, 600), pages_of, 4)
    assert [len(pages) for _, pages in store.calls] == [1, 2, 4, 8, 16, 32, 64, 128, 128, 90]


def test_a_refused_page_is_tried_again_when_it_is_due_and_nothing_behind_it_before() -> None:
    """Waits double from refusal to refusal, and after the last of `attempts` the page rests."""
    layout = kv_only()
    store = Fickle(layout)
    store.refuses_all = True
    writer = ChainWriter(store, layout, retry=RETRY)
    tried = [tick for tick in range(260) if writer.write(KEYS, held(layout, 12), pages_of, tick).refused]
    assert tried == [0, 4, 12, 112, 116, 124, 224, 228, 236]
    assert store.calls[1:] == [("kv", [0])] * 8
    store.refuses_all = False
    assert writer.write(KEYS, held(layout, 12), pages_of, 336) == Turn(12, 0, 0, 0, True)


def test_refusals_are_counted_anew_once_the_page_was_stored() -> None:
    """A page that was refused, stored, lost and refused again waits as long as after a first refusal."""
    layout = kv_only()
    store = Fickle(layout)
    writer = ChainWriter(store, layout, retry=RETRY)
    for tick, refuses in ((0, True), (4, False), (20, True)):
        store.refuses_all = refuses
        store.delete("kv", KEYS[:1])
        writer.write(KEYS[:1], held(layout, 1), pages_of, tick)
    assert not writer.stored("kv", KEYS[0])
    assert [writer.write(KEYS[:1], held(layout, 1), pages_of, tick).refused for tick in (23, 24)] == [0, 1]


def test_a_broken_store_gets_one_page_of_each_new_chain() -> None:
    """Chains that share a refused head wait for it together; each other chain costs one page."""
    layout = dsa()
    store = Fickle(layout)
    store.refuses_all = True
    writer = ChainWriter(store, layout)
    writer.write(KEYS, held(layout, 12), pages_of, 0)
    store.calls.clear()
    for length in range(2, 12):
        assert writer.write(KEYS[:length], held(layout, length), pages_of, 1) == Turn(0, 0, 2 * length, 0, True)
    assert store.calls == []
    for first in range(100, 110):
        chain = page_keys(range(first, first + 5), 1)
        assert writer.write(chain, held(layout, 5), pages_of, 1) == Turn(0, 1, 9, 0, True)
    assert [len(pages) for _, pages in store.calls] == [1] * 10


def test_a_refused_window_holds_nothing_else_back() -> None:
    """A page of a trailing pool spoils the lengths that need it, not those behind it."""
    layout = swa(2)
    store = Fickle(layout)
    store.refuses = {("swa", KEYS[3])}
    writer = ChainWriter(store, layout, retry=RETRY)
    assert writer.write(KEYS, held(layout, 12), pages_of, 0) == Turn(23, 1, 0, 0, True)
    assert writer.write(KEYS, held(layout, 12), pages_of, 1) == Turn(0, 0, 1, 0, True)
    store.refuses.clear()
    assert writer.write(KEYS, held(layout, 12), pages_of, 4) == Turn(1, 0, 0, 0, True)


def test_a_refused_draft_page_holds_back_the_draft_alone() -> None:
    """What the target needs goes on."""
    layout = kv_only(draft=True)
    store = Fickle(layout)
    store.refuses = {("draft", KEYS[3])}
    writer = ChainWriter(store, layout, retry=RETRY)
    writer.write(KEYS[:4], held(layout, 4), pages_of, 0)
    writer.write(KEYS, held(layout, 12), pages_of, 1)
    assert store.has("kv") == list(range(12))
    assert store.has("draft") == [0, 1, 2]


def test_a_store_that_does_not_answer_is_given_what_no_write_has_stored() -> None:
    """Without hints beliefs decide: what a write said it stored is not written twice, the rest is."""
    layout = kv_only()
    store = Fickle(layout)
    writer = ChainWriter(store, layout)
    writer.write(KEYS[:5], held(layout, 5), pages_of, 0)
    store.mute = True
    assert writer.write(KEYS, held(layout, 12), pages_of, 1) == Turn(7, 0, 0, 0, False)


def test_what_only_a_hint_says_is_asked_for_again_in_every_turn() -> None:
    """What another process stored is left alone while it is there, never believed stored, and written once it is gone."""
    layout = kv_only()
    store = Fickle(layout)
    store.write("kv", KEYS[:1], pages_of("kv", [0]))
    writer = ChainWriter(store, layout)
    assert writer.write(KEYS, held(layout, 12), pages_of, 0).written == 11
    assert not writer.stored("kv", KEYS[0])
    store.delete("kv", KEYS[:1])
    assert writer.write(KEYS, held(layout, 12), pages_of, 1) == Turn(1, 0, 0, 0, True)


def test_a_store_that_answers_for_fewer_pages_than_were_written_is_an_error() -> None:
    """Which pages it kept is not known; nothing of that call is believed stored."""
    layout = kv_only()
    writer = ChainWriter(WrongLength(layout), layout)
    with pytest.raises(StoreError, match="11 answers came for 12 pages"):
        writer.write(KEYS, held(layout, 12), pages_of, 0)
    assert not any(writer.stored("kv", key) for key in KEYS)


def test_an_empty_chain_is_no_turn() -> None:
    """A prompt shorter than a page asks nobody."""
    store = Fickle(kv_only())
    store.mute = True
    assert ChainWriter(store, kv_only()).write((), held(kv_only(), 0), pages_of, 0) == Turn(0, 0, 0, 0, False)


@pytest.mark.parametrize("bad", [{"every_ticks": 0}, {"attempts": True}, {"rest_ticks": 1 << 31}])
def test_a_pace_that_makes_no_sense_is_refused(bad: dict[str, int]) -> None:
    """Ticks and attempts are whole numbers from 1 on."""
    with pytest.raises(ConfigError, match=f"cannot use {next(iter(bad))}="):
        WriteRetry(**bad)


@given(
    layout=st.sampled_from([build(draft=draft) for build in PRESETS.values() for draft in (False, True)]),
    trouble=st.lists(
        st.tuples(
            st.integers(0, 40),  # ticks from the turn before
            st.integers(1, 12),  # pages of the chain that are asked for
            st.booleans(),  # whether the store answers queries
            st.sets(st.integers(0, 95), max_size=6),  # what it loses before the turn
            st.sets(st.integers(0, 95), max_size=6),  # what it refuses in it
        ),
        max_size=10,
    ),
)
def test_whatever_was_refused_or_lost_the_turns_that_follow_bring_l3_back_to_a_gapless_prefix(
    layout: Layout, trouble: list[tuple[int, int, bool, set[int], set[int]]]
) -> None:
    """While host memory holds the chain: two turns of a store that works, one rest apart, and every length can be restored."""
    store = Fickle(layout)
    places = [(pool.name, key) for pool in layout.pools for key in KEYS]
    writer = ChainWriter(store, layout, retry=RETRY)
    tick = 0
    for ticks, pages, answers, lost, refused in trouble:
        tick += ticks
        store.mute = not answers
        for place in lost:
            pool, key = places[place % len(places)]
            store.delete(pool, [key])
        store.refuses = {places[place % len(places)] for place in refused}
        writer.write(KEYS[:pages], held(layout, pages), pages_of, tick)
    store.mute, store.refuses = False, set()
    turn = writer.write(KEYS, held(layout, 12), pages_of, tick + RETRY.rest_ticks)
    assert (turn.refused, turn.held_back) == (0, 0)
    there = {pool.name: np.isin(np.arange(12), store.has(pool.name)) for pool in layout.pools}
    assert all(flags.all() for flags in there.values())
    assert longest(restorable(layout, False, there), 0) == 12


# --- real stores --------------------------------------------------------------------------------------------------------


def files(root: Path) -> FilePageStore:
    """Open a file store for the dsa layout."""
    return FilePageStore(root, {"kv": NBYTES, "indexer": NBYTES}, EMPTY_NAMESPACE, "r0of1")


def read(store: FilePageStore, pool: str) -> list[PageResult]:
    """Read the whole chain, and see that what is read is what was written."""
    buffers = [memoryview(bytearray(NBYTES)) for _ in KEYS]
    results = list(store.read_into(pool, KEYS, buffers))
    for page, (result, buffer) in enumerate(zip(results, buffers, strict=True)):
        assert result.code is not None or bytes(buffer) == page_of(pool, page)
    return results


def test_a_head_whose_file_was_deleted_is_stored_again_while_host_memory_holds_it(tmp_path: Path) -> None:
    """The file goes, by another hand; the next turn writes that page alone, and the whole chain can be read."""
    store = files(tmp_path)
    writer = ChainWriter(store, dsa())
    assert writer.write(KEYS, held(dsa(), 12), pages_of, 0).written == 24
    (tmp_path / "r0of1" / "indexer" / KEYS[0][:2] / KEYS[0]).unlink()
    assert longest(restorable(dsa(), False, store.restorable(KEYS, ["kv", "indexer"])), 0) == 0
    assert writer.write(KEYS, held(dsa(), 12), pages_of, 1) == Turn(1, 0, 0, 1, True)
    assert [result.code for pool in ("kv", "indexer") for result in read(store, pool)] == [None] * 24


def test_a_head_whose_file_was_damaged_is_stored_again_once_a_read_has_found_it(tmp_path: Path) -> None:
    """The hint follows the failed read: the page is no longer claimed, so that it is due."""
    store = files(tmp_path)
    writer = ChainWriter(store, dsa())
    writer.write(KEYS, held(dsa(), 12), pages_of, 0)
    path = tmp_path / "r0of1" / "kv" / KEYS[0][:2] / KEYS[0]
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + bytes(NBYTES))
    assert read(store, "kv")[0].code is not None
    assert writer.write(KEYS, held(dsa(), 12), pages_of, 1) == Turn(1, 0, 0, 1, True)
    assert [result.code for result in read(store, "kv")] == [None] * 12


def test_writes_that_fail_at_random_end_in_a_whole_chain(tmp_path: Path) -> None:
    """With a store that refuses one page in four and lies about what is there, the chain is whole after some turns."""
    store = files(tmp_path)
    faulty = FaultyStore(store, 1.0, 3, 0, FaultMix(unwritten=0.25, query_never=0, query_raises=0, phantom=0.1, omitted=0.1))
    writer = ChainWriter(faulty, dsa(), retry=RETRY)
    refused = 0
    for tick in range(0, 1000, 5):
        turn = writer.write(KEYS, held(dsa(), 12), pages_of, tick)
        refused += turn.refused
        there = store.restorable(KEYS, ["kv", "indexer"])
        if all(flags.all() for flags in there.values()):
            break
    assert refused > 0
    assert [result.code for pool in ("kv", "indexer") for result in read(store, pool)] == [None] * 24
