"""Page stores: where pages live in L3."""

from collections.abc import Callable, Mapping

from lifecycle.errors import ConfigError
from lifecycle.keys import Namespace
from lifecycle.runtime.ports import PageStore
from stores.pages.files import FilePageStore
from stores.pages.memory import MemoryPageStore

__all__ = ["FilePageStore", "MemoryPageStore", "open_page_store"]

_Opener = Callable[[str, Mapping[str, int], Namespace, str, int | None], PageStore]


def open_page_store(
    spec: str, page_bytes: Mapping[str, int], namespace: Namespace, shard: str, capacity_bytes: int | None = None
) -> PageStore:
    """Open the store that `spec` names: `memory` or `file:DIR`. Raises `ConfigError` with the specs there are."""
    kind, _, where = spec.partition(":")
    opener = _OPENERS.get(kind)
    if opener is None:
        raise ConfigError(f"cannot open page store {spec!r}: there are memory and file:DIR")
    return opener(where, page_bytes, namespace, shard, capacity_bytes)


def _open_memory(
    where: str, page_bytes: Mapping[str, int], namespace: Namespace, shard: str, capacity_bytes: int | None
) -> PageStore:
    if where:
        raise ConfigError(f"cannot open page store 'memory:{where}': memory has no place (use memory, or file:DIR)")
    return MemoryPageStore(page_bytes, capacity_bytes)


def _open_files(
    where: str, page_bytes: Mapping[str, int], namespace: Namespace, shard: str, capacity_bytes: int | None
) -> PageStore:
    if not where:
        raise ConfigError("cannot open page store 'file': it names no folder (use file:DIR)")
    return FilePageStore(where, page_bytes, namespace, shard, capacity_bytes)


_OPENERS: Mapping[str, _Opener] = {"memory": _open_memory, "file": _open_files}
