"""The client of Mooncake Store that this package needs: its verbs, its codes, and how one is connected.

Importing this module imports nothing of Mooncake: that happens when a client is connected.
"""

import importlib
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lifecycle.errors import ConfigError, StoreError
from lifecycle.reasons import ReadCode

MAX_KEYS = 128
"""How many keys one call has at most: more of them outlive the lease of the last ones, and stall every other caller."""

METADATA_PORT = 8080  # where a master serves metadata unless it is told otherwise
SEGMENT_BYTES = 256 << 20
_STAGING_BYTES = 1 << 20  # the client's own staging memory: no call used here goes through it
_LOOK_S = 1.0

NOT_READY, OBJECT_NOT_FOUND, LEASE_EXPIRED, RPC_FAIL = -703, -704, -707, -900
INVALID_PARAMS, TRANSFER_FAIL = -600, -800  # also what an object of another size is answered with

NOTHING_REMOVED = frozenset({NOT_READY, OBJECT_NOT_FOUND})
"""What a removal is answered with where no page is: none, or one that is still being written."""

_CODES: dict[int, tuple[ReadCode, str]] = {
    NOT_READY: (ReadCode.MISSING, "missing.being_written"),
    OBJECT_NOT_FOUND: (ReadCode.MISSING, "missing"),
    -710: (ReadCode.MISSING, "missing.replica"),
    -712: (ReadCode.MISSING, "missing.replica"),
    LEASE_EXPIRED: (ReadCode.LEASE_EXPIRED, "lease_expired"),
    INVALID_PARAMS: (ReadCode.IO_ERROR, "io_error.invalid_params"),
    TRANSFER_FAIL: (ReadCode.IO_ERROR, "io_error.transfer_fail"),
    RPC_FAIL: (ReadCode.IO_ERROR, "io_error.unreachable"),
}
_WRITE_CAUSES = {-101: "no_segment", -200: "no_room", TRANSFER_FAIL: "transfer_fail", RPC_FAIL: "unreachable"}


class Engine(Protocol):
    """What is used of `mooncake.store.MooncakeDistributedStore`. Codes below 0 are failures, one per key."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Let the transport read and write this memory; 0 is success."""

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Undo `register_buffer`."""

    def batch_get_into_multi_buffers(
        self, keys: list[str], all_buffer_ptrs: Sequence[Sequence[int]], all_sizes: Sequence[Sequence[int]]
    ) -> list[int]:
        """Read each object into its buffers, one behind the other; the bytes read, or a code."""

    def batch_put_from_multi_buffers(
        self, keys: list[str], all_buffer_ptrs: Sequence[Sequence[int]], all_sizes: Sequence[Sequence[int]]
    ) -> list[int]:
        """Write each object from its buffers. 0 also where an object of that key is there already: it stays as it is."""

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """Return 1, 0 or a code; what exists is leased."""

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        """Remove objects; `force` also those that are leased."""

    def get_size(self, key: str) -> int:
        """Return the bytes of an object, or a code."""

    def close(self) -> int:
        """Leave the cluster; what this client holds of it is gone."""


class Address(NamedTuple):
    """Host and port of a master."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address that `HOST:PORT` names, or raise `ConfigError`."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"cannot use {text!r} as the address of a Mooncake master: need HOST:PORT (127.0.0.1:50051, say)")
        return cls(host, int(port))

    def answers(self) -> bool:
        """Say whether something listens there now. Takes up to a second, where calls to a dead master take many."""
        try:
            socket.create_connection(self, _LOOK_S).close()
        except OSError:
            return False
        return True

    def own_host(self) -> str:
        """Return the address of this machine that the master sees; sends nothing."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(self)
            return str(probe.getsockname()[0])


def connect(
    master: Address,
    metadata: str | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    protocol: str = "tcp",
    devices: str = "",
    local_host: str | None = None,
) -> Engine:
    """Return a client that lends `segment_bytes` of this process's memory to the cluster (0: none).

    `metadata` is the URL of the metadata service, by default that of the master (`http://HOST:8080/metadata`);
    `P2PHANDSHAKE` does without. Raises `StoreError` if Mooncake cannot be imported or the master does not answer.
    """
    try:
        module = importlib.import_module("mooncake.store")
    except ImportError as error:
        raise StoreError(
            f"cannot use Mooncake: {error} (install prefetch-lifecycle[mooncake], with a GPU mooncake-transfer-engine;"
            " on Debian also libibverbs1 librdmacm1 libnuma1 liburing2)"
        ) from error
    if not master.answers():  # the client would try for a minute
        raise StoreError(f"cannot open pages in Mooncake: no master answers at {master} (start mooncake_master)")
    engine = module.MooncakeDistributedStore()
    where = metadata or f"http://{master.host}:{METADATA_PORT}/metadata"
    host = local_host or master.own_host()
    os.environ.setdefault("MC_TCP_BIND_ADDRESS", host)  # else the client's RPC listens on the first interface it finds
    code = engine.setup(host, where, segment_bytes, _STAGING_BYTES, protocol, devices, str(master))
    if code != 0:
        raise StoreError(
            f"cannot open pages in Mooncake at {master}: setup returned {code} with metadata at {where}"
            " (is that the address of its metadata service?)"
        )
    client: Engine = engine
    return client


def read_failure(code: int) -> tuple[ReadCode, str]:
    """Return what a code below 0 says of a read, and its cause for the counts."""
    return _CODES.get(code, (ReadCode.IO_ERROR, f"io_error.{-code}"))


def write_failure(code: int) -> str:
    """Return the cause of a write that failed with this code."""
    return _WRITE_CAUSES.get(code, str(-code))
