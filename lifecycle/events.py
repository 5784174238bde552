"""What happens to a prefetch, in the past tense. Frozen facts: no tensors, no token ids, no page contents.

Grouped by the state they lead to. `REPLICATED` names the fields that are the same on all ranks and enter the replica's
digest; an event without any is local. Page ranges are absolute and half-open. The wire name is `tag`: name and version,
independent of Python names; `codec.py` reads and writes them.
"""

from collections.abc import Mapping
from typing import ClassVar, get_args

import msgspec

from lifecycle.ranges import Range, Ranges
from lifecycle.reasons import Part, ReadCode, Reason

Slots = tuple[Range, ...]
"""Runs of slot numbers in the order of the pages they belong to (not sorted)."""


class Event(msgspec.Struct, frozen=True, tag_field="event", gc=False):
    """Base of all events."""

    REPLICATED: ClassVar[tuple[str, ...]] = ()


# --- the log itself -----------------------------------------------------------------------------------------------------


class LogOpened(Event, frozen=True, tag="log_opened.1"):
    """A log began. Written once, first, by the coordinator. Says what is needed to read the rest."""

    library: str
    run: str
    rank: int
    ranks: int
    layout: dict[str, object]
    policies: dict[str, object]
    page_size_tokens: int
    capacity_pages: dict[str, int]  # of this rank
    budget_pages: dict[str, int]  # of the smallest rank
    wall_ns: int
    monotonic_ns: int
    absent: tuple[str, ...] = ()  # pools of which this rank has no shard: counted as landed whole, never read
    groups: tuple[tuple[int, ...], ...] = ()  # the process groups that its rounds span, in order; () if none are known


class EventsLost(Event, frozen=True, tag="events_lost.1"):
    """Events could not be written (a full disk, a full buffer). Written by the log in their place, when it can write again."""

    events: int
    first_seq: int
    cause: str


class CoordinatorStopped(Event, frozen=True, tag="coordinator_stopped.1"):
    """The coordinator was closed or its round failed. The last event of an orderly log. What is still open is listed."""

    reason: Reason
    open_obligations: int
    quarantined_pages: dict[str, int]


# --- before a prefetch exists -------------------------------------------------------------------------------------------


class Declined(Event, frozen=True, tag="declined.1"):
    """A prefetch was refused at `issue`. Nothing was locked, reserved or asked."""

    REPLICATED: ClassVar = ("request", "attempt", "reason", "start_page", "end_page", "occupied_tokens", "limit_tokens")
    request: str
    attempt: int
    reason: Reason
    start_page: int
    end_page: int
    occupied_tokens: int
    limit_tokens: int


# --- ISSUED -------------------------------------------------------------------------------------------------------------


class Issued(Event, frozen=True, tag="issued.1"):
    """A prefetch of the span [start_page, end_page) began. Opens the anchor lock and the token reservation."""

    REPLICATED: ClassVar = ("prefetch", "request", "attempt", "start_page", "end_page", "last_key", "anchor_key",
                            "reserved_tokens")  # fmt: skip
    prefetch: int
    request: str
    attempt: int
    start_page: int
    end_page: int
    last_key: str  # of page end_page - 1
    anchor_key: str  # of page start_page - 1; empty at the root
    reserved_tokens: int


class Wanted(Event, frozen=True, tag="wanted.1"):
    """Admission asked for the request (`ready`). Local and sticky; best_effort stops on it."""

    prefetch: int


class HitResolved(Event, frozen=True, tag="hit_resolved.1"):
    """This rank's shard of L3 was asked. `hit_page` is the longest restorable end here; `leading` counts pages per pool."""

    prefetch: int
    hit_page: int
    leading: dict[str, int]
    miss: Reason | None  # why the hit is short of a prefetch, if it is


# --- TRANSFERRING -------------------------------------------------------------------------------------------------------


class PlanAgreed(Event, frozen=True, tag="plan_agreed.1"):
    """All ranks will read [start, plan_page). Opens, in the replica, the reservation of `reserved` pages per own pool."""

    REPLICATED: ClassVar = ("prefetch", "hit_page", "plan_page", "cut", "reserved", "left_out")
    prefetch: int
    hit_page: int
    plan_page: int
    cut: Reason | None  # why the plan is shorter than the hit
    reserved: dict[str, Range]  # pages per pool with own slots
    left_out: tuple[str, ...]  # optional or degradable pools that are not read


class HostReserved(Event, frozen=True, tag="host_reserved.1"):
    """This rank took host slots for the reserved pages of one pool. Opens their release."""

    prefetch: int
    pool: str
    pages: Range
    slots: Slots


class TransferStarted(Event, frozen=True, tag="transfer_started.1"):
    """The first read was claimed by a reader, `queued_ns` after issue."""

    prefetch: int
    queued_ns: int


class ReadClaimed(Event, frozen=True, tag="read_claimed.1"):
    """A reader claimed the pages [start, stop) of the slots of `pool`; until `ReadEnded` it may write into them."""

    prefetch: int
    pool: str
    pages: Range


class PagesLanded(Event, frozen=True, tag="pages_landed.1"):
    """Pages of one pool are in place, whole and verified. Only before TERMINATED; what comes later is not counted."""

    prefetch: int
    pool: str
    pages: Range
    nbytes: int
    checksums: tuple[int, ...] | None = None


class ReadFailed(Event, frozen=True, tag="read_failed.1"):
    """Pages of one pool could not be read. Only before TERMINATED."""

    prefetch: int
    pool: str
    pages: Range
    code: ReadCode


class ReadEnded(Event, frozen=True, tag="read_ended.1"):
    """A claimed read is over: nobody writes into these pages any more. The late answer of an ended prefetch does only this."""

    prefetch: int
    pool: str
    pages: Range


class ReadLost(Event, frozen=True, tag="read_lost.1"):
    """A claimed read was not answered within `lost_read_s`; the pages may be written at any time from now on."""

    prefetch: int
    pool: str
    pages: Range


class Capped(Event, frozen=True, tag="capped.1"):
    """All ranks know that nothing from `ceiling_page` on can be used; nobody claims reads beyond it."""

    REPLICATED: ClassVar = ("prefetch", "ceiling_page")
    prefetch: int
    ceiling_page: int


# --- TERMINATED, SYNCED and the outcome ---------------------------------------------------------------------------------


class Terminated(Event, frozen=True, tag="terminated.1"):
    """Counters are frozen; `landed` is this rank's leading run per pool (an absolute end; trailing pools count keys)."""

    REPLICATED: ClassVar = ("prefetch", "reason")
    prefetch: int
    reason: Reason
    landed: dict[str, int]


class Synced(Event, frozen=True, tag="synced.1"):
    """There is one result per pool: the MIN over `participants` ranks of what each landed."""

    REPLICATED: ClassVar = ("prefetch", "agreed", "participants", "round")
    prefetch: int
    agreed: dict[str, int]
    participants: int
    round: int


class Committed(Event, frozen=True, tag="committed.1"):
    """All that was planned is published: u == P. `taken` is what the index takes per own pool."""

    REPLICATED: ClassVar = ("prefetch", "usable_page", "taken", "dropped")
    prefetch: int
    usable_page: int
    taken: dict[str, Ranges]
    dropped: tuple[str, ...]  # optional or degradable pools that are not published


class Clamped(Event, frozen=True, tag="clamped.1"):
    """A shorter prefix is published: start < u < P."""

    REPLICATED: ClassVar = ("prefetch", "usable_page", "taken", "dropped", "reason")
    prefetch: int
    usable_page: int
    taken: dict[str, Ranges]
    dropped: tuple[str, ...]
    reason: Reason


class Discarded(Event, frozen=True, tag="discarded.1"):
    """Nothing is published. `pool` names the pool that fell short, where one did. What landed here is in the events before."""

    REPLICATED: ClassVar = ("prefetch", "reason", "pool")
    prefetch: int
    reason: Reason
    pool: str | None


# --- effects: each discharges an obligation -----------------------------------------------------------------------------


class HostHandedOver(Event, frozen=True, tag="host_handed_over.1"):
    """The index owns these pages now. `late` are those that a rider's claimed read may still write: they stay locked."""

    prefetch: int
    pool: str
    pages: Ranges
    late: Ranges


class HostReleased(Event, frozen=True, tag="host_released.1"):
    """These pages are free again."""

    prefetch: int
    pool: str
    pages: Ranges
    part: Part


class HostQuarantined(Event, frozen=True, tag="host_quarantined.1"):
    """A lost read may still write these pages: they are never used again."""

    prefetch: int
    pool: str
    pages: Ranges
    part: Part


class LateWriteEnded(Event, frozen=True, tag="late_write_ended.1"):
    """The late-write lock on handed-over pages is over: the read was answered, or lost (quarantined when evicted)."""

    prefetch: int
    pool: str
    pages: Ranges
    lost: bool


class AnchorUnlocked(Event, frozen=True, tag="anchor_unlocked.1"):
    """The lock on the anchor node was dropped, after the hand-over."""

    prefetch: int


class TokensReturned(Event, frozen=True, tag="tokens_returned.1"):
    """The reservation of tokens ended: the recorded amount."""

    REPLICATED: ClassVar = ("prefetch", "tokens")
    prefetch: int
    tokens: int


class TokensCredited(Event, frozen=True, tag="tokens_credited.1"):
    """The request is credited with the tokens of the kv pages that the index took."""

    REPLICATED: ClassVar = ("prefetch", "tokens")
    prefetch: int
    tokens: int


class Settled(Event, frozen=True, tag="settled.1"):
    """This rank holds nothing of the prefetch any more, except the lock on what it handed over."""

    prefetch: int


class Closed(Event, frozen=True, tag="closed.1"):
    """No rank holds anything of it. Its pages rejoin the budget; the lock on what it handed over is dropped next."""

    REPLICATED: ClassVar = ("prefetch",)
    prefetch: int


class PagesUnlocked(Event, frozen=True, tag="pages_unlocked.1"):
    """The lock on the handed-over pages was dropped, after the close."""

    prefetch: int


class ObligationStuck(Event, frozen=True, tag="obligation_stuck.1"):
    """A port has failed `tries` times to discharge this; it is tried on. What to do: see the error."""

    prefetch: int
    obligation: str
    tries: int
    error: str


# --- beside the prefetches ----------------------------------------------------------------------------------------------


class RoundDone(Event, frozen=True, tag="round.1"):
    """One execution of the agreement step with at least one row. Duration is launch to result on this rank."""

    number: int
    rows: int
    masks: int
    participants: int
    duration_ns: int


class QuarantineAgreed(Event, frozen=True, tag="quarantine_agreed.1"):
    """All ranks took pages off the budget of a pool: the most that any rank has quarantined."""

    REPLICATED: ClassVar = ("pool", "pages")
    pool: str
    pages: int


class Evicted(Event, frozen=True, tag="evicted.1"):
    """Pages left the index to make room. `slots` and those of them that are quarantined are this rank's."""

    REPLICATED: ClassVar = ("pool", "pages")
    pool: str
    pages: int
    slots: Slots
    quarantined: Slots


class Adopted(Event, frozen=True, tag="adopted.1"):
    """The engine put pages of its own into host memory and the index (write-back), under the same budget."""

    REPLICATED: ClassVar = ("request", "pages", "end_page")
    request: str
    pages: dict[str, int]
    end_page: int
    slots: dict[str, Slots]


class PrefixServed(Event, frozen=True, tag="prefix_served.1"):
    """A request was served [0, end_page) from the index. `sources` says which prefetch brought which pages (0: the engine)."""

    REPLICATED: ClassVar = ("request", "attempt", "end_page", "sources")
    request: str
    attempt: int
    end_page: int
    sources: tuple[tuple[int, int, int], ...]  # (start, stop, prefetch)


class LoadedTaken(Event, frozen=True, tag="loaded_taken.1"):
    """The scheduler read the credited tokens of a request, once."""

    REPLICATED: ClassVar = ("request", "attempt", "tokens")
    request: str
    attempt: int
    tokens: int


class RequestFinished(Event, frozen=True, tag="request_finished.1"):
    """The request was forgotten. What remains of its prefetches lives under their own ids."""

    REPLICATED: ClassVar = ("request",)
    request: str


class WaitBegan(Event, frozen=True, tag="wait_began.1"):
    """The request waits: for room under the limit (`rate_limited`), or to ask L3 again after a miss.

    `due_tick` is the first tick at which it may be tried, `tokens` what it would reserve, and `queries` how often this attempt
    has asked L3 so far: only real queries count.
    """

    REPLICATED: ClassVar = ("request", "attempt", "reason", "tick", "due_tick", "tokens", "queries")
    request: str
    attempt: int
    reason: Reason
    tick: int
    due_tick: int
    tokens: int
    queries: int


class WaitEnded(Event, frozen=True, tag="wait_ended.1"):
    """The wait is over. Without a reason the request is tried again now, and the next event says how that went."""

    REPLICATED: ClassVar = ("request", "attempt", "tick", "reason")
    request: str
    attempt: int
    tick: int
    reason: Reason | None


class PageOverwritten(Event, frozen=True, tag="page_overwritten.1"):
    """A resident page of this rank is not what landed: it was whole then, and was overwritten since. Found by a scrub."""

    source: int  # the prefetch that brought it
    pool: str
    page: int
    slot: int
    landed_checksum: int
    found_checksum: int


class PagesScrubbed(Event, frozen=True, tag="pages_scrubbed.1"):
    """Resident pages of this rank were hashed again; not the `unknown` ones: no checksum is kept, or a read may write them."""

    checked: int
    unknown: int
    changed: int


AnyEvent = (
    LogOpened | EventsLost | CoordinatorStopped | Declined | Issued | Wanted | HitResolved | PlanAgreed | HostReserved
    | TransferStarted | ReadClaimed | PagesLanded | ReadFailed | ReadEnded | ReadLost | Capped | Terminated | Synced
    | Committed | Clamped | Discarded | HostHandedOver | HostReleased | HostQuarantined | LateWriteEnded | AnchorUnlocked
    | TokensReturned | TokensCredited | Settled | Closed | PagesUnlocked | ObligationStuck | RoundDone | QuarantineAgreed
    | Evicted | Adopted | PrefixServed | LoadedTaken | RequestFinished | WaitBegan | WaitEnded | PageOverwritten
    | PagesScrubbed
)  # fmt: skip


class Record(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """An event with its place in the log of one rank: `seq` from 0 without gaps, monotonic time in nanoseconds."""

    seq: int
    at_ns: int
    event: AnyEvent


EVENT_TYPES: Mapping[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyEvent)}
"""Every event type by its wire name."""
