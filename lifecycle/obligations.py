"""What one rank owes for a prefetch, and the partition of its pages. Pure; calls no port.

    anchor lock          Issued                -> AnchorUnlocked
    token reservation    Issued                -> TokensReturned (the same amount)
    host pages           HostReserved          -> HostHandedOver | HostReleased | HostQuarantined, page by page
    credit               Committed, Clamped    -> TokensCredited
    late-write lock      HostHandedOver        -> LateWriteEnded
    lock on what was     Committed, Clamped    -> PagesUnlocked, after the close
    handed over

Every discharge is checked before it changes anything: what is not open cannot be discharged, and no counter has a floor.
"""

from dataclasses import dataclass

from lifecycle import ranges as r
from lifecycle.errors import ObligationError
from lifecycle.ranges import EMPTY, Range, Ranges
from lifecycle.reasons import Part


@dataclass(frozen=True, slots=True)
class Parts:
    """The four parts of the pages reserved in one pool: each page is in exactly one."""

    tail: Ranges  # reserved, not landed
    clamped: Ranges  # landed, not usable
    duplicate: Ranges  # usable, the index has it already
    handed: Ranges  # the index takes it

    def released(self) -> tuple[tuple[Part, Ranges], ...]:
        """Return the parts that go back to host memory."""
        return (Part.TAIL, self.tail), (Part.CLAMPED, self.clamped), (Part.DUPLICATE, self.duplicate)


def partition(reserved: Ranges, landed: Ranges, usable: Ranges, taken: Ranges) -> Parts:
    """Apply the partition law: taken within usable within landed within reserved, as sets of pages.

    Raises `ValueError` when they are not nested: a page would be published that is not usable, or freed that is not held.
    """
    for inner, outer, what in ((landed, reserved, "landed"), (usable, landed, "usable"), (taken, usable, "taken")):
        if stray := r.subtract(inner, outer):
            raise ValueError(f"cannot partition: pages {r.text(stray)} are {what} but not among {r.text(outer)}")
    return Parts(r.subtract(reserved, landed), r.subtract(landed, usable), r.subtract(usable, taken), taken)


class Obligations:
    """What is open for one prefetch on this rank. Page sets are absolute, per pool with slots of its own."""

    __slots__ = (
        "anchor",
        "claimed",
        "credit",
        "history",
        "late",
        "lost",
        "pages",
        "prefetch",
        "resident_lock",
        "tokens",
    )

    def __init__(self, prefetch: int, tokens: int) -> None:
        self.prefetch = prefetch
        self.anchor = True
        self.tokens: int | None = tokens
        self.credit = False
        self.resident_lock = False
        self.pages: dict[str, Ranges] = {}
        self.claimed: dict[str, list[Range]] = {}  # reads that may be writing; overlapping ranges never occur
        self.lost: dict[str, Ranges] = {}
        self.late: dict[str, Ranges] = {}
        self.history: dict[str, list[tuple[str, Ranges]]] = {}  # how pages were discharged, for precise errors

    @property
    def settled(self) -> bool:
        """Whether this rank holds nothing any more, except the lock on what it handed over."""
        return not (
            self.anchor or self.tokens is not None or self.credit or any(self.pages.values())
            or any(self.claimed.values()) or any(self.late.values())
        )  # fmt: skip

    def open_names(self) -> list[str]:
        """Return what is open, in words."""
        names = [name for name in ("anchor", "credit", "resident_lock") if getattr(self, name)]
        names += ["tokens"] if self.tokens is not None else []
        for kind in ("pages", "late"):
            names += [f"{kind} of {pool} {r.text(held)}" for pool, held in getattr(self, kind).items() if held]
        return names

    def busy(self, pool: str) -> Ranges:
        """Return the pages that a claimed read may still be writing."""
        pages = EMPTY
        for claimed in self.claimed.get(pool, ()):
            pages = r.union(pages, (claimed,))
        return pages

    # --- opening -------------------------------------------------------------------------------------------------------

    def reserve(self, pool: str, pages: Range) -> None:
        """Open the release of the reserved pages of one pool."""
        if pool in self.pages:
            raise ObligationError(self.prefetch, f"reserve pages of pool {pool}", "they are reserved already")
        self.pages[pool] = r.span(*pages)

    def claim(self, pool: str, pages: Range) -> None:
        """Note that a read may write these pages."""
        if r.intersect(self.busy(pool), (pages,)):
            raise ObligationError(self.prefetch, f"claim pages {r.text((pages,))} of {pool}", "a read of them is claimed")
        self.claimed.setdefault(pool, []).append(pages)

    # --- discharging ---------------------------------------------------------------------------------------------------

    def end_read(self, pool: str, pages: Range) -> None:
        """Note that nobody writes these pages any more."""
        self._unclaim(pool, pages)

    def lose_read(self, pool: str, pages: Range) -> None:
        """Note that these pages may be written at any time from now on."""
        self._unclaim(pool, pages)
        self.lost[pool] = r.union(self.lost.get(pool, EMPTY), (pages,))

    def _unclaim(self, pool: str, pages: Range) -> None:
        claimed = self.claimed.get(pool, [])
        if pages not in claimed:
            raise ObligationError(self.prefetch, f"end the read of {r.text((pages,))} of {pool}", "it is not claimed")
        claimed.remove(pages)

    def check_discharge(self, pool: str, pages: Ranges, how: str) -> None:
        """Raise `ObligationError`, naming the first page, unless all `pages` are open and quiet enough for `how`."""
        what = f"discharge pages {r.text(pages)} of pool {pool} ({how})"
        held = self.pages.get(pool, EMPTY)
        if stray := r.subtract(pages, held):
            page = stray[0][0]
            before = next((h for h, done in self.history.get(pool, ()) if r.intersect(done, ((page, page + 1),))), None)
            why = f"page {page} was {before} before" if before else f"page {page} is not held"
            raise ObligationError(self.prefetch, what, why)
        if how.startswith("release") and (writing := r.intersect(pages, r.union(self.busy(pool), self.lost.get(pool, EMPTY)))):
            why = f"a read may still write {r.text(writing)}"
            raise ObligationError(self.prefetch, what, why)

    def discharge(self, pool: str, pages: Ranges, how: str) -> None:
        """Close the obligation for these pages; `how` says which way, for the next error."""
        self.check_discharge(pool, pages, how)
        self.pages[pool] = r.subtract(self.pages[pool], pages)
        self.history.setdefault(pool, []).append((how, pages))

    def hand_over(self, pool: str, pages: Ranges, late: Ranges) -> None:
        """Close the obligation for pages that the index owns now; `late` stay locked until their read is over."""
        if r.subtract(late, pages):
            raise ObligationError(self.prefetch, f"lock late pages {r.text(late)} of {pool}", "they are not handed over")
        self.discharge(pool, pages, "handed over")
        if late:
            self.late[pool] = r.union(self.late.get(pool, EMPTY), late)

    def end_late(self, pool: str, pages: Ranges) -> None:
        """Drop the late-write lock on handed-over pages."""
        if stray := r.subtract(pages, self.late.get(pool, EMPTY)):
            raise ObligationError(self.prefetch, f"end the late write of {pool}", f"{r.text(stray)} is not locked")
        self.late[pool] = r.subtract(self.late[pool], pages)

    def unlock_anchor(self) -> None:
        """Close the anchor lock."""
        if not self.anchor:
            raise ObligationError(self.prefetch, "unlock the anchor", "it was unlocked before")
        self.anchor = False

    def return_tokens(self, tokens: int) -> None:
        """Close the token reservation, by the amount that was recorded."""
        if self.tokens != tokens:
            open_amount = "nothing is reserved" if self.tokens is None else f"{self.tokens} are reserved"
            raise ObligationError(self.prefetch, f"return {tokens} tokens", open_amount)
        self.tokens = None

    def publish(self) -> None:
        """Open the credit and the lock on what is handed over."""
        self.credit = self.resident_lock = True

    def give_credit(self) -> None:
        """Close the credit."""
        if not self.credit:
            raise ObligationError(self.prefetch, "credit tokens", "no credit is open")
        self.credit = False

    def unlock_pages(self) -> None:
        """Close the lock on what was handed over."""
        if not self.resident_lock:
            raise ObligationError(self.prefetch, "unlock the handed-over pages", "they are not locked")
        self.resident_lock = False
