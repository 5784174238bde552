"""The rounds: which rows go in, when a round is launched and consumed, what its header says. Knows no lifecycle rule."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lifecycle.book import Book
from lifecycle.coverage import Flags
from lifecycle.errors import RankDivergence
from lifecycle.events import Event, QuarantineAgreed, RoundDone
from lifecycle.layout import Layout
from lifecycle.policies import Policies
from lifecycle.prefetch import Prefetch
from lifecycle.replica import DIGEST_BITS
from lifecycle.rows import Header, Masks, Report, Round, RowCodec
from lifecycle.runtime import naming
from lifecycle.runtime.naming import Naming
from lifecycle.runtime.ports import PrefixIndex
from lifecycle.runtime.transport import Transport

_DIGEST = (1 << DIGEST_BITS) - 1


Exchange = Round | Masks | Naming


@dataclass(slots=True)
class Pending:
    """An exchange on its way: consumed at tick `due`."""

    due: int
    exchange: Exchange
    wait: Callable[[], None]


class Agreement:
    """Builds, launches and reads the exchanges of one rank, in the same order as every other rank."""

    def __init__(
        self, layout: Layout, policies: Policies, book: Book, index: PrefixIndex, transport: Transport,
        clock_ns: Callable[[], int], emit: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._layout = layout
        self._policies = policies
        self._book = book
        self._index = index
        self._transport = transport
        self._clock_ns = clock_ns
        self._emit = emit
        self._codec = RowCodec(layout, policies)
        self._last_sent = 0
        self._masked: set[int] = set()  # prefetches with a set on its way
        self._masks_wanted: list[Prefetch] = []
        self.pending: deque[Pending] = deque()
        self.number = 0
        self.collectives = 0
        self.declining = False  # agreed: no rank should begin more

    # --- building ------------------------------------------------------------------------------------------------------

    def build(self, report: Callable[[int], Report], failed: bool, declining: bool) -> Round:
        """Return this rank's next round: the next rows in id order, wrapping, whatever happened locally."""
        self.number += 1
        replica = self._book.replica
        ids = replica.next_ids(self._last_sent, self._policies.row_capacity)
        if ids:
            self._last_sent = ids[-1]
        digest = (replica.digest ^ self._index.digest()) & _DIGEST
        header = Header(len(ids), digest, failed, declining, self.quarantined_here())
        reports = [] if failed else [report(id_) for id_ in ids]
        moves = tuple([replica.in_flight[id_].moves for id_ in ids])
        return Round(self.number, tuple(ids), moves, self._codec.pack(header, reports), self._clock_ns())

    def launch(self, exchange: Exchange, due: int) -> None:
        """Begin to reduce an exchange."""
        self.collectives += 1
        self.pending.append(Pending(due, exchange, self._transport.launch(exchange.buffer)))

    # --- reading -------------------------------------------------------------------------------------------------------

    def header(self, round_: Round) -> tuple[Header, bool]:
        """Return the agreed header, and whether all ranks have the same replica."""
        return self._codec.read_header(round_.buffer)

    def name_divergence(self, number: int) -> Naming:
        """Return the exchange that names why round `number` found the replicas different."""
        self.pending.clear()  # launched alike everywhere, and void
        transport = self._transport
        return naming.build(self._book.replica, self._index.digest(), transport.rank, transport.ranks, number)

    def read_naming(self, exchange: Naming) -> RankDivergence:
        """Return what all ranks raise."""
        step, sides, cause = naming.read(exchange, self._transport.ranks)
        return RankDivergence(exchange.number, self._transport.ranks, cause, step, sides)

    def read(self, round_: Round, header: Header) -> list[tuple[Prefetch, Report]]:
        """Return the agreed rows that are not void, having lowered the budgets first."""
        ranks = self._transport.ranks
        self.take_header(header.declining, header.quarantined_pages)
        in_flight = self._book.replica.in_flight
        rows = zip(round_.ids, round_.moves, self._codec.read_rows(round_.buffer, len(round_.ids)), strict=True)
        fresh = [(in_flight[id_], report) for id_, moves, report in rows if id_ in in_flight and in_flight[id_].moves == moves]
        if round_.ids:
            taken_ns = self._clock_ns() - round_.launched_ns
            self._emit(RoundDone(round_.number, len(round_.ids), 0, ranks, taken_ns))
        return fresh

    def quarantined_here(self) -> tuple[int, ...]:
        """Return, per own pool, the pages that this rank has lost for good, or will have once they are evicted."""
        book = self._book
        return tuple([book.quarantined_pages[pool.name] + book.tainted_pages[pool.name] for pool in self._layout.own])

    def take_header(self, declining: bool, quarantined_pages: tuple[int, ...]) -> None:
        """Take what is agreed of the ranks themselves; with one rank, what this rank says."""
        self.declining = declining
        for pool, pages in zip(self._layout.own, quarantined_pages, strict=True):
            if pages != self._book.replica.quarantined_pages[pool.name]:
                self._emit(QuarantineAgreed(pool.name, pages))

    def want_mask(self, prefetch: Prefetch) -> None:
        """Note that the restorable set of a prefetch must be agreed; one is on its way at most."""
        if prefetch.id not in self._masked and len(self._masks_wanted) < self._policies.mask_capacity:
            self._masks_wanted.append(prefetch)
            self._masked.add(prefetch.id)

    def build_masks(self, number: int, lengths: Callable[[int], Flags]) -> Masks | None:
        """Return the exchange of the sets that were asked for, or None. Its shape never depends on how many."""
        wanted, self._masks_wanted = self._masks_wanted, []
        if not wanted:
            return None
        buffer = self._codec.fresh_masks()
        for place, prefetch in enumerate(wanted):
            flags = lengths(prefetch.id)
            buffer[place, : len(flags)] = flags
        return Masks(number, tuple(p.id for p in wanted), tuple(p.moves for p in wanted), buffer)

    def read_masks(self, masks: Masks) -> list[tuple[Prefetch, Flags]]:
        """Return the agreed sets that are not void."""
        self._masked.difference_update(masks.ids)
        in_flight = self._book.replica.in_flight
        fresh: list[tuple[Prefetch, Flags]] = []
        for place, (id_, moves) in enumerate(zip(masks.ids, masks.moves, strict=True)):
            prefetch = in_flight.get(id_)
            if prefetch is not None and prefetch.moves == moves:
                span_pages = prefetch.end_page - prefetch.start_page
                fresh.append((prefetch, masks.buffer[place, :span_pages].astype(np.bool_)))
        return fresh
