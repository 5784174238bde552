"""What a log alone can show of each mutant: the law by which the audit finds it, or why no log can. Plants and runs nothing.

A law stands here if a run with the mutant can leave a log that contradicts itself or the rules; whether a given run does
depends on what happened in it. A reason stands here if the log is always that of a right run.
"""

from collections.abc import Mapping
from enum import StrEnum

from lifecycle.audit.laws import Law


class Why(StrEnum):
    """Why no log shows it; one sentence of what the log then is."""

    GUARD = "guard"
    """A guard is gone, and nothing runs into it: until something else is wrong, too, every run logs what it always did."""

    REFUSED = "refused"
    """Another guard refuses it before it is logged: the log is that of a right run, up to the error that is raised."""

    PORTS = "ports"
    """A log says what was asked of host memory and of the prefix index, and not what they did, answered or hold."""

    STORE = "store"
    """What is in a page, and what a store has of it, is in no log: only what it answered."""

    KEYS = "keys"
    """A log has digests of chains; of which tokens, pages and namespaces they were made is in none, on purpose."""

    READERS = "readers"
    """Which reader takes what, and when, is free: what waits in a queue has broken no rule."""

    TICKS = "ticks"
    """Nothing says when a rank ticked, or when a query was taken: what comes late may be a scheduler that stood still."""

    SILENT = "silent"
    """What it changes is no event: what did not happen, what an error says, what the engine counts."""

    ENDS = "ends"
    """The run stops or hangs: the logs end there, as those of a process that was killed do."""


IN_LOGS: Mapping[str, tuple[Law | Why, str]] = {
    # --- what is restorable and what is usable -------------------------------------------------------------------------
    "sum_of_hits": (Law.PLAN, "a hit without the first page, or beyond a page that is missing"),
    "sum_of_landed": (Law.OUTCOME, "more landed than the leading run of what is logged"),
    "kv_alone_decides": (Law.OUTCOME, "published beyond the shortest pool"),
    "longest_pool": (Law.OUTCOME, "published beyond the shortest pool"),
    "window_one_short": (Law.PLAN, "a hit whose window has the page at which the leading run of its pool ends"),
    "window_of_the_plan": (Law.OUTCOME, "a pool is published that did not land"),
    "riders_stay": (Law.OUTCOME, "what rides on a dropped pool is not dropped"),
    "state_is_clamped": (Law.OUTCOME, "published where a required pool fell short"),
    "swa_is_never_spared": (Law.OUTCOME, "discarded what the rule of the header publishes"),
    "draft_is_required": (Law.OUTCOME, "less is published than the required pools have"),
    "window_below_the_span": (Law.PLAN, "another window is reserved than the layout has"),
    # --- plans ---------------------------------------------------------------------------------------------------------
    "cut_to_what_fits": (Law.PLAN, "a plan whose window has a page that this rank is known not to have"),
    "plan_over_the_budget": (Why.REFUSED, "the index cannot evict so much, before the plan is logged: the simulator"),
    "revoke_shrinks": (Law.PLAN, "shorter than the hit under `revoke`"),
    "left_out_too_late": (Why.REFUSED, "the index cannot evict so much, before the plan is logged: the simulator"),
    "no_threshold_after_the_cut": (Law.PLAN, "a plan below the threshold"),
    "no_threshold_of_the_hit": (Law.OUTCOME, "host memory is blamed, and every pool has room"),
    # --- decisions -----------------------------------------------------------------------------------------------------
    "limit_asked_before": (Law.ADMISSION, "more tokens in flight than the limit"),
    "span_is_not_cut": (Law.ADMISSION, "a span longer than `max_pages`"),
    "abort_keeps_the_tokens": (Law.EXACTLY_ONCE, "settled with its tokens open"),
    "tokens_of_the_plan": (Law.EXACTLY_ONCE, "its tokens are never returned: another amount is refused"),
    "credit_of_the_prefix": (Law.EXACTLY_ONCE, "another credit than the pages that the index takes"),
    "clamped_is_committed": (Law.OUTCOME, "committed below the plan"),
    "ended_and_not_ended": (Why.REFUSED, "the table allows no move from an end: the simulator"),
    "closed_before_settled": (Law.EXACTLY_ONCE, "closed before Settled"),
    "agreed_of_another_pool": (Law.OUTCOME, "agreed on more than this rank landed"),
    "no_cap": (Law.OUTCOME, "a failed page ends it, and no cap was agreed"),
    "failed_means_complete": (Law.OUTCOME, "completed, and a page failed"),
    "commit_after_discard": (Why.GUARD, "no decision commits what has ended: a test of the table"),
    # --- votes ---------------------------------------------------------------------------------------------------------
    "nothing_of_nothing": (Law.OUTCOME, "completed without a plan"),
    "limit_waits_for_sidecars": (Law.OUTCOME, "it goes on for rounds after its limit ran out"),
    "one_limit_for_both": (Law.RANKS, "the limit had run out on no rank; with one, `outcome`"),
    "queueing_is_reading": (Law.RANKS, "the limit of reads, and no rank had begun to read"),
    "best_effort_without_demand": (Law.OUTCOME, "best effort, and nobody wanted it"),
    "demand_stops_all": (Law.OUTCOME, "best effort under another policy"),
    "lost_and_forgotten": (Law.OUTCOME, "a lost read of a required pool is not the reason"),
    "reserve_fails_unseen": (Law.OUTCOME, "the plan was not reserved, and that is not the reason"),
    # --- reasons, keys -------------------------------------------------------------------------------------------------
    "last_reason_wins": (Law.OUTCOME, "a reason that this rank's own forbids"),
    "head_is_not_asked": (Law.PLAN, "a miss without a page of kv that is not told as one"),
    "unchained_keys": (Why.KEYS, "a test of the keys"),
    "bigram_length_in_tokens": (Why.KEYS, "a test of the keys"),
    "namespaces_run_together": (Why.KEYS, "a test of the keys"),
    # --- obligations ---------------------------------------------------------------------------------------------------
    "usable_frees": (Law.PARTITION, "pages go as another part than they are"),
    "released_while_claimed": (Why.REFUSED, "the books do not release what a read may write: the simulator"),
    "nothing_is_busy": (Law.QUIESCENCE, "released while a claimed read may write it"),
    "settled_with_reads_out": (Why.GUARD, "pages under a read are open as well, and keep it from settling: a test"),
    "lost_pages_go_back": (Why.REFUSED, "the books do not release what a lost read may write: the simulator"),
    "abort_keeps_the_pages": (Law.PARTITION, "settled or stopped with pages open"),
    "discharged_and_still_owed": (Law.PARTITION, "a page is released twice"),
    "any_amount_returns": (Why.GUARD, "nobody returns another amount: a test"),
    "second_return_passes": (Why.GUARD, "nobody returns tokens twice: a test"),
    "second_unlock_passes": (Why.GUARD, "nobody unlocks twice: a test"),
    "occupancy_has_a_floor": (Why.GUARD, "nobody returns too much: a test"),
    "budget_has_a_floor": (Law.BALANCE, "more is promised than there is"),
    "closed_keeps_the_budget": (Law.PLAN, "a plan is cut, or revoked, though nobody was promised the room"),
    "loaded_twice": (Law.EXACTLY_ONCE, "the loaded tokens are taken twice"),
    "attempts_add_up": (Law.WAITING, "queries of an older attempt are counted"),
    # --- effects -------------------------------------------------------------------------------------------------------
    "tail_released_twice": (Law.SLOTS, "a slot is handed out that another one holds"),
    "anchor_unlocked_twice": (Law.EXACTLY_ONCE, "an anchor is never unlocked: the index refuses the second time"),
    "abort_keeps_the_lock": (Law.EXACTLY_ONCE, "never unlocked"),
    "unlocked_before_the_hand_over": (Law.EXACTLY_ONCE, "unlocked before the hand-over"),
    "handed_over_unlocked": (Law.QUIESCENCE, "what was handed over is evicted before the close"),
    "no_late_lock": (Law.QUIESCENCE, "handed over under a read, and not locked against it"),
    "refused_and_forgotten": (Why.PORTS, "the slots that memory kept are missing in memory alone: the simulator"),
    "forgotten_before_it_is_over": (Law.EXACTLY_ONCE, "the lock on what it handed over is never dropped"),
    "minimum_of_maxima": (Law.PLAN, "a plan whose window has a page that this rank is known not to have"),
    "refused_insert_is_published": (Why.PORTS, "the index's refusal is no event, and taking nothing may be right: simulator"),
    # --- reads ---------------------------------------------------------------------------------------------------------
    "ack_is_success": (Why.STORE, "the bytes of the page: the simulator, byte by byte"),
    "failed_reads_land": (Why.STORE, "what the store answered is told wrong, and alone: the simulator, byte by byte"),
    "longer_answers_pass": (Law.CLAIM, "pages are answered that were not asked for"),
    "store_kills_reader": (Why.STORE, "a read that nobody answers is logged as lost, whatever took the reader: the simulator"),
    "late_answers_land": (Law.LATE, "landed after the end"),
    "answers_count_twice": (Why.REFUSED, "the books end a read once: a test"),
    "claims_unheard": (Law.CLAIM, "a read ends that was never claimed, or is claimed long after the end"),
    "nothing_is_withdrawn": (Law.CLAIM, "claimed after the end"),
    "reads_are_never_lost": (Law.CLAIM, "a read is out for rounds after it should have been given up"),
    "queries_are_never_lost": (Why.TICKS, "when a reader took the query is no event: a test"),
    "lost_reader_stays_lost": (Why.READERS, "fewer readers are slower readers: a test"),
    "absence_is_known": (Law.PLAN, "a hit of pages that no pool was asked for"),
    "first_come_only": (Why.READERS, "a test"),
    "no_turns": (Why.READERS, "a test"),
    # --- residency -----------------------------------------------------------------------------------------------------
    "evicts_by_its_own_list": (Law.BALANCE, "more is promised than there is"),
    "room_by_its_own_list": (Law.RANKS, "the ranks plan other lengths"),
    "tainted_goes_back": (Law.QUIESCENCE, "evicted to be free, and a lost read may write it"),
    "room_of_its_own_anchor": (Why.SILENT, "an adoption that comes to nothing leaves no record: a test"),
    "adoption_is_whole_or_none": (Why.SILENT, "an adoption that comes to nothing leaves no record: a test"),
    "adoption_keeps_its_slots": (Why.PORTS, "what an adoption took and did not log is missing in memory alone: a test"),
    # --- rounds --------------------------------------------------------------------------------------------------------
    "idle_ranks_stay_away": (Why.ENDS, "a collective that never comes: the simulator"),
    "digest_is_not_compared": (Why.GUARD, "until ranks differ; then `ranks` says so, whoever stops them: a test"),
    "failure_is_not_negated": (Why.GUARD, "the digest of a rank that failed differs, and ends the run as well: a test"),
    "must_stop_is_not_negated": (Law.OUTCOME, "what this rank must stop for is not the reason"),
    "quarantine_is_not_negated": (Law.BALANCE, "less is off the budget than was lost, or fell back"),
    "shape_of_what_is_in_flight": (Why.ENDS, "the collective fails, as it would at a broken wire: a test"),
    "stale_rows_count": (Law.RANKS, "capped to a page that failed on no rank"),
    "stale_sets_count": (Why.REFUSED, "the table allows no plan after the end: the simulator"),
    "same_rows_first": (Why.SILENT, "whose rows a round had is no event: a test"),
    "one_set_too_many": (Law.RANKS, "a round called for more sets than it has room for"),
    "own_plan_without_the_set": (Law.RANKS, "the ranks plan other lengths"),
    "neutral_set": (Law.PLAN, "agreed on a longer hit than this rank's own"),
    "consumed_as_it_comes": (Law.RANKS, "the same events in another order"),
    "failure_of_the_others": (Why.ENDS, "the others wait for a rank that has left: a test"),
    "raised_before_the_round": (Why.ENDS, "the others wait for a rank that has left: a test"),
    "published_after_failure": (Why.SILENT, "the failure is no event: discarded a tick later reads the same: a test"),
    "quarantine_waits": (Law.BALANCE, "what was lost is still counted as room"),
    "names_the_last_difference": (Why.SILENT, "what the error says: a test"),
    "any_configuration": (Law.RANKS, "headers of one run that differ"),
    "its_own_capacity": (Law.RANKS, "headers of one run that differ"),
    "counters_fall": (Why.SILENT, "the engine's counters: a test"),
    # --- one rank, time and the end ------------------------------------------------------------------------------------
    "limits_go_unwatched": (Why.TICKS, "a rank that is alone: a test"),
    "closed_with_reads_out": (Law.PARTITION, "stopped with pages open"),
    "plans_over_a_promise": (Law.PLAN, "a plan before the hand-over of what the index had promised to take"),
    # --- what the scheduler asks ---------------------------------------------------------------------------------------
    "ready_once_wanted": (Law.LEGAL, "the engine goes on while it is in flight"),
    "older_attempt_goes_on": (Law.ADMISSION, "a newer attempt beside the older"),
    "missed_pin": (Law.EXACTLY_ONCE, "an anchor that was never locked is never unlocked"),
    "declined_in_silence": (Law.WAITING, "it waits, and was not declined"),
    # --- those who wait ------------------------------------------------------------------------------------------------
    "overtaken_in_line": (Law.WAITING, "issued past one that waits for room"),
    "asked_again_too_early": (Law.WAITING, "tried before it is due"),
    "declines_count_as_queries": (Law.WAITING, "queries are counted that were none"),
    "waits_for_ever": (Law.WAITING, "it waited for room beyond the bound"),
    "waits_at_each_try_anew": (Law.WAITING, "it waited for room beyond the bound"),
    # --- the reference stores ------------------------------------------------------------------------------------------
    "free_slots_are_freed": (Why.GUARD, "nobody gives back what is free: a test"),
    "locked_pages_go": (Law.QUIESCENCE, "what was handed over is evicted before the close"),
    "match_over_a_hole": (Why.PORTS, "what the index answers is taken at its word: a test"),
    "riders_are_served_uncovered": (Why.PORTS, "what the index answers is taken at its word: the simulator, byte by byte"),
    "any_key_will_do": (Why.STORE, "the header of a page: a test"),
    "belief_after_failure": (Why.STORE, "what a store believes: a test"),
    "belief_for_ever": (Why.STORE, "what a store believes: a test"),
    "bad_page_stays": (Why.STORE, "what a store believes: a test"),
}
"""One entry for each mutant: the law, or why there is none; then what the log says, or what finds it instead."""


def in_logs(name: str) -> str:
    """Return the entry of a mutant in a line, for people; without a law it begins with `-`."""
    found, says = IN_LOGS[name]
    return f"{found}: {says}" if isinstance(found, Law) else f"- ({found}) {says}"
