"""Seeded bugs in what follows from the rules: obligations, releases, locks, counters, reads and residency."""

from lifecycle.testing.mutants_plant import Mutant

_LOCAL = "lifecycle/local.py"
_OBLIGATIONS = "lifecycle/obligations.py"
_REPLICA = "lifecycle/replica.py"
_SETTLE = "lifecycle/runtime/settle.py"
_STEPS = "lifecycle/runtime/steps.py"
_TRANSFERS = "lifecycle/runtime/transfers.py"
_JOBS = "lifecycle/runtime/jobs.py"
_READERS = "lifecycle/runtime/readers.py"
_RESIDENCY = "lifecycle/runtime/residency.py"

EFFECTS: tuple[Mutant, ...] = (
    # --- obligations ---------------------------------------------------------------------------------------------------
    Mutant(
        "usable_frees", "D", _LOCAL, "self.runs()[pool_name])\n        if not shared.terminal:",
        "(shared.agreed or self.runs())[pool_name])\n        if not shared.terminal:",
        "What all ranks agreed on decides what is freed here, not what landed here.",
    ),
    Mutant(
        "released_while_claimed", "C", _LOCAL, "ready = r.subtract(r.intersect(pages, held), busy)",
        "ready = r.intersect(pages, held)",
        "Pages go back before the claimed read of them is answered.",
    ),
    Mutant(
        "nothing_is_busy", "C", _OBLIGATIONS, "pages = r.union(pages, (claimed,))", "pages = r.intersect(pages, (claimed,))",
        "No page counts as being written, and nobody objects to its release.",
    ),
    Mutant(
        "settled_with_reads_out", "C", _OBLIGATIONS, "or any(self.claimed.values()) or", "or",
        "A rank says that it holds nothing while its reads still write.",
    ),
    Mutant(
        "lost_pages_go_back", "C", _LOCAL, "due.append((pool, part, r.subtract(ready, lost), r.intersect(ready, lost)))",
        "due.append((pool, part, ready, EMPTY))",
        "Pages of a lost read are released instead of quarantined.",
    ),
    Mutant(
        "abort_keeps_the_pages", "E", _LOCAL, "if self.shared.state in (State.ISSUED, State.TRANSFERRING):",
        "if self.shared.state in (State.ISSUED, State.TRANSFERRING, State.DISCARDED):",
        "What is discarded keeps its pages.",
    ),
    Mutant(
        "discharged_and_still_owed", "D", _OBLIGATIONS, "self.pages[pool] = r.subtract(self.pages[pool], pages)", "pass",
        "A released page is still owed, and released again.",
    ),
    Mutant(
        "any_amount_returns", "F", _OBLIGATIONS, "if self.tokens != tokens:", "if self.tokens is None:",
        "Tokens may be returned by another amount than was reserved.",
    ),
    Mutant(
        "second_return_passes", "F", _OBLIGATIONS, "if self.tokens != tokens:",
        "if self.tokens is not None and self.tokens != tokens:",
        "A second return of the same tokens is not refused.",
    ),
    Mutant(
        "second_unlock_passes", "D", _OBLIGATIONS, "if not self.anchor:", "if False:",
        "A second unlock of the anchor is not refused.",
    ),
    Mutant(
        "occupancy_has_a_floor", "F", _REPLICA, "self.occupied_tokens -= event.tokens",
        "self.occupied_tokens = max(0, self.occupied_tokens - event.tokens)",
        "A return of too much goes unseen.",
    ),
    Mutant(
        "budget_has_a_floor", "F", _REPLICA, "return self.budget_pages[pool] - promised",
        "return max(0, self.budget_pages[pool] - promised)",
        "After a late quarantine too little is evicted.",
    ),
    Mutant(
        "closed_keeps_the_budget", "F", _REPLICA,
        "self.reserved_pages[pool] -= hi - lo - r.count(prefetch.taken.get(pool, r.EMPTY))",
        "self.reserved_pages[pool] -= 0",
        "What was not taken never rejoins the budget.",
    ),
    Mutant(
        "loaded_twice", "L", _REPLICA, "state.taken = True", "pass",
        "The loaded tokens of a request can be taken again and again.",
    ),
    Mutant(
        "attempts_add_up", "J", "lifecycle/requests.py", "if attempt != self.attempt:", "if False:",
        "A newer attempt inherits what was counted of the older one.",
    ),
    # --- effects -------------------------------------------------------------------------------------------------------
    Mutant(
        "tail_released_twice", "D", _SETTLE, "lambda: port(pool, slots)):",
        "lambda: (port(pool, slots), port(pool, slots))[0]):",
        "The same slots are given back by two hands.",
    ),
    Mutant(
        "anchor_unlocked_twice", "D", _SETTLE, "lambda: self._index.unlock(transfer.anchor), index=True",
        "lambda: (self._index.unlock(transfer.anchor), self._index.unlock(transfer.anchor))[0], index=True",
        "One request's end drops another one's lock.",
    ),
    Mutant(
        "abort_keeps_the_lock", "E", _SETTLE, "if shared.terminal:\n            self._unlock_anchor(transfer)",
        'if shared.terminal:\n            if shared.reason != "aborted":\n                self._unlock_anchor(transfer)',
        "An abort forgets to unlock the anchor.",
    ),
    Mutant(
        "unlocked_before_the_hand_over", "I", _SETTLE,
        "if not transfer.local.obligations.anchor or (published and not transfer.end_locked):",
        "if not transfer.local.obligations.anchor:",
        "The anchor is unlocked though the index has not taken what hangs under it.",
    ),
    Mutant(
        "handed_over_unlocked", "C", _SETTLE, "lambda: self._index.lock(end_anchor), index=True", "lambda: None, index=True",
        "What was handed over may be evicted while a read still writes it.",
    ),
    Mutant(
        "no_late_lock", "C", _SETTLE, "late = r.intersect(pages, obligations.busy(pool))", "late = r.EMPTY",
        "What a rider's read may still write is handed over without a lock.",
    ),
    Mutant(
        "refused_and_forgotten", "E", _SETTLE, "            return False\n        self._tries.pop(key, None)",
        "            return True\n        self._tries.pop(key, None)",
        "What a port refused to take back counts as taken.",
    ),
    Mutant(
        "forgotten_before_it_is_over", "E", _STEPS, "if self._settler.close(transfer):",
        "if self._settler.close(transfer) or True:",
        "A prefetch is forgotten though the index would not drop its last lock.",
    ),
    Mutant(
        "minimum_of_maxima", "A", _STEPS, "elif not self._trailing:", "elif True:",
        "The shortest of the ranks' longest lengths is planned, whether or not all can restore it.",
    ),
    Mutant(
        "refused_insert_is_published", "I", _STEPS, "return found, plan if isinstance(plan, Reason)",
        "return found, {} if isinstance(plan, Reason)",
        "A prefetch is published though the place that it hangs under is gone.",
    ),
    # --- reads ---------------------------------------------------------------------------------------------------------
    Mutant(
        "ack_is_success", "B", _JOBS, "return ReadCode.SHORT", "return None",
        "An acknowledgement of fewer bytes than a page counts as a page.",
    ),
    Mutant(
        "failed_reads_land", "B", _TRANSFERS, "if code is None:", "if code is None or code:",
        "A page whose read failed counts as landed.",
    ),
    Mutant(
        "longer_answers_pass", "M", _JOBS, "len(results) != hi - lo", "len(results) < hi - lo",
        "An answer with more results than keys is read from its start.",
    ),
    Mutant(
        "store_kills_reader", "H", _JOBS, "except BaseException as error:  # as above: every page",
        "except ValueError as error:  # as above: every page",
        "A store that raises takes the reader with it.",
    ),
    Mutant(
        "late_answers_land", "C", _TRANSFERS, "if shared.state is not State.TRANSFERRING:\n            return  # counters",
        "if False:\n            return  # counters",
        "An answer after the end still counts as landed.",
    ),
    Mutant(
        "answers_count_twice", "D", _TRANSFERS, "elif not (job.lost or job.ended):", "elif not job.lost:",
        "An answer that comes twice ends its read twice.",
    ),
    Mutant(
        "claims_unheard", "C", _TRANSFERS, "            if not job.ended:\n                self._claim(job, transfer)",
        "            if False:\n                self._claim(job, transfer)",
        "A read that was claimed a moment ago counts as withdrawn.",
    ),
    Mutant(
        "nothing_is_withdrawn", "H", _TRANSFERS, "self._withdraw(transfer, -1)", "pass",
        "What nobody has begun to read is read all the same after the end.",
    ),
    Mutant(
        "reads_are_never_lost", "H", _TRANSFERS, "for job in self._claimed.since(before_ns):",
        "for job in self._claimed.since(0):",
        "A read that is never answered is waited for for ever.",
    ),
    Mutant(
        "queries_are_never_lost", "H", _TRANSFERS, "for query in self._asked.since(before_ns):",
        "for query in self._asked.since(0):",
        "An existence query that is never answered is waited for for ever.",
    ),
    Mutant(
        "lost_reader_stays_lost", "H", _TRANSFERS, "job.replaced = True\n            self._readers.add()",
        "job.replaced = True",
        "A reader that hangs is not replaced: what waits behind it waits for ever.",
    ),
    Mutant(
        "absence_is_known", "K", _TRANSFERS, "self._resolve(transfer, nothing, {}, Reason.QUERY_FAILED)",
        "self._resolve(transfer, ~nothing, {}, None)",
        "A query that failed counts as a hit.",
    ),
    Mutant(
        "first_come_only", "H", _READERS, "if running >= self._per_prefetch:", "if False:",
        "One prefetch with many reads holds every reader.",
    ),
    Mutant(
        "no_turns", "H", _READERS, "if lane:\n                self._lanes.move_to_end(prefetch)",
        "if lane:\n                pass",
        "A prefetch with many reads is not overtaken by one with few.",
    ),
    # --- residency -----------------------------------------------------------------------------------------------------
    Mutant(
        "evicts_by_its_own_list", "F", _RESIDENCY, "missing = pages - self._book.replica.budget(pool)",
        "missing = pages - self._memory.free_pages(pool)",
        "What is evicted depends on this rank's free list, not on the budget.",
    ),
    Mutant(
        "room_by_its_own_list", "F", _RESIDENCY,
        "return {pool.name: budget(pool.name) + whole(self._index.evictable_pages(pool.name))",
        "return {pool.name: self._memory.free_pages(pool.name) + whole(self._index.evictable_pages(pool.name))",
        "What is planned depends on this rank's free list, not on the budget.",
    ),
    Mutant(
        "tainted_goes_back", "C", _RESIDENCY, "dtype=np.int32) if tainted else slots[:0]",
        "dtype=np.int32) if False else slots[:0]",
        "A resident page that a lost read may still write is reused once it is evicted.",
    ),
    Mutant(
        "room_of_its_own_anchor", "I", _RESIDENCY,
        "self._index.lock(anchor)\n        try:\n            room = self.room()  # what the anchor holds cannot make any",
        "room = self.room()\n        self._index.lock(anchor)\n        try:",
        "An adoption counts on the room that its own anchor could make.",
    ),
    Mutant(
        "adoption_is_whole_or_none", "F", _RESIDENCY, "end_page = min(end_page, anchor.pages + max(0, room[pool.name]))",
        "pass",
        "An adoption that does not fit is not shortened.",
    ),
    Mutant(
        "adoption_keeps_its_slots", "E", _RESIDENCY,
        "self.unreleased += [(pool, taken) for pool, taken in slots.items() if len(taken)]",
        "pass",
        "An adoption that fails keeps the slots that it took.",
    ),
)  # fmt: skip
