"""In line for room under the limit: tried in order as there is room, nobody overtakes, and bounded."""

import pytest
from kit.rig import PAGE_TOKENS
from kit.waits import EVERY, GIVE_UP, RETRY, ROOM, RigOf, ask_in_vain, check, full, missing, story, waiters

from lifecycle import events as ev
from lifecycle.reasons import Reason


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fourth_request_is_prefetched_once_there_is_room(rig_of: RigOf, ranks: int) -> None:
    """It is declined with the numbers, waits, is tried when the first are through, and is published; nothing stays occupied."""
    rig = rig_of(ranks=ranks, limit_tokens=3 * ROOM, retry=RETRY, capacity=64)
    for store in rig.stores:
        store.hold("")
    for request in "abc":
        rig.issue(request)
    declined = rig.issue("d")
    assert isinstance(declined, ev.Declined)
    assert (declined.reason, declined.occupied_tokens, declined.limit_tokens) == (Reason.RATE_LIMITED, 3 * ROOM, 3 * ROOM)
    assert rig.same(lambda rank: rig.ranks[rank].waiting("d"))
    check(rig)
    for store in rig.stores:
        store.open_all()
    rig.until(lambda: rig.events(ev.Committed, prefetch=4))
    rig.until_closed(4)
    assert story(rig, "d") == ["declined rate_limited", "waits rate_limited", "tried", "issued 0"]
    assert not rig.same(lambda rank: rig.ranks[rank].waiting("d"))
    assert (rig.take_loaded("d"), rig.occupied()) == (ROOM, 0)
    check(rig)


def test_without_the_policy_a_decline_is_the_last_word(rig_of: RigOf) -> None:
    """Nothing waits, nothing is tried again, and no event says so."""
    rig = full(rig_of, retry=None)
    assert isinstance(rig.issue("b"), ev.Declined)
    rig.abort("a")
    missing(rig, "m")
    rig.stores[0].open_all()
    rig.run("m")
    rig.tick(2 * EVERY)
    assert [story(rig, request) for request in "bm"] == [["declined rate_limited"], ["issued 0"]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_line_is_served_in_order(rig_of: RigOf, ranks: int) -> None:
    """Each time there is room, the one that waits for longest begins, and only that one."""
    rig = full(rig_of, ranks)
    for request in "bcd":
        rig.issue(request)
    order = []
    for request in "abc":
        assert rig.abort(request)
        rig.tick()
        order.append([w[0] for w in waiters(rig)])
        check(rig)
    assert order == [["c", "d"], ["d"], []]
    assert [e.request for e in rig.events(ev.Issued)] == ["a", "b", "c", "d"]


def test_nobody_overtakes_who_waits_for_room(rig_of: RigOf) -> None:
    """A newcomer that would fit beside what is in flight is declined while somebody waits, and begins after that one."""
    rig = full(rig_of, pages=12)
    rig.issue("big")
    small = rig.issue("small", 4)
    assert isinstance(small, ev.Declined)
    assert small.reason is Reason.RATE_LIMITED
    assert small.occupied_tokens + 4 * PAGE_TOKENS <= small.limit_tokens
    rig.tick(2)
    assert [w[0] for w in waiters(rig)] == ["big", "small"]
    rig.abort("a")
    rig.tick()
    assert [e.request for e in rig.events(ev.Issued)] == ["a", "big", "small"]
    check(rig)


def test_who_asks_again_does_not_overtake_either(rig_of: RigOf) -> None:
    """A request whose next query is due stands in line behind those who wait for room."""
    rig = rig_of(limit_tokens=12 * PAGE_TOKENS, retry=RETRY)
    ask_in_vain(rig, "m")
    rig.stores[0].hold("")
    rig.issue("a")
    rig.issue("big")
    rig.tick(EVERY)
    assert story(rig, "m") == ["issued 0", "waits full_miss", "tried", "declined rate_limited", "waits rate_limited"]
    assert [w[0] for w in waiters(rig)] == ["big", "m"]
    rig.abort("a")
    rig.tick()
    assert [w[0] for w in waiters(rig)] == ["m"]
    check(rig)


def test_the_line_goes_before_who_asks_again_at_the_same_tick(rig_of: RigOf) -> None:
    """Both are due and fit: the one in line begins, and then the other, without being told to wait behind it."""
    rig = rig_of(limit_tokens=16 * PAGE_TOKENS, retry=RETRY)
    ask_in_vain(rig, "m")
    due_tick = rig.ranks[0].snapshot()["waiting"][0]["due_tick"]
    rig.stores[0].hold("")
    for request in "acb":
        rig.issue(request)
    rig.until(lambda: rig.ranks[0].tick_number == due_tick - 1, patience=EVERY)
    rig.abort("a")
    rig.abort("c")
    rig.tick()
    assert [e.request for e in rig.events(ev.Issued)][-2:] == ["b", "m"]
    assert story(rig, "m") == ["issued 0", "waits full_miss", "tried", "issued 0"]
    check(rig)


def test_issued_once_more_it_keeps_its_place(rig_of: RigOf) -> None:
    """The same attempt, issued while it waits in line, is decided anew and stands where it stood."""
    rig = full(rig_of)
    rig.issue("b")
    rig.issue("c")
    again = rig.issue("b", 6)
    assert isinstance(again, ev.Declined)
    assert [(w["request"], w["tokens"]) for w in rig.ranks[0].snapshot()["waiting"]] == [("b", 6 * PAGE_TOKENS), ("c", ROOM)]
    rig.abort("a")
    assert isinstance(rig.issue("c"), ev.Declined)  # b is first
    assert isinstance(rig.issue("b", 6), int)
    assert [w[0] for w in waiters(rig)] == ["c"]
    check(rig)


def test_issued_once_more_with_another_prompt_it_is_tried_with_that(rig_of: RigOf) -> None:
    """What is prefetched in the end is the prompt that was given last, also where it is as long."""
    rig = full(rig_of)
    rig.issue("b")
    rig.issue("b", prompt="another")
    rig.abort("a")
    rig.tick()
    assert rig.events(ev.Issued)[-1].last_key == rig.prompts["another"][7]
    check(rig)


def test_one_that_needs_more_by_now_waits_on_in_its_place(rig_of: RigOf) -> None:
    """Pages that the index had when it was declined are gone: it waits for what it needs now, still first in line."""
    rig = rig_of(limit_tokens=12 * PAGE_TOKENS, retry=RETRY, capacity=12)
    rig.run("b4", 4, prompt="b")
    rig.stores[0].hold("")
    rig.issue("a")
    assert isinstance(rig.issue("b", prompt="b"), int)  # 4 pages are there, 4 fit
    declined = rig.issue("c", prompt="b")
    assert isinstance(declined, ev.Declined)
    assert [(w["tokens"], w["place"]) for w in rig.ranks[0].snapshot()["waiting"]] == [(4 * PAGE_TOKENS, 1)]
    rig.issue("d", 4)
    rig.abort("b")
    rig.ranks[0]._rank.residency.make_room({"kv": 12})  # as another prefetch's plan would
    rig.tick()
    told = rig.ranks[0].snapshot()["waiting"]
    assert (told[0]["request"], told[0]["tokens"], told[0]["since_tick"]) == ("c", ROOM, told[1]["since_tick"])
    assert story(rig, "c") == ["declined rate_limited", "waits rate_limited", "waits rate_limited"]
    rig.tick(3)
    assert len(rig.events(ev.WaitBegan)) == 3  # told once, and not looked at while it does not fit
    rig.abort("a")
    rig.tick()
    assert [e.request for e in rig.events(ev.Issued)] == ["b4", "a", "b", "c", "d"]
    check(rig)


def test_who_comes_when_the_list_is_full_is_declined_for_good(rig_of: RigOf) -> None:
    """At most `max_waiting` requests wait; what comes then is told no, and told only once."""
    rig = full(rig_of)
    for request in "bcdefg":
        rig.issue(request)
    assert [w[0] for w in waiters(rig)] == ["b", "c", "d", "e"]
    assert story(rig, "f") == ["declined rate_limited"]
    assert not rig.ranks[0].waiting("f")
    check(rig)


def test_a_wait_for_room_is_given_up_at_last(rig_of: RigOf) -> None:
    """After `give_up_ticks` it is over, with a reason, and the next one is first in line."""
    rig = full(rig_of)
    rig.issue("b")
    rig.tick()
    rig.issue("c")
    rig.tick(GIVE_UP - 1)
    assert [w[0] for w in waiters(rig)] == ["b", "c"]
    rig.tick()
    assert story(rig, "b") == ["declined rate_limited", "waits rate_limited", "over rate_limited"]
    assert [w[0] for w in waiters(rig)] == ["c"]
    check(rig)
