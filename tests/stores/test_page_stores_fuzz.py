"""Ten thousand page files damaged at random: never served unless they are the page, byte by byte, and never a crash.

`PAGE_FUZZ=100000 PAGE_FUZZ_SEED=1` tries more of them, and others.
"""

import os
import random
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from page_files import NAMESPACE, open_store, page_file, resealed
from page_store_contract import KEYS, PAGE_BYTES, page

from lifecycle.keys import Namespace
from lifecycle.reasons import ReadCode
from stores.pages import FilePageStore
from stores.pages.header import FIELDS, HEADER_BYTES

FILES, SEED = int(os.environ.get("PAGE_FUZZ", "10000")), int(os.environ.get("PAGE_FUZZ_SEED", "7"))
NBYTES = PAGE_BYTES["indexer"]


@pytest.fixture
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Whole page files: the right one, and those of another key, pool, shard and namespace."""
    here, other = tmp_path_factory.mktemp("right"), tmp_path_factory.mktemp("other")
    written = {
        "right": (open_store(here), here, "r0of2", "indexer", KEYS[0]),
        "key": (open_store(here), here, "r0of2", "indexer", KEYS[1]),
        "shard": (open_store(here, "r1of2"), here, "r1of2", "indexer", KEYS[0]),
        "namespace": (open_store(other, namespace=Namespace("x")), other, "r0of2", "indexer", KEYS[0]),
        "pool": (FilePageStore(here, {"draft": NBYTES}, NAMESPACE, "r0of2"), here, "r0of2", "draft", KEYS[0]),
    }
    for store, _, _, pool, key in written.values():
        store.write(pool, [key], [memoryview(page("indexer", 0))])
    return {name: page_file(root, shard, pool, key).read_bytes() for name, (_, root, shard, pool, key) in written.items()}


def damaged(wholes: dict[str, bytes], dice: random.Random) -> bytes:
    """Return a file that somebody, or something, has been at one to three times."""
    data = bytearray(wholes["right"] if dice.random() < 0.8 else wholes[dice.choice(list(wholes))])
    for _ in range(dice.randrange(1, 4)):
        at, kind = dice.randrange(len(data)) if data else 0, dice.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = dice.randbytes(dice.randrange(1, 300))
        elif kind == 2 and data:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 3:
            data[at : at + 8] = struct.pack("<Q", dice.choice((0, 1, 2**63, 2**64 - 1)))
        elif kind == 4:
            data = bytearray(dice.randbytes(dice.randrange(2 * len(wholes["right"]))))
        elif kind == 5:  # a field of another page
            start, stop = FIELDS[dice.choice(list(FIELDS))]
            data[start:stop] = wholes[dice.choice(list(wholes))][start:stop]
        elif kind == 6:  # a page that was never written to its end
            data[at:] = bytes(len(data) - at)
        else:
            at = dice.randrange(HEADER_BYTES)
            data[at : at + 1] = dice.randbytes(1)
    return resealed(bytes(data)) if dice.random() < 0.5 and len(data) >= HEADER_BYTES else bytes(data)


def test_ten_thousand_fuzzed_files_are_never_served(tmp_path: Path, wholes: dict[str, bytes]) -> None:
    """A file is read if it is the page, byte by byte; any other is short or corrupt, and counted by its cause."""
    store, dice, seen = open_store(tmp_path), random.Random(SEED), Counter[ReadCode | None]()
    store.write("indexer", KEYS[:1], [memoryview(page("indexer", 0))])
    place = page_file(tmp_path, pool="indexer")
    buffer = np.zeros(NBYTES, np.uint8)
    for _ in range(FILES):
        data = damaged(wholes, dice)
        place.unlink()  # a file that is cut and written again is flushed to the disk by some file systems
        place.write_bytes(data)
        (result,) = store.read_into("indexer", KEYS[:1], [buffer.data])
        assert (result.code is None) == (data == wholes["right"])
        assert result.code in (None, ReadCode.SHORT, ReadCode.CORRUPT)
        assert result.code is not None or buffer.tobytes() == page("indexer", 0)
        seen[result.code] += 1
    counts = {cause.partition(".")[2]: count for cause, count in store.stats().items() if cause.startswith("read.")}
    assert sum(counts.values()) == FILES
    assert counts.keys() >= {"short", "corrupt.too_long", "corrupt.payload", "corrupt.reserved", "corrupt.header_checksum"}
    assert counts.keys() >= {f"corrupt.{field}" for field in FIELDS if field != "payload_checksum"}
    assert min(seen[ReadCode.SHORT], seen[ReadCode.CORRUPT]) > FILES / 100
