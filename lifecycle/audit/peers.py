"""All ranks of a run against each other: the same replicated events in the same order, and the least of what each landed.

Reads the logs in step: some replicated events at a time, and never past one for which the books of the ranks are laid side
by side. Where the ranks differ, it looks ahead to find whose event is missing, other or late; the prefetch (or request, or
pool) is told once and left out from then on. A rank is compared up to its end, the first gap in its log, or its last words:
what it logs once its round has failed, or it was closed, is its own.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from lifecycle.audit.account import Account
from lifecycle.audit.endings import LAST_WORDS
from lifecycle.audit.facts import Apart
from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.rank import RankAudit
from lifecycle.audit.stops import is_known_to_fail
from lifecycle.audit.stream import FACTS, Key, Stream, facts_of, in_words, key_of
from lifecycle.audit.words import duration
from lifecycle.events import (
    Capped,
    Closed,
    CoordinatorStopped,
    Discarded,
    Event,
    Record,
    Synced,
    Terminated,
    TransferStarted,
    WaitEnded,
)  # fmt: skip
from lifecycle.reasons import Reason

LOOK_AHEAD = 1024
"""Replicated events read beyond the first difference; what has not come by then is missing."""

IN_STEP = 64
"""Replicated events read of one rank before it is the next one's turn, at most."""

_TURNS: frozenset[type[Event]] = frozenset({Terminated, Capped})  # there the books of all ranks are laid side by side
_WATCHED: frozenset[type[Event]] = _TURNS | {Synced, Discarded}


class Peers:
    """The ranks of a run, read in step."""

    def __init__(
        self, audits: Sequence[RankAudit], logs: Sequence[Iterator[Record]], tell: Callable[[Violation], None]
    ) -> None:
        self._streams = [Stream(audit, log) for audit, log in zip(audits, logs, strict=True)]
        self._tell = tell
        self._left_out: set[Key] = set()
        self._disordered: set[Key] = set()
        self._headers_compared = False

    def advance(self) -> bool:
        """Read every rank up to its next replicated events and compare those; return whether there is more."""
        more = False
        for stream in self._streams:
            if not stream.ahead:
                self._read(stream, IN_STEP if self._headers_compared else 1, _TURNS)
            more = more or stream.records is not None or bool(stream.ahead)
        if not self._headers_compared:
            self._headers_compared = True
            self._compare_headers()
        compared = [stream for stream in self._streams if stream.ahead]
        if len(compared) > 1:
            self._compare(compared)
        elif compared:
            compared[0].ahead.clear()  # all others are over
        return more

    # --- reading -------------------------------------------------------------------------------------------------------

    def _read(self, stream: Stream, count: int, turns: Container[type[Event]] = ()) -> None:
        """Read a rank until `count` more replicated events are there, or one of `turns`, or to its end."""
        if stream.records is None:
            return
        audit, feed, ahead, left_out = stream.audit, stream.audit.feed, stream.ahead, self._left_out
        for record in stream.records:
            feed(record)
            if audit.gapped:
                stream.over = True
            if stream.over:
                continue
            event = record.event
            kind = type(event)
            if kind in FACTS:
                if isinstance(event, (Discarded, WaitEnded)) and event.reason in LAST_WORDS:
                    self._end(stream)
                elif not left_out or key_of(event) not in left_out:
                    ahead.append(record)
                    count -= 1
                    if count == 0 or kind in turns:
                        return
            elif kind is CoordinatorStopped:
                self._end(stream)
        stream.records = None

    @staticmethod
    def _end(stream: Stream) -> None:
        """Compare nothing from here on; a close just before may be this rank's own."""
        stream.over = True
        while stream.ahead and type(stream.ahead[-1].event) is Closed:
            stream.ahead.pop()

    # --- comparing -----------------------------------------------------------------------------------------------------

    def _compare_headers(self) -> None:
        opened = [(stream.audit, stream.audit.terms) for stream in self._streams if stream.audit.terms is not None]
        seen = set[int]()
        for audit, terms in opened:
            first = opened[0][1]
            if audit.rank in seen:
                self._say(audit.rank, None, (0,), f"two logs are of rank {audit.rank}", "one log a rank")
            seen.add(audit.rank)
            for name, value in first.shared().items():
                if terms.shared()[name] != value:
                    said = f"{name} is {terms.shared()[name]}"
                    self._say(audit.rank, None, (0,), said, f"{value}, as on rank {first.rank}")

    def _say(
        self, rank: int, event: Event | None, seqs: tuple[int, ...], what: str, right: str, fact: Apart | None = None
    ) -> None:
        prefetch, request = getattr(event, "prefetch", None), getattr(event, "request", None)
        if prefetch is not None and request is None:
            ledgers = [stream.audit.ledger for stream in self._streams]
            names = [ledger.request_of(prefetch) for ledger in ledgers if ledger is not None]
            request = next((name for name in names if name is not None), None)
        self._tell(Violation(Law.RANKS, rank, prefetch, request, seqs, what, right, fact))

    def _compare(self, streams: list[Stream]) -> None:
        """Compare as many events as every rank has, up to the first difference."""
        first, *others = [stream.ahead for stream in streams]
        while first:
            event = first[0].event
            kind = type(event)
            for ahead in others:
                if not ahead:
                    return
                other = ahead[0].event
                if other != event and (type(other) is not kind or FACTS[kind](other) != FACTS[kind](event)):
                    self._differ(streams)
                    return
            if kind in _WATCHED:
                self._alike(streams)
            else:
                first.popleft()
                for ahead in others:
                    ahead.popleft()

    def _alike(self, streams: list[Stream]) -> None:
        """Take what the ranks say alike, and hold it against what each of them knows."""
        ended_ns = {}
        for stream in streams:
            record = stream.ahead.popleft()
            event, ended_ns[stream.audit] = record.event, record.at_ns
            if type(event) is Terminated:
                stream.landed[event.prefetch] = event.landed
            elif type(event) is Discarded:
                stream.landed.pop(event.prefetch, None)
        if isinstance(record.event, Synced):
            self._least(streams, record)
        elif isinstance(record.event, Terminated) and record.event.reason in (Reason.TIMEOUT, Reason.QUEUE_TIMEOUT):
            self._limits(streams, record.seq, record.event, ended_ns)
        elif isinstance(record.event, Capped):
            self._failed(streams, record.seq, record.event)

    def _least(self, streams: list[Stream], record: Record) -> None:
        synced = record.event
        assert isinstance(synced, Synced)
        landed = [stream.landed.pop(synced.prefetch, None) for stream in streams]
        terms = streams[0].audit.terms
        known = [each for each in landed if each is not None]
        if terms is None or not known:
            return
        least = {name: min(each.get(name, 0) for each in known) for name in known[0]}
        # With a lag the rows were sent before the counters froze, and a rank may have read more by then.
        exact = len(known) == terms.ranks and not terms.lag_ticks
        for name, pages in least.items():
            agreed = synced.agreed.get(name, pages)
            if agreed > pages or (exact and agreed != pages):
                what = f"agreed on {name} {agreed}"
                right = f"{'' if exact else 'at most '}{pages}, the least that any rank landed"
                self._say(streams[-1].audit.rank, synced, (record.seq,), what, right)

    @staticmethod
    def _everywhere(streams: list[Stream], prefetch: int) -> list[tuple[RankAudit, Ledger, Account]]:
        """Return a prefetch on all ranks of the run; nothing where it is not known on each, or the engine is only observed."""
        audits = [(stream.audit, stream.audit.ledger) for stream in streams]
        ledgers = [(audit, ledger) for audit, ledger in audits if ledger is not None and ledger.terms.stop is not None]
        known = [(audit, ledger, of) for audit, ledger in ledgers if (of := ledger.accounts.get(prefetch)) is not None]
        return known if known and len(known) == known[0][1].terms.ranks else []

    def _limits(self, streams: list[Stream], seq: int, event: Terminated, ended_ns: Mapping[RankAudit, int]) -> None:
        """Say where the limit of reads ran out and none had begun on any rank, or the limit had run out on none."""
        known = self._everywhere(streams, event.prefetch)
        what = f"terminated as {event.reason}"
        if not known:
            return
        terms, reading = known[0][1].terms, event.reason is Reason.TIMEOUT
        if reading and not terms.lag_ticks and not any(TransferStarted in account.marks for _, _, account in known):
            self._say(streams[-1].audit.rank, event, (seq,), what, f"{Reason.QUEUE_TIMEOUT}: no rank had begun to read")
        elif terms.limit is not None:
            limit_ns = terms.limit.limit_ns(known[0][2].reserved_tokens)
            took_ns = max(ended_ns[at] - of.issued_ns - (of.queued_ns if reading else 0) for at, _, of in known)
            if took_ns < limit_ns and terms.ranks > 1:
                right = f"after {duration(limit_ns)} on one rank at least"
                self._say(streams[-1].audit.rank, event, (seq,), f"{what} after {duration(took_ns)}", right)

    def _failed(self, streams: list[Stream], seq: int, event: Capped) -> None:
        """Say where a plan is capped to a page that failed on no rank."""
        known = self._everywhere(streams, event.prefetch)
        if known and not any(is_known_to_fail(ledger, account, event.ceiling_page) for _, ledger, account in known):
            what = f"capped to page {event.ceiling_page}"
            self._say(streams[-1].audit.rank, event, (seq,), what, "to a page that failed on one rank at least")

    # --- differences ---------------------------------------------------------------------------------------------------

    def _differ(self, streams: list[Stream]) -> None:
        """Tell one difference, and leave it out; what is behind it is compared next time."""
        for stream in streams:
            if len(stream.ahead) < LOOK_AHEAD and not stream.over:
                self._read(stream, LOOK_AHEAD - len(stream.ahead))
        streams = [stream for stream in streams if stream.ahead]
        if len(streams) < 2:
            return
        for key in dict.fromkeys(key_of(stream.ahead[0].event) for stream in streams):
            found = [stream.find(key) for stream in streams]
            if any(facts_of(record) != facts_of(found[0]) for record in found[1:]):
                self._tell_difference(streams, found)
                if self._only_stopped_apart(streams, found):
                    return
                self._left_out.add(key)
                for stream in self._streams:
                    stream.drop(key, every=True)
                return
        record = streams[0].ahead[0]
        key = key_of(record.event)
        if key not in self._disordered:
            self._disordered.add(key)
            other = next(stream for stream in streams if key_of(stream.ahead[0].event) != key)
            what = f"{type(other.ahead[0].event).__name__} comes before {type(record.event).__name__}"
            right = f"{type(record.event).__name__} first, as on rank {streams[0].audit.rank}"
            fact = Apart(other.ahead[0].event, record.event, order=True)
            self._say(other.audit.rank, record.event, (other.ahead[0].seq,), what, right, fact)
        for stream in streams:
            stream.drop(key, every=False)

    @staticmethod
    def _only_stopped_apart(streams: list[Stream], found: Sequence[Record | None]) -> bool:
        """Go on behind the stops of a prefetch where only their reasons differ and the engine, which is only observed, agrees
        on none: what comes of the prefetch is still to be compared."""
        terms = streams[0].audit.terms
        stops = [each.event for each in found if each is not None and isinstance(each.event, Terminated)]
        if terms is None or not terms.observed or len(stops) < len(streams):
            return False
        for stream, event in zip(streams, stops, strict=True):
            stream.landed[event.prefetch] = event.landed
            stream.drop(event.prefetch, every=False)
        return True

    def _tell_difference(self, streams: list[Stream], found: list[Record | None]) -> None:
        """Blame the rank with the fewest on its side; of two, the later one."""
        sides = [facts_of(record) for record in found]
        counts = [sides.count(side) for side in sides]
        blamed = max(place for place, count in enumerate(counts) if count == min(counts))
        usual = counts.index(max(count for place, count in enumerate(counts) if sides[place] != sides[blamed]))
        if sides[usual] == sides[blamed]:
            usual = next(place for place, side in enumerate(sides) if side != sides[blamed])
        record, right = found[blamed], found[usual]
        event = record.event if record is not None else right.event if right is not None else None
        seq = record.seq if record is not None else streams[blamed].ahead[0].seq
        whose = f"as on rank {streams[usual].audit.rank} at seq {right.seq if right is not None else '-'}"
        there = None if right is None else right.event
        fact = Apart(None if record is None else record.event, there, order=False)
        self._say(streams[blamed].audit.rank, event, (seq,), in_words(record), f"{in_words(right)}, {whose}", fact)
