"""Page reads from files: the store beside bare `readv` of the same files, and beside SGLang's file backend where it is."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pages_measure import SGLANG, SIZES, Line, Read, host, lines_of, measure, store_read

from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from stores.pages import FilePageStore
from stores.pages.header import HEADER_BYTES


def bench_files(folder: Path, page_bytes: int, threads: Sequence[int], repeats: int) -> Iterator[Line]:
    """Yield the lines for files with pages of this size."""
    pages = SIZES[page_bytes]
    memory, buffers = host(page_bytes, pages)
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.shape, np.uint8)
    keys = page_keys(range(pages), 1)
    root = folder / f"files-{page_bytes}"
    sizes = {"kv": page_bytes}
    stores: dict[bool | None, FilePageStore] = {
        verify: FilePageStore(root, sizes, EMPTY_NAMESPACE, "r0of1", verify=verify) for verify in (False, True)
    }
    stores[None] = FilePageStore(root, sizes, EMPTY_NAMESPACE, "r0of1", helpers=0)
    assert all(stores[True].write("kv", keys, buffers))
    paths = {path.name: str(path) for path in (root / "r0of1").rglob("*") if path.is_file()}

    def bare(numbers: Sequence[int]) -> None:
        header = bytearray(HEADER_BYTES)
        for number in numbers:
            fd = os.open(paths[keys[number]], os.O_RDONLY)
            os.readv(fd, [header, buffers[number]])
            os.close(fd)

    ways: dict[str, Read] = {
        "bare readv": bare,
        "store": store_read(stores[False], keys, buffers),
        "store, verified": store_read(stores[True], keys, buffers),
        "verified, no helpers": store_read(stores[None], keys, buffers),
    }
    sglang = sglang_read(folder / f"sglang-{page_bytes}", memory, keys)
    if sglang is not None:
        ways[SGLANG] = sglang
    for count in threads:
        yield from lines_of("files", page_bytes, count, pages, measure(ways, pages, count, repeats))
        if sglang is None:
            yield Line("files", page_bytes, count, SGLANG, note="missing here")
    for store in stores.values():
        store.close()


def sglang_read(folder: Path, memory: NDArray[np.uint8], keys: Sequence[str]) -> Read | None:
    """Return a way to read through SGLang's file backend, None where it is not installed."""
    if importlib.util.find_spec("sglang") is None:
        return None
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "bench")
    backend = HiCacheFile(config, str(folder))
    slots = list(torch.from_numpy(memory))
    for key, slot in zip(keys, slots, strict=True):
        backend.set(key, slot)

    def read(numbers: Sequence[int]) -> None:
        got = backend.batch_get([keys[number] for number in numbers], [slots[number] for number in numbers])
        assert all(each is not None for each in got), "a page was not read"

    return read
