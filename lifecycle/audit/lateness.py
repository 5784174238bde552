"""What came too late: a limit that ran out, a read that nobody answers. Rounds alone prove that a rank went on meanwhile.

A rank that is alone runs no round, and a log says nothing of its ticks: there, what comes late may be a scheduler that stood
still. Of an engine that is only observed none of this is known.
"""

from lifecycle import ranges as r
from lifecycle.audit.account import Account
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.words import duration
from lifecycle.events import HitResolved, ReadEnded, ReadLost, TransferStarted
from lifecycle.reasons import Reason
from lifecycle.states import State


def check_answered_in_time(
    ledger: Ledger, account: Account, seq: int, event: ReadEnded | ReadLost, claim: int, claimed_ns: int
) -> None:
    """Say that a read should have been given up: two rounds ended after its time, and a tick looks for lost reads first."""
    limit_ns = ledger.terms.lost_read_ns
    if limit_ns is None or ledger.terms.stop is None or len(ledger.rounds) < 2:
        return
    due_ns = claimed_ns + limit_ns
    if ledger.rounds[-2][1] >= due_ns:
        took = duration(ledger.now() - claimed_ns)
        what = f"the read of {r.text((event.pages,))} of {event.pool} is over {took} after its claim"
        ledger.say(Law.CLAIM, what, f"ReadLost after {duration(limit_ns)}", (claim, seq), account)


def check_in_time(ledger: Ledger, account: Account, seq: int) -> None:
    """Say that a prefetch goes on though its limit ran out on this rank, and a whole round was built and taken since.

    `rounds` are (A, B, C): what is built for B comes after A is done, and what follows from it is done before C.
    """
    terms = ledger.terms
    if terms.limit is None or terms.lag_ticks or len(ledger.rounds) < 3 or account.late:
        return
    before, (_, _, rows), _ = ledger.rounds
    if terms.row_capacity is None or rows >= terms.row_capacity:
        return  # its turn may not have come
    started = TransferStarted in account.marks
    if account.state is State.TRANSFERRING:
        if not started or not _reads(account, before[0]):
            return
    elif account.state is not State.ISSUED or HitResolved not in account.marks:
        return
    limit_ns = terms.limit.limit_ns(account.reserved_tokens)
    since_ns = account.started_ns if started else account.hit_ns  # not earlier than what the rank itself counts from
    if before[1] < since_ns + limit_ns:
        return
    account.late = True
    reason = Reason.TIMEOUT if started else Reason.QUEUE_TIMEOUT
    what = f"it is {account.state} {duration(ledger.now() - since_ns)} after {'its first read' if started else 'its hit'}"
    right = f"terminated as {reason} after {duration(limit_ns)}"
    ledger.say(Law.OUTCOME, what, right, (ledger.rounds[1][0], seq), account)


def _reads(account: Account, before_seq: int) -> bool:
    """Return whether a read that counts was out by then, and is not over."""
    if account.failed or account.ceiling_page < account.plan_page:
        return False  # what lies behind the cap is not waited for
    return any(claim < before_seq for held in account.held.values() for _, claim, _ in held.claimed)
