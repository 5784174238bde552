"""Logs of real runs, each spoilt in one way: what is first said is said under the right law."""

from collections.abc import Callable

import msgspec
import pytest
from audit_stories import Tape, tape, verify

from lifecycle.audit import Law
from lifecycle.events import (
    AnchorUnlocked,
    Capped,
    Clamped,
    Closed,
    Committed,
    CoordinatorStopped,
    Declined,
    Discarded,
    Evicted,
    HitResolved,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    HostReserved,
    Issued,
    LateWriteEnded,
    LoadedTaken,
    LogOpened,
    PagesLanded,
    PagesUnlocked,
    PlanAgreed,
    PrefixServed,
    QuarantineAgreed,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    RequestFinished,
    RoundDone,
    Settled,
    Synced,
    Terminated,
    TokensCredited,
    TokensReturned,
    TransferStarted,
    Wanted,
)
from lifecycle.reasons import Part, ReadCode, Reason

Spoil = Callable[[Tape], None]

FAULTS: list[tuple[Law, str, Spoil]] = []


def spoilt(law: Law, story: str) -> Callable[[Spoil], Spoil]:
    """Note a way to spoil the log of a story, and the law that it breaks."""

    def note(spoil: Spoil) -> Spoil:
        FAULTS.append((law, story, spoil))
        return spoil

    return note


# --- header, order, legality ------------------------------------------------------------------------------------------------


@spoilt(Law.HEADER, "plain")
def begins_without_a_header(t: Tape) -> None:
    t.drop(LogOpened)


@spoilt(Law.HEADER, "plain")
def is_opened_twice(t: Tape) -> None:
    t.double(LogOpened)


@spoilt(Law.HEADER, "plain")
def has_a_layout_that_contradicts_itself(t: Tape) -> None:
    t.change(LogOpened, new={"layout": {"name": "none", "pools": []}})


@spoilt(Law.HEADER, "plain")
def says_something_after_the_stop(t: Tape) -> None:
    t.events.append(RequestFinished("b"))


@spoilt(Law.LEGAL, "plain")
def forgets_to_terminate(t: Tape) -> None:
    t.drop(Terminated)


@spoilt(Law.LEGAL, "plain")
def commits_without_agreement(t: Tape) -> None:
    t.drop(Synced)


@spoilt(Law.LEGAL, "plain")
def speaks_of_a_prefetch_that_never_was(t: Tape) -> None:
    t.put(Wanted(9), Issued, prefetch=2)


@spoilt(Law.LEGAL, "plain")
def reuses_an_id(t: Tape) -> None:
    t.change(Issued, prefetch=2, new={"prefetch": 1})


@spoilt(Law.LEGAL, "plain")
def takes_tokens_of_a_finished_request(t: Tape) -> None:
    t.put(LoadedTaken("a", 0, 32), RequestFinished)


@spoilt(Law.LATE, "pressed")
def goes_on_after_the_run_was_ended(t: Tape) -> None:
    t.change(Discarded, reason=Reason.SUPERSEDED, new={"reason": Reason.SHUTDOWN})


# --- admission and plan -----------------------------------------------------------------------------------------------------


@spoilt(Law.ADMISSION, "pressed")
def issues_over_the_limit(t: Tape) -> None:
    t.change(LogOpened, new={"policies": t.get(LogOpened).policies | {"limit_tokens": 20}})
    for place in [place for place, event in enumerate(t.events) if isinstance(event, Declined)][::-1]:
        del t.events[place]


@spoilt(Law.ADMISSION, "plain")
def reserves_other_tokens_than_the_span_has(t: Tape) -> None:
    t.change(Issued, prefetch=1, new={"reserved_tokens": 4})


@spoilt(Law.ADMISSION, "pressed")
def declines_as_rate_limited_what_fits(t: Tape) -> None:
    t.change(Declined, reason=Reason.TOO_SHORT, new={"reason": Reason.RATE_LIMITED})


@spoilt(Law.ADMISSION, "pressed")
def declines_as_too_short_what_is_not(t: Tape) -> None:
    t.change(Declined, reason=Reason.RATE_LIMITED, new={"reason": Reason.TOO_SHORT})


@spoilt(Law.ADMISSION, "pressed")
def declines_with_a_wrong_occupancy(t: Tape) -> None:
    t.change(Declined, reason=Reason.TOO_SHORT, new={"occupied_tokens": 12})


@spoilt(Law.ADMISSION, "pressed")
def issues_a_newer_attempt_beside_the_older(t: Tape) -> None:
    t.change(LogOpened, new={"policies": t.get(LogOpened).policies | {"limit_tokens": 1000}})
    for place in [place for place, event in enumerate(t.events) if isinstance(event, Declined)][::-1]:
        del t.events[place]
    newer = t.drop(Issued, request="e", attempt=1)
    t.put(newer, Discarded, reason=Reason.SUPERSEDED, after=False)


@spoilt(Law.PLAN, "plain")
def plans_beyond_the_hit(t: Tape) -> None:
    t.change(HitResolved, prefetch=1, new={"hit_page": 5})


@spoilt(Law.PLAN, "plain")
def plans_before_the_shard_was_asked(t: Tape) -> None:
    t.drop(HitResolved, prefetch=1)


@spoilt(Law.PLAN, "plain")
def reserves_another_window_than_the_layout_has(t: Tape) -> None:
    t.change(PlanAgreed, prefetch=1, new={"reserved": {"kv": (0, 8), "swa": (3, 8)}})


@spoilt(Law.PLAN, "plain")
def reads_with_a_pool_not_reserved(t: Tape) -> None:
    t.drop(HostReserved, prefetch=1, pool="swa")


@spoilt(Law.BALANCE, "pressed")
def plans_more_than_the_budget(t: Tape) -> None:
    t.drop(Evicted, pool="kv")


@spoilt(Law.BALANCE, "plain")
def reserves_slots_that_the_pool_does_not_have(t: Tape) -> None:
    t.change(HostReserved, prefetch=1, pool="kv", new={"slots": ((30, 38),)})


@spoilt(Law.PLAN, "plain")
def reserves_a_pool_twice(t: Tape) -> None:
    t.double(HostReserved, prefetch=1, pool="swa")


@spoilt(Law.PLAN, "plain")
def plans_more_than_the_hit_has(t: Tape) -> None:
    t.change(PlanAgreed, prefetch=1, new={"hit_page": 5})


@spoilt(Law.PLAN, "plain")
def plans_and_reserves_another_window(t: Tape) -> None:
    t.change(PlanAgreed, prefetch=2, new={"reserved": {"kv": (0, 6), "swa": (1, 6)}})
    t.change(HostReserved, prefetch=2, pool="swa", new={"pages": (1, 6), "slots": ((4, 9),)})


@spoilt(Law.PLAN, "plain")
def cuts_a_plan_for_no_reason(t: Tape) -> None:
    t.change(HitResolved, prefetch=2, new={"hit_page": 6})
    t.change(PlanAgreed, prefetch=2, new={"cut": Reason.HOST_CAPACITY})


@spoilt(Law.LEGAL, "plain")
def skips_an_id(t: Tape) -> None:
    for place, event in enumerate(t.events):
        if getattr(event, "prefetch", 0) == 2:
            t.events[place] = msgspec.structs.replace(event, prefetch=3)


@spoilt(Law.LEGAL, "plain")
def takes_tokens_in_flight(t: Tape) -> None:
    t.drop(LoadedTaken)
    t.put(LoadedTaken("a", 0, 0), HitResolved, prefetch=1)


@spoilt(Law.LEGAL, "plain")
def starts_before_a_read_is_claimed(t: Tape) -> None:
    t.put(t.drop(TransferStarted, prefetch=1), ReadClaimed, prefetch=1, after=False)


@spoilt(Law.LEGAL, "plain")
def finishes_a_request_in_flight(t: Tape) -> None:
    t.put(RequestFinished("b"), HitResolved, prefetch=2)


@spoilt(Law.LEGAL, "aborted")
def releases_while_it_is_transferring(t: Tape) -> None:
    t.put(t.drop(HostReleased, prefetch=1), Discarded, prefetch=1, after=False)


@spoilt(Law.RANKS, "ranked")
def counts_other_ranks_in_a_round(t: Tape) -> None:
    t.change(RoundDone, new={"participants": 1})


@spoilt(Law.RANKS, "ranked")
def repeats_the_number_of_a_round(t: Tape) -> None:
    t.change(RoundDone, 1, new={"number": 1})


@spoilt(Law.RANKS, "ranked")
def agrees_in_a_round_that_is_not_the_last(t: Tape) -> None:
    t.change(Synced, prefetch=1, new={"round": 2})


# --- reads ------------------------------------------------------------------------------------------------------------------


@spoilt(Law.LATE, "plain")
def lands_after_it_terminated(t: Tape) -> None:
    landed = t.drop(PagesLanded, prefetch=1, pool="swa")
    t.change(Terminated, prefetch=1, new={"landed": {"kv": 8, "swa": 0}})
    t.put(t.drop(ReadEnded, prefetch=1, pool="swa"), Terminated, prefetch=1)
    t.put(landed, Terminated, prefetch=1)


@spoilt(Law.LATE, "aborted")
def lands_after_it_was_aborted(t: Tape) -> None:
    t.put(PagesLanded(1, "kv", (0, 3), 48), Discarded, prefetch=1)


@spoilt(Law.LATE, "aborted")
def fails_after_it_was_aborted(t: Tape) -> None:
    t.put(ReadFailed(1, "kv", (0, 3), ReadCode.MISSING), ReadEnded, prefetch=1, after=False)


@spoilt(Law.LATE, "aborted")
def commits_after_it_was_aborted(t: Tape) -> None:
    t.put(Committed(1, 8, {"kv": ((0, 8),)}, ()), AnchorUnlocked, prefetch=1)


@spoilt(Law.LATE, "aborted")
def credits_what_was_aborted(t: Tape) -> None:
    t.put(TokensCredited(1, 12), AnchorUnlocked, prefetch=1)


@spoilt(Law.LATE, "plain")
def commits_what_is_closed(t: Tape) -> None:
    t.put(t.get(Committed, prefetch=1), RequestFinished)


@spoilt(Law.CLAIM, "aborted")
def claims_a_read_after_the_end(t: Tape) -> None:
    t.put(ReadClaimed(1, "kv", (6, 8)), AnchorUnlocked, prefetch=1)


@spoilt(Law.CLAIM, "plain")
def claims_a_read_of_what_is_closed(t: Tape) -> None:
    t.put(t.get(ReadClaimed, prefetch=1), RequestFinished)


@spoilt(Law.CLAIM, "capped")
def claims_beyond_the_agreed_cap(t: Tape) -> None:
    t.put(ReadClaimed(1, "kv", (5, 6)), PagesLanded, prefetch=1)


@spoilt(Law.CLAIM, "plain")
def claims_the_same_pages_twice(t: Tape) -> None:
    t.double(ReadClaimed, prefetch=1, pool="kv")


@spoilt(Law.CLAIM, "plain")
def lands_what_nobody_reads(t: Tape) -> None:
    t.put(t.drop(PagesLanded, prefetch=1, pool="swa"), ReadClaimed, prefetch=1, pool="swa", after=False)


@spoilt(Law.CLAIM, "plain")
def lands_a_page_outside_the_plan(t: Tape) -> None:
    t.change(PagesLanded, prefetch=1, pool="swa", new={"pages": (3, 8)})


@spoilt(Law.CLAIM, "refused")
def ends_a_read_with_a_page_unanswered(t: Tape) -> None:
    t.drop(ReadFailed)


@spoilt(Law.CLAIM, "plain")
def ends_a_read_twice(t: Tape) -> None:
    t.double(ReadEnded, prefetch=1, pool="kv")


# --- outcome ----------------------------------------------------------------------------------------------------------------


@spoilt(Law.OUTCOME, "short")
def terminates_with_a_sum_in_place_of_a_run(t: Tape) -> None:
    t.change(Terminated, new={"landed": {"kv": 8, "indexer": 9}})


@spoilt(Law.OUTCOME, "short")
def agrees_on_more_than_landed(t: Tape) -> None:
    t.change(Synced, new={"agreed": {"kv": 8, "indexer": 8}})


@spoilt(Law.OUTCOME, "plain")
def agrees_on_less_than_the_only_rank_landed(t: Tape) -> None:
    t.change(Synced, prefetch=1, new={"agreed": {"kv": 7, "swa": 4}})


@spoilt(Law.OUTCOME, "short")
def publishes_more_than_agreed(t: Tape) -> None:
    t.change(Clamped, new={"usable_page": 8, "taken": {"kv": ((0, 8),)}})


@spoilt(Law.OUTCOME, "short")
def publishes_less_than_agreed(t: Tape) -> None:
    t.change(Clamped, new={"usable_page": 3, "taken": {"kv": ((0, 3),)}})


@spoilt(Law.OUTCOME, "refused")
def publishes_what_fell_short(t: Tape) -> None:
    place = t.find(Discarded)
    t.events[place] = Committed(1, 8, {"kv": ((0, 8),)}, ())


@spoilt(Law.OUTCOME, "plain")
def discards_what_is_usable(t: Tape) -> None:
    t.events[t.find(Committed, prefetch=1)] = Discarded(1, Reason.SHORTFALL, "swa")


@spoilt(Law.OUTCOME, "refused")
def blames_the_wrong_pool(t: Tape) -> None:
    t.change(Discarded, new={"pool": "kv"})


@spoilt(Law.OUTCOME, "degraded")
def publishes_a_pool_that_did_not_land(t: Tape) -> None:
    t.change(Committed, new={"dropped": ()})


@spoilt(Law.OUTCOME, "short")
def clamps_for_another_reason_than_it_terminated(t: Tape) -> None:
    t.change(Clamped, new={"reason": Reason.TIMEOUT})


@spoilt(Law.OUTCOME, "short")
def calls_a_failed_read_complete(t: Tape) -> None:
    t.change(Terminated, new={"reason": Reason.COMPLETED})
    t.change(Clamped, new={"reason": Reason.COMPLETED})


@spoilt(Law.OUTCOME, "plain")
def terminates_for_a_reason_that_stops_nothing(t: Tape) -> None:
    t.change(Terminated, prefetch=1, new={"reason": Reason.DUPLICATE})


# --- debts ------------------------------------------------------------------------------------------------------------------


@spoilt(Law.EXACTLY_ONCE, "plain")
def never_unlocks_the_anchor(t: Tape) -> None:
    t.drop(AnchorUnlocked, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def unlocks_the_anchor_twice(t: Tape) -> None:
    t.double(AnchorUnlocked, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def unlocks_the_anchor_before_the_hand_over(t: Tape) -> None:
    t.put(t.drop(AnchorUnlocked, prefetch=1), TokensReturned, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def unlocks_the_anchor_again_long_after(t: Tape) -> None:
    t.put(AnchorUnlocked(1), RequestFinished)


@spoilt(Law.EXACTLY_ONCE, "plain")
def returns_no_tokens(t: Tape) -> None:
    t.drop(TokensReturned, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def returns_tokens_twice(t: Tape) -> None:
    t.double(TokensReturned, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def returns_another_amount(t: Tape) -> None:
    t.change(TokensReturned, prefetch=1, new={"tokens": 28})


@spoilt(Law.EXACTLY_ONCE, "plain")
def credits_another_amount(t: Tape) -> None:
    t.change(TokensCredited, prefetch=1, new={"tokens": 36})


@spoilt(Law.EXACTLY_ONCE, "twice")
def credits_what_the_index_had_already(t: Tape) -> None:
    t.change(TokensCredited, prefetch=2, new={"tokens": 24})


@spoilt(Law.EXACTLY_ONCE, "plain")
def credits_twice(t: Tape) -> None:
    t.double(TokensCredited, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def takes_the_loaded_tokens_twice(t: Tape) -> None:
    t.double(LoadedTaken)


@spoilt(Law.EXACTLY_ONCE, "plain")
def takes_more_than_was_credited(t: Tape) -> None:
    t.change(LoadedTaken, new={"tokens": 40})


@spoilt(Law.EXACTLY_ONCE, "plain")
def settles_twice(t: Tape) -> None:
    t.double(Settled, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def closes_before_it_settled(t: Tape) -> None:
    t.put(t.drop(Settled, prefetch=1), Closed, prefetch=1)


@spoilt(Law.EXACTLY_ONCE, "plain")
def never_closes(t: Tape) -> None:
    t.drop(PagesUnlocked, prefetch=2)
    t.drop(Closed, prefetch=2)


@spoilt(Law.EXACTLY_ONCE, "plain")
def never_drops_the_lock_on_what_it_handed_over(t: Tape) -> None:
    t.drop(PagesUnlocked, prefetch=2)


@spoilt(Law.EXACTLY_ONCE, "plain")
def drops_that_lock_before_the_close(t: Tape) -> None:
    t.put(t.drop(PagesUnlocked, prefetch=1), Closed, prefetch=1, after=False)


@spoilt(Law.EXACTLY_ONCE, "aborted")
def stops_with_a_prefetch_still_reading(t: Tape) -> None:
    del t.events[t.find(Terminated, prefetch=2) : t.find(CoordinatorStopped)]


@spoilt(Law.EXACTLY_ONCE, "late")
def ends_a_late_write_twice(t: Tape) -> None:
    t.double(LateWriteEnded)


# --- pages ------------------------------------------------------------------------------------------------------------------


@spoilt(Law.PARTITION, "short")
def never_releases_the_tail(t: Tape) -> None:
    t.drop(HostReleased, part=Part.TAIL)


@spoilt(Law.PARTITION, "short")
def releases_the_tail_twice(t: Tape) -> None:
    t.double(HostReleased, part=Part.TAIL)


@spoilt(Law.PARTITION, "short")
def swaps_the_parts(t: Tape) -> None:
    t.change(HostReleased, part=Part.TAIL, new={"part": Part.CLAMPED})


@spoilt(Law.PARTITION, "short")
def releases_a_page_that_the_index_takes(t: Tape) -> None:
    t.change(HostHandedOver, new={"pages": ((0, 3),)})
    t.change(HostReleased, part=Part.CLAMPED, new={"pages": ((3, 8),)})


@spoilt(Law.PARTITION, "short")
def hands_over_a_page_that_was_not_taken(t: Tape) -> None:
    t.change(HostHandedOver, new={"pages": ((0, 5),)})
    t.change(HostReleased, part=Part.CLAMPED, new={"pages": ((5, 8),)})


@spoilt(Law.PARTITION, "short")
def releases_what_landed_before_the_outcome(t: Tape) -> None:
    t.put(t.drop(HostReleased, part=Part.CLAMPED), Terminated)


@spoilt(Law.LEGAL, "lost")
def quarantines_while_it_is_transferring(t: Tape) -> None:
    t.put(t.drop(HostQuarantined), Terminated, after=False)


@spoilt(Law.PARTITION, "twice")
def releases_a_duplicate_as_clamped(t: Tape) -> None:
    t.change(HostReleased, part=Part.DUPLICATE, new={"part": Part.CLAMPED})


@spoilt(Law.PARTITION, "twice")
def hands_over_what_the_index_had_already(t: Tape) -> None:
    place = t.find(HostReleased, part=Part.DUPLICATE)
    t.events[place] = HostHandedOver(2, "kv", ((0, 6),), ())


@spoilt(Law.PARTITION, "short")
def releases_a_page_that_was_never_reserved(t: Tape) -> None:
    t.change(HostReleased, part=Part.TAIL, new={"pages": ((8, 11),)})


@spoilt(Law.PARTITION, "plain")
def releases_pages_of_what_is_closed(t: Tape) -> None:
    t.put(HostReleased(1, "kv", ((0, 2),), Part.TAIL), RequestFinished)


@spoilt(Law.PARTITION, "twice")
def takes_pages_that_did_not_land(t: Tape) -> None:
    t.change(Committed, prefetch=1, new={"taken": {"kv": ((0, 7),)}})


# --- quiescence and slots ---------------------------------------------------------------------------------------------------


@spoilt(Law.QUIESCENCE, "aborted")
def releases_before_the_read_has_ended(t: Tape) -> None:
    t.put(t.drop(HostReleased, 1, prefetch=1), AnchorUnlocked, prefetch=1)


@spoilt(Law.QUIESCENCE, "lost")
def releases_what_a_lost_read_may_write(t: Tape) -> None:
    place = t.find(HostQuarantined)
    quarantined = t.get(HostQuarantined)
    t.events[place] = HostReleased(1, "kv", quarantined.pages, quarantined.part)


@spoilt(Law.QUIESCENCE, "short")
def quarantines_without_a_lost_read(t: Tape) -> None:
    place = t.find(HostReleased, part=Part.TAIL)
    t.events[place] = HostQuarantined(1, "kv", ((8, 10),), Part.TAIL)


@spoilt(Law.QUIESCENCE, "late")
def hands_over_without_a_lock_against_the_late_write(t: Tape) -> None:
    t.change(HostHandedOver, new={"late": ()})


@spoilt(Law.QUIESCENCE, "late")
def drops_the_late_write_lock_before_the_read_has_ended(t: Tape) -> None:
    t.put(t.drop(ReadEnded), LateWriteEnded)


@spoilt(Law.QUIESCENCE, "late")
def settles_with_a_late_write_open(t: Tape) -> None:
    t.drop(LateWriteEnded)


@spoilt(Law.QUIESCENCE, "tainted")
def evicts_a_tainted_slot_without_quarantine(t: Tape) -> None:
    t.change(Evicted, new={"quarantined": ()})


@spoilt(Law.QUIESCENCE, "tainted")
def calls_a_lost_read_answered(t: Tape) -> None:
    t.change(LateWriteEnded, new={"lost": False})


@spoilt(Law.QUIESCENCE, "pressed")
def evicts_what_is_locked_until_the_close(t: Tape) -> None:
    evicted = t.drop(Evicted, pool="kv")
    t.put(evicted, AnchorUnlocked, prefetch=1)


@spoilt(Law.SLOTS, "twice")
def hands_one_slot_to_two(t: Tape) -> None:
    t.change(HostReserved, prefetch=2, new={"slots": ((5, 11),)})


@spoilt(Law.SLOTS, "plain")
def hands_out_a_resident_slot(t: Tape) -> None:
    t.change(HostReserved, prefetch=2, pool="kv", new={"slots": ((2, 8),)})


@spoilt(Law.SLOTS, "lost")
def hands_out_a_quarantined_slot(t: Tape) -> None:
    again = Tape([])
    again.events = tape("lost").events
    stop = t.events.pop()
    for event in again.events[1:-1]:
        if isinstance(event, (Issued, HitResolved, PlanAgreed)):
            new = {"prefetch": 2, "start_page": 4} if isinstance(event, Issued) else {"prefetch": 2}
            if isinstance(event, Issued):
                new |= {"request": "s", "reserved_tokens": 16}
            if isinstance(event, HitResolved):
                new["leading"] = {"kv": 4}
            if isinstance(event, PlanAgreed):
                new["reserved"] = {"kv": (4, 8)}
            t.events.append(type(event)(**{f: new.get(f, getattr(event, f)) for f in event.__struct_fields__}))
    t.events += [HostReserved(2, "kv", (4, 8), ((4, 8),)), stop]


@spoilt(Law.SLOTS, "pressed")
def evicts_a_slot_that_is_free(t: Tape) -> None:
    t.double(Evicted, pool="kv")


# --- balance and the rest ---------------------------------------------------------------------------------------------------


@spoilt(Law.BALANCE, "pressed")
def evicts_other_pages_than_slots(t: Tape) -> None:
    t.change(Evicted, pool="kv", new={"pages": t.get(Evicted, pool="kv").pages + 1})


@spoilt(Law.BALANCE, "lost")
def takes_a_quarantine_back(t: Tape) -> None:
    t.put(QuarantineAgreed("kv", 0), QuarantineAgreed)


@spoilt(Law.BALANCE, "tainted")
def plans_with_pages_that_a_lost_read_took(t: Tape) -> None:
    t.drop(QuarantineAgreed)


@spoilt(Law.BALANCE, "lost")
def stops_with_another_quarantine(t: Tape) -> None:
    t.change(CoordinatorStopped, new={"quarantined_pages": {"kv": 0}})


@spoilt(Law.BALANCE, "plain")
def stops_with_debts_that_are_not_there(t: Tape) -> None:
    t.change(CoordinatorStopped, new={"open_obligations": 1})


@spoilt(Law.SERVED, "plain")
def serves_what_was_not_published(t: Tape) -> None:
    served = t.drop(PrefixServed)
    t.put(served, PlanAgreed, prefetch=1)


@spoilt(Law.SERVED, "plain")
def serves_an_older_attempt(t: Tape) -> None:
    t.change(PrefixServed, new={"attempt": 3})


@spoilt(Law.SERVED, "plain")
def serves_pages_out_of_order(t: Tape) -> None:
    t.change(PrefixServed, new={"sources": ((4, 8, 1), (0, 4, 1))})


@spoilt(Law.SERVED, "plain")
def serves_from_a_prefetch_that_never_was(t: Tape) -> None:
    t.change(PrefixServed, new={"sources": ((0, 8, 7),)})


@spoilt(Law.SERVED, "plain")
def serves_from_a_prefetch_that_no_id_names(t: Tape) -> None:
    t.change(PrefixServed, new={"sources": ((0, 8, -1),)})


@spoilt(Law.PLAN, "capped")
def raises_the_cap(t: Tape) -> None:
    t.put(Capped(1, 9), Capped)


@pytest.mark.parametrize(("law", "story", "spoil"), FAULTS, ids=[f"{spoil.__name__}" for _, _, spoil in FAULTS])
def test_a_log_that(law: Law, story: str, spoil: Spoil) -> None:
    """Each fault is caught, and what is said first is the law that was broken."""
    faulty = tape(story)
    spoil(faulty)
    found = verify(faulty)
    assert found, "nothing was said"
    assert found[0].law is law, "\n".join(map(str, found))
    assert len(found) <= 10, "one fault is told too often:\n" + "\n".join(map(str, found))
