"""Page stores: where pages live in L3."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.keys import Namespace
from lifecycle.runtime.ports import PageStore
from stores.host_region import SlotRegion
from stores.pages.chain_writer import ChainWriter, Turn, WriteRetry
from stores.pages.files import FilePageStore
from stores.pages.header import HEADER_BYTES
from stores.pages.memory import MemoryPageStore
from stores.pages.mooncake import MooncakePageStore
from stores.pages.mooncake_engine import SEGMENT_BYTES, Address, connect
from stores.pages.write_rule import due_pages

__all__ = [
    "ChainWriter",
    "FilePageStore",
    "MemoryPageStore",
    "MooncakePageStore",
    "Turn",
    "WriteRetry",
    "due_pages",
    "header_room",
    "open_page_store",
    "register_host_memory",
]

_Opener = Callable[[str, Mapping[str, int], Namespace, str, int | None, bool], PageStore]


def open_page_store(
    spec: str,
    page_bytes: Mapping[str, int],
    namespace: Namespace,
    shard: str,
    capacity_bytes: int | None = None,
    verify: bool = True,
) -> PageStore:
    """Open the store that `spec` names: `memory`, `file:DIR` or `mooncake:HOST:PORT[,METADATA]`.

    HOST:PORT is the master's; METADATA is the URL of its metadata service, by default `http://HOST:8080/metadata`
    (`P2PHANDSHAKE`: none). With Mooncake, `capacity_bytes` is the memory that this process lends to the cluster. Without
    `verify` nobody looks at the checksums of pages: damaged bytes are served as they are (memory has nothing to verify). Raises
    `ConfigError` with the specs there are, `StoreError` if the store cannot be used.
    """
    kind, _, where = spec.partition(":")
    opener = _OPENERS.get(kind)
    if opener is None:
        raise ConfigError(f"cannot open page store {spec!r}: there are memory, file:DIR and mooncake:HOST:PORT")
    return opener(where, page_bytes, namespace, shard, capacity_bytes, verify)


def header_room(store: PageStore, pools: Iterable[str]) -> dict[str, int]:
    """Return the `header_room_bytes` of host memory into which this store reads fastest; empty where room is of no use.

    Pass the store itself: of one that wraps another nothing is known.
    """
    return dict.fromkeys(pools, HEADER_BYTES) if isinstance(store, MooncakePageStore) else {}


def register_host_memory(store: PageStore, regions: Iterable[NDArray[np.generic] | SlotRegion]) -> None:
    """Tell a store that reads straight into host memory (Mooncake) where it lies; others need not know.

    Pass the store itself, not one that wraps it.

    `regions` are `TorchHostMemory.regions()`, say, or contiguous arrays. They live until the store is closed.
    """
    if isinstance(store, MooncakePageStore):
        store.register(regions)


def _open_memory(
    where: str, page_bytes: Mapping[str, int], namespace: Namespace, shard: str, capacity_bytes: int | None, verify: bool
) -> PageStore:
    if where:
        raise ConfigError(f"cannot open page store 'memory:{where}': memory has no place (use memory, or file:DIR)")
    return MemoryPageStore(page_bytes, capacity_bytes)


def _open_files(
    where: str, page_bytes: Mapping[str, int], namespace: Namespace, shard: str, capacity_bytes: int | None, verify: bool
) -> PageStore:
    if not where:
        raise ConfigError("cannot open page store 'file': it names no folder (use file:DIR)")
    return FilePageStore(where, page_bytes, namespace, shard, capacity_bytes, verify)


def _open_mooncake(
    where: str, page_bytes: Mapping[str, int], namespace: Namespace, shard: str, capacity_bytes: int | None, verify: bool
) -> PageStore:
    place, _, metadata = where.partition(",")
    master = Address.parse(place)
    engine = connect(master, metadata or None, SEGMENT_BYTES if capacity_bytes is None else capacity_bytes)
    try:
        return MooncakePageStore(engine, page_bytes, namespace, shard, verify, master=master, owns_engine=True)
    except ConfigError:
        engine.close()
        raise


_OPENERS: Mapping[str, _Opener] = {"memory": _open_memory, "file": _open_files, "mooncake": _open_mooncake}
