"""The moves of a prefetch from its end to the agreement: legal by the table, with counters as they are logged."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.audit.account import Account
from lifecycle.audit.lateness import check_in_time
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.stops import check_stop
from lifecycle.events import Event, Synced, Terminated, Wanted
from lifecycle.layout import AllPages
from lifecycle.machine import NEXT
from lifecycle.ranges import EMPTY
from lifecycle.reasons import Reason
from lifecycle.states import TERMINAL, State
from lifecycle.table import Trigger

STOPS = frozenset(
    {
        Reason.LOST_READ, Reason.READ_FAILED, Reason.HOST_CAPACITY, Reason.TIMEOUT, Reason.QUEUE_TIMEOUT, Reason.BEST_EFFORT,
        Reason.COMPLETED,
    }
)  # fmt: skip


def step(ledger: Ledger, account: Account, seq: int, event: Event, trigger: Trigger, dest: State) -> bool:
    """Move as the event says, also where it is not legal, so that what follows is held to what is logged; say so.

    Only a terminal state is not left: then the event is to be ignored.
    """
    state = account.state
    if ledger.last_word is not None and dest is not State.DISCARDED:
        ledger.goes_on(type(event).__name__, seq, account)
    if NEXT[state].get(trigger) is dest:
        account.state = dest
        account.published = dest is State.COMMITTED or dest is State.CLAMPED
        account.marks[type(event)] = seq
        return True
    law = Law.LATE if state in TERMINAL and dest in TERMINAL else Law.LEGAL
    legal = ", ".join(NEXT[state]) or "nothing, terminal"
    since = max(account.marks.values())
    ledger.say(law, f"{type(event).__name__} while it is {state}", f"legal here: {legal}", (since, seq), account)
    if state in TERMINAL:
        return False
    account.state = dest
    account.published = dest is State.COMMITTED or dest is State.CLAMPED
    account.marks[type(event)] = seq
    return True


def _wanted(ledger: Ledger, account: Account, seq: int, event: Wanted) -> None:
    ledger.once(account, seq, event, Law.LEGAL)
    if account.state in TERMINAL:
        ledger.say(Law.LEGAL, f"Wanted while it is {account.state}", "before its end", (seq,), account)


def _terminated(ledger: Ledger, account: Account, seq: int, event: Terminated) -> None:
    planned = account.state is State.TRANSFERRING
    if ledger.rounds:
        check_in_time(ledger, account, seq)
    if not step(ledger, account, seq, event, Trigger.TERMINATE, State.TERMINATED):
        return
    account.reason = event.reason
    account.withdrawn = seq
    if event.reason not in STOPS or (event.reason is Reason.COMPLETED and not planned):
        allowed = sorted(STOPS if planned else STOPS - {Reason.COMPLETED})
        ledger.say(Law.OUTCOME, f"terminated as {event.reason}", f"one of {', '.join(allowed)}", (seq,), account)
    if event.reason is Reason.COMPLETED:
        for pool in ledger.required:
            failed = account.failed.get(pool.name, EMPTY)
            if isinstance(pool.coverage, AllPages) and failed and failed[0][0] < account.plan_page:
                what = f"completed, and page {failed[0][0]} of {pool.name} failed here"
                ledger.say(Law.OUTCOME, what, f"{Reason.READ_FAILED}", (seq,), account)
    check_stop(ledger, account, seq, event, planned)
    runs = account.freeze(ledger.layout)
    if event.landed != runs:
        names = [name for name in {**runs, **event.landed} if event.landed.get(name) != runs.get(name)]
        what = ", ".join(f"{name} landed {event.landed.get(name)}" for name in names)
        right = ", ".join(f"{name} {runs.get(name)}" for name in names)
        ledger.say(Law.OUTCOME, what, f"{right}, the leading run of what is logged", (seq,), account)


def _synced(ledger: Ledger, account: Account, seq: int, event: Synced) -> None:
    terms = ledger.terms
    account.same_decision = account.withdrawn == seq - 1
    if not step(ledger, account, seq, event, Trigger.SYNC, State.SYNCED):
        return
    if event.participants != terms.ranks:
        ledger.say(Law.RANKS, f"synced by {event.participants} ranks", f"all {terms.ranks}", (seq,), account)
    if event.round != ledger.round_number and not ledger.gapped and (event.round or terms.ranks > 1):
        right = f"round {ledger.round_number}, the one just done"
        ledger.say(Law.RANKS, f"synced in round {event.round}", right, (ledger.round_seq, seq), account)
    runs = account.freeze(ledger.layout)
    account.agreed = {name: event.agreed[name] for name in runs if name in event.agreed}
    exact = terms.ranks == 1 and not (terms.lag_ticks and account.same_decision)
    wrong = [
        name for name, run in runs.items()
        if name not in event.agreed or event.agreed[name] > run or (exact and event.agreed[name] != run)
    ]  # fmt: skip
    if wrong or len(event.agreed) != len(runs):
        odd = wrong or [name for name in event.agreed if name not in runs]
        what = ", ".join(f"{name} {event.agreed.get(name)}" for name in odd)
        right = ", ".join(f"{name} {runs.get(name)}" for name in odd)
        seqs = (account.marks.get(Terminated, seq), seq)
        ledger.say(Law.OUTCOME, f"agreed on {what}", f"{'' if exact else 'at most '}{right}", seqs, account)


HANDLERS: Mapping[type[Event], Callable[[Ledger, Account, int, Any], None]] = {
    Wanted: _wanted,
    Terminated: _terminated,
    Synced: _synced,
}
