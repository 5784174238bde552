"""The outcome of a prefetch: what is published follows from what was agreed to have landed, by the rule of the layout."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle import coverage
from lifecycle import ranges as r
from lifecycle.audit import owed
from lifecycle.audit.account import Account, size, without
from lifecycle.audit.endings import COMMANDS, LAST_WORDS, MISSES, REFUSALS, REVOKES
from lifecycle.audit.lateness import check_in_time
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.moves import step
from lifecycle.audit.stops import check_revoked
from lifecycle.coverage import Outcome
from lifecycle.events import Clamped, Committed, Discarded, Event, Synced
from lifecycle.layout import KV, AllPages, OutcomeRule
from lifecycle.ranges import EMPTY, Ranges
from lifecycle.reasons import Part, Reason
from lifecycle.states import State
from lifecycle.table import Trigger


def _expected(ledger: Ledger, account: Account) -> Outcome | None:
    """Return the outcome by the rule, or None where the facts for it are not in the log."""
    if len(account.agreed) != len(ledger.layout.pools):
        return None
    if not account.reserved:
        return Outcome(account.start_page)
    return coverage.outcome(
        ledger.layout, ledger.terms.degrade, account.start_page, account.plan_page, account.left_out, account.agreed
    )


def _is_whole(ledger: Ledger, account: Account) -> bool:
    """Return whether every pool landed all of the plan everywhere, which is how nearly all prefetches end."""
    plan, agreed = account.plan_page, account.agreed
    for pool in ledger.layout.pools:
        if isinstance(pool.coverage, AllPages):
            if agreed.get(pool.name) != plan:
                return False
        else:
            lo, hi = pool.window(account.start_page, plan)
            if agreed.get(pool.name) != hi - lo:
                return False
    return plan > account.start_page and bool(account.reserved)


def _committed(ledger: Ledger, account: Account, seq: int, event: Committed) -> None:
    _publish(ledger, account, seq, event, Trigger.COMMIT, State.COMMITTED)


def _clamped(ledger: Ledger, account: Account, seq: int, event: Clamped) -> None:
    _publish(ledger, account, seq, event, Trigger.CLAMP, State.CLAMPED)


def _publish(ledger: Ledger, account: Account, seq: int, event: Committed | Clamped, trigger: Trigger, dest: State) -> None:
    if not step(ledger, account, seq, event, trigger, dest):
        return
    since = account.marks.get(Synced, seq)

    def say(law: Law, what: str, right: str) -> None:
        ledger.say(law, what, right, (since, seq), account)

    # By every rule: all of the plan is published where all of it landed everywhere.
    whole = dest is State.COMMITTED and event.usable_page == account.plan_page and not event.dropped and not account.left_out
    found = None if whole and _is_whole(ledger, account) else _expected(ledger, account)
    if found is not None:
        if found.usable_page <= account.start_page:
            why = f", {found.short} fell short" if found.short else ""
            say(Law.OUTCOME, f"published up to page {event.usable_page}", f"nothing{why}: discarded")
        else:
            kind = State.COMMITTED if found.usable_page == account.plan_page else State.CLAMPED
            if event.usable_page != found.usable_page or dest is not kind:
                why = f", where {found.short} ends" if found.short else ""
                say(Law.OUTCOME, f"{dest} up to page {event.usable_page}", f"{kind} up to {found.usable_page}{why}")
            if tuple(event.dropped) != found.dropped:
                said, right = (", ".join(names) or "nothing" for names in (event.dropped, found.dropped))
                say(Law.OUTCOME, f"dropped {said}", right)
    if isinstance(event, Clamped) and account.reason is not None and event.reason is not account.reason:
        say(Law.OUTCOME, f"clamped as {event.reason}", f"{account.reason}, why it terminated")
    account.usable_page = max(account.start_page, min(event.usable_page, account.end_page))
    account.dropped = event.dropped
    account.taken = event.taken
    ledger.promised[account.id], ledger.promised_seq = account, seq
    for pool, taken in event.taken.items():
        if pool not in account.held and pool not in account.reserved:
            say(Law.PARTITION, f"the index takes pages of {pool!r}", "only of pools with reserved slots")
            continue
        pages = size(taken)
        ledger.reserved_pages[pool] -= pages
        ledger.resident_pages[pool] += pages
        if pool in account.held:
            usable = _usable(ledger, account, pool)
            if taken != usable and (not r.is_ranges(taken) or without(taken, usable)):
                say(Law.PARTITION, f"the index takes {r.text(taken)} of {pool}", f"among {r.text(usable)}, what is usable")
    account.credit = size(event.taken.get(KV, EMPTY)) * ledger.terms.page_size_tokens


def _usable(ledger: Ledger, account: Account, pool: str) -> Ranges:
    parts = account.parts(ledger.layout, pool)
    tail, clamped = parts.get(Part.TAIL, EMPTY), parts.get(Part.CLAMPED, EMPTY)
    reserved = (account.held[pool].reserved,)
    return without(reserved, r.union(tail, clamped)) if tail or clamped else reserved


def _discarded(ledger: Ledger, account: Account, seq: int, event: Discarded) -> None:
    before = account.state
    if ledger.rounds:
        check_in_time(ledger, account, seq)
    if not step(ledger, account, seq, event, Trigger.DISCARD, State.DISCARDED):
        return
    account.withdrawn = seq
    account.freeze(ledger.layout)
    if before is State.ISSUED:
        account.reason = event.reason
    if event.reason in LAST_WORDS and ledger.last_word is None:
        ledger.last_word = seq
    if event.reason in COMMANDS:
        return
    since = account.marks.get(Synced, seq)

    def say(what: str, right: str) -> None:
        ledger.say(Law.OUTCOME, what, right, (since, seq) if since != seq else (seq,), account)

    if before is not State.SYNCED:
        allowed = COMMANDS | REVOKES if before is State.ISSUED else COMMANDS
        if event.reason not in allowed:
            say(f"discarded as {event.reason} while it is {before}", f"one of {', '.join(sorted(allowed))}")
        elif before is State.ISSUED:
            check_revoked(ledger, account, seq, event)
            if event.reason in MISSES:
                owed.missed(ledger, account, seq)
        return
    found = _expected(ledger, account)
    if found is None:
        return
    if found.usable_page > account.start_page:
        if event.reason not in REFUSALS:
            right = f"{found.usable_page} is usable: published, unless {' or '.join(sorted(REFUSALS))}"
            say(f"discarded as {event.reason}", right)
        return
    rule = ledger.layout.rule(ledger.terms.degrade)
    short = bool(account.reserved) and rule is OutcomeRule.ALL_OR_NOTHING
    reason = Reason.SHORTFALL if short else account.reason
    if (reason is not None and event.reason is not reason) or event.pool != found.short:
        say(f"discarded as {event.reason} by {event.pool}", f"as {reason} by {found.short}")


HANDLERS: Mapping[type[Event], Callable[[Ledger, Account, int, Any], None]] = {
    Committed: _committed,
    Clamped: _clamped,
    Discarded: _discarded,
}
