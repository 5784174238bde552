"""The log itself: its order, its gaps, its end; and what hostile logs may not do."""

import random

import msgspec
import pytest
from audit_stories import STORIES, Tape, run, tape, verify

from lifecycle.audit import Law, Violation, verify_log, verify_logs, violations
from lifecycle.audit.slots import FREE, HELD, LOCKED, LOCKED_TAINTED, QUARANTINED, RESIDENT, TAINTED, PoolSlots
from lifecycle.events import (
    Adopted,
    AnchorUnlocked,
    CoordinatorStopped,
    EventsLost,
    Evicted,
    HostReleased,
    HostReserved,
    Issued,
    LogOpened,
    PagesLanded,
    PlanAgreed,
    Record,
    Settled,
    Synced,
    TokensReturned,
)
from lifecycle.reasons import Part


def test_a_gap_is_told() -> None:
    """A record that is missing is told; what would need it says nothing."""
    records = tape("plain").records()
    del records[9:12]
    found = verify_log(records)
    assert [violation.law for violation in found] == [Law.HEADER]
    assert "record 12 comes after record 8" in found[0].what


def test_a_record_that_comes_twice() -> None:
    """A number that was there before is told."""
    records = tape("plain").records()
    records.insert(5, records[4])
    assert verify_log(records)[0].law is Law.HEADER


def test_time_goes_on() -> None:
    """A clock that goes back is told."""
    records = tape("plain").records()
    records[7] = msgspec.structs.replace(records[7], at_ns=1)
    found = verify_log(records)
    assert found[0].law is Law.HEADER
    assert "time goes back" in found[0].what
    assert len(found) == 1


@pytest.mark.parametrize("story", ["plain", "pressed", "late", "tainted", "lost", "twice", "ranked", "short", "aborted"])
def test_lost_events_explain_a_gap_anywhere(story: str) -> None:
    """Where events were lost and the log says so, nothing is said of what would need them."""
    records = tape(story).records()
    for first in range(1, len(records) - 4):
        for many in (1, 3):
            lost = Record(first, records[first].at_ns, EventsLost(many, first, "a full disk"))
            log = [*records[:first], lost, *records[first + many :]]
            found = verify_log(log)
            assert not found, f"{many} lost from {first} on: {found[0]}"


def test_after_a_gap_a_new_prefetch_is_checked_again() -> None:
    """A prefetch that was issued after the gap is held to the laws."""
    spoilt = tape("plain")
    spoilt.drop(AnchorUnlocked, prefetch=2)
    records = spoilt.records()
    log = [*records[:5], Record(5, records[5].at_ns, EventsLost(2, 5, "a full disk")), *records[7:]]
    assert [violation.law for violation in verify_log(log)][:1] == [Law.EXACTLY_ONCE]


def test_lost_events_that_do_not_add_up() -> None:
    """The mark stands in the place of what is lost."""
    records = tape("plain").records()
    log = [*records[:5], Record(5, records[5].at_ns, EventsLost(2, 4, "a full disk")), *records[7:]]
    assert [violation.law for violation in verify_log(log)] == [Law.HEADER]


@pytest.mark.parametrize("story", ["plain", "pressed", "aborted", "late", "ranked"])
def test_a_log_may_end_anywhere(story: str) -> None:
    """A log that was cut off is clean as far as it goes: a debt is missing only at an orderly end."""
    records = tape(story).records()
    for end in range(len(records)):
        assert not verify_log(records[:end]), f"cut after {end} records"


def test_nothing_is_a_clean_log() -> None:
    """No records and no logs break no law."""
    assert verify_log([]) == []
    assert verify_logs([]) == []
    assert verify_logs([[], []]) == []


def test_violations_come_as_they_are_found() -> None:
    """What is at fault is yielded before the rest is read."""
    spoilt = tape("plain")
    spoilt.double(AnchorUnlocked, prefetch=1)
    records = spoilt.records()
    read = []

    def reading() -> object:
        for record in records:
            read.append(record.seq)
            yield record

    first = next(violations([reading()]))
    assert first.law is Law.EXACTLY_ONCE
    assert read[-1] == first.seqs[-1] < len(records) - 1


def test_a_violation_reads_as_one_line() -> None:
    """It names rank, records, law, prefetch and request, what is said and what would be right, and no control character."""
    violation = Violation(Law.PARTITION, 1, 3, "r\n\x1b[31m", (4, 9), "page 2 is\nreleased", "each page once")
    text = str(violation)
    for word in ("rank 1", "seq 4, 9", "partition", "prefetch 3", "r\\n", "page 2", "(right: each page once)"):
        assert word in text
    assert text.isprintable()


def test_a_second_fault_is_shown_beside_the_first_record() -> None:
    """A double discharge cites both records."""
    spoilt = tape("short")
    spoilt.double(HostReleased, part=Part.TAIL)
    found = verify(spoilt)[0]
    places = [place for place, event in enumerate(spoilt.events) if isinstance(event, HostReleased)][:2]
    assert list(found.seqs) == places
    assert found.request == "r"


def test_a_gap_in_one_log_ends_the_comparison_there() -> None:
    """What one rank lost makes no difference between ranks."""
    first, second = run("ranked")
    for at in range(1, len(second) - 3):
        lost = Record(at, second[at].at_ns, EventsLost(2, at, "a full disk"))
        found = verify_logs([first, [*second[:at], lost, *second[at + 2 :]]])
        assert not found, f"lost from {at} on: {found[0]}"


@pytest.mark.parametrize(
    ("pool", "slots"), [("nobody", ((0, 6),)), ("kv", ((4, 99),)), ("kv", ((6, 2),)), ("kv", ((0, 6), (0, 6)))]
)
def test_slots_that_are_none_are_told(pool: str, slots: tuple[tuple[int, int], ...]) -> None:
    """An eviction or an adoption of slots that are not there, or of one twice, is told."""
    spoilt = tape("pressed")
    spoilt.change(Evicted, pool="kv", new={"pool": pool, "slots": slots})
    assert verify(spoilt)[0].law in (Law.SLOTS, Law.BALANCE)
    spoilt = tape("pressed")
    spoilt.put(Adopted("z", {pool: 6}, 6, {pool: slots}), LogOpened)
    assert verify(spoilt)[0].law in (Law.SLOTS, Law.BALANCE)


def test_adopted_pages_are_resident_and_can_be_evicted() -> None:
    """The engine's own pages come in and go out; coming in over the budget, or as other pages than slots, is told."""
    log = tape("pressed")
    log.events[1:1] = [Adopted("z", {"kv": 6}, 6, {"kv": ((0, 6),)}), Evicted("kv", 6, ((0, 6),), ())]
    assert not verify(log)
    log.change(Adopted, new={"pages": {"kv": 5}})
    assert verify(log)[0].law is Law.BALANCE
    log.change(Adopted, new={"pages": {"kv": 9}, "slots": {"kv": ((0, 8),)}})
    assert verify(log)[0].law is Law.BALANCE


HOSTILE = [
    (Issued, {"start_page": -5, "end_page": 3}),
    (Issued, {"end_page": 1 << 70}),
    (Issued, {"prefetch": -1}),
    (PlanAgreed, {"plan_page": 1 << 70, "hit_page": 1 << 70}),
    (PlanAgreed, {"reserved": {"nobody": (0, 8)}}),
    (PlanAgreed, {"left_out": ("kv", "nobody")}),
    (HostReserved, {"pool": "nobody"}),
    (HostReserved, {"pages": (8, 0)}),
    (HostReserved, {"slots": ((0, 1 << 70),)}),
    (HostReserved, {"slots": ()}),
    (PagesLanded, {"pool": "nobody"}),
    (PagesLanded, {"pages": (-9, 1 << 70)}),
    (PagesLanded, {"pages": (5, 2)}),
    (Synced, {"agreed": {}}),
    (Synced, {"agreed": {"kv": -(1 << 70), "indexer": 1 << 70}}),
    (HostReleased, {"pool": "nobody"}),
    (HostReleased, {"pages": ((9, 8), (-3, 2))}),
    (LogOpened, {"capacity_pages": {"kv": 1 << 70}}),
    (LogOpened, {"capacity_pages": {}}),
    (LogOpened, {"layout": {"name": "x", "pools": [{}] * 1000}}),
    (LogOpened, {"policies": {}}),
    (LogOpened, {"policies": {"shortfall": "discard", "pressure": "shrink", "threshold_pages": "many"}}),
    (LogOpened, {"rank": 5}),
    (LogOpened, {"page_size_tokens": 0}),
    (LogOpened, {"budget_pages": {"kv": 1 << 20}}),
    (CoordinatorStopped, {"quarantined_pages": {}}),
]


@pytest.mark.parametrize(("kind", "new"), HOSTILE, ids=[f"{kind.__name__} {new}"[:60] for kind, new in HOSTILE])
def test_nothing_in_a_log_is_trusted(kind: type, new: dict[str, object]) -> None:
    """Values that make no sense are told, and neither raise nor take memory."""
    spoilt = tape("short")
    spoilt.change(kind, new=new)
    assert verify(spoilt)


UNNOTICED = {
    "Capped", "Declined", "LoadedTaken", "PrefixServed", "QuarantineAgreed", "RequestFinished", "RoundDone", "TransferStarted",
}  # fmt: skip
"""What a rank may log or not: nothing else in its log follows from it, as long as nothing comes after it."""


@pytest.mark.parametrize("story", STORIES)
def test_no_other_event_can_be_missing_or_doubled(story: str) -> None:
    """Whatever else is cut out of a log, or said twice, is noticed."""
    events = tape(story).events
    for place, event in enumerate(events):
        if type(event).__name__ in UNNOTICED:
            continue
        for copies in (0, 2):
            spoilt = tape(story)
            spoilt.events[place : place + 1] = [event] * copies
            assert verify(spoilt) or place == len(events) - 1 > copies, f"{copies} times {event}"


@pytest.mark.parametrize("story", STORIES)
def test_no_order_makes_the_audit_raise(story: str) -> None:
    """Events in any order may be at fault, and are never an error."""
    for seed in range(20):
        spoilt = tape(story)
        body = spoilt.events[1:]
        random.Random(seed).shuffle(body)
        spoilt.events[1:] = body
        assert verify(spoilt)


def test_slots_move_between_their_places() -> None:
    """A slot goes from free over held and locked to resident, and what is tainted leaves by quarantine."""
    slots = PoolSlots(8)
    assert slots.move(((0, 6),), HELD, (FREE,)) is None
    assert slots.move(((4, 8),), HELD, (FREE,)) == (4, HELD)
    assert slots.move(((0, 2), (3, 5)), LOCKED, (HELD,)) is None
    slots.taint(((3, 4),))
    assert slots.check(((3, 4),), (LOCKED_TAINTED,)) is None
    slots.unlock(((0, 2), (3, 5)))
    assert slots.check(((0, 2), (3, 5)), (RESIDENT, TAINTED)) is None
    assert slots.first((0, 8), TAINTED) == 3
    assert slots.move(((3, 4),), QUARANTINED, (TAINTED,)) is None
    assert (slots.count(RESIDENT), slots.count(HELD), slots.count(QUARANTINED)) == (3, 4, 1)
    assert slots.outside(((0, 8),)) is None
    assert slots.outside(((0, 1), (7, 9))) == (7, 9)


def test_after_a_gap_a_slot_may_be_anywhere() -> None:
    """What is not known to be elsewhere is accepted; what is known is not."""
    slots = PoolSlots(8)
    slots.move(((0, 8),), HELD, (FREE,))
    slots.forget()
    assert slots.check(((0, 4),), (RESIDENT, TAINTED)) is None
    slots.move(((0, 4),), HELD, (FREE,))
    assert slots.check(((3, 6),), (RESIDENT, TAINTED)) == (3, HELD)


def test_a_settled_prefetch_owes_nothing() -> None:
    """Settled names each debt that is still open."""
    spoilt = Tape(run("plain")[0])
    settled = spoilt.drop(Settled, prefetch=1)
    spoilt.put(settled, TokensReturned, prefetch=1, after=False)
    said = [violation.what for violation in verify(spoilt)]
    for word in ("anchor", "tokens", "pages of kv", "pages of swa"):
        assert any(word in each for each in said), word
