"""Which pages a store holds and how many bytes they take, in the order of use. Not thread-safe: its owner locks."""

from collections import OrderedDict

PageId = tuple[str, str]
"""Pool and key."""


class Ledger:
    """The sizes of the pages held, in the order of their last use, against an optional capacity in bytes."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._sizes: OrderedDict[PageId, int] = OrderedDict()
        self._used_at_ns: dict[PageId, int] = {}

    def __contains__(self, page: PageId) -> bool:
        return page in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, page: PageId, nbytes: int, at_ns: int = 0) -> None:
        """Count a page as the last used one, in place of what was counted for it before. `at_ns` says when that was."""
        self.drop(page)
        self._sizes[page] = nbytes
        self._used_at_ns[page] = at_ns
        self.used_bytes += nbytes

    def touch(self, page: PageId, at_ns: int | None = None) -> None:
        """Make a page the last used one, at that time if it is known; unknown pages stay unknown."""
        if page in self._sizes:
            self._sizes.move_to_end(page)
            if at_ns is not None:
                self._used_at_ns[page] = at_ns

    def used_at_ns(self, page: PageId) -> int:
        """Return when a page that is held was last used, as `put` and `touch` were told."""
        return self._used_at_ns[page]

    def drop(self, page: PageId) -> None:
        """Stop counting a page, if it was counted."""
        self.used_bytes -= self._sizes.pop(page, 0)
        self._used_at_ns.pop(page, None)

    def victim(self, page: PageId | None = None, nbytes: int = 0) -> PageId | None:
        """Return the page to drop next so that `page` (none: nothing more) fits with `nbytes`; None where it fits."""
        if self.capacity_bytes is None:
            return None
        before = 0 if page is None else self._sizes.get(page, 0)
        if self.used_bytes - before + nbytes <= self.capacity_bytes:
            return None
        return next((held for held in self._sizes if held != page), None)

    def faults(self) -> list[str]:
        """Return what does not add up."""
        found = []
        total = sum(self._sizes.values())
        if total != self.used_bytes:
            found.append(f"{self.used_bytes} bytes are counted, the pages take {total}")
        if self.capacity_bytes is not None and total > self.capacity_bytes:
            found.append(f"the pages take {total} bytes, over the capacity of {self.capacity_bytes}")
        return found
