"""The scheduler's face: issue, tick, ready, take_loaded, served, abort, finish, adopt, snapshot, check_integrity, close.

Everything here runs on the scheduler's thread, without locks. Rules are in `lifecycle/`, effects in `steps` and `settle`.
"""

import heapq
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from lifecycle import decide
from lifecycle.book import Book, fold
from lifecycle.errors import (
    AnchorLost,
    BadKey,
    ConfigError,
    CoordinatorClosed,
    DuplicateAttempt,
    IntegrityError,
    SyncFailed,
    UnknownRequest,
)  # fmt: skip
from lifecycle.events import (
    Closed,
    CoordinatorStopped,
    Declined,
    Event,
    Issued,
    LateWriteEnded,
    LoadedTaken,
    LogOpened,
    PrefixServed,
    Record,
    RequestFinished,
    Wanted,
)  # fmt: skip
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.policies import Policies
from lifecycle.prefetch import Prefetch
from lifecycle.reasons import Reason
from lifecycle.replica import RequestState
from lifecycle.rows import Masks, Report, Round
from lifecycle.runtime.agreement import Agreement
from lifecycle.runtime.opening import Opening, agree
from lifecycle.runtime.ports import Anchor, EventLog, HostMemory, Match, PageStore, PrefixIndex
from lifecycle.runtime.readers import Readers
from lifecycle.runtime.residency import Fill, Residency
from lifecycle.runtime.settle import Settler
from lifecycle.runtime.steps import Steps
from lifecycle.runtime.transfers import Transfer, Transfers
from lifecycle.runtime.transport import Alone, Transport
from lifecycle.states import State
from lifecycle.version import VERSION
from lifecycle.votes import deadline_ns, report

log = structlog.get_logger(__name__)


class Coordinator:
    """Runs the prefetches of one rank. Give every rank the same commands at the same ticks.

    `transport` spans every rank whose prefix must be usable; without one this rank is alone and no round runs.
    Raises `ConfigError` when the configuration makes no sense or differs between ranks.
    """

    def __init__(
        self,
        layout: Layout,
        policies: Policies,
        page_size_tokens: int,
        *,
        store: PageStore,
        memory: HostMemory,
        index: PrefixIndex,
        events: EventLog,
        transport: Transport | None = None,
        readers: int = 4,
        run: str | None = None,
        force_round: bool = False,
        clock_ns: Callable[[], int] | None = None,
    ) -> None:
        _check(layout, policies, page_size_tokens, readers)
        self.layout, self.policies, self.page_size_tokens = layout, policies, page_size_tokens
        self._clock_ns = clock_ns or (lambda: time.monotonic_ns())  # called late, so that a frozen clock is seen
        self._transport = transport or Alone()
        self._events = events
        self._memory, self._index = memory, index
        self._seq = 0
        self._failure: SyncFailed | None = None
        self._fault: Exception | None = None
        self._closed = False
        self._deadlines: list[tuple[int, int]] = []
        self.tick_number = 0
        capacity = {pool.name: memory.capacity_pages(pool.name) for pool in layout.own}
        opening = Opening(layout, policies, page_size_tokens, index.digest(), VERSION)
        budget, self.opening_collectives = agree(opening, capacity, self._transport)
        self.book = Book(layout, budget, policies.degrade)
        self._alone = self._transport.ranks == 1 and not force_round
        self._append_opened(capacity, budget, run)
        self._readers = Readers(store, memory, self._clock_ns, readers, name=f"prefetch-rank{self._transport.rank}")
        self._transfers = Transfers(layout, policies, memory, self._readers, self._clock_ns, self._emit)
        self.residency = Residency(layout, self.book, memory, index, self._emit)
        self._settler = Settler(layout, memory, index, self.residency, self._emit, policies.stuck_after_tries)
        self._steps = Steps(
            layout,
            policies,
            page_size_tokens,
            memory,
            index,
            self.residency,
            self._transfers,
            self._settler,
            self._emit,
        )
        self._agreement = Agreement(layout, policies, self.book, index, self._transport, self._clock_ns, self._emit)

    # --- events --------------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        """Evolve the book, which refuses what is not legal, and keep the event."""
        self.book.apply(event)
        self._append(event)
        if type(event) is LateWriteEnded and event.lost:
            transfer = self._transfers.of[event.prefetch]
            self.residency.taint(event.pool, transfer.slots_of_ranges(event.pool, event.pages))

    def _append(self, event: Any) -> None:
        self._events.append(Record(self._seq, self._clock_ns(), event))
        self._seq += 1

    def _append_opened(self, capacity: dict[str, int], budget: dict[str, int], run: str | None) -> None:
        self._append(
            LogOpened(
                library=VERSION,
                run=run or f"{os.getpid():x}-{time.time_ns():x}",
                rank=self._transport.rank,
                ranks=self._transport.ranks,
                layout=msgspec.to_builtins(self.layout.declaration()),
                policies=msgspec.to_builtins(self.policies),
                page_size_tokens=self.page_size_tokens,
                capacity_pages=capacity,
                budget_pages=budget,
                wall_ns=time.time_ns(),
                monotonic_ns=self._clock_ns(),
            )
        )

    # --- commands: alike on all ranks ----------------------------------------------------------------------------------

    def issue(self, request: str, attempt: int, keys: Sequence[str], anchor: Anchor) -> int | Declined:
        """Begin to prefetch what follows `anchor` in the prompt with these page keys (from page 0); return its id.

        Returns `Declined` with a reason, logged, when there is nothing to begin. A newer attempt discards the older one.
        Raises `DuplicateAttempt` for an attempt that was issued before, `BadKey` for keys that are none or not the anchor's.
        """
        self._check_open("issue", request)
        keys = KeyChain(keys)
        start = anchor.pages
        if start > len(keys) or (start and keys[start - 1] != anchor.key):
            raise BadKey(keys[start - 1] if start <= len(keys) else "", start - 1)
        replica = self.book.replica
        state = replica.requests.get(request)
        if state is not None and (attempt < state.attempt or (attempt == state.attempt and state.issued)):
            self._emit(self._decide_issue(request, attempt, keys, anchor, Reason.DUPLICATE))
            newest = replica.newest(request)
            raise DuplicateAttempt(request, attempt, state.attempt, newest.state if newest else "closed")
        older = replica.newest(request)
        if older is not None and not older.terminal:
            self._steps.end(older, Reason.SUPERSEDED)
        declining = self._transfers.declining if self._alone else self._agreement.declining
        decided = self._decide_issue(request, attempt, keys, anchor, Reason.READERS_LOST if declining else None)
        if not isinstance(decided, Declined):
            try:
                self._index.lock(anchor)
            except AnchorLost:
                decided = self._decide_issue(request, attempt, keys, anchor, Reason.ANCHOR_LOST)
        self._emit(decided)
        if isinstance(decided, Declined):
            return decided
        transfer = Transfer(self.book.local[decided.prefetch], keys, anchor, self._clock_ns())
        self._transfers.of[decided.prefetch] = transfer
        self._transfers.ask(transfer)
        self._watch(transfer)
        return decided.prefetch

    def _decide_issue(
        self, request: str, attempt: int, keys: KeyChain, anchor: Anchor, refused: Reason | None
    ) -> Issued | Declined:
        return decide.issue(
            self.book.replica,
            self.policies,
            self.page_size_tokens,
            request,
            attempt,
            keys,
            anchor.pages,
            anchor.key,
            refused,
        )

    def ready(self, request: str) -> bool:
        """Say whether admission may go on: False until the newest prefetch has its outcome. Asking is the demand."""
        self._check_open("ask for", request)
        prefetch = self.book.replica.newest(request)
        if prefetch is None or prefetch.terminal:
            return True
        if not self.book.local[prefetch.id].wanted:
            self._emit(Wanted(prefetch.id))
            self._transfers.dirty.add(prefetch.id)
        return False

    def take_loaded(self, request: str) -> int:
        """Return the tokens that the newest attempt's prefetch loaded, once; 0 while it is in flight and afterwards."""
        state = self._request("take the loaded tokens of", request)
        prefetch = self.book.replica.newest(request)
        if state.taken or (prefetch is not None and not prefetch.terminal):
            return 0
        self._emit(LoadedTaken(request, state.attempt, state.loaded_tokens))
        return state.loaded_tokens

    def served(self, request: str, match: Match) -> None:
        """Log what the request is served from the index, so that a garbled output can be traced to its source."""
        state = self._request("serve", request)
        self._emit(PrefixServed(request, state.attempt, match.pages, match.sources))

    def abort(self, request: str) -> bool:
        """Discard the prefetch of the newest attempt; return whether there was one to discard."""
        self._request("abort", request)
        prefetch = self.book.replica.newest(request)
        if prefetch is None or prefetch.terminal:
            return False
        self._steps.end(prefetch, Reason.ABORTED)
        return True

    def finish(self, request: str) -> None:
        """Abort what is in flight and forget the request. What its prefetch still owes goes on under its own id."""
        self.abort(request)
        self._emit(RequestFinished(request))

    def adopt(self, request: str, keys: Sequence[str], anchor: Anchor, end_page: int, fill: Fill) -> int:
        """Put the engine's own pages [anchor.pages, end_page) into host memory and the index; return the end reached.

        Evicts under the same budgets as a prefetch, and stops short where there is no room. `fill(pool, pages, slots)`
        writes the bytes before anyone can see them.
        """
        self._check_open("adopt pages for", request)
        return self.residency.adopt(request, KeyChain(keys), anchor, end_page, fill, self.tick_number)

    def _request(self, operation: str, request: str) -> RequestState:
        self._check_open(operation, request)
        state = self.book.replica.requests.get(request)
        if state is None:
            raise UnknownRequest(operation, request)
        return state

    def _check_open(self, operation: str, request: str) -> None:
        if self._closed or self._failure is not None:
            state = "closed" if self._closed else "failed"
            raise CoordinatorClosed(f"cannot {operation} request {request!r}: the coordinator is {state} (start a fresh one)")

    # --- the tick ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run one iteration: drain what readers answered, agree with the other ranks, move what may move.

        Raises `SyncFailed` when a round failed, and again at every later tick, which goes on discharging what is owed.
        """
        lag = self.policies.lag_ticks
        self._begin()
        if self._alone:
            self._consume_alone()
        else:
            if lag == 0:
                self._launch()
            self._consume_due()
            if lag:
                self._launch()
        self._events.flush()

    def begin_tick(self) -> Round | None:
        """Begin a tick by hand and return the round whose buffer is to be reduced (None with one rank). Lag 0 only."""
        if self.policies.lag_ticks:
            raise ConfigError("cannot begin a tick by hand with a lag: use tick() and a transport")
        self._begin()
        if self._alone:
            self._consume_alone()
            self._events.flush()
            return None
        return self._build()

    def end_tick(self, reduced: Round) -> Masks | None:
        """Take the reduced round; return the exchange of restorable sets that it calls for, or None. Then `end_masks`."""
        masks = self._consume_round(reduced)
        self._events.flush()
        return masks

    def end_masks(self, reduced: Masks) -> None:
        """Take the reduced sets."""
        self._consume_masks(reduced)
        self._events.flush()

    def _begin(self) -> None:
        if self._closed:
            raise CoordinatorClosed("cannot tick: the coordinator is closed (start a fresh one)")
        self.tick_number += 1
        self._steps.tick = self.tick_number
        if self._failure is not None:
            self._drain()
            self._close_settled()
            self._events.flush()
            raise self._failure
        if self._alone:
            self._drain()
            return
        try:
            if self._fault is None:
                self._drain()
        except Exception as error:  # the round must be launched before this rank raises, or its peers would hang
            self._fault = error
        self._fault = self._fault or self._settler.index_fault

    def _drain(self) -> None:
        self._transfers.drain()
        self.residency.retry()
        for id_ in sorted(self._settler.retry | self._transfers.dirty):
            transfer = self._transfers.of[id_]
            if transfer.local.shared.closed:
                self._steps.forget(transfer)
            elif transfer.local.shared.state not in (State.ISSUED, State.TRANSFERRING):
                self._settler.settle(transfer, self.tick_number)
        if not self._alone:
            self._transfers.dirty.clear()

    def _report(self, id_: int) -> Report:
        transfer = self._transfers.of[id_]
        return report(self.layout, self.policies, transfer.local, transfer.progress, self._clock_ns())

    def _build(self) -> Round:
        return self._agreement.build(self._report, self._fault is not None, self._transfers.declining)

    def _launch(self) -> None:
        round_ = self._build()
        try:
            self._agreement.launch(round_, self.tick_number + self.policies.lag_ticks)
        except RuntimeError as error:
            self._fail(SyncFailed(round_.number, self._transport.ranks, repr(error)), error)

    def _consume_due(self) -> None:
        pending = self._agreement.pending
        while pending and pending[0].due <= self.tick_number:
            item = pending.popleft()
            try:
                item.wait()
            except RuntimeError as error:
                self._fail(SyncFailed(item.exchange.number, self._transport.ranks, repr(error)), error)
            if isinstance(item.exchange, Masks):
                self._consume_masks(item.exchange)
                continue
            masks = self._consume_round(item.exchange)
            if masks is not None:
                self._agreement.launch(masks, self.tick_number + self.policies.lag_ticks)

    def _consume_round(self, round_: Round) -> Masks | None:
        try:
            rows = self._agreement.read(round_)
        except SyncFailed as failure:
            self._fail(failure, self._fault)
        try:
            for prefetch, agreed in rows:
                self._steps.take_report(prefetch, agreed, self._transport.ranks, round_.number, self._agreement.want_mask)
            return self._agreement.build_masks(round_.number, self._lengths)
        except Exception as error:  # as in _begin: the next round tells the peers, then this rank raises
            self._fault = error
            log.error("a decision failed; the next round is launched as failed", error=repr(error))
            return None

    def _lengths(self, id_: int) -> Any:
        lengths = self._transfers.of[id_].lengths
        assert lengths is not None, "all ranks reported a hit, so this one has asked"
        return lengths

    def _consume_masks(self, masks: Masks) -> None:
        try:
            for prefetch, lengths in self._agreement.read_masks(masks):
                self._steps.take_lengths(prefetch, lengths)
        except Exception as error:  # as above
            self._fault = error
            log.error("a decision failed; the next round is launched as failed", error=repr(error))

    def _consume_alone(self) -> None:
        """Take this rank's own reports in place of a round: only of what may have something new to say."""
        now_ns = self._clock_ns()
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, id_ = heapq.heappop(self._deadlines)
            transfer = self._transfers.of.get(id_)
            if transfer is not None and not transfer.local.shared.terminal:
                self._transfers.dirty.add(id_)
                self._watch(transfer)
        dirty = sorted(self._transfers.dirty)
        self._transfers.dirty.clear()
        for id_ in dirty:
            transfer = self._transfers.of[id_]
            if not transfer.local.shared.closed:
                self._steps.take_report(transfer.local.shared, self._report(id_), 1, 0, None)

    def _watch(self, transfer: Transfer) -> None:
        """Look at the prefetch again when its limit ends. With several ranks its row is looked at anyway."""
        deadline = deadline_ns(self.policies, transfer.local, transfer.progress)
        if self._alone and deadline is not None and deadline > self._clock_ns():
            heapq.heappush(self._deadlines, (deadline, transfer.local.shared.id))

    # --- the end -------------------------------------------------------------------------------------------------------

    def _fail(self, failure: SyncFailed, cause: BaseException | None) -> None:
        """Publish nothing more, discard everything, tell the scheduler."""
        self._failure = failure
        for prefetch in list(self.book.replica.in_flight.values()):
            if not prefetch.terminal:
                self._steps.end(prefetch, Reason.SYNC_FAILED)
        self._events.flush()
        raise failure from cause

    def _close_settled(self) -> None:
        for id_ in list(self.book.replica.in_flight):
            if self.book.local[id_].settled:
                self._steps.take(self.book.replica.in_flight[id_], (Closed(id_),))

    def close(self, timeout_s: float = 5.0) -> None:
        """Discard what is in flight, wait up to `timeout_s` for reads that are out, quarantine what they may still write.

        A command like the others; may be called twice. The event log stays open: it is the caller's.
        """
        if self._closed:
            return
        for prefetch in list(self.book.replica.in_flight.values()):
            if not prefetch.terminal:
                self._steps.end(prefetch, Reason.SHUTDOWN)
        self._readers.close(timeout_s)
        self._drain()
        for transfer in list(self._transfers.of.values()):
            self._transfers.give_up(transfer)
        self._drain()
        self._close_settled()
        self._closed = True
        self._append(
            CoordinatorStopped(
                Reason.SYNC_FAILED if self._failure else Reason.SHUTDOWN,
                self.book.open_obligations(),
                dict(self.book.quarantined_pages),
            )
        )
        self._events.flush()

    # --- looking -------------------------------------------------------------------------------------------------------

    @property
    def collectives(self) -> int:
        """How many collectives ran, the opening exchange apart."""
        return self._agreement.collectives

    def snapshot(self) -> dict[str, Any]:
        """Return what is in flight and what it waits for, as plain values."""
        replica = self.book.replica
        now_ns = self._clock_ns()
        return {
            "tick": self.tick_number,
            "round": self._agreement.number,
            "occupied_tokens": replica.occupied_tokens,
            "limit_tokens": self.policies.limit_tokens,
            "budget_pages": {pool.name: replica.budget(pool.name) for pool in self.layout.own},
            "quarantined_pages": dict(self.book.quarantined_pages),
            "lost_reads": self._transfers.lost_reads,
            "in_flight": [self._story(prefetch, now_ns) for prefetch in list(replica.in_flight.values())],
        }

    def _story(self, prefetch: Prefetch, now_ns: int) -> dict[str, Any]:
        transfer = self._transfers.of[prefetch.id]
        return {
            "prefetch": prefetch.id,
            "request": prefetch.request,
            "attempt": prefetch.attempt,
            "state": prefetch.state.value,
            "start_page": prefetch.start_page,
            "plan_page": prefetch.plan_page,
            "age_s": (now_ns - transfer.progress.issued_ns) / 1e9,
            "open": transfer.local.obligations.open_names(),
            "reads_out": sum(not (job.ended or job.lost) for job in transfer.jobs),
        }

    def check_integrity(self, replay: bool = True) -> None:
        """Raise `IntegrityError` with everything that does not add up: pools, locks, tokens, and the log's own fold."""
        faults = self.book.faults()
        unreleased = {pool.name: 0 for pool in self.layout.own}
        for pool_name, slots in self.residency.unreleased:
            unreleased[pool_name] += len(slots)
        for pool in unreleased:
            held, resident = self.book.held_pages[pool], self.book.resident_pages[pool]
            out = self._memory.quarantined_pages(pool)
            free, capacity = self._memory.free_pages(pool), self._memory.capacity_pages(pool)
            if free + held + resident + out + unreleased[pool] != capacity:
                faults.append(
                    f"pool {pool}: {free} free + {held} held + {resident} resident + {out} quarantined"
                    f" + {unreleased[pool]} not taken back is not {capacity}"
                )
            if out != self.book.quarantined_pages[pool]:
                faults.append(f"pool {pool}: host memory quarantined {out}, the log {self.book.quarantined_pages[pool]}")
            if self._index.resident_pages(pool) != resident:
                faults.append(f"pool {pool}: the index owns {self._index.resident_pages(pool)} pages, the log says {resident}")
        if self._index.lock_count() < self.book.locks:
            faults.append(f"the index holds {self._index.lock_count()} locks, prefetches owe {self.book.locks}")
        if replay and not self._events.lost_events:
            faults += self._replay_faults()
        if faults:
            raise IntegrityError(f"rank {self._transport.rank}", faults)
        self._memory.check_integrity()
        self._index.check_integrity()

    def _replay_faults(self) -> list[str]:
        self._events.flush()
        events = [record.event for record in self._events.records()]
        replayed = fold(self.layout, self.book.replica.budget_pages, events, self.policies.degrade)
        if replayed.replica.facts() != self.book.replica.facts():
            return ["the log does not fold to the live replica"]
        same = all(
            getattr(replayed, name) == getattr(self.book, name)
            for name in ("held_pages", "resident_pages", "quarantined_pages", "tainted_pages", "locks")
        )
        return [] if same else ["the log does not fold to the live page and lock counts"]


def _check(layout: Layout, policies: Policies, page_size_tokens: int, readers: int) -> None:
    if page_size_tokens < 1:
        raise ConfigError(f"cannot start with page size {page_size_tokens}: use at least 1 token")
    if readers < 1:
        raise ConfigError(f"cannot start with {readers} readers: use at least 1")
    if policies.limit_tokens < policies.threshold_pages * page_size_tokens:
        raise ConfigError(
            f"cannot start with limit_tokens={policies.limit_tokens}: it is below one prefetch of threshold_pages="
            f"{policies.threshold_pages} pages of {page_size_tokens} tokens, so every prefetch of layout {layout.name}"
            " would be declined (raise the limit)"
        )
