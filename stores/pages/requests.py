"""What every page store refuses before it touches anything: bad keys, unknown pools, buffers that are not one page.

These are faults of the caller and raise; a bad page never does.
"""

import re
from collections.abc import Mapping, Sequence

from lifecycle.errors import ConfigError
from lifecycle.keys import KeyChain, check_key

_POOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def checked_page_bytes(page_bytes: Mapping[str, int], capacity_bytes: int | None, overhead_bytes: int = 0) -> dict[str, int]:
    """Return a copy of `page_bytes`, or raise `ConfigError`: no pool, a bad name or size, a capacity below one page."""
    if not page_bytes:
        raise ConfigError("cannot open a page store without pools: give the bytes of one page for each pool")
    for pool, nbytes in page_bytes.items():
        if _POOL.fullmatch(pool) is None:
            raise ConfigError(f"cannot use pool name {pool!r}: it is up to 64 ASCII letters, digits and underscores")
        if nbytes < 1:
            raise ConfigError(f"cannot store pages of {nbytes} bytes in pool {pool!r}: need at least 1")
    largest = max(page_bytes.values()) + overhead_bytes
    if capacity_bytes is not None and capacity_bytes < largest:
        raise ConfigError(f"cannot use capacity_bytes={capacity_bytes}: one page takes {largest} (give room for many)")
    return dict(page_bytes)


def check_keys(keys: Sequence[str]) -> None:
    """Raise `BadKey` for the first key that is not a page key. A `KeyChain` was checked when it was built."""
    if not isinstance(keys, KeyChain) and not _are_keys(keys):
        for key in keys:
            check_key(key)


def _are_keys(keys: Sequence[str]) -> bool:
    """Say that all are page keys, a quarter of the time it takes to look at each; where not, `check_key` says which."""
    try:
        digits = "".join(keys)
        nbytes = len(bytes.fromhex(digits))  # skips spaces, takes capitals
    except (TypeError, ValueError):
        return False
    return {*map(len, keys)} == {64} and 2 * nbytes == len(digits) and digits == digits.lower()


def page_bytes_of(pool: str, page_bytes: Mapping[str, int]) -> int:
    """Return the bytes of one page of the pool, or raise `ConfigError` with the pools there are."""
    nbytes = page_bytes.get(pool)
    if nbytes is None:
        raise ConfigError(f"cannot use pool {pool!r}: this store has {', '.join(page_bytes)}")
    return nbytes


def check_buffers(
    operation: str, pool: str, keys: Sequence[str], buffers: Sequence[memoryview], nbytes: int, writable: bool
) -> None:
    """Raise `ConfigError` (a `ValueError`) unless there is one contiguous buffer of exactly one page per key."""
    if len(keys) != len(buffers):
        raise ConfigError(f"cannot {operation} {len(keys)} pages of pool {pool!r} with {len(buffers)} buffers: need as many")
    for place, buffer in enumerate(buffers):
        if buffer.nbytes != nbytes:
            raise ConfigError(
                f"cannot {operation} pool {pool!r}: buffer {place} has {buffer.nbytes} bytes, a page has {nbytes}"
            )
        if not buffer.c_contiguous or (writable and buffer.readonly):
            raise ConfigError(f"cannot {operation} pool {pool!r}: buffer {place} is not contiguous or not writable")
