"""The header of a page file: 256 bytes that say what the payload behind them is. Opens no file, trusts no byte.

`magic · version · header length · zeros · pool · shard · namespace · payload length · zeros · key | checksum of the
payload | checksum of the header`, little-endian. All before the checksums is known to the reader, so that it compares
instead of parsing; only a mismatch is looked at field by field, to say what is wrong.
"""

import struct

import xxhash

HEADER_BYTES = 256
MAGIC = b"PLCPAGE\n"
VERSION = 1

_FIXED = struct.Struct("<8sHH4x64s32s32sQ56x")  # the same for all pages of a pool
_SUMS = struct.Struct("<QQ")
_KEY_AT = _FIXED.size
_SUMS_AT = _KEY_AT + 32
assert _SUMS_AT + _SUMS.size == HEADER_BYTES, "the header has a fixed size"

FIELDS = {
    "magic": (0, 8),
    "version": (8, 10),
    "header_length": (10, 12),
    "pool": (16, 80),
    "shard": (80, 112),
    "namespace": (112, 144),
    "payload_length": (144, 152),
    "key": (_KEY_AT, _SUMS_AT),
    "payload_checksum": (_SUMS_AT, _SUMS_AT + 8),
    "header_checksum": (_SUMS_AT + 8, HEADER_BYTES),
}
"""Where each field lies: [start, stop)."""


class PageHeader:
    """Writes and checks the headers of one pool of one shard in one namespace."""

    def __init__(self, pool: str, shard: str, namespace_digest: bytes, payload_bytes: int) -> None:
        self.payload_bytes = payload_bytes
        self._fixed = _FIXED.pack(
            MAGIC, VERSION, HEADER_BYTES, pool.encode("ascii"), shard.encode("ascii"), namespace_digest, payload_bytes
        )

    def pack(self, key: str, payload_checksum: int) -> bytes:
        """Return the header of the page with that key."""
        head = self._fixed + bytes.fromhex(key) + payload_checksum.to_bytes(8, "little")
        return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")

    def check(self, header: bytearray, key: str) -> tuple[int, str | None]:
        """Return the checksum that the payload must have, and what is wrong with the header (None: nothing)."""
        payload_checksum, header_checksum = _SUMS.unpack_from(header, _SUMS_AT)
        known = self._fixed + bytes.fromhex(key)
        if header[:_SUMS_AT] != known:
            return payload_checksum, _difference(header, known)
        if xxhash.xxh3_64_intdigest(memoryview(header)[: HEADER_BYTES - 8]) != header_checksum:
            return payload_checksum, "header_checksum"
        return payload_checksum, None


def _difference(header: bytearray, known: bytes) -> str:
    for name, (start, stop) in FIELDS.items():
        if stop <= _SUMS_AT and header[start:stop] != known[start:stop]:
            return name
    return "reserved"
