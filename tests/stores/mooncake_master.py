"""A real Mooncake master on free loopback ports, started for a test session and stopped with it. Killable, restartable."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stores.pages.mooncake_engine import Address, Engine, connect

_START_S = 30.0


def why_not() -> str | None:
    """Return why Mooncake cannot be used here, None where it can."""
    try:
        import mooncake.store  # noqa: F401  # what is tried
    except ImportError as error:
        return f"Mooncake cannot be imported: {error} (extra `mooncake`, and libibverbs1 librdmacm1 libnuma1 liburing2)"
    return None if _binary() else "mooncake_master is not installed"


class Master:
    """A `mooncake_master` process with metadata service, on ports of its own."""

    def __init__(self, log: Path, **flags: object) -> None:
        rpc, http, metrics = _free_ports(3)
        self.address = Address("127.0.0.1", rpc)
        self.metadata = f"http://127.0.0.1:{http}/metadata"
        self.spec = f"mooncake:{self.address},{self.metadata}"
        self._log, self._http = log, http
        self._command = [
            str(_binary()),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={rpc}",
            "--enable_http_metadata_server=true",
            "--http_metadata_server_host=127.0.0.1",
            f"--http_metadata_server_port={http}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={metrics}",
            *(f"--{name}={value}" for name, value in flags.items()),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_S
        while not (self.address.answers() and Address("127.0.0.1", self._http).answers()):
            assert self._process.poll() is None, f"the master ended at once:\n{self._log.read_text(errors='replace')[-2000:]}"
            assert time.monotonic() < deadline, f"the master does not listen at {self.address}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash would; everything it knew is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, segment_bytes: int = 64 << 20) -> Engine:
        """Return a connected client."""
        return connect(self.address, self.metadata, segment_bytes)


@contextmanager
def running(folder: Path, **flags: Any) -> Iterator[Master]:
    """Run a master whose log lies in the folder."""
    master = Master(folder / "mooncake_master.log", **flags)
    master.start()
    try:
        yield master
    finally:
        master.kill()


def _binary() -> str | None:
    beside = Path(sys.executable).parent / "mooncake_master"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mooncake_master")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
