"""Requests that wait to be tried again: what begins a wait, who is tried when, and what bounds it, by the policy of the log.

Plain books of its own. Ticks are known from the events of waits alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.audit import owed
from lifecycle.audit.endings import COMMANDS, LAST_WORDS, MISSES
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.terms import RetryTerms
from lifecycle.audit.waitlist import Wait
from lifecycle.events import Declined, Discarded, Event, Issued, PlanAgreed, Terminated, TokensReturned, WaitBegan, WaitEnded
from lifecycle.reasons import Reason

ENDS = frozenset({None, Reason.RATE_LIMITED}) | COMMANDS


def issued(ledger: Ledger, seq: int, event: Issued) -> bool:
    """Check what is issued against who waits, before it is taken in; return whether it is a try of one that waited."""
    waits = ledger.waits
    tried = _is_tried(ledger, seq, event)
    owed.comes(ledger, seq, event.request, event.attempt)
    view, retry = ledger.requests.get(event.request), ledger.terms.retry
    if others_in_line(ledger, event.request) and not (tried and waits.from_line) and not ledger.gapped:
        first = next(iter(waits.line))
        right = f"{first!r} first: it has waited for room since record {waits.line[first].seq}"
        ledger.say(Law.WAITING, "issued past one that waits for room", right, (waits.line[first].seq, seq), event.prefetch,
                   event.request)  # fmt: skip
    if tried and view is not None and retry is not None and view.queries >= retry.max_queries and not ledger.gapped:
        what, right = f"query {view.queries + 1} of attempt {event.attempt}", f"at most {retry.max_queries}"
        ledger.say(Law.WAITING, what, right, (seq,), event.prefetch, event.request)
    waits.drop(event.request)
    return tried


def declined(ledger: Ledger, seq: int, event: Declined) -> None:
    """Take in a decline, which may be how a try went, and may begin a wait."""
    waits = ledger.waits
    waits.declined = event, seq, _is_tried(ledger, seq, event)
    owed.comes(ledger, seq, event.request, event.attempt)
    wait = waits.get(event.request)
    if wait is not None and event.attempt > wait.attempt:
        waits.drop(event.request)
        wait = None
    view, newest = ledger.requests.get(event.request), True
    if view is not None and event.attempt <= view.attempt:
        newest = event.attempt == view.attempt and not view.served
    if event.reason is Reason.RATE_LIMITED and newest and wait is None:
        owed.owe(ledger, event.request, event.attempt, seq + 1, event.reason)


def others_in_line(ledger: Ledger, request: str) -> bool:
    """Return whether somebody else is before a request in the line for room."""
    return bool(ledger.waits.line) and next(iter(ledger.waits.line)) != request


def stopped(ledger: Ledger, seq: int) -> None:
    """Say who still waits as the log ends in order."""
    _untried(ledger, seq)
    owed.check(ledger, seq)
    for request in list(ledger.waits.superseded):
        owed.check_superseded(ledger, seq, request)
    for request, wait in (*ledger.waits.line.items(), *ledger.waits.asking.items()):
        what = f"attempt {wait.attempt} waits at the stop"
        ledger.say(Law.WAITING, what, "no wait outlives the coordinator", (wait.seq, seq), None, request)


def _is_tried(ledger: Ledger, seq: int, event: Issued | Declined) -> bool:
    waits = ledger.waits
    tried = waits.tried
    if tried is not None and tried == (event.request, event.attempt, seq - 1):
        waits.tried = None
        return True
    _untried(ledger, seq)
    return False


def _untried(ledger: Ledger, seq: int) -> None:
    """Say that a try came to nothing, if one did."""
    tried, ledger.waits.tried = ledger.waits.tried, None
    if tried is not None:
        what = f"attempt {tried[1]} was to be tried, and was neither issued nor declined"
        ledger.say(Law.WAITING, what, "Issued or Declined at once", (tried[2], seq), None, tried[0])


def _tick(ledger: Ledger, seq: int, event: WaitBegan | WaitEnded) -> None:
    waits = ledger.waits
    if event.tick < waits.tick:
        what = f"tick {event.tick} comes after tick {waits.tick}"
        ledger.say(Law.WAITING, what, "ticks in order", (seq,), None, event.request)
    waits.tick = event.tick


def _began(ledger: Ledger, seq: int, event: WaitBegan) -> None:
    waits, retry, view = ledger.waits, ledger.terms.retry, ledger.requests.get(event.request)
    known = waits.get(event.request)
    _tick(ledger, seq, event)
    _untried(ledger, seq)
    if waits.owed is not None and waits.owed[:3] == (event.request, event.attempt, seq):
        waits.owed = None
    owed.check(ledger, seq)

    def say(what: str, right: str) -> None:
        seqs = (seq,) if known is None else (known.seq, seq)
        ledger.say(Law.WAITING, what, right, seqs, None, event.request)

    if retry is None:
        say("a request waits", "none under a policy without retries")
        return
    if not ledger.gapped:
        if view is None or event.attempt != view.attempt:
            say(f"attempt {event.attempt} waits", f"the newest, {None if view is None else view.attempt}, or none")
        elif event.queries != view.queries:
            say(f"{event.queries} queries of attempt {event.attempt} are counted", f"{view.queries} were issued")
        if view is not None and view.served:
            say("it waits", "nothing: it was served")
        count = len(waits.line) + len(waits.asking)
        if known is None and count >= retry.max_waiting:
            say(f"{count + 1} requests wait", f"at most {retry.max_waiting}")
        wrong = _why_not(ledger, seq, event, retry, known)
        if wrong is not None:
            say(*wrong)
    if event.reason is Reason.RATE_LIMITED and event.request in waits.line:
        old = waits.line[event.request]
        old.tokens, old.due_tick, old.seq = event.tokens, event.due_tick, seq
        return
    waits.drop(event.request)
    wait = Wait(event.attempt, event.reason, event.tick, event.due_tick, event.tokens, seq, seq)
    (waits.line if event.reason is Reason.RATE_LIMITED else waits.asking)[event.request] = wait
    if view is not None and view.waits_since is None:
        view.waits_since = event.tick


def _why_not(
    ledger: Ledger, seq: int, event: WaitBegan, retry: RetryTerms, known: Wait | None
) -> tuple[str, str] | None:
    """Return what is wrong with the beginning of a wait, and what would be right."""
    pause = 0 if event.reason is Reason.RATE_LIMITED else retry.every_ticks
    if event.due_tick != event.tick + pause:
        return f"due at tick {event.due_tick}, told at tick {event.tick}", f"{event.tick + pause}"
    if event.reason in MISSES:
        return _why_no_miss(ledger, seq, event, retry, known)
    last = ledger.waits.declined
    told = last is not None and last[1] == seq - 1 and last[0].request == event.request and last[0].attempt == event.attempt
    if event.reason is Reason.RATE_LIMITED and known is not None and known.reason is Reason.RATE_LIMITED and not told:
        if event.tokens <= known.tokens or ledger.occupied_tokens + event.tokens <= ledger.terms.limit_tokens:
            return f"it waits on for {event.tokens} tokens", f"over {known.tokens}, and more than there is room for"
        return None
    if last is None or not told or last[0].reason is not event.reason:
        return f"it waits as {event.reason}", f"after it was declined as {event.reason}"
    tokens = (last[0].end_page - last[0].start_page) * ledger.terms.page_size_tokens
    if event.tokens != tokens:
        return f"it waits for {event.tokens} tokens", f"{tokens}, those of the span that was declined"
    if event.reason is Reason.TOO_SHORT:
        view = ledger.requests.get(event.request)
        since = event.tick if view is None or view.waits_since is None else view.waits_since
        if not last[2]:
            return "it waits as too short", "only one that was tried"
        if event.tick - since > retry.give_up_ticks:
            return f"it waits on {event.tick - since} ticks after its query", f"given up after {retry.give_up_ticks}"
    elif event.reason is not Reason.RATE_LIMITED:
        return f"it waits as {event.reason}", f"after {', '.join(sorted({Reason.RATE_LIMITED, Reason.TOO_SHORT, *MISSES}))}"
    if known is not None and known.reason is not Reason.RATE_LIMITED:
        return "it begins to wait a second time", "one wait at a time"
    return None


def _why_no_miss(ledger: Ledger, seq: int, event: WaitBegan, retry: RetryTerms, known: Wait | None) -> tuple[str, str] | None:
    view = ledger.requests.get(event.request)
    account = None if view is None or view.prefetch is None else ledger.accounts.get(view.prefetch)
    marks = {} if account is None else account.marks
    if account is None or marks.get(TokensReturned) != seq - 1 or marks.get(Discarded) != seq - 2:
        return f"it waits as {event.reason}", f"directly after its prefetch was discarded as {event.reason}"
    if PlanAgreed in marks or Terminated in marks or account.reason is not event.reason:
        return f"it waits as {event.reason}", f"the reason for which L3 had nothing to read, {account.reason}"
    if event.tokens != account.reserved_tokens:
        return f"it waits for {event.tokens} tokens", f"{account.reserved_tokens}, what it had reserved"
    if event.queries >= retry.max_queries:
        return f"it waits after {event.queries} queries", f"at most {retry.max_queries} in all"
    return None if known is None else ("it begins to wait a second time", "one wait at a time")


def _ended(ledger: Ledger, seq: int, event: WaitEnded) -> None:
    waits, retry, wait = ledger.waits, ledger.terms.retry, ledger.waits.get(event.request)
    last_word = ledger.last_word is not None  # by then: after it, ticks may go by that try nobody
    _tick(ledger, seq, event)
    _untried(ledger, seq)
    owed.check(ledger, seq)

    def say(what: str, right: str) -> None:
        ledger.say(Law.WAITING, what, right, (seq,) if wait is None else (wait.seq, seq), None, event.request)

    waits.from_line = event.request in waits.line
    first = not (waits.from_line and others_in_line(ledger, event.request)) or ledger.gapped  # who left may be in the gap
    waits.drop(event.request)
    if event.reason is None:
        waits.tried = event.request, event.attempt, seq
    if wait is None or wait.attempt != event.attempt:
        if not ledger.gapped:
            say(f"a wait of attempt {event.attempt} is over", "only one that began")
        return
    if event.reason not in ENDS:
        say(f"a wait is over as {event.reason}", f"tried, or {', '.join(sorted(reason for reason in ENDS if reason))}")
    if event.reason in (None, Reason.RATE_LIMITED) and not first:
        say("it is let out of the line for room", f"{next(iter(waits.line))!r} first")
    if event.reason is None:
        ledger.goes_on("tried", seq, request=event.request)
    if event.reason in LAST_WORDS and ledger.last_word is None:
        ledger.last_word = seq
    if event.reason is None and event.tick < wait.due_tick:
        say(f"tried at tick {event.tick}", f"not before {wait.due_tick}")
    if event.reason is Reason.RATE_LIMITED and not ledger.gapped:  # since when may be in the gap, too
        waited, most = event.tick - wait.since_tick, None if retry is None else retry.give_up_ticks
        if wait.reason is not Reason.RATE_LIMITED or most is None or waited <= most:
            say(f"given up after {waited} ticks", f"only a wait for room, after {most}")
    if event.reason is Reason.SUPERSEDED:
        waits.superseded[event.request] = wait.attempt, seq
    late = None if retry is None or ledger.gapped or last_word else _too_late(ledger, event, retry, wait)
    if late is not None:
        say(*late)


def _too_late(ledger: Ledger, event: WaitEnded, retry: RetryTerms, wait: Wait) -> tuple[str, str] | None:
    """Return what came too late at this tick, and what would have been right.

    Every tick gives up and tries who is due, but where an index has yet to take what it promised. Among several ranks that
    fails the next round, so that ticks go by until it is done; a rank alone waits for it, for ticks that nobody counts, and
    tries no one while its index refuses.
    """
    terms = ledger.terms
    many, slack = terms.ranks > 1, 0
    if many:
        if terms.round_every_ticks is None:
            return None
        slack = terms.lag_ticks + terms.round_every_ticks
    elif ledger.promised or ledger.promised_seq > wait.since_seq:
        return None
    waited = event.tick - wait.since_tick
    if wait.reason is Reason.RATE_LIMITED:
        if waited > retry.give_up_ticks + 1 + slack:
            return f"it waited for room for {waited} ticks", f"given up after {retry.give_up_ticks}"
    elif many and event.tick > wait.due_tick + slack:
        return f"it waited to ask again until tick {event.tick}", f"tried at {wait.due_tick}"
    return None


HANDLERS: Mapping[type[Event], Callable[[Ledger, int, Any], None]] = {WaitBegan: _began, WaitEnded: _ended}
