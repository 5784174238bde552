"""The pages that the index owns, on their way in and out, and what the ranks agree to be quarantined."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from lifecycle import ranges as r
from lifecycle.audit.account import size
from lifecycle.audit.facts import EvictedEarly
from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger, text
from lifecycle.audit.slots import FREE, LOCKED, LOCKED_TAINTED, NAMES, QUARANTINED, RESIDENT, TAINTED, Offence
from lifecycle.events import Adopted, Event, Evicted, QuarantineAgreed, RoundDone
from lifecycle.ranges import Range


def _known(ledger: Ledger, seq: int, pool: str, runs: tuple[Range, ...], name: str) -> bool:
    if pool not in ledger.own_set:
        ledger.say(Law.SLOTS, f"{name} slots of {pool!r}", f"pools with slots are {', '.join(ledger.own)}", (seq,))
        return False
    if wrong := ledger.slots[pool].outside(runs):
        right = f"slots of [0:{ledger.slots[pool].capacity})"
        ledger.say(Law.BALANCE, f"{name} slots {text(wrong)} of {pool}", right, (seq,))
        return False
    return True


def _evicted(ledger: Ledger, seq: int, event: Evicted) -> None:
    pool = event.pool
    if not _known(ledger, seq, pool, event.slots + event.quarantined, "evicted"):
        return
    if event.pages != size(event.slots):
        what = f"{event.pages} pages of {pool} were evicted, and {r.count(event.slots)} slots"
        ledger.say(Law.BALANCE, what, "one slot a page", (seq,))
    gone, quarantined = event.slots, event.quarantined
    slots = ledger.slots[pool]
    if not quarantined and slots.all_at(gone, RESIDENT):
        slots.put(gone, FREE)
        _less(ledger, seq, pool, event.pages)
        return
    gone, quarantined = tuple(sorted(gone)), tuple(sorted(quarantined))
    twice = len(gone) > 1 and any(a[1] > b[0] for a, b in pairwise(gone))
    if twice or (quarantined and r.subtract(quarantined, gone)):
        what = f"slots {r.text(gone)} of {pool} were evicted, of them quarantined {r.text(quarantined)}"
        ledger.say(Law.SLOTS, what, "each slot once, and only evicted ones quarantined", (seq,))
    offence = slots.check(event.slots, (RESIDENT, TAINTED))
    if offence is not None:
        _evicted_early(ledger, seq, event, offence)
    # Those that are quarantined leave first; what is then left among the evicted may not be tainted.
    if quarantined and (unsound := slots.move(event.quarantined, QUARANTINED, (TAINTED,))):
        what = f"slot {unsound[0]} of {pool} is quarantined as it is evicted, and it is {NAMES[unsound[1]]}"
        ledger.say(Law.QUIESCENCE, what, "only what a lost read may write", (seq,))
    gone = r.subtract(gone, quarantined)
    tainted = next((slot for slot in (slots.first(run, TAINTED) for run in gone) if slot is not None), None)
    if tainted is not None:
        what = f"slot {tainted} of {pool} is free again as it is evicted"
        ledger.say(Law.QUIESCENCE, what, "quarantined, as a lost read may write it", (seq,))
    slots.put(gone, FREE)
    _less(ledger, seq, pool, event.pages)


def _evicted_early(ledger: Ledger, seq: int, event: Evicted, offence: Offence) -> None:
    """Say what is wrong with a slot that is evicted and not the index's alone; one that is not the index's at all first."""
    pool = event.pool
    worse = ledger.slots[pool].check(event.slots, (RESIDENT, TAINTED, LOCKED, LOCKED_TAINTED))
    if worse is not None:
        ledger.place(pool, worse, "evicted", seq, Law.SLOTS)
        return
    tainted = ledger.slots[pool].check(event.slots, (RESIDENT, TAINTED, LOCKED)) is not None
    helds = [account.held[pool] for account in ledger.accounts.values() if pool in account.held]
    written = any(
        r.intersect(tuple(sorted(held.slots(r.union(held.busy(), held.lost)))), tuple(sorted(event.slots)))
        for held in helds if held.runs
    )  # fmt: skip
    ledger.place(pool, offence, "evicted", seq, Law.QUIESCENCE, fact=EvictedEarly(written or tainted))


def _less(ledger: Ledger, seq: int, pool: str, pages: int) -> None:
    ledger.resident_pages[pool] -= pages
    if ledger.resident_pages[pool] < 0 and not ledger.gapped:
        ledger.say(Law.BALANCE, f"{ledger.resident_pages[pool]} pages of {pool} are resident", "0 or more", (seq,))


def _adopted(ledger: Ledger, seq: int, event: Adopted) -> None:
    for pool, runs in event.slots.items():
        if _known(ledger, seq, pool, runs, "adopted"):
            offence = ledger.slots[pool].move(runs, RESIDENT, (FREE,))
            ledger.place(pool, offence, "handed out", seq, Law.SLOTS)
    for pool, pages in event.pages.items():
        if pages != r.count(event.slots.get(pool, ())):
            what = f"{pages} pages of {pool} were adopted, and {r.count(event.slots.get(pool, ()))} slots"
            ledger.say(Law.BALANCE, what, "one slot a page", (seq,), None, event.request)
        if pool in ledger.own_set:
            ledger.resident_pages[pool] += pages
            ledger.check_promise(pool, seq, None, event.request)


def _quarantine(ledger: Ledger, seq: int, event: QuarantineAgreed) -> None:
    before = ledger.quarantined_pages.get(event.pool)
    if before is None:
        _known(ledger, seq, event.pool, (), "quarantined")
    elif event.pages < before:
        what = f"{event.pages} pages of {event.pool} are agreed to be quarantined"
        ledger.say(Law.BALANCE, what, f"{before} or more: none comes back", (seq,))
    else:
        ledger.quarantined_pages[event.pool] = event.pages


def _round(ledger: Ledger, seq: int, event: RoundDone) -> None:
    terms = ledger.terms
    if event.number <= ledger.round_number:
        right = f"above {ledger.round_number}"
        ledger.say(Law.RANKS, f"round {event.number} is done", right, (ledger.round_seq, seq))
    if event.participants != terms.ranks:
        ledger.say(Law.RANKS, f"round {event.number} had {event.participants} ranks", f"all {terms.ranks}", (seq,))
    for what, count, most in (("rows", event.rows, terms.row_capacity), ("sets", event.masks, terms.mask_capacity)):
        if most is not None and count > most:
            ledger.say(Law.RANKS, f"round {event.number} called for {count} {what}", f"at most {most}", (seq,))
    ledger.round_number, ledger.round_seq = event.number, seq
    ledger.rounds.append((seq, ledger.now(), event.rows))


HANDLERS: Mapping[type[Event], Callable[[Ledger, int, Any], None]] = {
    Evicted: _evicted,
    Adopted: _adopted,
    QuarantineAgreed: _quarantine,
    RoundDone: _round,
}
