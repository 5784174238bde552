"""How the buffers of a round get reduced. Apart from the rules: a transport knows no field of what it reduces.

All ranks call `launch` with buffers of the same shape in the same order.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from lifecycle.errors import ConfigError

Buffer = NDArray[np.int32] | NDArray[np.uint8]


class Transport(Protocol):
    """One MIN over the group, in place."""

    rank: int
    ranks: int

    def launch(self, buffer: Buffer) -> Callable[[], None]:
        """Begin to reduce `buffer`; the result is in place once the returned function has returned.

        Either may raise; then the round has failed.
        """


class Alone:
    """One rank: nothing to agree on, no collective at all."""

    rank = 0
    ranks = 1

    def launch(self, buffer: Buffer) -> Callable[[], None]:
        """Return at once."""
        return _nothing


def _nothing() -> None:
    return None


class TorchTransport:
    """`torch.distributed` over one process group that holds every rank whose prefix must be usable."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ConfigError("cannot build a transport: torch.distributed is not initialised (call init_process_group)")
        rank = dist.get_rank(group)
        if rank < 0:
            raise ConfigError("cannot build a transport: this rank is not in the group")
        self._group = group
        self.rank = rank
        self.ranks = dist.get_world_size(group)

    def launch(self, buffer: Buffer) -> Callable[[], None]:
        """Begin one all-reduce MIN; the returned function waits for it."""
        work = dist.all_reduce(torch.from_numpy(buffer), op=dist.ReduceOp.MIN, group=self._group, async_op=True)

        def wait() -> None:
            work.wait()

        return wait
