"""A file store for tests, the files in it, and ways to look at both."""

import os
from pathlib import Path
from typing import Any

import pytest
import xxhash
from page_store_contract import KEYS, PAGE_BYTES, blanks, pages

from lifecycle.keys import Namespace
from lifecycle.runtime.ports import PageResult
from stores.pages import FilePageStore
from stores.pages.header import HEADER_BYTES

NAMESPACE = Namespace(model="m", dtype="bf16")
FILE_BYTES = HEADER_BYTES + PAGE_BYTES["kv"]


def open_store(root: Path, shard: str = "r0of2", namespace: Namespace = NAMESPACE, **options: Any) -> FilePageStore:
    """Open a store on the folder."""
    return FilePageStore(root, PAGE_BYTES, namespace, shard, **options)


@pytest.fixture
def store(tmp_path: Path) -> FilePageStore:
    """A store that holds the kv page of the first key."""
    store = open_store(tmp_path)
    store.write("kv", KEYS[:1], pages("kv", range(1)))
    return store


@pytest.fixture
def file(tmp_path: Path, store: FilePageStore) -> Path:
    """The file of that page."""
    return page_file(tmp_path)


def page_file(root: Path, shard: str = "r0of2", pool: str = "kv", key: str = KEYS[0]) -> Path:
    """Return where a page lies."""
    return root / shard / pool / key[:2] / key


def read(store: FilePageStore, pool: str = "kv", key: str = KEYS[0]) -> PageResult:
    """Read one page."""
    (result,) = store.read_into(pool, [key], blanks(pool, 1))
    return result


def temps(root: Path, shard: str = "r0of2") -> list[str]:
    """Return the temporary files there are."""
    return os.listdir(root / shard / ".tmp")


def resealed(data: bytes) -> bytes:
    """Return the file with a header checksum that fits its header: as a forger would leave it."""
    head = data[: HEADER_BYTES - 8]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + data[HEADER_BYTES:]
