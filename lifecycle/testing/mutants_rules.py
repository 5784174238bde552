"""Seeded bugs in the pure rules: lengths, plans, outcomes, layouts, keys, votes, the table of moves."""

from lifecycle.testing.mutants_plant import Mutant

_COVERAGE = "lifecycle/coverage.py"
_LAYOUT = "lifecycle/layout.py"
_DECIDE = "lifecycle/decide.py"
_LOCAL = "lifecycle/local.py"
_VOTES = "lifecycle/votes.py"
_KEYS = "lifecycle/keys.py"

RULES: tuple[Mutant, ...] = (
    # --- what is restorable and what is usable -------------------------------------------------------------------------
    Mutant(
        "sum_of_hits", "A", _COVERAGE, "return int(np.argmin(flags))", "return int(flags.sum())",
        "A hit is the number of successes, not those before the first failure.",
    ),
    Mutant(
        "sum_of_landed", "A", _LOCAL, "end = first[0][1] if first and first[0][0] == lo else lo",
        "end = lo + r.count(self.landed.get(pool_name, EMPTY))",
        "What landed is counted over a hole.",
    ),
    Mutant(
        "kv_alone_decides", "A", _COVERAGE, "usable_page = min(plan_page, *(agreed[pool.name] for pool in required))",
        "usable_page = min(plan_page, agreed[KV])",
        "The whole kv prefix is published though the indexer is shorter.",
    ),
    Mutant(
        "longest_pool", "A", _COVERAGE, "usable_page = min(plan_page, *(agreed[pool.name] for pool in required))",
        "usable_page = min(plan_page, max(agreed[pool.name] for pool in required))",
        "The longest pool decides, not the shortest.",
    ),
    Mutant(
        "window_one_short", "A", _COVERAGE, "np.minimum(place, window_pages)", "np.minimum(place, window_pages - 1)",
        "A length counts as restorable though the first page of its trailing window is missing.",
    ),
    Mutant(
        "window_of_the_plan", "A", _COVERAGE, "covered = _covers(pool, start_page, plan_page, usable_page, agreed[pool.name])",
        "covered = _covers(pool, start_page, plan_page, usable_page, plan_page)",
        "A pool that is not required is published whatever of its window landed.",
    ),
    Mutant(
        "riders_stay", "A", _COVERAGE, "if not covered or pool.rides_on in dropped:", "if not covered:",
        "What rides on a pool that was dropped is published without it.",
    ),
    Mutant(
        "state_is_clamped", "A", _LAYOUT, "return OutcomeRule.ALL_OR_NOTHING", "return OutcomeRule.CLAMP",
        "A prefix shorter than the plan is published with a trailing state that is not its own.",
    ),
    Mutant(
        "swa_is_never_spared", "A", _LAYOUT, "spared = {Need.OPTIONAL, Need.REBUILDABLE} if degrade",
        "spared = {Need.OPTIONAL} if degrade",
        "Good kv is thrown away for a window that the model could rebuild.",
    ),
    Mutant(
        "draft_is_required", "A", _LAYOUT, "else {Need.OPTIONAL}", "else set()",
        "A draft pool shortens the prefix of the target.",
    ),
    Mutant(
        "window_below_the_span", "A", _LAYOUT,
        "return max(start_page, prefix_pages - self.coverage.window_pages), prefix_pages",
        "return max(0, prefix_pages - self.coverage.window_pages), prefix_pages",
        "A trailing window reaches below the span, into pages that the index owns.",
    ),
    # --- plans ---------------------------------------------------------------------------------------------------------
    Mutant(
        "cut_to_what_fits", "A", _COVERAGE, "plan_page = longest(lengths[:fits], start_page)",
        "plan_page = min(hit_page, start_page + fits)",
        "Under pressure the plan is what fits, whether or not it can be restored.",
    ),
    Mutant(
        "plan_over_the_budget", "F", _COVERAGE, "plan_page = longest(lengths[:fits], start_page)",
        "plan_page = hit_page",
        "The plan takes no notice of the budget.",
    ),
    Mutant(
        "revoke_shrinks", "F", _COVERAGE, "policies.pressure is Pressure.REVOKE", "policies.pressure is None",
        "Under the policy `revoke` a shorter plan is made all the same.",
    ),
    Mutant(
        "left_out_too_late", "F", _COVERAGE, "if owner not in required and hi - lo > room[owner.name]:", "if False:",
        "A pool that nobody needs is reserved though its budget is short.",
    ),
    Mutant(
        "no_threshold_after_the_cut", "F", _COVERAGE, "if plan_page - start_page < policies.threshold_pages:",
        "if plan_page <= start_page:",
        "A plan cut below the threshold is read all the same.",
    ),
    Mutant(
        "no_threshold_of_the_hit", "H", _COVERAGE, "if hit_page - start_page < policies.threshold_pages:",
        "if hit_page < start_page:",
        "A hit below the threshold is planned all the same.",
    ),
    # --- decisions -----------------------------------------------------------------------------------------------------
    Mutant(
        "limit_asked_before", "F", _DECIDE, "return replica.occupied_tokens + tokens <= policies.limit_tokens",
        "return replica.occupied_tokens < policies.limit_tokens",
        "The limit is asked before the new tokens are counted: one prefetch may go over it by its whole length.",
    ),
    Mutant(
        "span_is_not_cut", "F", _DECIDE, "end_page = min(len(keys), start_page + policies.max_pages, start_page + limit_pages)",
        "end_page = min(len(keys), start_page + limit_pages)",
        "A span longer than `max_pages` goes into a round that has no room for it.",
    ),
    Mutant(
        "abort_keeps_the_tokens", "E", _DECIDE,
        "return Discarded(prefetch.id, reason, pool), TokensReturned(prefetch.id, prefetch.reserved_tokens)",
        "return (Discarded(prefetch.id, reason, pool),)",
        "What is discarded never returns its tokens.",
    ),
    Mutant(
        "tokens_of_the_plan", "F", _DECIDE, "returned = TokensReturned(prefetch.id, prefetch.reserved_tokens)",
        "returned = TokensReturned(prefetch.id, (prefetch.plan_page - prefetch.start_page) * page_size_tokens)",
        "Occupancy is returned by what was planned, not by what was reserved.",
    ),
    Mutant(
        "credit_of_the_prefix", "L", _DECIDE, "count(taken.get(KV, EMPTY)) * page_size_tokens",
        "(found.usable_page - prefetch.start_page) * page_size_tokens",
        "Pages that the index had already are credited as loaded.",
    ),
    Mutant(
        "clamped_is_committed", "N", _DECIDE, "if found.usable_page == prefetch.plan_page:", "if found.usable_page:",
        "A shorter prefix is told as all that was planned.",
    ),
    Mutant(
        "ended_and_not_ended", "D", _DECIDE, "if prefetch.terminal:", "if prefetch.closed:",
        "A round's row moves a prefetch that has ended: a discarded one may be committed.",
    ),
    Mutant(
        "closed_before_settled", "C", _DECIDE, "if report.settled and not prefetch.closed else ()",
        "if not prefetch.closed else ()",
        "A prefetch is closed while a rank still holds something of it.",
    ),
    Mutant(
        "agreed_of_another_pool", "G", _DECIDE, "dict(zip(layout.index_of, report.landed, strict=True))",
        "dict(zip(layout.index_of, [*report.landed[1:], report.landed[0]], strict=True))",
        "What was agreed on one pool is read as another's.",
    ),
    Mutant(
        "no_cap", "H", _DECIDE, "report.ceiling_page < prefetch.ceiling_page", "report.ceiling_page < 0",
        "A page that failed on one rank does not stop the others from reading on behind it.",
    ),
    Mutant(
        "failed_means_complete", "L", _DECIDE, "return Reason.COMPLETED if complete else Reason.READ_FAILED",
        "return Reason.COMPLETED",
        "A prefetch that a failed read ended says that it is complete.",
    ),
    Mutant(
        "commit_after_discard", "D", "lifecycle/table.py", "State.DISCARDED: {},",
        "State.DISCARDED: {Trigger.COMMIT: State.COMMITTED},",
        "The table allows to commit what was discarded.",
    ),
    # --- votes ---------------------------------------------------------------------------------------------------------
    Mutant(
        "nothing_of_nothing", "H", _VOTES, "final = state is State.TERMINATED", "final = True",
        "Before there is a plan, 0 of 0 pages read count as complete.",
    ),
    Mutant(
        "limit_waits_for_sidecars", "H", _VOTES, "if deadline is not None and now_ns >= deadline:",
        "if deadline is not None and now_ns >= deadline and not any(local.landed.values()):",
        "Once something has landed, the limit has no effect.",
    ),
    Mutant(
        "one_limit_for_both", "H", _VOTES, "since = progress.issued_ns if progress.started_ns is None else progress.started_ns",
        "since = progress.issued_ns",
        "The time in the queue counts against the time to read.",
    ),
    Mutant(
        "queueing_is_reading", "L", _VOTES, "Reason.TIMEOUT if progress.started_ns is not None else Reason.QUEUE_TIMEOUT",
        "Reason.TIMEOUT",
        "A prefetch that never began to read says that its reads took too long.",
    ),
    Mutant(
        "best_effort_without_demand", "H", _VOTES, "(local.wanted and isinstance(policies.stop, BestEffort))",
        "isinstance(policies.stop, BestEffort)",
        "Best effort stops before anybody wants the request.",
    ),
    Mutant(
        "demand_stops_all", "H", _VOTES, "(local.wanted and isinstance(policies.stop, BestEffort))", "local.wanted",
        "Demand ends a prefetch that should be waited for.",
    ),
    Mutant(
        "lost_and_forgotten", "C", _VOTES, "if local.lost_required:", "if False:",
        "A lost read of a required pool does not stop its prefetch.",
    ),
    Mutant(
        "reserve_fails_unseen", "H", _VOTES, "if progress.reserve_failed:", "if False:",
        "A rank whose host memory refused the plan waits for reads that it never sent.",
    ),
    # --- reasons, keys -------------------------------------------------------------------------------------------------
    Mutant(
        "last_reason_wins", "L", "lifecycle/reasons.py", "_CODES = {reason: place for place, reason in",
        "_CODES = {reason: len(_BY_CODE) + 1 - place for place, reason in",
        "Codes are written from the other end: ranks agree on a reason that nobody gave.",
    ),
    Mutant(
        "head_is_not_asked", "L", _COVERAGE, "if not kv[0]:", "if False:",
        "A missing first page is told as another miss.",
    ),
    Mutant(
        "unchained_keys", "J", _KEYS, "digest = sha256(digest + data[page * nbytes : (page + 1) * nbytes]).digest()",
        "digest = sha256(data[page * nbytes : (page + 1) * nbytes]).digest()",
        "A page's key does not depend on what comes before it.",
    ),
    Mutant(
        "bigram_length_in_tokens", "J", _KEYS, "return max(0, tokens - 1 if bigram else tokens) // page_size",
        "return max(0, tokens) // page_size",
        "With bigram keys one page too many is asked for.",
    ),
    Mutant(
        "namespaces_run_together", "J", _KEYS, 'hasher.update(len(data).to_bytes(4, "little") + data)', "hasher.update(data)",
        "Two namespaces whose names read the same when joined share their pages.",
    ),
)  # fmt: skip
