"""The rounds: which rows go in, when a round is launched and consumed, what its header says. Knows no lifecycle rule."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lifecycle import decide
from lifecycle.book import Book
from lifecycle.coverage import Flags
from lifecycle.errors import RankDivergence
from lifecycle.events import Event, QuarantineAgreed, RoundDone
from lifecycle.layout import Layout
from lifecycle.policies import Policies
from lifecycle.prefetch import Prefetch
from lifecycle.replica import DIGEST_BITS
from lifecycle.rows import SPARE_WORDS, Header, Masks, Report, Round, RowCodec
from lifecycle.runtime import naming
from lifecycle.runtime.naming import Naming
from lifecycle.runtime.ports import PrefixIndex
from lifecycle.runtime.transfer import Transfer
from lifecycle.runtime.transport import Transport
from lifecycle.states import State

_DIGEST = (1 << DIGEST_BITS) - 1

Exchange = Round | Masks | Naming
"""What is reduced over the ranks, each with the number of its round."""


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
        self._launch = transport.launch
        if policies.lag_ticks:  # optional in a transport
            self._launch = getattr(transport, "launch_ahead", transport.launch)
        self._clock_ns = clock_ns
        self._emit = emit
        self._codec = RowCodec(layout, policies)
        self._last_sent = 0
        self._trailing = layout.has_trailing(policies.degrade)
        self._masked: set[int] = set()  # prefetches in flight whose set was asked for
        self._read: tuple[int, ...] = ()  # those of the round that was read last, until `forget_closed`
        self.pending: deque[Pending] = deque()
        self.number = 0
        self.agreed_number = 0  # of the last round whose result came
        self.launched_ns = 0  # when the last round was built
        self.collectives = 0
        self.declining = False  # agreed: no rank should begin more
        self.fed = [0] * SPARE_WORDS  # the engine's counters on this rank
        self.counters = (0,) * SPARE_WORDS  # agreed: their least over all ranks

    # --- building ------------------------------------------------------------------------------------------------------

    def build(self, reports_of: Callable[[list[int]], list[Report]], failed: bool, declining: bool) -> Round:
        """Return this rank's next round: the next rows in id order, wrapping, whatever happened locally.

        Raises what a report or the index raises, having changed nothing; neither is asked by a rank that has failed.
        """
        replica = self._book.replica
        ids = replica.next_ids(self._last_sent, self._policies.row_capacity)
        prefetches = [replica.in_flight[id_] for id_ in ids]
        reports = [] if failed else reports_of(ids)
        digest = 0 if failed else (replica.digest ^ self._index.digest()) & _DIGEST
        buffer = self._codec.pack(
            Header(len(ids), digest, failed, declining, self.quarantined_here(), tuple(self.fed)), reports
        )
        self.number += 1
        if ids:
            self._last_sent = ids[-1]
        moves = tuple([prefetch.moves for prefetch in prefetches])
        hits_from = tuple([p.start_page if p.state is State.ISSUED else -1 for p in prefetches])
        self.launched_ns = self._clock_ns()
        return Round(self.number, tuple(ids), moves, hits_from, buffer, self.launched_ns)

    def launch(self, exchange: Exchange, due: int) -> None:
        """Begin to reduce an exchange."""
        self.collectives += 1
        self.pending.append(Pending(due, exchange, self._launch(exchange.buffer)))

    # --- reading -------------------------------------------------------------------------------------------------------

    def header(self, round_: Round) -> tuple[Header, bool]:
        """Return the agreed header, and whether all ranks have the same replica."""
        self.agreed_number = round_.number
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

    def rows(self, round_: Round) -> list[Report]:
        """Return the agreed rows, void or not."""
        self._read = round_.ids
        return self._codec.read_rows(round_.buffer, len(round_.ids))

    def read(self, round_: Round, rows: list[Report], wanted: Masks | None, header: Header) -> list[tuple[Prefetch, Report]]:
        """Return the agreed rows that are not void, having lowered the budgets first."""
        self.take_header(header.declining, header.quarantined_pages, header.counters)
        in_flight = self._book.replica.in_flight
        moved = zip(round_.ids, round_.moves, rows, strict=True)
        fresh = [(in_flight[id_], report) for id_, moves, report in moved if id_ in in_flight and in_flight[id_].moves == moves]
        if round_.ids:
            taken_ns = self._clock_ns() - round_.launched_ns
            masks = len(wanted.ids) if wanted else 0
            self._emit(RoundDone(round_.number, len(round_.ids), masks, self._transport.ranks, taken_ns))
        return fresh

    def quarantined_here(self) -> tuple[int, ...]:
        """Return, per own pool, the pages that this rank has lost for good, or will have once they are evicted."""
        book = self._book
        return tuple([book.quarantined_pages[pool.name] + book.tainted_pages[pool.name] for pool in self._layout.own])

    def take_header(self, declining: bool, quarantined_pages: tuple[int, ...], counters: tuple[int, ...]) -> None:
        """Take what is agreed of the ranks themselves; with one rank, what this rank says."""
        self.declining, self.counters = declining, counters
        for pool, pages in zip(self._layout.own, quarantined_pages, strict=True):
            if pages != self._book.replica.quarantined_pages[pool.name]:
                self._emit(QuarantineAgreed(pool.name, pages))

    # --- the sets ------------------------------------------------------------------------------------------------------

    def masks_after(self, round_: Round, rows: list[Report]) -> Masks | None:
        """Return the exchange of restorable sets that a reduced round calls for, still neutral, or None.

        Whether it runs and what its places mean follows from what all ranks launched and reduced alike, so that a rank
        whose own state has gone wrong exchanges as its peers do. No prefetch needs a second one: the first gives it a plan
        or its end, or is void because it has moved.
        """
        if not self._trailing:
            return None
        asking = [
            (id_, moves)
            for id_, moves, start_page, agreed in zip(round_.ids, round_.moves, round_.hits_from, rows, strict=True)
            if start_page >= 0 and id_ not in self._masked and decide.needs_set(start_page, self._policies, agreed)
        ][: self._policies.mask_capacity]
        if not asking:
            return None
        ids, moved = zip(*asking, strict=True)
        self._masked.update(ids)
        return Masks(round_.number, ids, moved, self._codec.fresh_masks())

    @staticmethod
    def fill(masks: Masks, transfers: Mapping[int, Transfer]) -> None:
        """Write what this rank can restore into an exchange of sets."""
        for place, id_ in enumerate(masks.ids):
            transfer = transfers.get(id_)  # None: closed since the row was launched, so the set is void
            if transfer is not None and transfer.lengths is not None:
                masks.buffer[place, : len(transfer.lengths)] = transfer.lengths

    def read_masks(self, masks: Masks) -> list[tuple[Prefetch, Flags]]:
        """Return the agreed sets that are not void."""
        in_flight = self._book.replica.in_flight
        fresh: list[tuple[Prefetch, Flags]] = []
        for place, (id_, moves) in enumerate(zip(masks.ids, masks.moves, strict=True)):
            prefetch = in_flight.get(id_)
            if prefetch is not None and prefetch.moves == moves:
                span_pages = prefetch.end_page - prefetch.start_page
                fresh.append((prefetch, masks.buffer[place, :span_pages].astype(np.bool_)))
        return fresh

    def forget_closed(self) -> None:
        """Keep nothing of prefetches that are closed: no round that is still on its way asks for their sets.

        After a round it can only be those of the round; without one, any.
        """
        ids, self._read = self._read or tuple(self._masked), ()
        if self._masked:
            in_flight = self._book.replica.in_flight
            self._masked.difference_update([id_ for id_ in ids if id_ not in in_flight])
