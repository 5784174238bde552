"""Page contents for the examples: every page is told from every other."""

from itertools import product

import numpy as np
import pytest

from loop_pages import differs, fill, page_bytes_of

KEYS = tuple(f"{n:064x}" for n in range(4))
SIZES = [1, 7, 8, 9, 64, 4095, 4096, 65536 + 3]


@pytest.mark.parametrize("nbytes", SIZES)
def test_content_is_of_any_size_and_the_same_each_time(nbytes: int) -> None:
    """The same page has the same bytes whenever it is asked for."""
    page = page_bytes_of(KEYS[0], "kv", 0, nbytes)
    assert page.shape == (nbytes,)
    assert page.dtype == np.uint8
    assert np.array_equal(page, page_bytes_of(KEYS[0], "kv", 0, nbytes))


def test_content_never_changes() -> None:
    """The bytes are the same on every machine and in every version, so that stored pages stay good."""
    assert page_bytes_of(KEYS[1], "kv", 2, 20).tobytes().hex() == "f746fc973175051868ea896bd30655c265019069"


def test_pages_are_the_callers_own() -> None:
    """Writing to a page that was returned does not spoil the next one."""
    page = page_bytes_of(KEYS[0], "kv", 0, 64)
    page[:] = 0
    assert page_bytes_of(KEYS[0], "kv", 0, 64).any()


@pytest.mark.parametrize("nbytes", [16, 4096])
def test_other_key_pool_or_rank_is_another_page(nbytes: int) -> None:
    """No two of key, pool and rank share a page, and half of their bits differ."""
    pages = [page_bytes_of(key, pool, rank, nbytes) for key, pool, rank in product(KEYS, ("kv", "swa"), range(3))]
    assert len({page.tobytes() for page in pages}) == len(pages)
    distances = [np.unpackbits(a ^ b).mean() for n, a in enumerate(pages) for b in pages[:n]]
    assert 0.45 < np.mean(distances) < 0.55


def test_pages_do_not_hold_each_other_at_another_offset() -> None:
    """A page read from the wrong place in a buffer matches nowhere: no word repeats in a page or among pages."""
    words = np.concatenate([page_bytes_of(key, "kv", 0, 4096).view(np.uint64) for key in KEYS])
    assert len(np.unique(words)) == len(words)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "row"])
def test_fill_writes_exactly_the_page(kind: str, nbytes: int) -> None:
    """The whole buffer is written, and nothing beside it."""
    memory = np.full((3, nbytes), 0xEE, dtype=np.uint8)
    holder = bytearray(nbytes)
    buffer = {"bytearray": holder, "memoryview": memoryview(memory[1]), "row": memory[1]}[kind]
    fill(buffer, KEYS[0], "kv", 1)
    assert bytes(buffer) == page_bytes_of(KEYS[0], "kv", 1, nbytes).tobytes()
    assert (memory[[0, 2]] == 0xEE).all()
    assert not differs(buffer, KEYS[0], "kv", 1)


def test_fill_takes_a_place_that_is_not_aligned() -> None:
    """A page may begin at any byte."""
    memory = bytearray(65)
    fill(memoryview(memory)[1:], KEYS[0], "kv", 0)
    assert memory[0] == 0
    assert not differs(memoryview(memory)[1:], KEYS[0], "kv", 0)


@pytest.mark.parametrize("nbytes", [1, 9, 64, 1000])
def test_single_flipped_bit_is_seen(nbytes: int) -> None:
    """Damage anywhere in a page is noticed, one bit in each byte in turn."""
    page = page_bytes_of(KEYS[0], "kv", 0, nbytes)
    for place in range(nbytes):
        page[place] ^= 1 << place % 8
        assert differs(page, KEYS[0], "kv", 0)
        page[place] ^= 1 << place % 8
    assert not differs(page, KEYS[0], "kv", 0)


def test_page_of_another_key_pool_rank_or_length_differs() -> None:
    """A whole and undamaged page in the wrong place is noticed."""
    page = page_bytes_of(KEYS[0], "kv", 0, 4096)
    assert differs(page, KEYS[1], "kv", 0)
    assert differs(page, KEYS[0], "swa", 0)
    assert differs(page, KEYS[0], "kv", 1)
    assert differs(bytes(4096), KEYS[0], "kv", 0)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_page_of_no_bytes_is_refused(nbytes: int) -> None:
    """A page without content would match everything."""
    with pytest.raises(ValueError, match="use at least 1"):
        page_bytes_of(KEYS[0], "kv", 0, nbytes)
    with pytest.raises(ValueError, match="use at least 1"):
        differs(b"", KEYS[0], "kv", 0)


def test_fill_refuses_what_it_cannot_write() -> None:
    """A buffer that is read-only or has gaps is an error, not a page that stays as it was."""
    with pytest.raises(ValueError, match="read-only"):
        fill(memoryview(bytes(64)), KEYS[0], "kv", 0)
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        fill(np.zeros(64, dtype=np.uint8)[::2], KEYS[0], "kv", 0)
