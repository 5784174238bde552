"""Host pages taken and read: reserved as planned, claimed once, answered once, and over before anyone else may have them."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle import ranges as r
from lifecycle.audit.account import Account, Held, size
from lifecycle.audit.facts import LateClaim
from lifecycle.audit.lateness import check_answered_in_time, check_in_time
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger, is_range, text
from lifecycle.audit.slots import FREE, HELD
from lifecycle.audit.stops import note_lost
from lifecycle.events import (
    Event,
    HostReserved,
    PagesLanded,
    ReadClaimed,
    ReadEnded,
    ReadFailed,
    ReadLost,
    TransferStarted,
)
from lifecycle.ranges import EMPTY
from lifecycle.states import State


def _reserved(ledger: Ledger, account: Account, seq: int, event: HostReserved) -> None:
    pool = event.pool

    def say(law: Law, what: str, right: str) -> None:
        ledger.say(law, what, right, (seq,), account)

    if account.state is not State.TRANSFERRING:
        say(Law.LEGAL, f"HostReserved while it is {account.state}", f"while it is {State.TRANSFERRING}")
    if pool in account.held:
        say(Law.PLAN, f"pages of {pool} were reserved a second time", "once")
        return
    planned = account.reserved.get(pool)
    if planned != event.pages:
        right = text(planned) if planned else "none, it is not in the plan"
        say(Law.PLAN, f"pages {text(event.pages)} of {pool} were reserved", right)
        if pool not in ledger.own_set or not is_range(event.pages, account.start_page, account.end_page):
            return
    account.held[pool] = Held(event.pages, ())  # without slots, where those that are named make no sense
    slots = ledger.slots[pool]
    if wrong := slots.outside(event.slots):
        say(Law.BALANCE, f"slots {text(wrong)} of {pool} were reserved", f"slots of [0:{slots.capacity})")
        return
    lo, hi = event.pages
    if size(event.slots) != hi - lo:
        say(Law.BALANCE, f"{r.count(event.slots)} slots of {pool} for {hi - lo} pages", "one slot a page")
        return
    offence = slots.move(event.slots, HELD, (FREE,))
    ledger.place(pool, offence, "handed out", seq, Law.SLOTS, account)
    account.held[pool] = Held(event.pages, event.slots)


def _claimed(ledger: Ledger, account: Account, seq: int, event: ReadClaimed) -> None:
    held = ledger.held(account, seq, event.pool, "ReadClaimed")
    found_late = account.withdrawn == seq - 1 and not ledger.terms.observed

    def say(what: str, right: str) -> None:
        ledger.say(Law.CLAIM, what, right, (seq,), account)

    if found_late:
        account.withdrawn = seq
    elif account.state is not State.TRANSFERRING:
        end = max(account.marks.values())
        right = "none but those found claimed at the withdrawal, directly after the end"
        what = f"a read was claimed while it is {account.state}"
        ledger.say(Law.CLAIM, what, right, (end, seq), account, fact=_late_claim(held, event))
    elif event.pages[0] >= account.ceiling_page < account.plan_page:
        say(f"a read of {text(event.pages)} was claimed", f"none from page {account.ceiling_page} on, the agreed cap")
    if held is None:
        return
    if account.reserved.keys() != account.held.keys():
        missing = ", ".join(sorted(account.reserved.keys() ^ account.held.keys()))
        right = "as the plan says, in all pools or in none"
        ledger.say(Law.PLAN, f"reads began and {missing} is not reserved", right, (seq,), account)
        account.reserved = {pool: each.reserved for pool, each in account.held.items()}
    if not is_range(event.pages, *held.reserved):
        say(f"a read of {text(event.pages)} of {event.pool} was claimed", f"within {text(held.reserved)}, what is reserved")
        return
    if held.asked and (again := r.intersect(held.asked, (event.pages,))):
        say(f"pages {r.text(again)} of {event.pool} were claimed a second time", "once")
    held.asked = r.union(held.asked, (event.pages,))
    held.claimed.append((event.pages, seq, ledger.now()))


def _late_claim(held: Held | None, event: ReadClaimed) -> LateClaim | None:
    if held is None:
        return None
    held.late_claims += 1
    next_page = held.asked[-1][1] if held.asked else held.reserved[0]
    return LateClaim(event.pool, event.pages, next_page, held.late_claims)


def _started(ledger: Ledger, account: Account, seq: int, event: TransferStarted) -> None:
    account.queued_ns, account.started_ns = event.queued_ns, ledger.now()
    ledger.once(account, seq, event, Law.LEGAL)
    if account.withdrawn == seq - 1:
        account.withdrawn = seq
    for held in account.held.values():
        if held.asked:
            break
    else:
        ledger.say(Law.LEGAL, "the transfer started before a read was claimed", "after ReadClaimed", (seq,), account)


def _landed(ledger: Ledger, account: Account, seq: int, event: PagesLanded) -> None:
    if not _answered(ledger, account, seq, event):
        return
    account.landed[event.pool] = r.union(account.landed.get(event.pool, EMPTY), (event.pages,))
    held = account.held.get(ledger.layout.owner(event.pool))
    lo, hi = event.pages
    for claimed, _, _ in () if held is None else held.claimed:
        if claimed[0] <= lo and hi <= claimed[1]:
            return
    reading = held.busy() if held is not None else EMPTY
    if event.pool in ledger.terms.absent:
        return
    if outside := r.subtract((event.pages,), reading):
        what = f"pages {r.text(outside)} of {event.pool} landed outside any read that is claimed"
        ledger.say(Law.CLAIM, what, "under a claim, before its read has ended", (seq,), account)


def _failed(ledger: Ledger, account: Account, seq: int, event: ReadFailed) -> None:
    if _answered(ledger, account, seq, event):  # a read that no reader will ever claim fails without a claim
        account.failed[event.pool] = r.union(account.failed.get(event.pool, EMPTY), (event.pages,))


def _answered(ledger: Ledger, account: Account, seq: int, event: PagesLanded | ReadFailed) -> bool:
    """Return whether the answer counts: it came in time, for pages that were asked for and not answered."""
    name = type(event).__name__
    if account.state is not State.TRANSFERRING:
        law = Law.LEGAL if account.state is State.ISSUED else Law.LATE
        since = max(account.marks.values())
        right = f"only while it is {State.TRANSFERRING}"
        ledger.say(law, f"{name} {text(event.pages)} of {event.pool} while it is {account.state}", right, (since, seq), account)
        return False
    place = ledger.layout.index_of.get(event.pool)
    lo, hi = (0, 0)
    if place is not None and event.pool not in account.left_out:
        lo, hi = ledger.layout.pools[place].window(account.start_page, account.plan_page)
    if not is_range(event.pages, lo, hi):
        right = f"within [{lo}:{hi})" if lo < hi else "none, the pool is not read"
        ledger.say(Law.CLAIM, f"{name} {text(event.pages)} of {event.pool}", right, (seq,), account)
        return False
    before = account.answered.get(event.pool)
    if not before:
        account.answered[event.pool] = (event.pages,)
        return True
    if again := r.intersect(before, (event.pages,)):
        ledger.say(Law.CLAIM, f"pages {r.text(again)} of {event.pool} were answered a second time", "once", (seq,), account)
    account.answered[event.pool] = r.union(before, (event.pages,))
    return True


def _ended(ledger: Ledger, account: Account, seq: int, event: ReadEnded) -> None:
    held = _unclaim(ledger, account, seq, event)
    if held is None or account.state is not State.TRANSFERRING:
        return
    for pool in ledger.groups[event.pool]:
        if pool.name in account.left_out:
            continue
        lo, hi = pool.window(account.start_page, account.plan_page)
        asked = r.span(max(lo, event.pages[0]), min(hi, event.pages[1]))
        answered = account.answered.get(pool.name, EMPTY)
        if asked == answered:
            continue
        if silent := r.subtract(asked, answered):
            what = f"the read of {text(event.pages)} ended and {r.text(silent)} of {pool.name} was not answered"
            ledger.say(Law.CLAIM, what, "each page landed or failed", (seq,), account)


def _lost(ledger: Ledger, account: Account, seq: int, event: ReadLost) -> None:
    held = _unclaim(ledger, account, seq, event)
    if held is not None:
        held.lost = r.union(held.lost, (event.pages,))
        note_lost(ledger, account, event)


def _unclaim(ledger: Ledger, account: Account, seq: int, event: ReadEnded | ReadLost) -> Held | None:
    held = ledger.held(account, seq, event.pool, type(event).__name__)
    if held is None:
        return None
    for place, (pages, claim, claimed_ns) in enumerate(held.claimed):
        if pages == event.pages:
            if ledger.rounds:
                check_answered_in_time(ledger, account, seq, event, claim, claimed_ns)
                check_in_time(ledger, account, seq)
            del held.claimed[place]
            return held
    what = f"{type(event).__name__} {text(event.pages)} of {event.pool}, which is not claimed"
    ledger.say(Law.CLAIM, what, "the end of a read that is claimed, once", (seq,), account)
    return None


HANDLERS: Mapping[type[Event], Callable[[Ledger, Account, int, Any], None]] = {
    HostReserved: _reserved,
    ReadClaimed: _claimed,
    TransferStarted: _started,
    PagesLanded: _landed,
    ReadFailed: _failed,
    ReadEnded: _ended,
    ReadLost: _lost,
}
