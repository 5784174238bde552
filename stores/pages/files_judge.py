"""What the bytes of a page file mean: a page, or why not. Opens nothing."""

import xxhash

from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from stores.pages.header import HEADER_BYTES, PageHeader


def judge(
    expected: PageHeader, key: str, header: bytearray, payload: memoryview, got: int, verify: bool
) -> tuple[PageResult, str]:
    """Return the result for the page `key`, and its cause for the counts.

    `got` bytes of the file came, into `header`, `payload` and one byte behind; `verify`: hash the payload, too.
    """
    if got < HEADER_BYTES:
        return PageResult(0, ReadCode.SHORT), "short"
    checksum, wrong = expected.check(header, key)
    if wrong is not None:
        return PageResult(0, ReadCode.CORRUPT), f"corrupt.{wrong}"
    nbytes = got - HEADER_BYTES
    if nbytes < expected.payload_bytes:
        return PageResult(nbytes, ReadCode.SHORT), "short"
    if nbytes > expected.payload_bytes:
        return PageResult(0, ReadCode.CORRUPT), "corrupt.too_long"
    if not verify:
        return PageResult(nbytes), "ok"
    if xxhash.xxh3_64_intdigest(payload) != checksum:
        return PageResult(0, ReadCode.CORRUPT), "corrupt.payload"
    return PageResult(nbytes, None, checksum), "ok"
