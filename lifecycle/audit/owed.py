"""What must follow: a wait after a decline or a miss, by the policy of the log; a newer attempt after a wait that it ended.

Told at the next record that has to do with requests, so that nothing is looked at for each event.
"""

from lifecycle.audit.account import Account
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.reasons import Reason


def missed(ledger: Ledger, account: Account, seq: int) -> None:
    """Note that L3 had nothing for a prefetch that is discarded by this record: it is asked again, if the policy says so."""
    view, retry, reason = ledger.requests.get(account.request), ledger.terms.retry, account.reason
    if retry is None or view is None or reason is None or view.prefetch != account.id or view.served:
        return
    if view.queries < retry.max_queries:
        owe(ledger, account.request, account.attempt, seq + 2, reason)


def finished(ledger: Ledger, seq: int, request: str) -> None:
    """Take in that a request is forgotten."""
    check(ledger, seq)
    check_superseded(ledger, seq, request)
    ledger.waits.drop(request)


def owe(ledger: Ledger, request: str, attempt: int, seq: int, reason: Reason) -> None:
    """Note that a wait must begin with record `seq`, unless too many wait."""
    waits, retry = ledger.waits, ledger.terms.retry
    if retry is not None and not ledger.gapped and len(waits.line) + len(waits.asking) < retry.max_waiting:
        waits.owed = request, attempt, seq, reason


def check(ledger: Ledger, seq: int) -> None:
    """Say that a wait did not begin, if one had to."""
    owed, ledger.waits.owed = ledger.waits.owed, None
    if owed is not None:
        request, attempt, due_seq, reason = owed
        what = f"attempt {attempt} does not wait after {reason}"
        ledger.say(Law.WAITING, what, f"WaitBegan at record {due_seq}", (due_seq - 1, seq), None, request)


def comes(ledger: Ledger, seq: int, request: str, attempt: int) -> None:
    """Take in an attempt that is issued or declined."""
    check(ledger, seq)
    known = ledger.waits.superseded.get(request)
    if known is not None:
        if attempt > known[0]:
            del ledger.waits.superseded[request]
        else:
            check_superseded(ledger, seq, request)


def check_superseded(ledger: Ledger, seq: int, request: str) -> None:
    """Say that no newer attempt came after a wait that one had ended.

    In 0.1.0 an index that refused to lock kept it out, and no event said so; but then this rank's next round failed, so that
    at most those that were on their way were done after it. Of a rank that is alone it is not known, nor with a lag above 1.
    """
    known, rounds, done = ledger.waits.superseded.pop(request, None), ledger.rounds, 2 + ledger.terms.lag_ticks
    if known is not None and ledger.terms.ranks > 1 and len(rounds) >= done and rounds[-done][0] > known[1]:
        what = f"the wait of attempt {known[0]} was over as {Reason.SUPERSEDED}, and no newer one came"
        ledger.say(Law.WAITING, what, f"an attempt above {known[0]} is issued or declined next", (known[1], seq), None, request)
