"""All ranks of a run against each other: the same replicated events in the same order, and the least of what each landed.

Reads the logs in step, one replicated event at a time. Where the ranks differ, it looks ahead to find whose event is
missing, other or late; the prefetch (or request, or pool) is told once and left out from then on. A rank is compared up to
its end, the first gap in its log, or its last words: what it logs once its round has failed, or it was closed, is its own.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter

from lifecycle.audit.account import Account
from lifecycle.audit.endings import LAST_WORDS
from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.rank import RankAudit
from lifecycle.audit.stops import is_known_to_fail
from lifecycle.audit.words import duration
from lifecycle.events import (
    EVENT_TYPES,
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

Key = int | str

_FACTS = {kind: attrgetter(*kind.REPLICATED) for kind in EVENT_TYPES.values() if kind.REPLICATED}


_KEY_OF = {
    kind: next((name for name in ("prefetch", "request", "pool") if name in kind.__struct_fields__), None) for kind in _FACTS
}


def _key(event: Event) -> Key:
    name = _KEY_OF[type(event)]
    if name == "prefetch":
        id_: int = event.prefetch  # type: ignore[attr-defined]  # it has, as the table says
        return id_
    return type(event).__name__ if name is None else f"{name} {getattr(event, name)!r}"


class _Stream:
    """One rank's log, and its replicated events that are not compared yet."""

    __slots__ = ("ahead", "audit", "landed", "over", "records")

    def __init__(self, audit: RankAudit, records: Iterator[Record]) -> None:
        self.audit = audit
        self.records: Iterator[Record] | None = records
        self.ahead: deque[tuple[Key, Record]] = deque()
        self.over = False  # nothing more is to be compared
        self.landed: dict[int, dict[str, int]] = {}  # of prefetches that are terminated and not synced

    def find(self, key: Key) -> Record | None:
        """Return the next event of a key that is not compared yet."""
        return next((record for other, record in self.ahead if other == key), None)

    def drop(self, key: Key, every: bool) -> None:
        """Leave out the next event of a key, or every one."""
        kept: deque[tuple[Key, Record]] = deque()
        dropped = False
        for item in self.ahead:
            if item[0] == key and (every or not dropped):
                dropped = True
            else:
                kept.append(item)
        self.ahead = kept


class Peers:
    """The ranks of a run, read in step."""

    def __init__(
        self, audits: Sequence[RankAudit], logs: Sequence[Iterator[Record]], tell: Callable[[Violation], None]
    ) -> None:
        self._streams = [_Stream(audit, log) for audit, log in zip(audits, logs, strict=True)]
        self._tell = tell
        self._left_out: set[Key] = set()
        self._disordered: set[Key] = set()
        self._headers_compared = False

    def advance(self) -> bool:
        """Read every rank up to its next replicated event and compare those; return whether there is more."""
        more = False
        for stream in self._streams:
            if not stream.ahead:
                self._read(stream)
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

    def _read(self, stream: _Stream, count: int = 1) -> None:
        """Read a rank until `count` more replicated events are there, or to its end."""
        if stream.records is None:
            return
        audit, feed = stream.audit, stream.audit.feed
        for record in stream.records:
            feed(record)
            if audit.gapped:
                stream.over = True
            if stream.over:
                continue
            event = record.event
            if type(event) in _FACTS:
                key = _key(event)
                if isinstance(event, (Discarded, WaitEnded)) and event.reason in LAST_WORDS:
                    self._end(stream)
                elif key not in self._left_out:
                    stream.ahead.append((key, record))
                    count -= 1
                    if count == 0:
                        return
            elif type(event) is CoordinatorStopped:
                self._end(stream)
        stream.records = None

    @staticmethod
    def _end(stream: _Stream) -> None:
        """Compare nothing from here on; a close just before may be this rank's own."""
        stream.over = True
        while stream.ahead and type(stream.ahead[-1][1].event) is Closed:
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

    def _say(self, rank: int, event: Event | None, seqs: tuple[int, ...], what: str, right: str) -> None:
        prefetch, request = getattr(event, "prefetch", None), getattr(event, "request", None)
        if prefetch is not None and request is None:
            ledgers = [stream.audit.ledger for stream in self._streams]
            names = [ledger.request_of(prefetch) for ledger in ledgers if ledger is not None]
            request = next((name for name in names if name is not None), None)
        self._tell(Violation(Law.RANKS, rank, prefetch, request, seqs, what, right))

    def _compare(self, streams: list[_Stream]) -> None:
        key, record = streams[0].ahead[0]
        kind = type(record.event)
        facts = _FACTS[kind](record.event)
        for stream in streams[1:]:
            other_key, other = stream.ahead[0]
            if other_key != key or type(other.event) is not kind or _FACTS[kind](other.event) != facts:
                self._differ(streams)
                return
        ended_ns = {}
        for stream in streams:
            record = stream.ahead.popleft()[1]
            event, ended_ns[stream.audit] = record.event, record.at_ns
            if type(event) is Terminated:
                stream.landed[event.prefetch] = event.landed
            elif type(event) is Discarded:
                stream.landed.pop(event.prefetch, None)
        if kind is Synced:
            self._least(streams, record)
        elif isinstance(record.event, Terminated) and record.event.reason in (Reason.TIMEOUT, Reason.QUEUE_TIMEOUT):
            self._limits(streams, record.seq, record.event, ended_ns)
        elif isinstance(record.event, Capped):
            self._failed(streams, record.seq, record.event)

    def _least(self, streams: list[_Stream], record: Record) -> None:
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
    def _everywhere(streams: list[_Stream], prefetch: int) -> list[tuple[RankAudit, Ledger, Account]]:
        """Return a prefetch on all ranks of the run; nothing where it is not known on each, or the engine is only observed."""
        audits = [(stream.audit, stream.audit.ledger) for stream in streams]
        ledgers = [(audit, ledger) for audit, ledger in audits if ledger is not None and ledger.terms.stop is not None]
        known = [(audit, ledger, of) for audit, ledger in ledgers if (of := ledger.accounts.get(prefetch)) is not None]
        return known if known and len(known) == known[0][1].terms.ranks else []

    def _limits(self, streams: list[_Stream], seq: int, event: Terminated, ended_ns: Mapping[RankAudit, int]) -> None:
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

    def _failed(self, streams: list[_Stream], seq: int, event: Capped) -> None:
        """Say where a plan is capped to a page that failed on no rank."""
        known = self._everywhere(streams, event.prefetch)
        if known and not any(is_known_to_fail(ledger, account, event.ceiling_page) for _, ledger, account in known):
            what = f"capped to page {event.ceiling_page}"
            self._say(streams[-1].audit.rank, event, (seq,), what, "to a page that failed on one rank at least")

    # --- differences ---------------------------------------------------------------------------------------------------

    def _differ(self, streams: list[_Stream]) -> None:
        """Tell one difference, and leave it out; what is behind it is compared next time."""
        for stream in streams:
            if len(stream.ahead) < LOOK_AHEAD and not stream.over:
                self._read(stream, LOOK_AHEAD - len(stream.ahead))
        streams = [stream for stream in streams if stream.ahead]
        if len(streams) < 2:
            return
        for key in dict.fromkeys(stream.ahead[0][0] for stream in streams):
            found = [stream.find(key) for stream in streams]
            if any(_facts(record) != _facts(found[0]) for record in found[1:]):
                self._tell_difference(streams, found)
                self._left_out.add(key)
                for stream in self._streams:
                    stream.drop(key, every=True)
                return
        key, record = streams[0].ahead[0]
        if key not in self._disordered:
            self._disordered.add(key)
            other = next(stream for stream in streams if stream.ahead[0][0] != key)
            what = f"{type(other.ahead[0][1].event).__name__} comes before {type(record.event).__name__}"
            right = f"{type(record.event).__name__} first, as on rank {streams[0].audit.rank}"
            self._say(other.audit.rank, record.event, (other.ahead[0][1].seq,), what, right)
        for stream in streams:
            stream.drop(key, every=False)

    def _tell_difference(self, streams: list[_Stream], found: list[Record | None]) -> None:
        """Blame the rank with the fewest on its side; of two, the later one."""
        sides = [_facts(record) for record in found]
        counts = [sides.count(side) for side in sides]
        blamed = max(place for place, count in enumerate(counts) if count == min(counts))
        usual = counts.index(max(count for place, count in enumerate(counts) if sides[place] != sides[blamed]))
        if sides[usual] == sides[blamed]:
            usual = next(place for place, side in enumerate(sides) if side != sides[blamed])
        record, right = found[blamed], found[usual]
        event = record.event if record is not None else right.event if right is not None else None
        seq = record.seq if record is not None else streams[blamed].ahead[0][1].seq
        whose = f"as on rank {streams[usual].audit.rank} at seq {right.seq if right is not None else '-'}"
        self._say(streams[blamed].audit.rank, event, (seq,), _words(record), f"{_words(right)}, {whose}")


def _facts(record: Record | None) -> object:
    return None if record is None else (type(record.event), _FACTS[type(record.event)](record.event))


def _words(record: Record | None) -> str:
    if record is None:
        return "nothing"
    event = record.event
    facts = ", ".join(f"{name} {getattr(event, name)}" for name in event.REPLICATED if name not in ("prefetch", "request"))
    return f"{type(event).__name__} ({facts})" if facts else type(event).__name__
