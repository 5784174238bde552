"""Page keys: chained SHA-256 over token ids, and the check that a string is one.

The only way from tokens to keys, used by reader and writer alike, so that read identity equals write identity.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import BadKey, BadTokens

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal for two pages with the same tokens to be the same page. All empty: no namespace."""

    model: str = ""
    adapter: str = ""
    salt: str = ""
    weights_version: str = ""
    dtype: str = ""
    layout: str = ""

    def digest(self) -> bytes:
        """Return the 32-byte digest that stands for the page before page 0; empty for the empty namespace."""
        fields = (self.model, self.adapter, self.salt, self.weights_version, self.dtype, self.layout)
        if not any(fields):
            return b""
        hasher = sha256()
        for value in fields:  # length first, so that ("ab", "c") and ("a", "bc") differ
            data = value.encode("utf-8", "surrogatepass")  # a path that is not UTF-8 reaches us with lone surrogates
            hasher.update(len(data).to_bytes(4, "little") + data)
        return hasher.digest()


EMPTY_NAMESPACE = Namespace()


class KeyChain(tuple[str, ...]):
    """The page keys of a prompt from page 0 on. Building one checks every key; what holds one need not check again."""

    __slots__ = ()

    def __new__(cls, keys: Iterable[str] = ()) -> "KeyChain":
        """Check and keep the keys; raises `BadKey` with the first page whose key is not a hex SHA-256."""
        if isinstance(keys, KeyChain):
            return keys
        return super().__new__(cls, [check_key(key, page) for page, key in enumerate(keys)])


def check_key(key: str, page: int | None = None) -> str:
    """Return `key` if it is a page key (64 lower-case hex digits), else raise `BadKey`."""
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise BadKey(key, page)
    return key


def page_count(tokens: int, page_size: int, bigram: bool = False) -> int:
    """Return how many whole pages `tokens` tokens make: with bigram keys N tokens make N - 1 keys."""
    _check_page_size(page_size)
    return max(0, tokens - 1 if bigram else tokens) // page_size


def page_keys(
    tokens: Sequence[int] | NDArray[np.integer],
    page_size: int,
    *,
    namespace: Namespace = EMPTY_NAMESPACE,
    bigram: bool = False,
) -> KeyChain:
    """Return the keys of the whole pages of `tokens` (shape [N], ids in [0, 2**32)).

    Each key is the SHA-256 of the previous page's digest followed by the page's ids as unsigned 32-bit little-endian; a
    namespace is hashed first, as if it were the page before page 0; `bigram` hashes both ids of each adjacent pair.
    Raises `BadTokens` for ids that do not fit and for a page size below 1.
    """
    pages = page_count(len(tokens), page_size, bigram)
    try:
        ids = np.asarray(tokens)
    except ValueError as error:  # lists of different lengths
        raise BadTokens(f"cannot hash {len(tokens)} tokens: need a flat list of whole numbers ({error})") from error
    if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
        what = f"tokens of shape {ids.shape} and type {ids.dtype}"
        raise BadTokens(f"cannot hash {what}: need a flat list of whole numbers")
    wrong = np.flatnonzero((ids < 0) | (ids > 0xFFFFFFFF)) if ids.size else ids
    if wrong.size:
        at = int(wrong[0])
        raise BadTokens(f"cannot hash token {at}: id {int(ids[at])} does not fit in 32 bits without sign")
    flat = ids.astype("<u4")
    if bigram:
        flat = np.stack((flat[:-1], flat[1:]), axis=1).reshape(-1) if len(flat) > 1 else flat[:0]
    data = flat.tobytes()
    nbytes = page_size * (8 if bigram else 4)
    digest, keys = namespace.digest(), []
    for page in range(pages):
        digest = sha256(digest + data[page * nbytes : (page + 1) * nbytes]).digest()
        keys.append(digest.hex())
    return tuple.__new__(KeyChain, keys)


def _check_page_size(page_size: int) -> None:
    if not isinstance(page_size, (int, np.integer)) or page_size < 1:
        raise BadTokens(f"cannot make pages of {page_size!r} tokens: use a whole page size of at least 1")
