"""How far each known difference of an observed engine goes, and that one step further is a fault: on logs, written by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from lifecycle.audit import verify_logs
from lifecycle.audit.known import known_difference
from lifecycle.events import (
    Adopted,
    AnchorUnlocked,
    Clamped,
    Closed,
    Committed,
    CoordinatorStopped,
    Declined,
    Discarded,
    Evicted,
    HitResolved,
    HostHandedOver,
    HostReleased,
    HostReserved,
    Issued,
    LogOpened,
    PagesLanded,
    PagesUnlocked,
    PlanAgreed,
    PrefixServed,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    Record,
    RequestFinished,
    RoundDone,
    Settled,
    Synced,
    Terminated,
    TokensCredited,
    TokensReturned,
    TransferStarted,
)  # fmt: skip
from lifecycle.layout import Layout, Pool, TrailingPages, kv_only
from lifecycle.reasons import Part, ReadCode, Reason

PAGE = 4
SWA = Layout("swa", (Pool("kv"), Pool("swa", TrailingPages(2))))
Events = Sequence[Any]


def log_of(
    events: Events, capacity: dict[str, int], layout: Layout | None = None, limit: int = 1 << 20, rank: int = 0, ranks: int = 1
) -> list[Record]:
    """Return a log of an observed engine, from its header on."""
    policies: dict[str, object] = {
        "observed": "sglang", "stop": {"name": "timeout"}, "pressure": "shrink", "shortfall": "discard",
        "threshold_pages": 1, "max_pages": 1 << 20, "limit_tokens": limit, "lag_ticks": 0,
    }  # fmt: skip
    declaration = (layout or kv_only()).declaration()
    opened = LogOpened("sglang", "run", rank, ranks, declaration, policies, PAGE, capacity, dict(capacity), 0, 0)
    return [Record(seq, seq, event) for seq, event in enumerate((opened, *events))]


def found(*logs: list[Record]) -> list[str]:
    """Return what the audit finds in the logs of a run: the name of a known difference, or else the law that is broken."""
    return [known_difference(each) or each.law.value for each in verify_logs(logs)]


def begin(id_: int, pages: int, pools: dict[str, tuple[int, int]], slots: dict[str, int]) -> list[Any]:
    """Return how a prefetch of so many pages begins: all of them hit, planned and reserved from a first slot on."""
    reserved = [HostReserved(id_, pool, (lo, hi), ((slots[pool], slots[pool] + hi - lo),)) for pool, (lo, hi) in pools.items()]
    return [
        Issued(id_, f"r{id_}", 0, 0, pages, "", "", pages * PAGE), HitResolved(id_, pages, {"kv": pages}, None),
        PlanAgreed(id_, pages, pages, None, pools, ()), *reserved,
    ]  # fmt: skip


def kv_begin(id_: int, pages: int, slot: int) -> list[Any]:
    """Return how a prefetch of kv alone begins."""
    return begin(id_, pages, {"kv": (0, pages)}, {"kv": slot})


def aborted(id_: int, pages: int) -> list[Any]:
    """Return how a prefetch is aborted."""
    return [Discarded(id_, Reason.ABORTED, None), TokensReturned(id_, pages * PAGE), AnchorUnlocked(id_)]


def released(id_: int, lo: int, hi: int) -> HostReleased:
    """Return how pages that never landed go back."""
    return HostReleased(id_, "kv", ((lo, hi),), Part.TAIL)


def closed(id_: int) -> list[Any]:
    """Return how a prefetch is over that has published nothing."""
    return [Settled(id_), Closed(id_)]


def stopped(pool: str = "kv") -> CoordinatorStopped:
    """Return the orderly end."""
    return CoordinatorStopped(Reason.SHUTDOWN, 0, {pool: 0})


# --- a read after the end -----------------------------------------------------------------------------------------------------


def late(*reads: tuple[int, int], before: tuple[tuple[int, int], ...] = (), pages: int = 300) -> list[Record]:
    """Return a log in which a prefetch is aborted, and these pages are read all the same; `before`: read until then."""
    events = kv_begin(1, pages, 0)
    for place, each in enumerate(before):
        events += [ReadClaimed(1, "kv", each), *([] if place else [TransferStarted(1, 0)])]
        events += [PagesLanded(1, "kv", each, 0), ReadEnded(1, "kv", each)]
    events += aborted(1, pages)
    for each in reads:
        events += [ReadClaimed(1, "kv", each), ReadEnded(1, "kv", each)]
    landed = before[-1][1] if before else 0
    if landed:
        events.append(HostReleased(1, "kv", ((0, landed),), Part.CLAMPED))
    return log_of([*events, released(1, landed, pages), *closed(1), stopped()], {"kv": pages})


@pytest.mark.parametrize(("reads", "before", "expected"), [
    ((), (), []),
    (((0, 128),), (), ["read_after_end"]),
    (((0, 129),), (), ["claim"]),
    (((0, 128), (128, 256)), (), ["read_after_end", "claim"]),
    (((128, 256),), (), ["claim"]),
    (((128, 256),), ((0, 128),), ["read_after_end"]),
    (((128, 256), (256, 300)), ((0, 128),), ["read_after_end", "claim"]),
    (((200, 256),), ((0, 128),), ["claim"]),
])  # fmt: skip
def test_one_batch_after_the_end(reads: Any, before: Any, expected: list[str]) -> None:
    """The next batch of kv is read after the end, once, and at most 128 pages; any other read after the end is a fault."""
    assert found(late(*reads, before=before)) == expected


def test_a_read_directly_behind_the_end_is_one_too() -> None:
    """An observed engine withdraws nothing: what it claims directly behind an end was claimed after it, and is counted."""
    events = [*kv_begin(1, 8, 0), Discarded(1, Reason.ABORTED, None)]
    for each in ((0, 4), (4, 8)):
        events += [ReadClaimed(1, "kv", each), ReadEnded(1, "kv", each)]
    events += [TokensReturned(1, 32), AnchorUnlocked(1), released(1, 0, 8), *closed(1), stopped()]
    assert found(log_of(events, {"kv": 8})) == ["read_after_end", "claim"]


# --- the limit ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pages", "expected"), [
    ((9, 1), []), ((11,), ["limit_overshot"]), ((9, 100), ["limit_overshot"]), ((10, 1), ["admission"]),
    ((9, 100, 1), ["limit_overshot", "admission"]),
])  # fmt: skip
def test_the_limit_is_overshot_by_one(pages: tuple[int, ...], expected: list[str]) -> None:
    """With room for ten pages: who begins below that may be as long as it likes, and who begins at it is a fault."""
    issued = [Issued(id_, f"r{id_}", 0, 0, each, "", "", each * PAGE) for id_, each in enumerate(pages, 1)]
    assert found(log_of(issued, {"kv": 200}, limit=10 * PAGE)) == expected


def test_nobody_is_declined_below_the_limit() -> None:
    """Declined as rate limited with nothing in flight: a fault."""
    events = [Declined("r", 0, Reason.RATE_LIMITED, 0, 4, 0, 10 * PAGE)]
    assert found(log_of(events, {"kv": 8}, limit=10 * PAGE)) == ["admission"]


# --- the budget ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("free", "expected"), [(4, ["no_budget"]), (5, ["no_budget"]), (3, ["balance", "slots"])])
def test_what_is_free_again_is_promised_again(free: int, expected: list[str]) -> None:
    """Eight pages, some of them free again though their prefetch is not over: four may be given out again if four are free."""
    events = [*kv_begin(1, 8, 0), ReadClaimed(1, "kv", (0, 3)), TransferStarted(1, 0), *aborted(1, 8)]
    events += [released(1, 8 - free, 8), *kv_begin(2, 4, 4)]
    assert found(log_of(events, {"kv": 8})) == expected


def test_what_is_over_is_no_room() -> None:
    """What a prefetch gave back that is closed counts as room no second time."""
    events = [*kv_begin(1, 8, 0), *aborted(1, 8), released(1, 0, 8), *closed(1)]
    events += [Adopted("", {"kv": 9}, 0, {"kv": ((0, 8),)})]
    assert sorted(found(log_of(events, {"kv": 8}))) == ["balance", "balance"]


# --- the window ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pages", "kv", "expected"), [
    (1, (0, 1), ["window_left_out"]), (2, (0, 2), ["plan"]), (1, (0, 2), ["plan"]),
])  # fmt: skip
def test_a_window_is_left_out_of_a_shorter_span(pages: int, kv: tuple[int, int], expected: list[str]) -> None:
    """Of a span as long as the window nothing is left out, and nothing else of the plan may be wrong beside."""
    events = [
        Issued(1, "r", 0, 0, pages, "", "", pages * PAGE), HitResolved(1, pages, {"kv": pages, "swa": pages}, None),
        PlanAgreed(1, pages, pages, None, {"kv": kv}, ("swa",)),
    ]  # fmt: skip
    assert found(log_of(events, {"kv": 8, "swa": 8}, SWA)) == expected


# --- eviction -----------------------------------------------------------------------------------------------------------------


def evicted(evict: tuple[tuple[int, int], ...], claimed: tuple[int, int] = (4, 8)) -> list[Record]:
    """Return a log in which four of eight pages are published while a read of the others is out, and pages are evicted."""
    events = [*kv_begin(1, 8, 0), ReadClaimed(1, "kv", (0, 4)), TransferStarted(1, 0), PagesLanded(1, "kv", (0, 4), 0)]
    events += [ReadEnded(1, "kv", (0, 4)), ReadClaimed(1, "kv", claimed), Terminated(1, Reason.TIMEOUT, {"kv": 4})]
    events += [Synced(1, {"kv": 4}, 1, 0), Clamped(1, 4, {"kv": ((0, 4),)}, (), Reason.TIMEOUT), TokensCredited(1, 16)]
    late = ((claimed[0], 4),) if claimed[0] < 4 else ()
    events += [TokensReturned(1, 32), HostHandedOver(1, "kv", ((0, 4),), late), AnchorUnlocked(1)]
    return log_of([*events, Evicted("kv", sum(hi - lo for lo, hi in evict), evict, ())], {"kv": 9})


@pytest.mark.parametrize(("log", "expected"), [
    (evicted(((0, 4),)), ["unlocked_early"]),
    (evicted(((0, 5),)), ["slots"]),
    (evicted(((0, 4), (8, 9))), ["slots"]),
])  # fmt: skip
def test_what_was_handed_over_is_evicted_early(log: list[Record], expected: list[str]) -> None:
    """Pages that the tree has may be evicted; one that is still held, or free, is a fault, whatever is evicted beside it."""
    assert found(log)[:1] == expected


def test_nothing_is_evicted_that_a_read_may_write() -> None:
    """A page that is handed over while a claimed read may write it is evicted: a fault."""
    assert "unlocked_early" not in found(evicted(((0, 4),), claimed=(3, 8)))
    assert "quiescence" in found(evicted(((0, 4),), claimed=(3, 8)))


# --- who is served ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("event", "expected"), [
    (PrefixServed("r", 0, 4, ()), ["served_unasked"]), (PrefixServed("r", 1, 4, ()), ["legal_move"]),
    (RequestFinished("r"), ["legal_move"]),
])  # fmt: skip
def test_a_request_is_served_that_never_asked(event: Any, expected: list[str]) -> None:
    """It has no attempt then; and only serving needs no asking."""
    assert found(log_of([event], {"kv": 8})) == expected


# --- two ranks ----------------------------------------------------------------------------------------------------------------


def ended(reason: Reason, usable: int, landed: int, evict: int = 0, order: str = "last", close: bool = True) -> list[Any]:
    """Return how a prefetch of eight pages goes on one of two ranks that agree on `usable`."""
    events = [*kv_begin(1, 8, 8), ReadClaimed(1, "kv", (0, 8)), TransferStarted(1, 0), PagesLanded(1, "kv", (0, landed), 0)]
    if landed < 8:
        events.append(ReadFailed(1, "kv", (landed, 8), ReadCode.MISSING))
    early = Evicted("kv", evict, ((0, evict),), ())
    end = Clamped(1, usable, {"kv": ((0, usable),)}, (), reason)
    events += [ReadEnded(1, "kv", (0, 8)), Terminated(1, reason, {"kv": landed})]
    events += [RoundDone(1, 1, 0, 2, 0), Synced(1, {"kv": usable}, 2, 1)]
    events += [early, end] if order == "first" else [end]
    events += [TokensCredited(1, usable * PAGE), TokensReturned(1, 32), HostHandedOver(1, "kv", ((0, usable),), ())]
    events += [AnchorUnlocked(1)]
    events += [HostReleased(1, "kv", ((landed, 8),), Part.TAIL)] if landed < 8 else []
    events += [HostReleased(1, "kv", ((usable, landed),), Part.CLAMPED)] if usable < landed else []
    events += [Settled(1), Closed(1), PagesUnlocked(1)] if close else []
    return [*events, early] if evict and order == "last" else events


def both(first: list[Any], second: list[Any]) -> list[str]:
    """Return what is found in the logs of two ranks whose engine has taken eight slots for itself before."""
    own = [Adopted("", {"kv": 8}, 0, {"kv": ((0, 8),)})]
    return found(*(log_of([*own, *each], {"kv": 16}, rank=rank, ranks=2) for rank, each in enumerate((first, second))))


def test_ranks_stop_for_reasons_of_their_own() -> None:
    """One has read all there was and the other ran out of time: the stop and the clamp are known to differ in that."""
    assert both(ended(Reason.READ_FAILED, 5, 5), ended(Reason.READ_FAILED, 5, 5)) == []
    assert both(ended(Reason.READ_FAILED, 5, 5), ended(Reason.TIMEOUT, 5, 6)) == ["reason_apart", "reason_apart"]


def test_behind_a_stop_for_another_reason_a_fault_is_still_found() -> None:
    """Ranks that stop for reasons of their own and publish different lengths are at fault."""
    names = both(ended(Reason.READ_FAILED, 5, 5), ended(Reason.TIMEOUT, 6, 6))
    assert names[0] == "reason_apart"
    assert "ranks" in names


def test_a_command_is_given_to_all_ranks() -> None:
    """A prefetch that is aborted on one rank alone is a fault, though only the reason differs; so is one superseded there."""

    def ends(reason: Reason) -> list[Any]:
        return [*kv_begin(1, 8, 8), Discarded(1, reason, None), TokensReturned(1, 32), AnchorUnlocked(1), released(1, 0, 8)]

    assert both(ends(Reason.ABORTED), ends(Reason.ABORTED)) == []
    assert both(ends(Reason.ABORTED), ends(Reason.SUPERSEDED)) == ["ranks"]


@pytest.mark.parametrize(("reasons", "expected"), [
    ((Reason.FULL_MISS, Reason.BELOW_THRESHOLD), ["reason_apart"]), ((Reason.FULL_MISS, Reason.ABORTED), ["ranks"]),
    ((Reason.FULL_MISS, Reason.HOST_CAPACITY), ["ranks"]),
])  # fmt: skip
def test_ranks_miss_for_reasons_of_their_own(reasons: tuple[Reason, Reason], expected: list[str]) -> None:
    """The least hit is too short for all: one rank has nothing and the other little. Nothing else is alike."""

    def ends(reason: Reason) -> list[Any]:
        miss = HitResolved(1, 0, {"kv": 0}, None if reason is Reason.ABORTED else reason)
        out = [Discarded(1, reason, None), TokensReturned(1, 32), AnchorUnlocked(1), Settled(1), Closed(1)]
        return [Issued(1, "r1", 0, 0, 8, "", "", 32), miss, *out]

    names = both(ends(reasons[0]), ends(reasons[1]))
    assert [name for name in names if name in ("ranks", "reason_apart")] == expected


def test_ranks_evict_when_they_can() -> None:
    """Evicting before a prefetch is over, or behind it, or another number of pages, is each rank's own business."""
    calm = ended(Reason.TIMEOUT, 5, 5, evict=2)
    assert both(calm, ended(Reason.TIMEOUT, 5, 5, evict=2, order="first")) == ["freed_apart"]
    assert both(calm, ended(Reason.TIMEOUT, 5, 5, evict=3)) == ["freed_apart"]


def test_ranks_close_when_they_can() -> None:
    """What is over on one rank may be open on the other as both go on; an end that one rank does not have is a fault."""
    calm, more = ended(Reason.TIMEOUT, 5, 5), Issued(2, "r2", 0, 0, 4, "", "", 16)
    assert both([*calm, more], [*ended(Reason.TIMEOUT, 5, 5, close=False), more]) == ["freed_apart"]
    silent = [each for each in calm if not isinstance(each, (Clamped, TokensCredited, HostHandedOver))]
    assert "ranks" in both(calm, silent)


def test_an_eviction_is_never_taken_for_an_outcome() -> None:
    """A commit on one rank where the other goes on to close is told as a fault of ranks."""
    calm = [*kv_begin(1, 8, 8), Discarded(1, Reason.ABORTED, None), TokensReturned(1, 32), AnchorUnlocked(1), released(1, 0, 8)]
    wrong = [Committed(1, 8, {"kv": ((0, 8),)}, ()) if isinstance(each, Discarded) else each for each in calm]
    assert "ranks" in both([*calm, *closed(1)], [*wrong, *closed(1)])
