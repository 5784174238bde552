"""How the buffers of a round get reduced. Apart from the rules: a transport knows no field of what it reduces.

All ranks call `launch` with buffers of the same shape in the same order. `torch` is imported only where a group is used.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError
from lifecycle.runtime.lane import Lane

if TYPE_CHECKING:
    import torch.distributed as dist

Buffer = NDArray[np.int32] | NDArray[np.uint8]
Wait = Callable[[], None]

_GRACE = timedelta(seconds=1)  # the work ends by its own timeout first, with the better message


class Transport(Protocol):
    """One MIN over all ranks whose prefix must be usable, in place."""

    @property
    def rank(self) -> int:
        """This rank's place among them, from 0."""

    @property
    def ranks(self) -> int:
        """How many they are."""

    # A transport over process groups also has `groups`, the ranks of each: they are written at the head of the log.

    def launch(self, buffer: Buffer) -> Wait:
        """Begin to reduce `buffer`; the result is in place once the returned function has returned.

        Either may raise `RuntimeError`; then the round has failed. A transport may have a `launch_ahead` as well, which is
        called in its place when the result is not needed before a later tick (a lag): it may leave to another thread
        whatever takes time, as long as all exchanges of a rank keep the order of the calls.
        """


class Alone:
    """One rank: nothing to agree on, no collective at all."""

    rank = 0
    ranks = 1

    def launch(self, buffer: Buffer) -> Wait:
        """Return at once."""
        return _nothing


def _nothing() -> None:
    return None


class TorchTransport:
    """`torch.distributed` on the CPU, among the ranks of plain process groups that the engine may already have.

    Best is one group that spans attention CP x attention TP x PP. An engine that has only separate groups passes them all;
    they are reduced one after the other, each rank in the same order. The exchange runs over Gloo groups of its own with
    the same ranks: it mixes with no collective of the engine's, whichever thread begins it, and a round that fails breaks
    no group of the engine's. `timeout_s` bounds one exchange.

    Raises `ConfigError` when this rank is not in a group, or when the groups do not span a grid of ranks.
    """

    def __init__(self, *groups: "dist.ProcessGroup", timeout_s: float = 60.0) -> None:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError("cannot build a transport: torch.distributed is not initialised (call init_process_group)")
        if timeout_s <= 0:
            raise ConfigError(f"cannot build a transport with timeout_s={timeout_s}: use more than 0")
        self._timeout = timedelta(seconds=timeout_s)
        self._options = dist.AllreduceOptions()  # made once: after an idle stretch that takes longer than to launch
        self._options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        self._options.timeout = self._timeout  # of the work itself, which must end when it is given up, or it holds up the exit
        self._lane: Lane | None = None
        given: tuple[dist.ProcessGroup | None, ...] = groups or (dist.group.WORLD,)
        for place, group in enumerate(given):
            if dist.get_rank(group) < 0:
                raise ConfigError(
                    f"cannot build a transport: rank {dist.get_rank()} is not in group {place} of {len(given)}"
                    " (every rank passes the groups that it belongs to)"
                )
        self.groups = tuple(tuple(dist.get_process_group_ranks(group)) for group in given)
        try:
            self._groups = [self._own(group) for group in given]
            self.rank, self.ranks = self._place([dist.get_world_size(group) for group in given])
        except RuntimeError as error:
            self.close()
            raise ConfigError(
                f"cannot build a transport on rank {dist.get_rank()}: the ranks of its {len(given)} groups do not all"
                f" exchange (give every rank its groups in the same order): {error}"
            ) from error

    @property
    def own_group(self) -> "dist.ProcessGroup":
        """The Gloo group that the first group's exchanges run over."""
        return self._groups[0]

    def _own(self, group: "dist.ProcessGroup | None") -> "dist.ProcessGroup":
        """Return a Gloo group of the same ranks that nobody else uses."""
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(group)
        # Each is made by its own ranks alone, as the engine's other ranks may make none. It lives as long as the process:
        # torch would give the next one of these ranks its name, under which the store still holds its addresses.
        own: dist.ProcessGroup | None = dist.new_group(
            ranks, timeout=self._timeout, backend="gloo", use_local_synchronization=True
        )
        assert own is not None, "this rank is in it"
        return own

    def _place(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Return this rank's place among those that the groups reach together, after checking that they form a grid."""
        import torch.distributed as dist

        world, me = dist.get_world_size(), dist.get_rank()
        reached = np.ones(world, dtype=np.int32)
        reached[me] = 0
        self.launch(reached)()
        members = np.flatnonzero(reached == 0).tolist()
        grid = np.array([len(members) == math.prod(sizes)], dtype=np.int32)
        fits = bool(grid[0])
        self.launch(grid)()  # one rank's groups may look right while another's do not
        if not grid[0]:
            what = (
                f"its groups of {' x '.join(map(str, sizes))} ranks are right, those of a rank that they reach are not"
                if fits
                else f"groups of {' x '.join(map(str, sizes))} ranks reach {len(members)} ranks together ({members}),"
                f" not {math.prod(sizes)}: they overlap or are not a grid"
            )
            self.close()
            raise ConfigError(f"cannot build a transport on rank {me}: {what}")
        return members.index(me), len(members)

    def launch(self, buffer: Buffer) -> Wait:
        """Begin one all-reduce MIN in each group; the returned function waits for the last."""
        if self._lane is None and len(self._groups) == 1:
            return self._launch_in(self._groups[0], buffer)
        return self.launch_ahead(buffer)  # in the order of the calls, whichever of the two they are

    def launch_ahead(self, buffer: Buffer) -> Wait:
        """Have another thread begin, and end, what `launch` begins: for results that are not needed at once."""
        if self._lane is None:
            self._lane = Lane("round")
        patience_s = (self._timeout + _GRACE).total_seconds() * len(self._groups) + _GRACE.total_seconds()
        return self._lane.run(lambda: self._reduce_in_turn(buffer), patience_s)

    def _reduce_in_turn(self, buffer: Buffer) -> None:
        for group in self._groups:
            self._launch_in(group, buffer)()

    def _launch_in(self, group: "dist.ProcessGroup", buffer: Buffer) -> Wait:
        import torch

        work = group.allreduce([torch.from_numpy(buffer)], self._options)

        def wait() -> None:
            if not work.wait(self._timeout + _GRACE):
                raise RuntimeError(f"the exchange took longer than {self._timeout.total_seconds()} s")

        return wait

    def close(self) -> None:
        """Stop the thread that exchanges ahead. The groups that were passed are the engine's."""
        if self._lane is not None:
            self._lane.close()
