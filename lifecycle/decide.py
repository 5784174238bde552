"""The decisions of the lifecycle. Each is pure: a view and facts in, events out. Changes nothing, calls nobody.

Who may decide what: `issue` and `end` follow from commands, `row`, `plan` and `outcome` from the reduced rows of a round.
"""

from collections.abc import Mapping, Sequence

from lifecycle import coverage
from lifecycle.coverage import Flags
from lifecycle.events import (
    Capped,
    Clamped,
    Closed,
    Committed,
    Declined,
    Discarded,
    Event,
    Issued,
    PlanAgreed,
    Synced,
    Terminated,
    TokensCredited,
    TokensReturned,
    WaitBegan,
    WaitEnded,
)  # fmt: skip
from lifecycle.layout import KV, Layout, OutcomeRule
from lifecycle.policies import Policies
from lifecycle.prefetch import Prefetch
from lifecycle.ranges import EMPTY, Ranges, count
from lifecycle.reasons import Reason
from lifecycle.replica import Replica
from lifecycle.rows import Report
from lifecycle.states import State
from lifecycle.waiting import Waiter

MISSES = frozenset(
    {Reason.QUERY_FAILED, Reason.SIDECAR_ABSENT, Reason.HEAD_MISSING, Reason.FULL_MISS, Reason.BELOW_THRESHOLD}
)
"""L3 was asked, and there was nothing to read: it is worth asking again."""


def issue(
    replica: Replica,
    policies: Policies,
    page_size_tokens: int,
    request: str,
    attempt: int,
    keys: Sequence[str],
    start_page: int,
    anchor_key: str,
    refused: Reason | None = None,
) -> Issued | Declined:
    """Decide whether a prefetch of [start_page, len(keys)) begins.

    The span is cut to `max_pages` and to what the limit allows with nothing else in flight. `refused` is a reason that
    was agreed or found before (readers lost, anchor lost). Nobody overtakes: while requests wait in line for room, only the
    first of them may begin, whatever would fit beside it.
    """
    limit_pages = policies.limit_tokens // page_size_tokens
    end_page = min(len(keys), start_page + policies.max_pages, start_page + limit_pages)
    tokens = (end_page - start_page) * page_size_tokens
    reason = refused
    if reason is None and end_page - start_page < policies.threshold_pages:
        reason = Reason.TOO_SHORT
    if reason is None and not (has_room(replica, policies, tokens) and _is_next(replica, request)):
        reason = Reason.RATE_LIMITED
    if reason is not None:
        return Declined(request, attempt, reason, start_page, end_page, replica.occupied_tokens, policies.limit_tokens)
    return Issued(replica.next_id, request, attempt, start_page, end_page, keys[end_page - 1], anchor_key, tokens)


def has_room(replica: Replica, policies: Policies, tokens: int) -> bool:
    """Say whether so many tokens fit under the limit beside those in flight."""
    return replica.occupied_tokens + tokens <= policies.limit_tokens


def _is_next(replica: Replica, request: str) -> bool:
    first = replica.waiting.first_for_room
    return first is None or first.request == request


def end(prefetch: Prefetch, reason: Reason, pool: str | None = None) -> tuple[Event, ...]:
    """Decide that nothing of the prefetch is published, whatever landed."""
    return Discarded(prefetch.id, reason, pool), TokensReturned(prefetch.id, prefetch.reserved_tokens)


def row(
    layout: Layout,
    prefetch: Prefetch,
    report: Report,
    landed_here: Mapping[str, int],
    participants: int,
    round_number: int,
) -> tuple[Event, ...]:
    """Decide what the agreed report of one prefetch means. Plans and outcomes are decided apart."""
    if prefetch.terminal:
        return (Closed(prefetch.id),) if report.settled and not prefetch.closed else ()
    if prefetch.state is State.TERMINATED:
        return (_synced(layout, prefetch, report, participants, round_number),) if report.final else ()
    events: list[Event] = []
    if prefetch.state is State.TRANSFERRING and report.ceiling_page < prefetch.ceiling_page:
        events.append(Capped(prefetch.id, report.ceiling_page))
    if report.final:
        events.append(Terminated(prefetch.id, _why_final(prefetch, report), dict(landed_here)))
        events.append(_synced(layout, prefetch, report, participants, round_number))
    elif report.must_stop:
        events.append(Terminated(prefetch.id, Reason.of_code(report.reason), dict(landed_here)))
    elif report.can_stop:
        events.append(Terminated(prefetch.id, Reason.BEST_EFFORT, dict(landed_here)))
    return tuple(events)


def _synced(layout: Layout, prefetch: Prefetch, report: Report, participants: int, round_number: int) -> Synced:
    return Synced(prefetch.id, dict(zip(layout.index_of, report.landed, strict=True)), participants, round_number)


def _why_final(prefetch: Prefetch, report: Report) -> Reason:
    if report.must_stop:
        return Reason.of_code(report.reason)
    complete = min(report.ceiling_page, prefetch.ceiling_page) >= prefetch.plan_page
    return Reason.COMPLETED if complete else Reason.READ_FAILED


def hit_is_known(prefetch: Prefetch, report: Report) -> bool:
    """Say whether the agreed report lets a plan be made: every rank has asked its shard."""
    return prefetch.state is State.ISSUED and _may_plan(report)


def _may_plan(report: Report) -> bool:
    return report.hit_page >= 0 and not (report.must_stop or report.can_stop)


def needs_set(start_page: int, policies: Policies, report: Report) -> bool:
    """Say whether the set of a prefetch without a plan must be agreed: the shortest hit does not say no already."""
    return _may_plan(report) and report.hit_page - start_page >= policies.threshold_pages


def too_little(prefetch: Prefetch, policies: Policies, report: Report) -> tuple[Event, ...]:
    """Decide whether the shortest of the ranks' hits already says no, without asking for the sets."""
    if report.hit_page - prefetch.start_page >= policies.threshold_pages:
        return ()
    code = report.reason
    known = code <= Reason.BELOW_THRESHOLD.code  # NEUTRAL: no rank alone was short
    return end(prefetch, Reason.of_code(code) if known else Reason.BELOW_THRESHOLD)


def plan(layout: Layout, policies: Policies, prefetch: Prefetch, lengths: Flags, room: Mapping[str, int]) -> tuple[Event, ...]:
    """Decide what is read, from the lengths that all ranks can restore and the room that the budgets leave."""
    made = coverage.plan(layout, policies, prefetch.start_page, lengths, room)
    if isinstance(made, Reason):
        return end(prefetch, made)
    return (PlanAgreed(prefetch.id, made.hit_page, made.plan_page, made.cut, dict(made.reserved), made.left_out),)


def usable(layout: Layout, policies: Policies, prefetch: Prefetch, agreed: Mapping[str, int]) -> coverage.Outcome:
    """Apply the outcome rule to what was agreed; a prefetch without a plan has nothing usable."""
    if not prefetch.reserved:
        return coverage.Outcome(prefetch.start_page)
    return coverage.outcome(layout, policies.degrade, prefetch.start_page, prefetch.plan_page, prefetch.left_out, agreed)


def outcome(
    layout: Layout,
    policies: Policies,
    page_size_tokens: int,
    prefetch: Prefetch,
    found: coverage.Outcome,
    taken: Mapping[str, Ranges] | Reason,
) -> tuple[Event, ...]:
    """Decide the end of a synced prefetch: `found` is its usable length, `taken` what the index would take of it."""
    reason = prefetch.reason or Reason.COMPLETED
    if found.usable_page <= prefetch.start_page:
        if prefetch.reserved and layout.rule(policies.degrade) is OutcomeRule.ALL_OR_NOTHING:
            reason = Reason.SHORTFALL
        return end(prefetch, reason, found.short)
    if isinstance(taken, Reason):
        return end(prefetch, taken)
    credit = TokensCredited(prefetch.id, count(taken.get(KV, EMPTY)) * page_size_tokens)
    returned = TokensReturned(prefetch.id, prefetch.reserved_tokens)
    if found.usable_page == prefetch.plan_page:
        return Committed(prefetch.id, found.usable_page, dict(taken), found.dropped), credit, returned
    return Clamped(prefetch.id, found.usable_page, dict(taken), found.dropped, reason), credit, returned


# --- waiting, and trying again ------------------------------------------------------------------------------------------


def wait_after_decline(
    replica: Replica, policies: Policies, page_size_tokens: int, declined: Declined, tick: int, tried: bool = False
) -> WaitBegan | None:
    """Decide whether the request waits, after its decline was applied. `tried`: by the coordinator itself, for one that waited.

    For want of room it stands in line; one that does already keeps its place. Where the index had grown so far that what is
    missing is too short, one that was tried is tried again later: that was no query, so it is bounded by `give_up_ticks`.
    """
    retry, state = policies.retry, replica.requests.get(declined.request)
    if retry is None or state is None or state.served or state.attempt != declined.attempt:
        return None
    waiter = replica.waiting.get(declined.request)
    tokens = (declined.end_page - declined.start_page) * page_size_tokens
    due_tick = tick
    if declined.reason is Reason.TOO_SHORT and tried:
        if state.waits_since is not None and tick - state.waits_since > retry.give_up_ticks:
            return None
        due_tick = tick + retry.every_ticks
    elif declined.reason is not Reason.RATE_LIMITED:
        return None
    if waiter is not None and not (waiter.for_room and waiter.tokens != tokens):
        return None
    if waiter is None and len(replica.waiting) >= retry.max_waiting:
        return None
    return WaitBegan(declined.request, declined.attempt, declined.reason, tick, due_tick, tokens, state.queries)


def wait_after_miss(replica: Replica, policies: Policies, prefetch: Prefetch, ended: Event, tick: int) -> WaitBegan | None:
    """Decide whether the request of a prefetch that is about to end waits to ask L3 again: nothing was there to read.

    Not once it was served or has a newer attempt, and at most `max_queries` times in all.
    """
    retry = policies.retry
    if retry is None or prefetch.state is not State.ISSUED or not isinstance(ended, Discarded) or ended.reason not in MISSES:
        return None
    state = replica.requests.get(prefetch.request)
    if state is None or state.prefetch != prefetch.id or state.served or state.queries >= retry.max_queries:
        return None
    if len(replica.waiting) >= retry.max_waiting:
        return None
    due_tick, tokens = tick + retry.every_ticks, prefetch.reserved_tokens
    return WaitBegan(prefetch.request, prefetch.attempt, ended.reason, tick, due_tick, tokens, state.queries)


def given_up(replica: Replica, policies: Policies, tick: int) -> WaitEnded | None:
    """Decide whether the first in line for room has waited for too long: a pure bound, so that no line stands for ever."""
    first = replica.waiting.first_for_room
    if first is None or policies.retry is None or tick - first.since_tick <= policies.retry.give_up_ticks:
        return None
    return WaitEnded(first.request, first.attempt, tick, first.reason)


def next_for_room(replica: Replica, policies: Policies) -> Waiter | None:
    """Return the first in line for room, if there seems to be room for it now."""
    first = replica.waiting.first_for_room
    return first if first is not None and has_room(replica, policies, first.tokens) else None


def next_to_ask(replica: Replica, tick: int) -> Waiter | None:
    """Return who is due to ask L3 again."""
    first = replica.waiting.first_to_ask
    return first if first is not None and first.due_tick <= tick else None
