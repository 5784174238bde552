"""Seeded bugs in the rounds and in what the scheduler asks: who takes part, what is compared, when things end."""

from lifecycle.testing.mutants_plant import Mutant

_ROWS = "lifecycle/rows.py"
_REPLICA = "lifecycle/replica.py"
_AGREEMENT = "lifecycle/runtime/agreement.py"
_TICKS = "lifecycle/runtime/ticks.py"
_OPENING = "lifecycle/runtime/opening.py"
_COORDINATOR = "lifecycle/runtime/coordinator.py"
_ISSUING = "lifecycle/runtime/issuing.py"
_DECIDE = "lifecycle/decide.py"

ROUNDS: tuple[Mutant, ...] = (
    # --- rounds --------------------------------------------------------------------------------------------------------
    Mutant(
        "idle_ranks_stay_away", "G", _TICKS, "return self._rank.tick_number % self._rank.policies.round_every_ticks == 0",
        "return bool(self._rank.transfers.dirty) and self._rank.tick_number % self._rank.policies.round_every_ticks == 0",
        "A rank with nothing new of its own skips the collective.",
    ),
    Mutant(
        "digest_is_not_compared", "G", _ROWS,
        "same = words[0] == -words[1] and words[2] == -words[3] and words[4] == -words[5]",
        "same = words[0] == -words[1]",
        "Replicas that differ go on.",
    ),
    Mutant(
        "failure_is_not_negated", "G", _ROWS, "-header.failed,", "header.failed,",
        "The MIN hides the one rank that failed.",
    ),
    Mutant(
        "must_stop_is_not_negated", "G", _ROWS, "can_stop, -must_stop, final", "can_stop, must_stop, final",
        "A prefetch stops only where every rank must.",
    ),
    Mutant(
        "quarantine_is_not_negated", "G", _ROWS, "*(-pages for pages in header.quarantined_pages)",
        "*(pages for pages in header.quarantined_pages)",
        "The least that a rank has lost is taken off the budget, with the wrong sign.",
    ),
    Mutant(
        "shape_of_what_is_in_flight", "G", _ROWS, "buffer = np.full(self.size, NEUTRAL, dtype=np.int32)",
        "buffer = np.full(self.header + len(reports) * self.width, NEUTRAL, dtype=np.int32)",
        "The shape of the exchange depends on what a rank puts in.",
    ),
    Mutant(
        "stale_rows_count", "G", _AGREEMENT, "if id_ in in_flight and in_flight[id_].moves == moves]", "if id_ in in_flight]",
        "A row launched before an abort still decides.",
    ),
    Mutant(
        "stale_sets_count", "G", _AGREEMENT, "if prefetch is not None and prefetch.moves == moves:", "if prefetch is not None:",
        "A set of lengths launched before an abort still makes a plan.",
    ),
    Mutant(
        "same_rows_first", "G", _REPLICA, "start = bisect_right(self._ids, after)", "start = 0",
        "With more prefetches than rows, the last ones starve.",
    ),
    Mutant(
        "one_set_too_many", "G", _AGREEMENT, "][: self._policies.mask_capacity]", "][: self._policies.mask_capacity + 1]",
        "More sets are asked for than the exchange has room for.",
    ),
    Mutant(
        "own_plan_without_the_set", "G", _TICKS, "ranks, round_.number, sets_apart=True)",
        "ranks, round_.number, sets_apart=False)",
        "Each rank plans by its own set of lengths.",
    ),
    Mutant(
        "neutral_set", "A", _AGREEMENT, "masks.buffer[place, : len(transfer.lengths)] = transfer.lengths", "pass",
        "A rank says nothing about what it can restore: the MIN takes it for everything.",
    ),
    Mutant(
        "consumed_as_it_comes", "G", _TICKS, "while pending and pending[0].due <= rank.tick_number:",
        "while pending and (pending[0].due <= rank.tick_number or rank.transport.rank == 0):",
        "One rank takes a round as soon as it is there, the others at the tick that was agreed.",
    ),
    Mutant(
        "failure_of_the_others", "G", _TICKS, "if header.failed:", "if header.failed and self._fault:",
        "Where one rank failed, the others go on and wait for it.",
    ),
    Mutant(
        "raised_before_the_round", "G", _TICKS,
        "or its peers would hang\n            self.note_fault(error)",
        "or its peers would hang\n            raise error",
        "A rank with an error of its own leaves without a word.",
    ),
    Mutant(
        "published_after_failure", "E", _TICKS,
        "self._rank.failure = failure\n        discard_all(self._rank, self.issuing, Reason.SYNC_FAILED)",
        "self._rank.failure = failure",
        "After a failed round what was in flight stays where it is.",
    ),
    Mutant(
        "quarantine_waits", "F", _AGREEMENT, "if pages != self._book.replica.quarantined_pages[pool.name]:", "if False:",
        "Pages lost for good stay in the budget.",
    ),
    Mutant(
        "names_the_last_difference", "G", "lifecycle/runtime/naming.py", "next((o for o in ordinals if",
        "next((o for o in reversed(ordinals) if",
        "The command that is named is not the first that differs.",
    ),
    Mutant(
        "any_configuration", "G", _OPENING, "low.tolist(), high.tolist(), strict=False) if a != -b]",
        "low.tolist(), high.tolist(), strict=False) if a > -b]",
        "Ranks with different configurations start.",
    ),
    Mutant(
        "its_own_capacity", "G", _OPENING, "budget_pages = dict(zip(capacity_pages, budgets.tolist(), strict=False))",
        "budget_pages = dict(capacity_pages)",
        "Each rank has the budget of its own host memory.",
    ),
    Mutant(
        "counters_fall", "G", _AGREEMENT, "self.declining, self.counters = declining, counters",
        "self.declining, self.counters = declining, tuple(self.fed)",
        "A rank moves by its own counters, not by the agreed ones.",
    ),
    # --- one rank, time and the end ------------------------------------------------------------------------------------
    Mutant(
        "limits_go_unwatched", "H", "lifecycle/runtime/deadlines.py",
        "self.limits.add(deadline, transfer.local.shared.id)", "pass",
        "One rank alone looks at a prefetch only when a reader answers: limits run out unseen.",
    ),
    Mutant(
        "closed_with_reads_out", "C", "lifecycle/runtime/ending.py", "rank.transfers.give_up(transfer)", "pass",
        "At the close nothing is done about reads that are still out.",
    ),
    Mutant(
        "plans_over_a_promise", "I", _TICKS, "while waiting and not self._rank.settler.behind:", "while waiting:",
        "While the index has yet to take what it promised, other plans evict what it hangs under.",
    ),
    # --- what the scheduler asks ---------------------------------------------------------------------------------------
    Mutant(
        "ready_once_wanted", "H", _COORDINATOR, "if prefetch is None or prefetch.terminal:\n            return True",
        "if prefetch is None or self._rank.book.local[prefetch.id].wanted:\n            return True",
        "The second time admission asks, the request is ready, whatever is still being read.",
    ),
    Mutant(
        "older_attempt_goes_on", "J", _ISSUING, "if newest is not None and not newest.terminal:", "if False:",
        "A newer attempt leaves the older one in flight.",
    ),
    Mutant(
        "missed_pin", "I", _ISSUING, "return self._decide(request, attempt, keys, anchor, Reason.ANCHOR_LOST)", "pass",
        "Where the anchor is gone, the lock is skipped without a word.",
    ),
    Mutant(
        "declined_in_silence", "F", _ISSUING, "        rank.emit(decided)\n        if isinstance(decided, Declined):",
        "        if isinstance(decided, Issued):\n            rank.emit(decided)\n        if isinstance(decided, Declined):",
        "What is declined leaves no record.",
    ),
    # --- those who wait ------------------------------------------------------------------------------------------------
    Mutant(
        "overtaken_in_line", "K", _DECIDE, "return first is None or first.request == request", "return True",
        "A small request overtakes those that wait in line for room.",
    ),
    Mutant(
        "asked_again_too_early", "K", _DECIDE, "first.due_tick <= tick else None", "first.due_tick <= tick + 1 else None",
        "A miss is asked again before its pause is over.",
    ),
    Mutant(
        "declines_count_as_queries", "K", _REPLICA,
        "state = self.requests.get(event.request)\n        if state is None or event.attempt > state.attempt:",
        "state = self.requests.get(event.request)\n        if state is not None:\n            state.queries += 1\n"
        "        if state is None or event.attempt > state.attempt:",
        "A decline that asked nobody spends a query.",
    ),
    Mutant(
        "waits_for_ever", "H", _DECIDE, "tick - first.since_tick <= policies.retry.give_up_ticks:", "True:",
        "A request waits in line for room without a bound.",
    ),
    Mutant(
        "waits_at_each_try_anew", "H", "lifecycle/waiting.py", "since = known.since_tick", "since = event.tick",
        "A request that is tried in line begins to wait anew, and never gives up.",
    ),
)  # fmt: skip
