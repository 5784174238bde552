"""The round on a GPU: the buffer is reduced by NCCL on a side stream, beside the forward pass.

Copy in from pinned memory, reduce, copy out, event. The main stream and the scheduler thread are never waited on: `wait`
waits for this exchange's own event, which with a lag of one tick or more has normally come.
"""

import time
from typing import TYPE_CHECKING

from lifecycle.errors import ConfigError
from lifecycle.runtime.transport import Buffer, TorchTransport, Wait

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

_POLL_S = 20e-6


class CudaTransport(TorchTransport):
    """`TorchTransport` over the NCCL groups that are passed, with the tensor on `device` ("cuda:0").

    Raises `ConfigError` for a device that does not exist.
    """

    def __init__(self, *groups: "dist.ProcessGroup", device: "str | torch.device", timeout_s: float = 60.0) -> None:
        import torch

        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            raise ConfigError(f"cannot build a transport on {device!r}: it is not a device") from error
        count = torch.cuda.device_count()
        if self._device.type != "cuda" or (self._device.index or 0) >= count:
            raise ConfigError(f"cannot build a transport on {device!r}: this machine has {count} CUDA devices (name one)")
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        super().__init__(*groups, timeout_s=timeout_s)

    def _own(self, group: "dist.ProcessGroup | None") -> "dist.ProcessGroup":
        """Return the group itself: a communicator of its own would take memory of the device."""
        assert group is not None, "this rank is in it"
        return group

    def launch(self, buffer: Buffer) -> Wait:
        """Queue the copy in, one reduction in each group, and the copy out on the side stream."""
        import torch
        import torch.distributed as dist

        host = torch.from_numpy(buffer)
        staged = host.pin_memory()
        with torch.cuda.stream(self._stream):
            tensor = staged.to(self._device, non_blocking=True)
            for group in self._groups:
                work = dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=group, async_op=True)
                assert work is not None, "async_op=True returns a handle"
                work.wait()  # orders this stream after the reduction; blocks no thread
            staged.copy_(tensor, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        deadline = time.monotonic() + self._timeout.total_seconds()

        def wait() -> None:
            while not done.query():  # type: ignore[no-untyped-call]
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the exchange took longer than {self._timeout.total_seconds()} s")
                time.sleep(_POLL_S)
            host.copy_(staged)

        return wait

    def launch_ahead(self, buffer: Buffer) -> Wait:
        """Launch on the calling thread: collectives of several communicators must begin in one order on all ranks."""
        return self.launch(buffer)
