"""The ends of debts: pages, anchor, tokens, credit and lock, each once, in its part and not before it is quiet."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle import ranges as r
from lifecycle.audit.account import Account, Held, size
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.slots import FREE, HELD, LOCKED, QUARANTINED
from lifecycle.events import (
    AnchorUnlocked,
    Closed,
    Event,
    HostHandedOver,
    HostQuarantined,
    HostReleased,
    LateWriteEnded,
    ObligationStuck,
    PagesUnlocked,
    Settled,
    TokensCredited,
    TokensReturned,
)  # fmt: skip
from lifecycle.ranges import EMPTY, Ranges
from lifecycle.reasons import Part
from lifecycle.states import TERMINAL, State

_NAMES: dict[Part | None, str] = {**{part: part.value for part in Part}, None: "handed over"}


def _discharge(
    ledger: Ledger, account: Account, seq: int, pool: str, pages: Ranges, part: Part | None, how: str
) -> tuple[Held, Ranges] | None:
    """Take pages off what is open, or say why not; return those that were open."""
    held = ledger.held(account, seq, pool, how)
    if held is None:
        return None
    if pages != held.open:
        if not r.is_ranges(pages):
            ledger.say(Law.PARTITION, f"{how} {pages!r} of {pool}", "page ranges in order", (seq,), account)
            return None
        if stray := r.subtract(pages, held.open):
            _stray(ledger, account, seq, held, f"page {stray[0][0]} of {pool} is {how}", stray[0][0])
            pages = r.subtract(pages, stray)
    parts = account.parts(ledger.layout, pool)
    right_part = parts.get(part, EMPTY)
    if pages != right_part and (wrong := r.subtract(pages, right_part)):
        page = wrong[0][0]
        due = next((each for each, among in parts.items() if r.intersect(among, ((page, page + 1),))), None)
        undecided = not any(r.intersect(among, ((page, page + 1),)) for among in parts.values())
        right = "kept until the outcome" if undecided else _NAMES[due]
        said = how if part is None else f"{how} as {part}"
        ledger.say(Law.PARTITION, f"page {page} of {pool} is {said}", right, (seq,), account)
    held.open = EMPTY if held.open == pages else r.subtract(held.open, pages)
    held.gone.append((pages, how, seq))
    return held, pages


def _stray(ledger: Ledger, account: Account, seq: int, held: Held, what: str, page: int) -> None:
    before = held.how(page)
    if before is None:
        right = f"within {r.text((held.reserved,))}"
        ledger.say(Law.PARTITION, f"{what}, which is not reserved", right, (seq,), account)
    else:
        what = f"{what}, which was {before[0]} before"
        ledger.say(Law.PARTITION, what, "each page once", (before[1], seq), account)


def _ended(ledger: Ledger, account: Account, seq: int, event: Event) -> bool:
    if account.state in TERMINAL or account.state is State.TERMINATED:
        return True
    name = type(event).__name__
    ledger.say(Law.LEGAL, f"{name} while it is {account.state}", f"from {State.TERMINATED} on", (seq,), account)
    return False


def _released(ledger: Ledger, account: Account, seq: int, event: HostReleased) -> None:
    if not _ended(ledger, account, seq, event):
        return
    found = _discharge(ledger, account, seq, event.pool, event.pages, event.part, "released")
    if found is None:
        return
    held, pages = found
    if held.claimed and (writing := r.intersect(pages, held.busy())):
        what = f"{r.text(writing)} of {event.pool} is released while a claimed read may write it"
        ledger.say(Law.QUIESCENCE, what, "after ReadEnded", (held.writer(writing), seq), account)
    if held.lost and (lost := r.intersect(pages, held.lost)):
        what = f"{r.text(lost)} of {event.pool} is released, and a lost read may write it"
        ledger.say(Law.QUIESCENCE, what, "quarantined", (seq,), account)
    offence = ledger.slots[event.pool].move(held.slots(pages), FREE, (HELD,))
    ledger.place(event.pool, offence, "released", seq, Law.SLOTS, account)


def _quarantined(ledger: Ledger, account: Account, seq: int, event: HostQuarantined) -> None:
    if not _ended(ledger, account, seq, event):
        return
    found = _discharge(ledger, account, seq, event.pool, event.pages, event.part, "quarantined")
    if found is None:
        return
    held, pages = found
    if sound := r.subtract(pages, held.lost):
        what = f"{r.text(sound)} of {event.pool} is quarantined, and no read of it is lost"
        ledger.say(Law.QUIESCENCE, what, "released once its read has ended", (seq,), account)
    offence = ledger.slots[event.pool].move(held.slots(pages), QUARANTINED, (HELD,))
    ledger.place(event.pool, offence, "quarantined", seq, Law.SLOTS, account)


def _handed_over(ledger: Ledger, account: Account, seq: int, event: HostHandedOver) -> None:
    if not account.published:
        what = f"pages of {event.pool} are handed over while it is {account.state}"
        ledger.say(Law.LEGAL, what, "once it is published", (seq,), account)
        return
    found = _discharge(ledger, account, seq, event.pool, event.pages, None, "handed over")
    if found is None:
        return
    held, pages = found
    late = r.intersect(pages, r.union(held.busy(), held.lost)) if held.claimed or held.lost else EMPTY
    if event.late != late:
        what = f"{r.text(event.late)} of {event.pool} is locked against late writes"
        ledger.say(Law.QUIESCENCE, what, f"{r.text(late)}, what a read may still write", (seq,), account)
    held.late = r.union(held.late, late)
    offence = ledger.slots[event.pool].move(held.slots(pages), LOCKED, (HELD,))
    ledger.place(event.pool, offence, "handed over", seq, Law.SLOTS, account)


def _late_ended(ledger: Ledger, account: Account, seq: int, event: LateWriteEnded) -> None:
    held = ledger.held(account, seq, event.pool, "LateWriteEnded")
    if held is None:
        return

    def say(law: Law, what: str, right: str) -> None:
        ledger.say(law, f"the late-write lock on {what} of {event.pool} is dropped", right, (seq,), account)

    pages = r.intersect(held.late, event.pages) if r.is_ranges(event.pages) else EMPTY
    if pages != event.pages:
        say(Law.EXACTLY_ONCE, r.text(event.pages), f"among {r.text(held.late)}, what is locked")
    if writing := r.intersect(pages, held.busy()):
        say(Law.QUIESCENCE, f"{r.text(writing)} while a claimed read may write it", "after ReadEnded")
    lost = r.intersect(pages, held.lost)
    if lost != (pages if event.lost else EMPTY):
        how = "lost" if event.lost else "answered"
        say(Law.QUIESCENCE, f"{r.text(pages)} as {how}", f"{r.text(lost)} is lost")
    held.late = r.subtract(held.late, pages)
    if event.lost:
        held.tainted = r.union(held.tainted, pages)
        ledger.slots[event.pool].taint(held.slots(pages))


def _anchor(ledger: Ledger, account: Account, seq: int, event: AnchorUnlocked) -> None:
    if ledger.once(account, seq, event):
        _after_end(ledger, account, seq, event)
        if ledger.promised.pop(account.id, None) is not None:
            ledger.promised_seq = seq
        for pool, taken in account.taken.items():
            held = account.held.get(pool)
            if account.published and held is not None and (waiting := r.intersect(taken, held.open)):
                what = f"the anchor is unlocked and {r.text(waiting)} of {pool} is not handed over"
                ledger.say(Law.EXACTLY_ONCE, what, "after the hand-over", (seq,), account)


def _after_end(ledger: Ledger, account: Account, seq: int, event: Event) -> None:
    if account.state not in TERMINAL:
        name = type(event).__name__
        ledger.say(Law.LEGAL, f"{name} while it is {account.state}", "once its outcome stands", (seq,), account)


def _returned(ledger: Ledger, account: Account, seq: int, event: TokensReturned) -> None:
    ledger.return_tokens(account)
    if not ledger.once(account, seq, event):
        return
    if account.withdrawn == seq - 1:
        account.withdrawn = seq
    _after_end(ledger, account, seq, event)
    if event.tokens != account.reserved_tokens:
        right = f"{account.reserved_tokens}, what was reserved"
        ledger.say(Law.EXACTLY_ONCE, f"{event.tokens} tokens were returned", right, (account.issued_seq, seq), account)


def _credited(ledger: Ledger, account: Account, seq: int, event: TokensCredited) -> None:
    if not account.published:
        law = Law.LATE if account.state in TERMINAL else Law.LEGAL
        what = f"{event.tokens} tokens were credited while it is {account.state}"
        ledger.say(law, what, "credit for what is published", (seq,), account)
        return
    if not ledger.once(account, seq, event):
        return
    if event.tokens != account.credit:
        right = f"{account.credit}, those of the kv pages that the index takes"
        ledger.say(Law.EXACTLY_ONCE, f"{event.tokens} tokens were credited", right, (seq,), account)
    view = ledger.requests.get(account.request)
    if view is not None and view.attempt == account.attempt:
        view.tokens = event.tokens


def _settled(ledger: Ledger, account: Account, seq: int, event: Settled) -> None:
    if not ledger.once(account, seq, event):
        return
    _after_end(ledger, account, seq, event)
    for debt in account.debts():
        if debt.startswith("pages"):
            ledger.say(Law.PARTITION, f"it is settled and {debt} were never discharged", "each page once", (seq,), account)
        elif debt.startswith("late"):
            ledger.say(Law.QUIESCENCE, f"it is settled and the {debt} is open", "after LateWriteEnded", (seq,), account)
        elif not debt.startswith("lock"):
            ledger.say(Law.EXACTLY_ONCE, f"it is settled and its {debt} is open", "once each, before it", (seq,), account)
    for pool, held in account.held.items():
        if held.claimed:
            pages, claim, _ = held.claimed[0]
            what = f"it is settled while a read of {r.text((pages,))} of {pool} is claimed"
            ledger.say(Law.QUIESCENCE, what, "after ReadEnded or ReadLost", (claim, seq), account)


def _closed(ledger: Ledger, account: Account, seq: int, event: Closed) -> None:
    if not ledger.once(account, seq, event):
        return
    _after_end(ledger, account, seq, event)
    if Settled not in account.marks:
        debts = ", ".join(account.debts()) or "nothing"
        ledger.say(Law.EXACTLY_ONCE, f"closed before this rank settled it, {debts} open", "after Settled", (seq,), account)
    for pool, (lo, hi) in account.reserved.items():
        ledger.reserved_pages[pool] -= hi - lo - size(account.taken.get(pool, EMPTY))
    for pool, held in account.held.items():
        if held.lost:
            ledger.lost_pages[pool] += held.lost_count()
    if not account.published:
        ledger.close(account, seq)


def _unlocked(ledger: Ledger, account: Account, seq: int, event: PagesUnlocked) -> None:
    if not account.published or Closed not in account.marks:
        what = f"the lock on what was handed over is dropped while it is {account.state} and not closed"
        ledger.say(Law.EXACTLY_ONCE, what, "once, of what is published, after the close", (seq,), account)
        return
    for pool, held in account.held.items():
        for pages, how, _ in held.gone:
            if how == "handed over":
                ledger.slots[pool].unlock(held.slots(pages))
    ledger.once(account, seq, event)
    ledger.close(account, seq)


def _stuck(ledger: Ledger, account: Account, seq: int, event: ObligationStuck) -> None:
    """Say nothing: what stays open is told at the end."""


HANDLERS: Mapping[type[Event], Callable[[Ledger, Account, int, Any], None]] = {
    HostHandedOver: _handed_over,
    HostReleased: _released,
    HostQuarantined: _quarantined,
    LateWriteEnded: _late_ended,
    AnchorUnlocked: _anchor,
    TokensReturned: _returned,
    TokensCredited: _credited,
    Settled: _settled,
    Closed: _closed,
    PagesUnlocked: _unlocked,
    ObligationStuck: _stuck,
}
