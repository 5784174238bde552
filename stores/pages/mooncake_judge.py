"""What an answer of the engine means for one page of one pool: names, headers, checksums, causes. Calls nothing itself."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from stores.pages.header import FIELDS, HEADER_BYTES, PageHeader
from stores.pages.mooncake_engine import INVALID_PARAMS, RPC_FAIL, TRANSFER_FAIL, read_failure

FORMAT = "plcpage1"
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_KEY_AT = FIELDS["key"][0]

Answer = tuple[PageResult, str]
"""The result for one page, and its cause for the counts."""

UNREACHABLE: Answer = (PageResult(0, ReadCode.IO_ERROR), "io_error.unreachable")
BAD_RESULT: Answer = (PageResult(0, ReadCode.BAD_RESULT), "bad_result")
_DROPPED: Answer = (PageResult(0, ReadCode.CORRUPT), "corrupt.too_long")

RETRIED = frozenset({ReadCode.CORRUPT, ReadCode.LEASE_EXPIRED})
"""What a second read may mend: a page that was replaced under the first one, a batch that outlived its lease."""


class PoolPages:
    """The pages of one pool of one shard in one namespace."""

    def __init__(self, pool: str, shard: str, namespace_digest: bytes, nbytes: int, verify: bool) -> None:
        if _SHARD.fullmatch(shard) is None:
            raise ConfigError(f"cannot use shard name {shard!r}: it is up to 32 of A-Z a-z 0-9 _ . - (r0of2, say)")
        self.prefix = f"{FORMAT}/{shard}/{pool}/"
        self.header = PageHeader(pool, shard, namespace_digest, nbytes)
        self.nbytes = nbytes
        self._verify = verify
        self.ok: Answer = (PageResult(nbytes), "ok")
        self._fixed = self.header.pack("00" * 32, 0)[:_KEY_AT]

    def names(self, keys: Sequence[str]) -> list[str]:
        """Return the names of the objects."""
        prefix = self.prefix
        return [prefix + key for key in keys]

    def judge(
        self, codes: list[int], keys: Sequence[str], heads: NDArray[np.uint8], buffers: Sequence[memoryview]
    ) -> list[Answer]:
        """Return an answer per key, from what the engine returned and what lies in headers and buffers now."""
        count = len(keys)
        if len(codes) != count:
            return [BAD_RESULT] * count
        whole = HEADER_BYTES + self.nbytes
        if not self._verify and codes.count(whole) == count and self._all_known(keys, heads):
            return [self.ok] * count
        return [
            self._page(code, whole, key, heads[row], buffers[row])
            for row, (code, key) in enumerate(zip(codes, keys, strict=True))
        ]

    def _all_known(self, keys: Sequence[str], heads: NDArray[np.uint8]) -> bool:
        """Compare all headers at once, but for their checksums, which say nothing about what is asked for."""
        if heads[:, :_KEY_AT].tobytes() != self._fixed * len(keys):
            return False
        return heads[:, _KEY_AT : _KEY_AT + 32].tobytes() == bytes.fromhex("".join(keys))

    def _page(self, code: int, whole: int, key: str, head: NDArray[np.uint8], buffer: memoryview) -> Answer:
        if code != whole:
            return self._not_whole(code, whole)
        checksum, wrong = self.header.check(bytearray(head.data), key)
        if wrong is not None:
            return PageResult(0, ReadCode.CORRUPT), f"corrupt.{wrong}"
        if not self._verify:
            return self.ok
        if xxhash.xxh3_64_intdigest(buffer) != checksum:
            return PageResult(0, ReadCode.CORRUPT), "corrupt.payload"
        return PageResult(self.nbytes, None, checksum), "ok"

    def _not_whole(self, code: int, whole: int) -> Answer:
        if code == RPC_FAIL:
            return UNREACHABLE
        if code < 0:
            read_code, cause = read_failure(code)
            return PageResult(0, read_code), cause
        if code > whole:
            return _DROPPED
        return PageResult(max(0, code - HEADER_BYTES), ReadCode.SHORT), "short"

    def explain(self, codes: Sequence[int], names: Sequence[str], answers: list[Answer], size_of: Callable[[str], int]) -> None:
        """Tell objects of another size, in place, from transfers that failed: the engine answers both alike."""
        whole = HEADER_BYTES + self.nbytes
        for place, code in enumerate(codes):
            if code not in (INVALID_PARAMS, TRANSFER_FAIL):
                continue
            size = size_of(names[place])
            if size == RPC_FAIL:  # the master is gone: nothing is known, and asking on costs seconds each
                return
            if size != whole:
                answers[place] = self._not_whole(size, whole)
