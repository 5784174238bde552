"""The book refuses every event that would do an effect a second time, and then holds what it held before."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.rig import Rig

from lifecycle import events as ev
from lifecycle.book import Book, fold
from lifecycle.errors import IllegalTransition, LifecycleError, ObligationError
from lifecycle.layout import PRESETS

REPEATABLE = (  # facts that move nothing, or whose repetition is a fact of its own
    ev.LogOpened, ev.CoordinatorStopped, ev.Declined, ev.Wanted, ev.HitResolved, ev.TransferStarted, ev.PagesLanded,
    ev.ReadFailed, ev.ReadClaimed, ev.RoundDone, ev.QuarantineAgreed, ev.Evicted, ev.Adopted, ev.PrefixServed,
    ev.ObligationStuck,
)  # fmt: skip
SIDE = ("frozen", "landed", "failed", "lost_required", "settled", "wanted")
COUNTS = ("held_pages", "resident_pages", "quarantined_pages", "tainted_pages")


def state_of(book: Book) -> dict[str, Any]:
    """Return everything that a book holds, as plain values."""
    local = {}
    for id_, side in book.local.items():
        owed = side.obligations
        local[id_] = {
            "owed": {name: repr(getattr(owed, name)) for name in owed.__slots__},
            "side": [repr(getattr(side, name)) for name in SIDE],
        }
    counts = {name: dict(getattr(book, name)) for name in COUNTS}
    return {"replica": book.replica.facts(), "local": local, "locks": book.locks, **counts}


def is_refused(book: Book, event: ev.Event) -> bool:
    """Apply an event; say whether the book refused it."""
    try:
        book.apply(event)
    except LifecycleError:
        return True
    return False


def a_log(rig_of: Callable[..., Rig], layout: str, how: str) -> tuple[Rig, list[ev.Event]]:
    """Return the events of a run that ends in one of several ways."""
    rig = rig_of(layout, draft=True, batch_pages=4)
    if how == "clamped":
        rig.stores[0].say("kv", "11111011", rig.prompt("r", 8))
    if how in ("aborted", "lost"):
        rig.stores[0].hold("kv" if how == "aborted" else "draft")
    id_ = rig.issue()
    if how == "aborted":
        rig.until_held()
        rig.abort()
        rig.stores[0].open_all()
    if how == "lost":
        rig.until_held("draft")
        rig.stores[0].holding.clear()
        rig.clock.advance(61)
    rig.until_closed(id_)
    rig.take_loaded()
    rig.finish()
    return rig, [record.event for record in rig.logs[0].records()]


@pytest.mark.parametrize("how", ["committed", "clamped", "aborted", "lost"])
@pytest.mark.parametrize("layout", PRESETS)
def test_no_event_of_a_run_can_happen_twice(rig_of: Callable[..., Rig], layout: str, how: str) -> None:
    """Each event of a run, given a second time at any later moment, raises and changes nothing."""
    rig, events = a_log(rig_of, layout, how)
    budget = rig.ranks[0].book.replica.budget_pages
    book = Book(rig.layout, budget)
    done: list[ev.Event] = []
    for event in events:
        book.apply(event)
        done += [] if isinstance(event, REPEATABLE) else [event]
        before = state_of(book)
        for earlier in done:
            assert is_refused(book, earlier), f"{earlier} happened twice, after {event}"
            assert state_of(book) == before, f"{earlier} was refused and changed something"
    assert state_of(book) == state_of(fold(rig.layout, budget, events))


def test_an_event_of_a_closed_prefetch_is_refused(rig_of: Callable[..., Rig]) -> None:
    """Nothing of a prefetch can happen after its last obligation is gone."""
    rig = rig_of()
    rig.run()
    book = rig.ranks[0].book
    for event in (ev.Wanted(1), ev.PagesLanded(1, "kv", (0, 1), 16), ev.AnchorUnlocked(1), ev.Closed(1)):
        with pytest.raises(IllegalTransition, match="not in flight"):
            book.apply(event)


def test_an_id_is_never_used_twice(rig_of: Callable[..., Rig]) -> None:
    """The next prefetch has the next id, and no other is taken."""
    rig = rig_of()
    rig.run()
    issued = rig.events(ev.Issued)[0]
    with pytest.raises(ObligationError, match="the next id is 2"):
        rig.ranks[0].book.apply(issued)
