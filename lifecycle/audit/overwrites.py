"""What scrubs found: a resident page that was whole when it landed and is another now. No fault of its read, nor of a rule."""

from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.audit.laws import Law
from lifecycle.audit.ledger import Ledger
from lifecycle.audit.slots import LOCKED, LOCKED_TAINTED, NAMES, RESIDENT, TAINTED
from lifecycle.audit.words import name, some
from lifecycle.events import Event, PageOverwritten, PagesScrubbed


def _overwritten(ledger: Ledger, seq: int, event: PageOverwritten) -> None:
    source = ledger.accounts.get(event.source, event.source)

    def say(law: Law, what: str, right: str) -> None:
        ledger.say(law, what, right, (seq,), source)

    ledger.overwritten += 1
    slots = ledger.slots[ledger.layout.owner(event.pool)] if event.pool in ledger.layout.index_of else None
    if slots is None or not 0 <= event.slot < slots.capacity:
        say(Law.SLOTS, f"slot {event.slot} of {event.pool!r} was scrubbed", "slots of the layout's pools")
        return
    run = ((event.slot, event.slot + 1),)
    if offence := slots.check(run, (RESIDENT, LOCKED, TAINTED, LOCKED_TAINTED)):
        say(Law.SLOTS, f"slot {event.slot} of {event.pool} was scrubbed, and it is {NAMES[offence[1]]}", "resident pages alone")
    if ledger.told_overwritten.get((event.pool, event.slot)) == event:
        return  # an earlier scrub found the same
    ledger.told_overwritten[event.pool, event.slot] = event
    served = [
        name(repr(request)) for request, sources in ledger.servings
        if any(start <= event.page < stop and by == event.source for start, stop, by in sources)
    ]  # fmt: skip
    whom = some(dict.fromkeys(served)) or "nobody that is remembered"
    what = f"page {event.page} of {event.pool} (slot {event.slot}) was overwritten after it had landed whole; served to {whom}"
    say(Law.OVERWRITTEN, what, f"{event.landed_checksum:#x}, as it landed, not {event.found_checksum:#x}")


def _scrubbed(ledger: Ledger, seq: int, event: PagesScrubbed) -> None:
    if event.changed != ledger.overwritten and not ledger.gapped:
        right = f"{ledger.overwritten}, as many as are named before"
        ledger.say(Law.OVERWRITTEN, f"a scrub found {event.changed} pages changed", right, (seq,))
    ledger.overwritten = 0


HANDLERS: Mapping[type[Event], Callable[[Ledger, int, Any], None]] = {
    PageOverwritten: _overwritten,
    PagesScrubbed: _scrubbed,
}
