"""What is owed is discharged once: a second time raises and changes nothing. The partition law, as sets."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import ranges as r
from lifecycle.errors import ObligationError
from lifecycle.obligations import Obligations, partition


def owing() -> Obligations:
    """Return what a prefetch owes while pages 0 to 15 of kv are reserved and a result is published."""
    owed = Obligations(7, 64)
    owed.reserve("kv", (0, 16))
    owed.publish()
    owed.claim("kv", (4, 6))
    owed.hand_over("kv", ((4, 6),), ((4, 6),))
    return owed


def facts(owed: Obligations) -> tuple[object, ...]:
    """Return everything that an obligation book holds, copied."""
    dicts = ("pages", "claimed", "lost", "late", "history")
    plain = tuple(getattr(owed, name) for name in ("anchor", "tokens", "credit", "resident_lock"))
    return plain + tuple({pool: tuple(held) for pool, held in getattr(owed, name).items()} for name in dicts)


ONCE: dict[str, tuple[Callable[[Obligations], None], str]] = {
    "release": (
        lambda owed: owed.discharge("kv", ((12, 14),), "released as tail"),
        "cannot discharge pages [12:14) of pool kv (released as tail) for prefetch 7: page 12 was released as tail before",
    ),
    "quarantine": (
        lambda owed: owed.discharge("kv", ((12, 14),), "quarantined as tail"),
        "page 12 was quarantined as tail before",
    ),
    "hand over": (lambda owed: owed.hand_over("kv", ((0, 2),), ()), "page 0 was handed over before"),
    "late write": (lambda owed: owed.end_late("kv", ((4, 6),)), "cannot end the late write of kv for prefetch 7: [4:6) is not"),
    "read": (lambda owed: owed.end_read("kv", (4, 6)), "cannot end the read of [4:6) of kv for prefetch 7: it is not claimed"),
    "lost read": (lambda owed: owed.lose_read("kv", (4, 6)), "it is not claimed"),
    "anchor": (lambda owed: owed.unlock_anchor(), "cannot unlock the anchor for prefetch 7: it was unlocked before"),
    "tokens": (lambda owed: owed.return_tokens(64), "cannot return 64 tokens for prefetch 7: nothing is reserved"),
    "credit": (lambda owed: owed.give_credit(), "cannot credit tokens for prefetch 7: no credit is open"),
    "resident lock": (lambda owed: owed.unlock_pages(), "cannot unlock the handed-over pages for prefetch 7: they are not"),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_second_discharge_raises_and_changes_nothing(name: str) -> None:
    """What is discharged is not open any more, and the error says how it went the first time."""
    owed = owing()
    discharge, message = ONCE[name]
    discharge(owed)
    before = facts(owed)
    with pytest.raises(ObligationError) as refused:
        discharge(owed)
    assert message in str(refused.value)
    assert facts(owed) == before


def test_a_page_released_as_tail_is_not_released_as_another_part() -> None:
    """A page goes once, whatever it is called the second time; pages beside it are not touched."""
    owed = owing()
    owed.discharge("kv", ((12, 16),), "released as tail")
    with pytest.raises(ObligationError, match="page 12 was released as tail before"):
        owed.discharge("kv", ((10, 13),), "released as clamped")
    assert owed.pages["kv"] == ((0, 4), (6, 12))


def test_a_page_that_was_never_held_is_not_released() -> None:
    """The error names the first page that is not held."""
    with pytest.raises(ObligationError, match="page 16 is not held"):
        owing().discharge("kv", ((15, 18),), "released as tail")


@pytest.mark.parametrize("lost", [False, True])
def test_a_release_waits_for_the_read_that_may_write(lost: bool) -> None:
    """Under a claimed read a page does not go; once the read is lost it may only be quarantined."""
    owed = owing()
    owed.claim("kv", (8, 10))
    if lost:
        owed.lose_read("kv", (8, 10))
    before = facts(owed)
    with pytest.raises(ObligationError, match=r"a read may still write \[8:10\)"):
        owed.discharge("kv", ((7, 12),), "released as tail")
    assert facts(owed) == before
    if lost:
        owed.discharge("kv", ((8, 10),), "quarantined as tail")
    else:
        owed.end_read("kv", (8, 10))
        owed.discharge("kv", ((8, 10),), "released as tail")


def test_another_amount_of_tokens_is_not_returned() -> None:
    """The recorded amount goes back and no other; nothing is floored."""
    owed = owing()
    for wrong in (63, 65, 0, -64):
        with pytest.raises(ObligationError, match="64 are reserved"):
            owed.return_tokens(wrong)
    assert owed.tokens == 64


def test_openings_are_refused_twice() -> None:
    """Pages are reserved once, and a page is written by one read at a time."""
    owed = owing()
    with pytest.raises(ObligationError, match="they are reserved already"):
        owed.reserve("kv", (0, 2))
    with pytest.raises(ObligationError, match="a read of them is claimed"):
        owed.claim("kv", (5, 8))


def test_late_pages_are_among_those_handed_over() -> None:
    """A late-write lock on a page that stays here makes no sense."""
    owed = owing()
    with pytest.raises(ObligationError, match="they are not handed over"):
        owed.hand_over("kv", ((0, 2),), ((1, 3),))
    assert owed.pages["kv"] == ((0, 4), (6, 16))


def test_settled_means_that_nothing_is_left_but_the_resident_lock() -> None:
    """Each open obligation alone keeps a prefetch from being settled."""
    owed = Obligations(7, 64)
    owed.reserve("kv", (0, 4))
    owed.publish()
    owed.claim("kv", (0, 4))
    steps = [
        lambda: owed.unlock_anchor(),
        lambda: owed.return_tokens(64),
        lambda: owed.give_credit(),
        lambda: owed.hand_over("kv", ((0, 4),), ((0, 4),)),
        lambda: owed.end_read("kv", (0, 4)),
        lambda: owed.end_late("kv", ((0, 4),)),
    ]
    for discharge in steps:
        assert not owed.settled
        assert owed.open_names()
        discharge()
    assert owed.settled
    assert owed.open_names() == ["resident_lock"]


PAGES = st.integers(0, 40)
SETS = st.frozensets(PAGES)


def as_ranges(pages: frozenset[int]) -> r.Ranges:
    """Return a set of pages as ranges, one page at a time."""
    found: r.Ranges = r.EMPTY
    for page in pages:
        found = r.union(found, ((page, page + 1),))
    return found


def as_set(ranges: r.Ranges) -> set[int]:
    """Return ranges as a set of pages."""
    return {page for lo, hi in ranges for page in range(lo, hi)}


@given(SETS, SETS, SETS, SETS)
def test_each_page_is_in_exactly_one_part(a: frozenset[int], b: frozenset[int], c: frozenset[int], d: frozenset[int]) -> None:
    """Nested sets are cut into four parts that are disjoint and miss nothing."""
    reserved, landed, usable, taken = a, a & b, a & b & c, a & b & c & d
    parts = partition(as_ranges(reserved), as_ranges(landed), as_ranges(usable), as_ranges(taken))
    found = [as_set(part) for part in (parts.tail, parts.clamped, parts.duplicate, parts.handed)]
    assert found == [reserved - landed, landed - usable, usable - taken, taken]
    assert sum(map(len, found)) == len(reserved)
    assert all(r.is_ranges(part) for part in (parts.tail, parts.clamped, parts.duplicate, parts.handed))


@given(SETS, SETS, SETS, SETS)
def test_what_is_not_nested_is_refused(a: frozenset[int], b: frozenset[int], c: frozenset[int], d: frozenset[int]) -> None:
    """A page that is taken but not usable, usable but not landed, or landed but not reserved raises."""
    if a >= b >= c >= d:
        partition(as_ranges(a), as_ranges(b), as_ranges(c), as_ranges(d))
        return
    with pytest.raises(ValueError, match="cannot partition: pages"):
        partition(as_ranges(a), as_ranges(b), as_ranges(c), as_ranges(d))


@given(st.lists(st.tuples(PAGES, st.integers(1, 6), st.sampled_from(["release", "hand", "quarantine"])), max_size=12))
def test_any_order_of_discharges_keeps_the_books(moves: list[tuple[int, int, str]]) -> None:
    """Whatever is tried in whatever order, each page goes once and what is refused changes nothing."""
    owed = Obligations(1, 4)
    owed.reserve("kv", (0, 32))
    held = set(range(32))
    for lo, size, how in moves:
        pages, before = set(range(lo, lo + size)), facts(owed)
        try:
            if how == "hand":
                owed.hand_over("kv", ((lo, lo + size),), ())
            else:
                owed.discharge("kv", ((lo, lo + size),), {"release": "released as tail"}.get(how, "quarantined as tail"))
        except ObligationError:
            assert not pages <= held
            assert facts(owed) == before
        else:
            assert pages <= held
            held -= pages
        assert as_set(owed.pages["kv"]) == held
