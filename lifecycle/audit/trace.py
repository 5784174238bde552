"""A run as a Chrome trace: opens in Perfetto or chrome://tracing. Written as it is read; memory holds what is in flight.

One process a rank; tracks for prefetches, rounds, outcomes and effects, served requests, and one a pool for its reads.
Prefetches, rounds and reads may overlap, so they are async slices; arrows lead from an outcome to what was served of it.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgspec

from lifecycle.audit.runs import Run, Segment
from lifecycle.audit.words import name
from lifecycle.events import (
    Adopted,
    AnchorUnlocked,
    Capped,
    Clamped,
    Closed,
    Committed,
    CoordinatorStopped,
    Declined,
    Discarded,
    Event,
    EventsLost,
    Evicted,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    Issued,
    LateWriteEnded,
    PagesUnlocked,
    PlanAgreed,
    PrefixServed,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    ReadLost,
    Record,
    RoundDone,
    Settled,
    Terminated,
    TokensCredited,
    TokensReturned,
)  # fmt: skip

_PREFETCHES, _ROUNDS, _OUTCOMES, _SERVED, _FIRST_POOL = 1, 2, 3, 4, 10
_TRACKS = {_PREFETCHES: "prefetches", _ROUNDS: "rounds", _OUTCOMES: "outcomes and effects", _SERVED: "served requests"}
_INSTANTS = (HostReleased, HostHandedOver, HostQuarantined, AnchorUnlocked, TokensReturned, TokensCredited, Settled, Declined,
             Evicted, Adopted, Capped, LateWriteEnded, EventsLost, CoordinatorStopped)  # fmt: skip
_STATES: Mapping[type[Event], str] = {Issued: "issued", PlanAgreed: "transferring", Terminated: "terminated"}
_ARROWS = 65536  # outcomes that an arrow may still start from
_MOST_POOLS = 64
_BEYOND_NS = 1 << 62

Facts = dict[str, Any]


def write_trace(file: IO[bytes], runs: Sequence[Run]) -> int:
    """Write the trace of these runs, and return how many trace events it has."""
    writer = _Writer(file)
    segments = [segment for run in runs for segment in run.segments]
    firsts = [next(iter(segment.records())).at_ns + _offset(segment) for segment in segments]
    for place, segment in enumerate(segments, start=1):
        rank = _RankTrace(writer, place, _offset(segment) - min(firsts))
        rank.begin(segment)
        for record in segment.records():
            rank.feed(record)
        rank.end()
    writer.close()
    return writer.count


def _offset(segment: Segment) -> int:
    opened = segment.opened
    return 0 if opened is None else opened.wall_ns - opened.monotonic_ns


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')

    def put(self, facts: Facts) -> None:
        self._file.write((b",\n" if self.count else b"\n") + msgspec.json.encode(facts))
        self.count += 1

    def close(self) -> None:
        self._file.write(b"\n]}\n")


class _RankTrace:
    """One rank's tracks."""

    def __init__(self, writer: _Writer, pid: int, shift_ns: int) -> None:
        self._writer, self._pid, self._shift_ns = writer, pid, shift_ns
        self._pools: dict[str, int] = {}
        self._states: dict[int, tuple[str, str]] = {}  # prefetch -> its name, and its open state
        self._reads: dict[tuple[int, str, tuple[int, int]], str] = {}
        self._outcomes: OrderedDict[int, int] = OrderedDict()  # prefetch -> ns of its outcome
        self._occupied_tokens = 0
        self._last_ns = 0
        self._flows = 0

    def begin(self, segment: Segment) -> None:
        rank = "?" if segment.rank is None else segment.rank
        run = "unknown" if segment.opened is None else name(segment.opened.run)
        self._meta("process_name", 0, f"rank {rank} of run {run}")
        for tid, track in _TRACKS.items():
            self._meta("thread_name", tid, track)

    def _meta(self, what: str, tid: int, text: str) -> None:
        self._writer.put({"ph": "M", "pid": self._pid, "tid": tid, "name": what, "args": {"name": text}})

    def _put(self, ph: str, tid: int, at_ns: int, text: str, **facts: Any) -> None:
        us, ns = divmod(max(0, min(at_ns, _BEYOND_NS)), 1000)
        at = msgspec.Raw(b"%d.%03d" % (us, ns))
        self._writer.put({"ph": ph, "pid": self._pid, "tid": tid, "ts": at, "name": text, **facts})

    def _slice(self, ph: str, tid: int, at_ns: int, text: str, cat: str, id_: str, args: Facts | None = None) -> None:
        self._put(ph, tid, at_ns, text, cat=cat, id=f"{self._pid}.{id_}", args=args or {})

    def _pool(self, pool: str) -> int:
        if pool not in self._pools:
            if len(self._pools) >= _MOST_POOLS:
                return _FIRST_POOL + _MOST_POOLS
            self._pools[pool] = _FIRST_POOL + len(self._pools)
            self._meta("thread_name", self._pools[pool], f"reads of {name(pool)}")
        return self._pools[pool]

    def feed(self, record: Record) -> None:
        """Write what a record is on the tracks."""
        event = record.event
        at = self._last_ns = record.at_ns + self._shift_ns
        match event:
            case Issued():
                self._issued(event, at)
            case PlanAgreed() | Terminated():
                self._state(event.prefetch, _STATES[type(event)], at)
            case Committed() | Clamped() | Discarded():
                self._outcome(event, at)
            case Closed() if event.prefetch in self._states and self._states[event.prefetch][1] == "discarded":
                self._over(event.prefetch, at)
            case PagesUnlocked():
                self._over(event.prefetch, at)
            case ReadClaimed():
                key = (event.prefetch, event.pool, event.pages)
                if key not in self._reads:
                    self._reads[key] = f"read.{record.seq}"
                    args = {"prefetch": _int(event.prefetch), "pages": _text(event.pages)}
                    text = f"read of prefetch {event.prefetch}"
                    self._slice("b", self._pool(event.pool), at, text, "read", self._reads[key], args)
            case ReadEnded() | ReadLost():
                self._read_over((event.prefetch, event.pool, event.pages), at, isinstance(event, ReadLost))
            case ReadFailed():
                args = {"prefetch": _int(event.prefetch), "pages": _text(event.pages)}
                self._put("i", self._pool(event.pool), at, f"failed: {event.code}", s="t", args=args)
            case RoundDone():
                args = {"rows": _int(event.rows), "masks": _int(event.masks), "participants": _int(event.participants)}
                text, id_ = f"round {event.number}", f"round.{record.seq}"
                self._slice("b", _ROUNDS, at - max(0, event.duration_ns), text, "round", id_, args)
                self._slice("e", _ROUNDS, at, text, "round", id_)
            case PrefixServed():
                self._served(event, at)
            case _ if isinstance(event, _INSTANTS):
                self._put("i", _OUTCOMES, at, type(event).__name__, s="t", args=_args(event))
                if isinstance(event, TokensReturned):
                    self._occupy(-event.tokens, at)
            case _:
                pass

    def _issued(self, event: Issued, at: int) -> None:
        text = f"prefetch {event.prefetch} of {name(event.request)}"
        if event.prefetch in self._states:
            self._over(event.prefetch, at)
        self._states[event.prefetch] = (text, "issued")
        self._slice("b", _PREFETCHES, at, text, "prefetch", str(event.prefetch), _args(event))
        self._slice("b", _PREFETCHES, at, "issued", "prefetch", str(event.prefetch))
        self._occupy(event.reserved_tokens, at)

    def _occupy(self, tokens: int, at: int) -> None:
        self._occupied_tokens += tokens
        self._put("C", 0, at, "occupied tokens", args={"tokens": _int(self._occupied_tokens)})

    def _state(self, prefetch: int, state: str, at: int) -> None:
        known = self._states.get(prefetch)
        if known is not None:
            self._slice("e", _PREFETCHES, at, known[1], "prefetch", str(prefetch))
            self._slice("b", _PREFETCHES, at, state, "prefetch", str(prefetch))
            self._states[prefetch] = (known[0], state)

    def _outcome(self, event: Committed | Clamped | Discarded, at: int) -> None:
        state = type(event).__name__.lower()
        self._state(event.prefetch, state, at)
        self._put("X", _OUTCOMES, at, f"{state} {event.prefetch}", dur=1, args=_args(event))
        self._outcomes[event.prefetch] = at
        if len(self._outcomes) > _ARROWS:
            self._outcomes.popitem(last=False)

    def _over(self, prefetch: int, at: int, **args: bool) -> None:
        known = self._states.pop(prefetch, None)
        if known is not None:
            self._slice("e", _PREFETCHES, at, known[1], "prefetch", str(prefetch))
            self._slice("e", _PREFETCHES, at, known[0], "prefetch", str(prefetch), args)

    def _read_over(self, key: tuple[int, str, tuple[int, int]], at: int, lost: bool) -> None:
        id_ = self._reads.pop(key, None)
        if id_ is not None:
            self._slice("e", self._pool(key[1]), at, f"read of prefetch {key[0]}", "read", id_, {"lost": lost})

    def _served(self, event: PrefixServed, at: int) -> None:
        self._put("X", _SERVED, at, f"served {name(event.request)}", dur=1, args=_args(event))
        for source in dict.fromkeys(source for _, _, source in event.sources[:256]):
            begun = self._outcomes.get(source)
            if begun is not None:
                self._flows += 1
                id_ = f"{self._pid}.flow.{self._flows}"
                self._put("s", _OUTCOMES, begun, "served", cat="served", id=id_)
                self._put("f", _SERVED, at, "served", cat="served", id=id_, bp="e")

    def end(self) -> None:
        """Close what the log leaves open, and say so."""
        for key in list(self._reads):
            self._read_over(key, self._last_ns, True)
        for prefetch in list(self._states):
            self._over(prefetch, self._last_ns, open=True)


def _int(value: int) -> int | str:
    """Return a number that JSON readers can hold, or its digits."""
    return value if abs(value) <= 1 << 53 else name(str(value))


def _text(value: object) -> str:
    return name(str(value))


def _args(event: Event) -> Facts:
    facts = {field: getattr(event, field) for field in event.__struct_fields__}
    return {field: _int(v) if isinstance(v, int) else _text(v) for field, v in facts.items() if v not in (None, (), {})}
