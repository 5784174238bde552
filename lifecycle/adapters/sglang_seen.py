"""One prefetch of SGLang's, as it is seen from outside: what was taken, what is still out, what was said of it."""

from typing import Any

from lifecycle import ranges as r
from lifecycle.coverage import landed_pages
from lifecycle.layout import Layout, TrailingPages
from lifecycle.ranges import EMPTY, Range, Ranges
from lifecycle.reasons import Part, Reason

VIRTUAL, READING = 0, 1
"""A claim of pages that nobody reads at the moment but a later read goes into, and one that is being read."""


class Seen:
    """What is known of one prefetch. Page numbers are absolute."""

    __slots__ = (
        "aborting",
        "agreed",
        "anchor",
        "answered",
        "attempt",
        "claims",
        "end_page",
        "ended",
        "first_slot",
        "frees",
        "frozen",
        "held",
        "hit_page",
        "id",
        "inserted",
        "issued_ns",
        "key",
        "kv_landed",
        "landed",
        "operation",
        "outside",
        "over",
        "peer_stopped",
        "plan_page",
        "published",
        "reason",
        "reduced",
        "reduced_ns",
        "request",
        "reserved_tokens",
        "returned",
        "sides",
        "slots",
        "start_page",
        "taken",
        "terminated",
        "unlocks",
        "usable_page",
        "wanted",
        "windows",
    )  # fmt: skip

    def __init__(
        self, id_: int, key: Any, request: str, attempt: int, operation: Any, anchor: Any, start_page: int, end_page: int
    ) -> None:  # fmt: skip
        self.id = id_
        self.key = key
        self.request = request
        self.attempt = attempt
        self.operation = operation
        self.anchor = anchor
        self.start_page = start_page
        self.end_page = end_page
        self.reserved_tokens = 0
        self.issued_ns = 0
        self.wanted = False
        self.hit_page: int | None = None
        self.plan_page = start_page
        self.windows: dict[str, Range] = {}  # pages per pool with slots, once they are planned
        self.slots: dict[str, list[int]] = {}  # of those pages, in order
        self.first_slot: dict[str, dict[int, int]] = {}  # slot -> page, where slots are not one run
        self.held: dict[str, Ranges] = {}
        self.claims: list[list[Any]] = []  # [pool, pages, VIRTUAL or READING]
        self.kv_landed = start_page
        self.landed: dict[str, Ranges] = {}
        self.answered: dict[str, Ranges] = {}  # of sidecars: landed, failed or given up
        self.sides = False  # whether sidecars are being read
        self.over = True  # no thread works on it (none does before its pages are reserved)
        self.terminated = False
        self.aborting = False  # its counters are frozen by an abort that is not over
        self.frozen: dict[str, int] | None = None
        self.reason: Reason | None = None
        self.reduced: dict[str, int] = {}  # the least results of all ranks, as the engine counts them
        self.reduced_ns = 0
        self.peer_stopped = False
        self.frees: list[tuple[str, list[int]]] = []  # in a call that is not over
        self.agreed: dict[str, int] = {}
        self.inserted: tuple[int, int, bool] | None = None  # tokens offered, tokens there before, dropped
        self.outside: dict[str, set[int]] = {}  # slots that are on their way back, per pool
        self.ended = False
        self.published = False
        self.usable_page = start_page
        self.taken: dict[str, Ranges] = {}
        self.unlocks = 0
        self.returned = False

    def reserve(self, pool: str, pages: Range, slots: list[int]) -> None:
        """Note the slots of the reserved pages of one pool."""
        self.windows[pool] = pages
        self.slots[pool] = slots
        self.held[pool] = (pages,)

    def page_of(self, pool: str, slot: int) -> int:
        """Return the page that a slot was reserved for."""
        places = self.first_slot.get(pool)
        if places is None:
            first = self.windows[pool][0]
            places = self.first_slot[pool] = {each: first + place for place, each in enumerate(self.slots[pool])}
        return places[slot]

    def slots_of(self, pool: str, pages: Range) -> list[int]:
        """Return the slots of some of the reserved pages."""
        first = self.windows[pool][0]
        return self.slots[pool][pages[0] - first : pages[1] - first]

    def busy(self, pool: str) -> Ranges:
        """Return the pages under a claim."""
        pages = EMPTY
        for owner, claimed, _ in self.claims:
            if owner == pool:
                pages = r.union(pages, (claimed,))
        return pages

    def run(self, layout: Layout, pool: str) -> int:
        """Return the leading run of a pool: an absolute end, or for trailing pools a count of keys."""
        kind = layout.pool(pool)
        lo, _ = kind.window(self.start_page, self.plan_page)
        first = self.landed.get(pool, EMPTY)[:1]
        end = first[0][1] if first and first[0][0] == lo else lo
        return end - lo if isinstance(kind.coverage, TrailingPages) else end

    def runs(self, layout: Layout) -> dict[str, int]:
        """Return the leading run of every pool; it stays once terminated."""
        if self.frozen is None or not self.terminated:
            self.frozen = self._runs(layout)
        return self.frozen

    def _runs(self, layout: Layout) -> dict[str, int]:
        if not self.windows:
            return {p.name: 0 if isinstance(p.coverage, TrailingPages) else self.start_page for p in layout.pools}
        return {pool.name: self.run(layout, pool.name) for pool in layout.pools}

    def land(self, pool: str, pages: Range) -> None:
        """Note pages that are in place."""
        self.landed[pool] = r.union(self.landed.get(pool, EMPTY), (pages,))

    def parts(self, layout: Layout, pool: str, pages: Ranges) -> list[tuple[Part, Ranges]]:
        """Split pages that go back by the part that they belong to."""
        kind = layout.pool(pool)
        landed = landed_pages(kind, self.start_page, self.plan_page, self.run(layout, pool))
        usable = EMPTY
        if self.published:
            window = r.span(*kind.window(self.start_page, self.usable_page))
            usable = r.intersect(landed, window)
        parts = (
            (Part.TAIL, r.subtract(pages, landed)),
            (Part.CLAMPED, r.subtract(r.intersect(pages, landed), usable)),
            (Part.DUPLICATE, r.intersect(pages, usable)),
        )
        return [(part, among) for part, among in parts if among]

    @property
    def quiet(self) -> bool:
        """Whether nothing of it is out any more."""
        return self.ended and self.over and not self.claims and not any(self.held.values())
