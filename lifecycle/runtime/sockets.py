"""The exchange between ranks of one host, over Unix sockets: no thread takes part, so that nobody is woken but who waits.

Each rank sends its buffer to every other as it launches, and takes theirs as it waits. What is too large to lie in the sockets
meanwhile goes over Gloo: by its size and by what is under way, which are alike on all ranks.
"""

import socket
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lifecycle.errors import ConfigError
from lifecycle.runtime.transport import Buffer, TorchTransport, Wait

if TYPE_CHECKING:
    import torch.distributed as dist

MOST_UNDER_WAY_BYTES = 64 << 10
"""How much may lie in a socket, less than half of what Linux gives it, so that sending never waits for the other to receive."""

_EACH_BYTES = 1 << 10
"""What a socket keeps beside each exchange: many small ones fill it, too."""


class HostTransport:
    """`torch.distributed` for the start, Unix sockets from then on. For ranks of one host and one user, in one plain group.

    Several times quicker than Gloo where the ranks meet in step. `timeout_s` bounds one exchange. A rank that is gone, or that
    closes its transport, is noticed at once. Raises `ConfigError`, on all ranks alike, where they cannot reach each other.
    """

    def __init__(self, group: "dist.ProcessGroup | None" = None, timeout_s: float = 60.0) -> None:
        self._gloo = TorchTransport(*(() if group is None else (group,)), timeout_s=timeout_s)
        self.rank, self.ranks, self.groups = self._gloo.rank, self._gloo.ranks, self._gloo.groups
        self._timeout_s = timeout_s
        self._peers: dict[int, socket.socket] = {}
        self._launched = 0
        self._unread: deque[tuple[int, int]] = deque()  # exchanges under way in the sockets: number, bytes
        self._broken: RuntimeError | None = None
        try:
            trouble = self._meet()
            reached = np.array([not trouble], dtype=np.int32)
            self._gloo.launch(reached)()
        except RuntimeError as error:
            self.close()
            why = f"another rank of this group went meanwhile, or says nothing: {error}"
            raise ConfigError(f"cannot build a transport on rank {self.rank}: {why}") from error
        if not reached[0]:
            self.close()
            why = trouble or "another rank cannot reach its peers"
            raise ConfigError(
                f"cannot build a transport on rank {self.rank}: {why} (ranks of several hosts or users: use TorchTransport)"
            )

    def _meet(self) -> str:
        """Connect to every other rank; return what went wrong, or nothing. Every rank takes part in every step."""
        with ExitStack() as stack:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            path = trouble = ""
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="prefetch-"))  # nobody else may enter it
                listening.bind(str(Path(folder) / "rank"))
                listening.listen(self.ranks)
                path = str(Path(folder) / "rank")
            except OSError as error:
                trouble = f"it cannot listen at a path for temporary files (set TMPDIR to a short one that exists): {error}"
            paths = self._tell(path)
            if "" in paths:  # all know by now
                return trouble or f"rank {paths.index('')} of this group listens nowhere"
            try:
                for rank in range(self.rank):
                    peer = self._peers[rank] = socket.socket(socket.AF_UNIX)
                    peer.settimeout(self._timeout_s)
                    peer.connect(paths[rank])
                    peer.sendall(self.rank.to_bytes(4, "little"))
            except OSError as error:
                trouble = f"rank {rank} of this group does not listen at {paths[rank]}: {error}"
            self._tell(trouble)  # all have connected, or will not
            try:
                while not trouble and len(self._peers) < self.ranks - 1:
                    listening.settimeout(1.0)  # who has connected is there already
                    peer, _ = listening.accept()
                    peer.settimeout(self._timeout_s)
                    rank = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "little")
                    if rank in self._peers or not self.rank < rank < self.ranks:
                        peer.close()
                        trouble = f"something that is no rank of this group connected, as {rank}"
                        break
                    self._peers[rank] = peer
            except OSError as error:
                trouble = f"not all ranks of this group have connected: {error}"
            self._tell(trouble)
            return trouble

    def _tell(self, what: str) -> list[str]:
        """Tell all ranks something, and return what each said."""
        import torch.distributed as dist

        said: list[str] = [""] * self.ranks
        dist.all_gather_object(said, what, group=self._gloo.own_group)
        return said

    def launch(self, buffer: Buffer) -> Wait:
        """Send the buffer to every other rank; the returned function takes theirs, and leaves the MIN in it."""
        if self._broken is not None:
            raise self._broken
        if sum(nbytes + _EACH_BYTES for _, nbytes in self._unread) + buffer.nbytes + _EACH_BYTES > MOST_UNDER_WAY_BYTES:
            return self._gloo.launch(buffer)
        number, self._launched = self._launched, self._launched + 1
        self._unread.append((number, buffer.nbytes))
        for rank, peer in self._peers.items():
            try:
                peer.settimeout(self._timeout_s)
                peer.sendall(buffer.data)
            except OSError as error:
                raise self._failed(rank, error) from error
        return lambda: self._take(number, buffer)

    def _take(self, number: int, buffer: Buffer) -> None:
        if self._broken is not None:
            raise self._broken
        deadline = time.monotonic() + self._timeout_s
        theirs = np.empty_like(buffer)
        while self._unread and self._unread[0][0] <= number:
            taken, nbytes = self._unread.popleft()
            into = theirs.data.cast("B") if taken == number else memoryview(bytearray(nbytes))  # what nobody waits for
            for rank, peer in self._peers.items():
                self._receive(rank, peer, into, deadline)
                if taken == number:
                    np.minimum(buffer, theirs, out=buffer)

    def _receive(self, rank: int, peer: socket.socket, into: memoryview, deadline: float) -> None:
        try:
            while len(into):
                peer.settimeout(max(0.001, deadline - time.monotonic()))
                got = peer.recv_into(into)
                if not got:
                    raise ConnectionResetError("it is gone, or has closed its transport")
                into = into[got:]
        except OSError as error:
            raise self._failed(rank, error) from error

    def _failed(self, rank: int, error: OSError) -> RuntimeError:
        """Keep the failure: what comes later would be taken for an exchange that it is not."""
        why = f"it has sent nothing for {self._timeout_s} s" if isinstance(error, TimeoutError) else str(error)
        self._broken = RuntimeError(f"the exchange with rank {rank} failed: {why}")
        return self._broken

    def close(self) -> None:
        """Close the sockets, which the other ranks notice. The group that was passed is the engine's."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        self._broken = self._broken or RuntimeError("the transport is closed")
        self._gloo.close()
