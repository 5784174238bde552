"""A log for each mutant that logs can show: what a run with it leaves, made by hand from a sound one.

What other tests have already is named; the rest is here, one function a mutant. `records` are numbered as in `Tape`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from audit_stories import Tape, run, tape
from kit.rig import Rig
from test_audit_faults import FAULTS
from test_audit_waits import FAULTS as WAITS
from test_audit_waits import run as waits

from lifecycle.events import (
    AnchorUnlocked,
    Capped,
    Clamped,
    Closed,
    Committed,
    CoordinatorStopped,
    Discarded,
    Event,
    HitResolved,
    HostHandedOver,
    HostReleased,
    HostReserved,
    LoadedTaken,
    LogOpened,
    PagesUnlocked,
    PlanAgreed,
    ReadClaimed,
    ReadEnded,
    Record,
    RoundDone,
    Synced,
    Terminated,
    TokensReturned,
    TransferStarted,
)
from lifecycle.layout import KV, Layout, Need, Pool
from lifecycle.policies import Pressure
from lifecycle.reasons import Part, Reason

Spoil = Callable[..., None]


class Spoilt(NamedTuple):
    """The logs of a run, one a rank, and whose fault it is: the prefetch, the request."""

    tapes: Callable[[], list[Tape]]
    prefetch: int | None
    request: str | None


LOGS: dict[str, Spoilt] = {}


def of(story: str, prefetch: int | None, request: str | None) -> Callable[[Spoil], Spoil]:
    """Note how the logs of a story are spoilt by the mutant that names the function, given each rank's tape."""

    def note(spoil: Spoil) -> Spoil:
        def tapes() -> list[Tape]:
            logs = [Tape(log) for log in (logs_of if story in RUNS else run)(story)]
            spoil(*logs)
            return logs

        LOGS[spoil.__name__] = Spoilt(tapes, prefetch, request)
        return spoil

    return note


@cache
def logs_of(story: str) -> list[tuple[Record, ...]]:
    """Return the logs of a run, one a rank; each is run once."""
    rig = RUNS[story]()
    rig.tear_down()
    return [tuple(log.records()) for log in rig.logs]


def known(name: str, prefetch: int | None, request: str | None, *mutants: str) -> None:
    """Take a fault that another test has for the log of mutants."""
    story, spoil = next((story, spoil) for _, story, spoil in FAULTS if spoil.__name__ == name)

    def tapes() -> list[Tape]:
        faulty = tape(story)
        spoil(faulty)
        return [faulty]

    LOGS.update(dict.fromkeys(mutants, Spoilt(tapes, prefetch, request)))


def waited(name: str, request: str, *mutants: str, prefetch: int | None = None) -> None:
    """Take a fault of those who wait for the log of mutants."""
    spoil = next(spoil for _, spoil in WAITS if spoil.__name__ == name)

    def tapes() -> list[Tape]:
        faulty = Tape(waits())
        spoil(faulty)
        return [faulty]

    LOGS.update(dict.fromkeys(mutants, Spoilt(tapes, prefetch, request)))


def policy(*tapes: Tape, **changed: object) -> None:
    """Change the policies of the headers."""
    for log in tapes:
        log.change(LogOpened, new={"policies": {**log.get(LogOpened).policies, **changed}})


def ends(log: Tape, kind: type[Event], **facts: Any) -> None:
    """Cut a log off after an event: what came of it is another story."""
    del log.events[log.find(kind, **facts) + 1 :]


def rounds(log: Tape, count: int, kind: type[Event], **facts: Any) -> None:
    """Put rounds of one row directly after an event, and count the later ones on."""
    place = log.find(kind, **facts)
    number = max((e.number for e in log.events[:place] if isinstance(e, RoundDone)), default=0)
    for at, event in enumerate(log.events[place + 1 :], place + 1):
        if isinstance(event, RoundDone):
            log.events[at] = msgspec.structs.replace(event, number=event.number + count)
        elif isinstance(event, Synced):
            log.events[at] = msgspec.structs.replace(event, round=event.round + count)
    more = [RoundDone(number + each, 1, 0, log.get(LogOpened).ranks, 1) for each in range(1, count + 1)]
    log.events[place + 1 : place + 1] = more


# --- runs ---------------------------------------------------------------------------------------------------------------


def headless() -> Rig:
    """The first page is missing in L3, the others are there."""
    rig = Rig("kv_only", threshold_pages=3)
    rig.stores[0].show(KV, "011", rig.prompt("r", 3))
    rig.run("r", 3)
    return rig


def drafts() -> Rig:
    """A draft with slots of its own falls short, and another pool rides on it."""
    draft = Pool("draft", need=Need.OPTIONAL)
    rig = Rig(Layout("drafts", (Pool(KV), draft, Pool("rider", rides_on="draft", need=Need.OPTIONAL))))
    rig.stores[0].say("draft", "11110", rig.prompt("r", 8))
    rig.run("r", 8)
    return rig


def apart() -> Rig:
    """Two ranks with other states: lengths 1 and 3 can be restored on one, 1 and 2 on the other."""
    rig = Rig("mamba", 2)
    keys = rig.prompt("r", 3)
    for store, there in zip(rig.stores, ("101", "110"), strict=True):
        store.show("mamba", there, keys)
    rig.run("r", 3)
    return rig


def disjoint() -> Rig:
    """As `apart`, and what they have in common is below the threshold."""
    rig = Rig("mamba", 2, threshold_pages=2)
    keys = rig.prompt("r", 3)
    for store, there in zip(rig.stores, ("101", "110"), strict=True):
        store.show("mamba", there, keys)
    rig.run("r", 3)
    return rig


RUNS = {story.__name__: story for story in (headless, drafts, apart, disjoint)}


# --- what is restorable, usable, planned --------------------------------------------------------------------------------

known("terminates_with_a_sum_in_place_of_a_run", 1, "r", "sum_of_landed")
known("publishes_more_than_agreed", 1, "r", "kv_alone_decides", "longest_pool")
known("publishes_a_pool_that_did_not_land", 1, "r", "window_of_the_plan")
known("publishes_what_fell_short", 1, "r", "state_is_clamped")
known("plans_and_reserves_another_window", 2, "b", "window_below_the_span")


@of("headless", 1, "r")
def sum_of_hits(t: Tape) -> None:
    t.change(HitResolved, new={"hit_page": 2, "leading": {KV: 2}})


@of("plain", 1, "a")
def window_one_short(t: Tape) -> None:
    t.change(HitResolved, prefetch=1, new={"leading": {KV: 8, "swa": 4}})


@of("drafts", 1, "r")
def riders_stay(t: Tape) -> None:
    t.change(Committed, new={"dropped": ("draft",)})


@of("degraded", 1, "r")
def swa_is_never_spared(t: Tape) -> None:
    t.events[t.find(Committed)] = Discarded(1, Reason.SHORTFALL, "swa")


@of("drafts", 1, "r")
def draft_is_required(t: Tape) -> None:
    t.events[t.find(Committed)] = Clamped(1, 4, {KV: ((0, 4),), "draft": ((0, 4),)}, (), Reason.COMPLETED)


@of("plain", 1, "a")
def cut_to_what_fits(t: Tape) -> None:
    t.change(HitResolved, prefetch=1, new={"leading": {KV: 8, "swa": 3}})
    plan = {"plan_page": 6, "cut": Reason.HOST_CAPACITY, "reserved": {KV: (0, 6), "swa": (2, 6)}}
    t.change(PlanAgreed, prefetch=1, new=plan)
    ends(t, PlanAgreed)


@of("short", 1, "r")
def revoke_shrinks(t: Tape) -> None:
    policy(t, pressure=Pressure.REVOKE.value)
    t.change(LogOpened, new={"capacity_pages": {KV: 6}, "budget_pages": {KV: 6}})
    t.change(PlanAgreed, new={"plan_page": 6, "cut": Reason.HOST_CAPACITY, "reserved": {KV: (0, 6)}})
    ends(t, PlanAgreed)


@of("short", 1, "r")
def no_threshold_after_the_cut(t: Tape) -> None:
    policy(t, threshold_pages=7)
    t.change(LogOpened, new={"capacity_pages": {KV: 6}, "budget_pages": {KV: 6}})
    t.change(PlanAgreed, new={"plan_page": 6, "cut": Reason.HOST_CAPACITY, "reserved": {KV: (0, 6)}})
    ends(t, PlanAgreed)


@of("disjoint", 1, "r")
def no_threshold_of_the_hit(*tapes: Tape) -> None:
    for log in tapes:
        log.change(Discarded, new={"reason": Reason.HOST_CAPACITY})


# --- decisions and votes ------------------------------------------------------------------------------------------------

known("issues_over_the_limit", 1, "a", "limit_asked_before")
known("returns_another_amount", 1, "a", "tokens_of_the_plan")
known("credits_what_the_index_had_already", 2, "b", "credit_of_the_prefix")
known("closes_before_it_settled", 1, "a", "closed_before_settled")
known("agrees_on_more_than_landed", 1, "r", "agreed_of_another_pool")
known("calls_a_failed_read_complete", 1, "r", "failed_means_complete")


@of("plain", 1, "a")
def span_is_not_cut(t: Tape) -> None:
    policy(t, max_pages=7)


@of("aborted", 1, "r")
def abort_keeps_the_tokens(t: Tape) -> None:
    t.drop(TokensReturned, prefetch=1)


@of("short", 1, "r")
def clamped_is_committed(t: Tape) -> None:
    t.events[t.find(Clamped)] = Committed(1, 4, {KV: ((0, 4),)}, ())


@of("short", 1, "r")
def no_cap(t: Tape) -> None:
    t.drop(Capped)


@of("plain", 2, "b")
def nothing_of_nothing(t: Tape) -> None:
    del t.events[t.find(HitResolved, prefetch=2) : t.find(Terminated, prefetch=2)]
    t.change(Terminated, prefetch=2, new={"landed": {KV: 0, "swa": 0}})
    ends(t, Terminated, prefetch=2)


@of("ranked", 1, "a")
def limit_waits_for_sidecars(*tapes: Tape) -> None:
    policy(*tapes, stop={"name": "timeout", "base_s": 1.0, "per_ki_token_s": 0.0, "max_s": 1.0})
    for log in tapes:
        rounds(log, 4, TransferStarted, prefetch=1)


@of("ranked", 1, "a")
def one_limit_for_both(*tapes: Tape) -> None:
    policy(*tapes, stop={"name": "timeout", "base_s": 100.0, "per_ki_token_s": 0.0, "max_s": 100.0})
    for log in tapes:
        log.change(Terminated, prefetch=1, new={"reason": Reason.TIMEOUT})


@of("ranked", 1, "a")
def queueing_is_reading(*tapes: Tape) -> None:
    policy(*tapes, stop={"name": "timeout", "base_s": 1.0, "per_ki_token_s": 0.0, "max_s": 1.0})
    for log in tapes:
        log.change(Terminated, prefetch=1, new={"reason": Reason.TIMEOUT})
        log.drop(TransferStarted, prefetch=1)


@of("plain", 1, "a")
def best_effort_without_demand(t: Tape) -> None:
    policy(t, stop={"name": "best_effort"})
    t.change(Terminated, prefetch=1, new={"reason": Reason.BEST_EFFORT})


@of("plain", 1, "a")
def demand_stops_all(t: Tape) -> None:
    t.change(Terminated, prefetch=1, new={"reason": Reason.BEST_EFFORT})


@of("lost", 1, "r")
def lost_and_forgotten(t: Tape) -> None:
    t.change(Terminated, new={"reason": Reason.COMPLETED})


@of("lost", 1, "r")
def must_stop_is_not_negated(t: Tape) -> None:
    t.change(Terminated, new={"reason": Reason.READ_FAILED})


@of("plain", 1, "a")
def reserve_fails_unseen(t: Tape) -> None:
    del t.events[t.find(HostReserved) : t.find(Terminated)]
    t.change(Terminated, prefetch=1, new={"landed": {KV: 0, "swa": 0}})
    ends(t, Terminated, prefetch=1)


@of("headless", 1, "r")
def last_reason_wins(t: Tape) -> None:
    t.change(Discarded, new={"reason": Reason.BELOW_THRESHOLD})


@of("headless", 1, "r")
def head_is_not_asked(t: Tape) -> None:
    t.change(HitResolved, new={"miss": Reason.BELOW_THRESHOLD})
    t.change(Discarded, new={"reason": Reason.BELOW_THRESHOLD})


# --- obligations, effects, reads ----------------------------------------------------------------------------------------

known("releases_before_the_read_has_ended", 1, "r", "nothing_is_busy")
known("releases_the_tail_twice", 1, "r", "discharged_and_still_owed")
known("plans_more_than_the_budget", 2, "b", "budget_has_a_floor", "evicts_by_its_own_list")
known("takes_the_loaded_tokens_twice", 1, "a", "loaded_twice")
known("hands_one_slot_to_two", 2, "b", "tail_released_twice")
known("never_unlocks_the_anchor", 1, "a", "anchor_unlocked_twice", "missed_pin")
known("unlocks_the_anchor_before_the_hand_over", 1, "a", "unlocked_before_the_hand_over")
known("evicts_what_is_locked_until_the_close", 1, "a", "handed_over_unlocked", "locked_pages_go")
known("hands_over_without_a_lock_against_the_late_write", 1, "r", "no_late_lock")
known("never_drops_the_lock_on_what_it_handed_over", 2, "b", "forgotten_before_it_is_over")
known("lands_a_page_outside_the_plan", 1, "a", "longer_answers_pass")
known("lands_after_it_was_aborted", 1, "r", "late_answers_land")
known("claims_a_read_after_the_end", 1, "r", "nothing_is_withdrawn")
known("evicts_a_tainted_slot_without_quarantine", None, None, "tainted_goes_back")
known("takes_a_quarantine_back", None, None, "quarantine_is_not_negated")
known("plans_with_pages_that_a_lost_read_took", 2, "next", "quarantine_waits")
known("takes_tokens_in_flight", 1, "a", "ready_once_wanted")
known("issues_a_newer_attempt_beside_the_older", 4, "e", "older_attempt_goes_on")


@of("ranked", 2, "b")
def usable_frees(first: Tape, second: Tape) -> None:
    first.change(HostReleased, prefetch=2, new={"part": Part.TAIL})


@of("aborted", 1, "r")
def abort_keeps_the_pages(t: Tape) -> None:
    while any(isinstance(event, HostReleased) for event in t.events):
        t.drop(HostReleased)


@of("short", 1, "r")
def closed_keeps_the_budget(t: Tape) -> None:
    t.change(PlanAgreed, new={"plan_page": 6, "cut": Reason.HOST_CAPACITY, "reserved": {KV: (0, 6)}})
    ends(t, PlanAgreed)


@of("aborted", 1, "r")
def abort_keeps_the_lock(t: Tape) -> None:
    t.drop(AnchorUnlocked, prefetch=1)


@of("apart", 1, "r")
def minimum_of_maxima(*tapes: Tape) -> None:
    for log in tapes:
        log.change(PlanAgreed, new={"hit_page": 2, "plan_page": 2, "reserved": {KV: (0, 2), "mamba": (1, 2)}})
        ends(log, PlanAgreed)


@of("aborted", 1, "r")
def claims_unheard(t: Tape) -> None:
    t.drop(ReadClaimed, prefetch=1, pages=(3, 6))


@of("ranked", 1, "a")
def reads_are_never_lost(*tapes: Tape) -> None:
    policy(*tapes, lost_read_s=2.0)
    for log in tapes:
        rounds(log, 4, TransferStarted, prefetch=1)


@of("plain", 1, "a")
def absence_is_known(t: Tape) -> None:
    t.change(HitResolved, prefetch=1, new={"leading": {}})


@of("aborted", 1, "r")
def closed_with_reads_out(t: Tape) -> None:
    del t.events[t.find(ReadEnded, prefetch=1) : t.find(CoordinatorStopped)]


@of("plain", 2, "b")
def plans_over_a_promise(t: Tape) -> None:
    place = t.find(HostHandedOver, prefetch=1, pool=KV)
    late = t.events[place : t.find(PagesUnlocked, prefetch=1) + 1]
    del t.events[place : place + len(late)]
    after = t.find(PlanAgreed, prefetch=2) + 1
    t.events[after:after] = late


# --- rounds -------------------------------------------------------------------------------------------------------------


@of("ranked", 2, "b")
def own_plan_without_the_set(first: Tape, second: Tape) -> None:
    second.change(PlanAgreed, prefetch=2, new={"hit_page": 7, "plan_page": 7, "reserved": {KV: (0, 7)}})
    for log in (first, second):
        ends(log, PlanAgreed, prefetch=2)


LOGS["room_by_its_own_list"] = LOGS["own_plan_without_the_set"]


@of("ranked", 1, "a")
def stale_rows_count(*tapes: Tape) -> None:
    for log in tapes:
        log.put(Capped(1, 0), Terminated, prefetch=1, after=False)
        ends(log, Capped)


@of("apart", None, None)
def one_set_too_many(*tapes: Tape) -> None:
    policy(*tapes, mask_capacity=1)
    for log in tapes:
        log.change(RoundDone, masks=1, new={"masks": 2})


@of("apart", 1, "r")
def neutral_set(first: Tape, second: Tape) -> None:
    for log in (first, second):
        log.change(PlanAgreed, new={"hit_page": 3, "plan_page": 3, "reserved": {KV: (0, 3), "mamba": (2, 3)}})
        ends(log, PlanAgreed)


@of("ranked", 2, "b")
def consumed_as_it_comes(first: Tape, second: Tape) -> None:
    second.put(second.drop(LoadedTaken), Closed, prefetch=2, after=False)


@of("ranked", None, None)
def any_configuration(first: Tape, second: Tape) -> None:
    policy(second, row_capacity=2)


@of("ranked", None, None)
def its_own_capacity(first: Tape, second: Tape) -> None:
    more = {pool: pages + 1 for pool, pages in second.get(LogOpened).capacity_pages.items()}
    second.change(LogOpened, new={"capacity_pages": more, "budget_pages": more})


# --- those who wait -----------------------------------------------------------------------------------------------------

waited("counts_queries_that_were_none", "m", "attempts_add_up", "declines_count_as_queries")
waited("waits_for_room_in_silence", "g", "declined_in_silence")
waited("issues_past_one_that_waits", "new", "overtaken_in_line", prefetch=4)
waited("tries_too_early", "m", "asked_again_too_early")
waited("gives_up_too_late", "g", "waits_for_ever", "waits_at_each_try_anew")

