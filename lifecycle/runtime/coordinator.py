"""The scheduler's face: issue, tick, ready, take_loaded, served, abort, finish, adopt, snapshot, scrub, check_integrity, close.

Everything here runs on the scheduler's thread, without locks. Rules are in `lifecycle/`, ticks in `ticks`, effects in
`steps` and `settle`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from operator import index as whole
from typing import Any, NoReturn

from lifecycle.book import Book
from lifecycle.errors import AnchorLost, BadRequest, ConfigError, CoordinatorClosed, UnknownRequest
from lifecycle.events import Declined, LoadedTaken, PrefixServed, RequestFinished, Wanted
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.policies import Policies
from lifecycle.reasons import Reason
from lifecycle.requests import RequestState
from lifecycle.rows import NEUTRAL, Masks, Round
from lifecycle.runtime import inspection
from lifecycle.runtime.naming import Naming
from lifecycle.runtime.ports import Anchor, EventLog, HostMemory, Match, PageStore, PrefixIndex
from lifecycle.runtime.rank import Ports, Rank
from lifecycle.runtime.readers import ReaderPool
from lifecycle.runtime.residency import Fill
from lifecycle.runtime.scrub import Scrubbed, scrub_rank
from lifecycle.runtime.ticks import Ticks
from lifecycle.runtime.transport import Alone, Transport


class Coordinator:
    """Runs the prefetches of one rank. Give every rank the same commands at the same ticks.

    `transport` spans every rank whose prefix must be usable; without one this rank is alone and no round runs.
    `absent` names pools of the (group's) layout of which this rank has no shard, as a pipeline stage without the draft:
    they are neither asked for nor read here, and shorten nobody's prefix; host memory still numbers their slots.
    `readers` is how many reader threads to start, or a pool of one's own.
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
        readers: int | ReaderPool = 4,
        run: str | None = None,
        force_round: bool = False,
        clock_ns: Callable[[], int] | None = None,
        wall_ns: Callable[[], int] | None = None,
        absent: Iterable[str] = (),
    ) -> None:
        clock = clock_ns or (lambda: time.monotonic_ns())  # called late, so that a frozen clock is seen
        wall = wall_ns or (lambda: time.time_ns())
        ports = Ports(store, memory, index, events, transport or Alone(), clock, wall, frozenset(absent))
        self._rank = Rank(layout, policies, page_size_tokens, ports, readers, run, force_round)
        self._ticks = Ticks(self._rank)

    # --- commands: alike on all ranks ----------------------------------------------------------------------------------

    def issue(self, request: str, attempt: int, keys: Sequence[str], anchor: Anchor) -> int | Declined:
        """Begin to prefetch what follows `anchor` in the prompt with these page keys (from page 0); return its id.

        Returns `Declined` with a reason, logged, when there is nothing to begin; with `Policies.retry`, one that is declined
        for want of room waits (see `waiting`). A newer attempt discards the older one, or ends its wait.
        Raises `DuplicateAttempt` for an attempt that was issued before, `BadKey` for keys that are none or not the anchor's.
        """
        self._check_open("issue", request)
        _check_name(request, attempt)
        return self._ticks.issuing.issue(request, attempt, KeyChain(keys), anchor)

    def ready(self, request: str) -> bool:
        """Say whether admission may go on: False until the newest prefetch has its outcome. Asking is the demand.

        True while the request waits to be tried again: a wait holds nobody up.
        """
        self._check_open("ask for", request)
        if self._ticks.naming:
            return False  # the ranks differ, which the next ticks will say: nothing is admitted on it
        prefetch = self._rank.book.replica.newest(request)
        if prefetch is None or prefetch.terminal:
            return True
        if not self._rank.book.local[prefetch.id].wanted:
            self._rank.emit(Wanted(prefetch.id))
            self._rank.transfers.dirty.add(prefetch.id)
        return False

    def waiting(self, request: str) -> bool:
        """Say whether the request waits to be tried again, for room or after a miss; a scheduler may hold it back meanwhile."""
        self._check_open("ask for", request)
        return request in self._rank.book.replica.waiting

    def take_loaded(self, request: str) -> int:
        """Return the tokens that the newest attempt's prefetch loaded, once; 0 while it is in flight or waits, and later."""
        state = self._request("take the loaded tokens of", request)
        replica = self._rank.book.replica
        prefetch = replica.newest(request)
        if state.taken or request in replica.waiting or (prefetch is not None and not prefetch.terminal):
            return 0
        self._rank.emit(LoadedTaken(request, state.attempt, state.loaded_tokens))
        return state.loaded_tokens

    def served(self, request: str, match: Match) -> None:
        """Log what the request is served from the index, so that a garbled output can be traced to its source.

        It is admitted: if it waited to be tried again, that is over.
        """
        state = self._request("serve", request)
        sources = tuple([(whole(lo), whole(hi), whole(source)) for lo, hi, source in match.sources])
        self._rank.emit(PrefixServed(request, state.attempt, whole(match.pages), sources))

    def abort(self, request: str) -> bool:
        """Discard the prefetch of the newest attempt, or end its wait; return whether there was either."""
        self._request("abort", request)
        return self._discard(request) or self._ticks.issuing.end_wait(request, Reason.ABORTED)

    def _discard(self, request: str) -> bool:
        prefetch = self._rank.book.replica.newest(request)
        if prefetch is None or prefetch.terminal:
            return False
        self._rank.steps.end(prefetch, Reason.ABORTED)
        return True

    def finish(self, request: str) -> None:
        """Abort what is in flight and forget the request. What its prefetch still owes goes on under its own id."""
        self._request("finish", request)
        self._discard(request)
        self._rank.emit(RequestFinished(request))

    def adopt(self, request: str, keys: Sequence[str], anchor: Anchor, end_page: int, fill: Fill) -> int:
        """Put the engine's own pages [anchor.pages, end_page) into host memory and the index; return the end reached.

        Evicts under the same budgets as a prefetch, and stops short where there is no room. `fill(pool, pages, slots)`
        writes the bytes before anyone can see them. What fails on one rank of several fails its next round, on all ranks.
        """
        self._check_open("adopt pages for", request)
        if self._rank.settler.behind:  # the index has yet to take what it promised to
            return anchor.pages
        _check_name(request, 0)
        chain = KeyChain(keys)
        try:
            return self._rank.residency.adopt(request, chain, anchor, end_page, fill, self._rank.tick_number)
        except AnchorLost:  # alike on all ranks, since their indexes have one shape
            raise
        except Exception as error:  # the others adopted: this rank's replica differs, and its next round says why
            if self._rank.alone:
                raise
            self._ticks.note_fault(error)
            return anchor.pages

    def feed(self, place: int, value: int) -> None:
        """Report a counter of the engine's own on this rank, which never falls (write-backs done, say), for the next round.

        Local: `counter(place)` is its least over all ranks, and all that an index of all ranks may move by.
        """
        fed = self._rank.agreement.fed
        if not 0 <= place < len(fed) or not fed[place] <= value < NEUTRAL:
            raise ConfigError(
                f"cannot feed {value} at place {place}: there are places 0 to {len(fed) - 1}, and a counter only rises,"
                f" from {fed[place] if 0 <= place < len(fed) else 0} to below {NEUTRAL}"
            )
        fed[place] = value

    def counter(self, place: int) -> int:
        """Return the agreed value of a counter that the ranks feed: as of the last round, the same on all."""
        return self._rank.agreement.counters[place]

    def _request(self, operation: str, request: str) -> RequestState:
        self._check_open(operation, request)
        state = self._rank.book.replica.requests.get(request)
        if state is None:
            raise UnknownRequest(operation, request)
        return state

    def _check_open(self, operation: str, request: str) -> None:
        told = self._rank.failure is not None and not self._ticks.naming  # before, commands go on, and all will be discarded
        if self._rank.closed or told:
            state = "closed" if self._rank.closed else "failed"
            raise CoordinatorClosed(f"cannot {operation} request {request!r}: the coordinator is {state} (start a fresh one)")

    # --- the tick ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run one iteration: drain what readers answered, agree with the other ranks, move what may move.

        Raises `SyncFailed` when a round failed, and again at every later tick, which goes on discharging what is owed.
        """
        self._ticks.tick()

    def begin_tick(self) -> Round | None:
        """Begin a tick by hand and return the round whose buffer is to be reduced. Lag 0 only.

        None with one rank, and at ticks without a round (`round_every_ticks`).
        """
        return self._ticks.begin()

    def end_tick(self, reduced: Round) -> Masks | Naming | None:
        """Take the reduced round; return the second exchange that it calls for, or None: reduce it and pass it to
        `end_exchange`. Either may raise `SyncFailed`, on all ranks alike."""
        return self._ticks.end(reduced)

    def end_exchange(self, reduced: Masks | Naming) -> None:
        """Take the reduced second exchange of this tick."""
        self._ticks.end_second(reduced)

    def fail_tick(self, error: Exception) -> NoReturn:
        """Say that a reduction of this tick by hand failed: nothing is published any more; raises `SyncFailed`."""
        self._ticks.fail_tick(error)

    def close(self, timeout_s: float = 5.0) -> None:
        """Discard what is in flight, wait up to `timeout_s` for reads that are out, quarantine what they may still write.

        A command like the others; may be called twice. The event log stays open: it is the caller's.
        """
        self._ticks.close(timeout_s)

    # --- looking -------------------------------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        """The state of this rank, as the fold of its events. To look at; it changes by events alone."""
        return self._rank.book

    @property
    def tick_number(self) -> int:
        """How many ticks began."""
        return self._rank.tick_number

    @property
    def fault(self) -> Exception | None:
        """An error of this rank's own that its next round tells the others; then all raise `SyncFailed`."""
        return self._ticks.fault

    @property
    def collectives(self) -> int:
        """How many collectives ran, the opening exchange apart."""
        return self._rank.agreement.collectives

    def snapshot(self) -> dict[str, Any]:
        """Return what is in flight, what each waits for and for how long, and what is stuck, as plain values.

        For any thread; `exact` says whether all numbers are of one moment.
        """
        return inspection.snapshot(self._rank)

    def scrub(self) -> Scrubbed:
        """Hash this rank's resident pages again; log and return those that are no longer what landed.

        Tells an overwrite after the fact from a bad read, where the store gives checksums. Local and slow: reads the whole log
        back, and every resident page, on the scheduler's thread. Raises `CoordinatorClosed` once closed: its log has ended.
        """
        if self._rank.closed:
            raise CoordinatorClosed("cannot scrub: the coordinator is closed (lifecycle.audit.scrub takes a log and a memory)")
        return scrub_rank(self._rank)

    def check_integrity(self, replay: bool = True) -> None:
        """Raise `IntegrityError` with everything that does not add up; `replay` folds the log and compares, too."""
        inspection.check_integrity(self._rank, replay)


def _check_name(request: str, attempt: int) -> None:
    """Raise `BadRequest` for what could not be logged and compared between ranks."""
    if not isinstance(request, str):
        raise BadRequest(f"cannot take {request!r} as a request id: need text")
    try:
        request.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"cannot take {request!a} as a request id: it is not text that can be encoded") from error
    if not isinstance(attempt, int) or isinstance(attempt, bool) or not 0 <= attempt < 1 << 63:
        raise BadRequest(f"cannot take {attempt!r} as an attempt of request {request!r}: need a whole number from 0")
