"""Page contents for the examples: bytes that follow from key, pool and rank, so that a wrong page is seen at once.

Stands in for the KV that a model would compute. Knows nothing of stores or slots.
"""

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

Buffer: TypeAlias = memoryview | bytearray | bytes | NDArray[np.uint8]

_WORD = np.dtype("<u8")


def page_bytes_of(key: str, pool: str, rank: int, nbytes: int) -> NDArray[np.uint8]:
    """Return the content of a page, shape [nbytes]; raises `ValueError` unless nbytes > 0."""
    if nbytes < 1:
        raise ValueError(f"cannot make a page of {nbytes} bytes: use at least 1")
    seed = np.uint64(xxhash.xxh3_64_intdigest(f"{rank}/{pool}/{key}".encode()))
    words = _places(-(-nbytes // 8)) ^ seed
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(29)
    words += seed
    return words.view(np.uint8)[:nbytes]


def fill(buffer: memoryview | bytearray | NDArray[np.uint8], key: str, pool: str, rank: int) -> None:
    """Write the content of a page over the whole buffer (contiguous and writable)."""
    page = np.frombuffer(buffer, dtype=np.uint8)
    page[:] = page_bytes_of(key, pool, rank, page.size)


def differs(buffer: Buffer, key: str, pool: str, rank: int) -> bool:
    """Say whether the buffer holds anything but the content of that page."""
    page = np.frombuffer(buffer, dtype=np.uint8)
    return not np.array_equal(page, page_bytes_of(key, pool, rank, page.size))


@lru_cache(maxsize=16)
def _places(words: int) -> NDArray[np.uint64]:
    places = np.arange(1, words + 1, dtype=_WORD) * np.uint64(0x9E3779B97F4A7C15)
    places.flags.writeable = False  # shared by every page of this size
    return places
