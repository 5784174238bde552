"""Requests: what is issued and declined, taken, served and finished, against the limits and against each other."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.audit import owed, waits
from lifecycle.audit.account import Account
from lifecycle.audit.facts import NeverAsked, Overshot
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger, RequestView
from lifecycle.audit.words import SHOWN
from lifecycle.events import Declined, Event, Issued, LoadedTaken, PrefixServed, RequestFinished
from lifecycle.reasons import Reason
from lifecycle.states import TERMINAL

_SOURCES = 64  # of one serving, remembered for better words only

DECLINES = frozenset({Reason.DUPLICATE, Reason.TOO_SHORT, Reason.RATE_LIMITED, Reason.READERS_LOST, Reason.ANCHOR_LOST})


def _issued(ledger: Ledger, seq: int, event: Issued) -> None:
    terms = ledger.terms
    tried = waits.issued(ledger, seq, event)

    def say(law: Law, what: str, right: str, fact: Overshot | None = None) -> None:
        ledger.say(law, what, right, (seq,), event.prefetch, event.request, fact)

    if event.prefetch != ledger.last_id + 1 and not (ledger.gapped and event.prefetch > ledger.last_id):
        say(Law.LEGAL, f"id {event.prefetch} was issued after id {ledger.last_id}", f"id {ledger.last_id + 1}")
        if event.prefetch in ledger.accounts:
            return
    ledger.last_id = max(ledger.last_id, event.prefetch)
    pages = event.end_page - event.start_page
    if event.start_page < 0 or not max(1, terms.threshold_pages) <= pages <= terms.max_pages:
        right = f"{terms.threshold_pages} to {terms.max_pages} pages"
        say(Law.ADMISSION, f"the span [{event.start_page}:{event.end_page}) was issued", right)
        if event.start_page < 0 or pages < 1:
            return
    if event.reserved_tokens != pages * terms.page_size_tokens:
        right = f"{pages * terms.page_size_tokens} tokens for {pages} pages"
        say(Law.ADMISSION, f"{event.reserved_tokens} tokens were reserved", right)
    ledger.occupied_tokens += event.reserved_tokens
    if ledger.occupied_tokens > terms.limit_tokens and not ledger.gapped:
        right = f"at most {terms.limit_tokens}, so declined as {Reason.RATE_LIMITED}"
        fact = Overshot(ledger.occupied_tokens - event.reserved_tokens, terms.limit_tokens)
        say(Law.ADMISSION, f"{ledger.occupied_tokens} tokens are in flight", right, fact)
    _supersede(ledger, seq, event, tried)
    view, fresh = ledger.requests.get(event.request), RequestView(event.attempt, event.prefetch, queries=1)
    if view is not None and view.attempt == event.attempt:
        fresh.queries, fresh.served = view.queries + 1, view.served
    ledger.requests[event.request] = fresh
    ledger.accounts[event.prefetch] = Account(event, seq, ledger.now())


def _supersede(ledger: Ledger, seq: int, event: Issued, tried: bool) -> None:
    view = ledger.requests.get(event.request)
    if view is None:
        return
    if event.attempt < view.attempt or (event.attempt == view.attempt and view.prefetch is not None and not tried):
        right = f"an attempt above {view.attempt}, or declined as {Reason.DUPLICATE}"
        ledger.say(Law.ADMISSION, f"attempt {event.attempt} was issued again", right, (seq,), event.prefetch, event.request)
    older = ledger.accounts.get(view.prefetch) if view.prefetch is not None else None
    if older is not None and older.state not in TERMINAL:
        right = f"discarded as {Reason.SUPERSEDED} before a newer attempt is issued"
        ledger.say(Law.ADMISSION, f"it is {older.state} as prefetch {event.prefetch} is issued", right, (seq,), older)


def _declined(ledger: Ledger, seq: int, event: Declined) -> None:
    terms = ledger.terms
    waits.declined(ledger, seq, event)

    def say(what: str, right: str) -> None:
        ledger.say(Law.ADMISSION, what, right, (seq,), None, event.request)

    pages = event.end_page - event.start_page
    tokens = pages * terms.page_size_tokens
    view = ledger.requests.get(event.request)
    if event.limit_tokens != terms.limit_tokens:
        say(f"declined under a limit of {event.limit_tokens} tokens", f"{terms.limit_tokens}")
    if event.occupied_tokens != ledger.occupied_tokens and not ledger.gapped:
        say(f"declined with {event.occupied_tokens} tokens in flight", f"{ledger.occupied_tokens} are")
    if event.reason not in DECLINES:
        say(f"declined as {event.reason}", f"one of {', '.join(sorted(DECLINES))}")
    elif event.reason is Reason.TOO_SHORT and pages >= terms.threshold_pages:
        say(f"{pages} pages were declined as too short", f"fewer than {terms.threshold_pages} are")
    elif event.reason is Reason.RATE_LIMITED and event.occupied_tokens + tokens <= terms.limit_tokens:
        if not (waits.others_in_line(ledger, event.request) or ledger.gapped):
            say(f"declined as rate limited with {event.occupied_tokens} + {tokens} tokens", f"over {terms.limit_tokens}")
    elif event.reason is Reason.DUPLICATE and not ledger.gapped:
        known = view is not None and (
            event.attempt < view.attempt or (event.attempt == view.attempt and view.prefetch is not None)
        )
        if not known:
            say(f"attempt {event.attempt} was declined as a duplicate", "only of what was issued before")
    if view is None or event.attempt > view.attempt:
        ledger.requests[event.request] = RequestView(event.attempt)


def _taken(ledger: Ledger, seq: int, event: LoadedTaken) -> None:
    view = ledger.requests.get(event.request)
    if view is None:
        _unknown(ledger, seq, event)
        return
    if view.taken_seq is not None:
        ledger.say(
            Law.EXACTLY_ONCE, "the loaded tokens were taken a second time", "once", (view.taken_seq, seq), view.prefetch,
            event.request,
        )  # fmt: skip
    view.taken_seq = seq
    if event.attempt != view.attempt or event.tokens != view.tokens:
        ledger.say(
            Law.EXACTLY_ONCE, f"{event.tokens} loaded tokens of attempt {event.attempt} were taken",
            f"{view.tokens} of attempt {view.attempt}", (seq,), view.prefetch, event.request,
        )  # fmt: skip
    account = ledger.accounts.get(view.prefetch) if view.prefetch is not None else None
    if account is not None and account.state not in TERMINAL:
        ledger.say(Law.LEGAL, f"loaded tokens were taken while it is {account.state}", "after its end", (seq,), account)


def _served(ledger: Ledger, seq: int, event: PrefixServed) -> None:
    view = ledger.requests.get(event.request)
    if view is None:
        _unknown(ledger, seq, event)
        ledger.waits.drop(event.request)  # that it waits may be known where events were lost, and the request is not
    elif event.attempt != view.attempt:
        right = f"attempt {view.attempt}, the newest"
        ledger.say(Law.SERVED, f"attempt {event.attempt} was served", right, (seq,), view.prefetch, event.request)
    else:
        view.served = True
        ledger.waits.drop(event.request)
    ledger.servings.append((event.request[:SHOWN], event.sources[:_SOURCES]))
    at = 0
    for start, stop, source in event.sources:
        if not at <= start < stop <= event.end_page:
            ledger.say(
                Law.SERVED, f"served [{start}:{stop}) of [0:{event.end_page}) from page {at} on", "page ranges in order",
                (seq,), None, event.request,
            )  # fmt: skip
        at = max(at, stop)
        account = ledger.accounts.get(source)
        if account is not None:
            brought = account.published and account.start_page <= start and stop <= account.usable_page
            if not brought:
                what = f"{event.request!r} was served [{start}:{stop}) of it, and it is {account.state}"
                ledger.say(Law.SERVED, what, "only pages that it published", (seq,), account)
        elif (source > ledger.last_id and not ledger.gapped) or source < 0:
            what = f"served from prefetch {source}"
            ledger.say(Law.SERVED, what, "a prefetch that was issued, or 0", (seq,), None, event.request)


def _finished(ledger: Ledger, seq: int, event: RequestFinished) -> None:
    view = ledger.requests.pop(event.request, None)
    owed.finished(ledger, seq, event.request)
    if view is None:
        _unknown(ledger, seq, event)
        return
    account = ledger.accounts.get(view.prefetch) if view.prefetch is not None else None
    if account is not None and account.state not in TERMINAL:
        right = f"discarded as {Reason.ABORTED} first"
        ledger.say(Law.LEGAL, f"its request was finished while it is {account.state}", right, (seq,), account)


def _unknown(ledger: Ledger, seq: int, event: LoadedTaken | PrefixServed | RequestFinished) -> None:
    if not ledger.gapped:
        what = f"{type(event).__name__} of a request that was never issued, or is finished"
        fact = NeverAsked(event.attempt) if isinstance(event, PrefixServed) else None
        ledger.say(Law.LEGAL, what, "before RequestFinished, after Issued or Declined", (seq,), None, event.request, fact)


HANDLERS: Mapping[type[Event], Callable[[Ledger, int, Any], None]] = {
    Issued: _issued,
    Declined: _declined,
    LoadedTaken: _taken,
    PrefixServed: _served,
    RequestFinished: _finished,
}
