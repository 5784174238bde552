"""A host pool that hands out pages and has no memory behind them."""

import torch


class DoubleFree(Exception):
    """Raised by a stub pool for a page that is not out."""


class StubPool:
    """Pages of a host pool: the lowest free ones first, each given out once."""

    layout = "page_first"
    device = torch.device("cpu")
    can_use_write_back_jit = False

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.size = self.logical_size = pages * page_size
        self.out = [False] * pages
        self.in_use = 0

    def available_size(self) -> int:
        return self.size - self.in_use * self.page_size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        assert need_size % self.page_size == 0
        if need_size > self.available_size():
            return None
        pages = [page for page, out in enumerate(self.out) if not out][: need_size // self.page_size]
        for page in pages:
            self.out[page] = True
        self.in_use += len(pages)
        if not pages:
            return torch.empty(0, dtype=torch.int64)
        return torch.cat([torch.arange(p * self.page_size, (p + 1) * self.page_size) for p in pages])

    def free(self, indices: torch.Tensor) -> int:
        pages = sorted({index // self.page_size for index in indices.tolist()})
        if len(pages) * self.page_size != len(indices):
            raise DoubleFree(f"{indices.tolist()} are not whole pages, each once")
        for page in pages:
            if not self.out[page]:
                raise DoubleFree(f"page {page} is not out")
            self.out[page] = False
        self.in_use -= len(pages)
        return len(indices)

    def clear(self) -> None:
        self.out = [False] * len(self.out)
        self.in_use = 0
