"""Served pages against what they must be: where they lie, or on the device that a forward pass would read them on."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lifecycle.runtime.ports import SlotArray
from loop_pages import differs, page_bytes_of
from stores.host import TorchHostMemory

Compare = Callable[[str, Sequence[str], SlotArray], int]
"""Compares the pages of a pool in these slots with the content of these keys; returns how many differ."""


def comparing(memory: TorchHostMemory, rank: int, device: str | None) -> Compare:
    """Return the comparison on the host, or with a device on that: pages are copied there straight from their slots."""

    def on_host(pool: str, keys: Sequence[str], slots: SlotArray) -> int:
        pages = zip(memory.buffers(pool, slots), keys, strict=True)
        return sum(differs(buffer, key, pool, rank) for buffer, key in pages)

    def on_device(pool: str, keys: Sequence[str], slots: SlotArray) -> int:
        if not keys:
            return 0
        host, nbytes = memory.tensor(pool), memory.page_bytes(pool)
        served = torch.empty((len(keys), nbytes), dtype=torch.uint8, device=device)
        for place, slot in enumerate(slots.tolist()):
            served[place].copy_(host[slot], non_blocking=True)
        wanted = torch.from_numpy(np.stack([page_bytes_of(key, pool, rank, nbytes) for key in keys])).to(served.device)
        return int((served != wanted).any(dim=1).sum())

    return on_host if device is None else on_device
