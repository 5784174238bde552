"""Requests and their attempts: superseding, duplicates, what is unknown, what is taken once, and that nothing is kept."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.errors import BadKey, DuplicateAttempt, UnknownRequest, WrongAnchor
from lifecycle.keys import page_keys
from lifecycle.reasons import Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("phase", ["in flight", "closed"])
def test_an_attempt_issued_twice_is_refused_and_the_first_goes_on(rig_of: RigOf, phase: str, ranks: int) -> None:
    """The error names the attempt and its state, the decline is in the log, and the first one is not touched."""
    rig = rig_of(ranks=ranks)
    for store in rig.stores:
        store.hold("kv")
    id_ = rig.issue()
    rig.until_held()
    if phase == "closed":
        for store in rig.stores:
            store.open_all()
        rig.until_closed(id_)
    before = rig.ranks[0].book.replica.facts()
    with pytest.raises(DuplicateAttempt) as refused:
        rig.issue()
    assert refused.value.state == ("transferring" if phase == "in flight" else "closed")
    assert "issue attempt 1 to supersede it" in str(refused.value)
    after = rig.ranks[0].book.replica.facts()
    assert {name for name in before if before[name] != after[name]} == {"digest"}  # the decline is an event
    assert [e.reason for e in rig.events(ev.Declined)] == [Reason.DUPLICATE]
    for store in rig.stores:
        store.open_all()
    rig.until_closed(id_)
    assert isinstance(rig.outcome(id_), ev.Committed)
    assert rig.take_loaded() == 8 * PAGE_TOKENS


def test_an_older_attempt_is_refused(rig_of: RigOf) -> None:
    """Attempts only go up."""
    rig = rig_of()
    rig.run(attempt=3)
    with pytest.raises(DuplicateAttempt, match="attempt 3 exists"):
        rig.issue(attempt=2)


def test_a_declined_attempt_may_be_issued_again(rig_of: RigOf) -> None:
    """A decline begins nothing, so the same attempt can be tried again when there is room."""
    rig = rig_of(limit_tokens=8 * PAGE_TOKENS)
    rig.stores[0].hold("")
    first = rig.issue("a")
    declined = rig.issue("b")
    assert isinstance(declined, ev.Declined)
    assert declined.reason is Reason.RATE_LIMITED
    rig.stores[0].open_all()
    rig.until_closed(first)
    assert isinstance(rig.run("b"), ev.Committed)


def test_loaded_tokens_are_taken_once_and_only_after_the_outcome(rig_of: RigOf) -> None:
    """0 while it is in flight, which takes nothing; then the credit, once; then 0."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    assert rig.take_loaded() == 0
    assert not rig.events(ev.LoadedTaken)
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert rig.take_loaded() == 8 * PAGE_TOKENS
    assert rig.take_loaded() == 0
    assert [e.tokens for e in rig.events(ev.LoadedTaken)] == [8 * PAGE_TOKENS]


def test_only_what_was_new_is_credited(rig_of: RigOf) -> None:
    """Tokens that the index had already are not loaded again."""
    rig = rig_of()
    rig.run("a", 3, prompt="p")
    end = rig.run("b", 8, prompt="p")
    assert isinstance(end, ev.Committed)
    assert end.taken == {"kv": ((3, 8),)}
    assert rig.take_loaded("b") == 5 * PAGE_TOKENS


@pytest.mark.parametrize("verb", ["abort", "take_loaded", "finish", "served"])
def test_an_unknown_request_is_named(rig_of: RigOf, verb: str) -> None:
    """The error names the verb and the request; nothing is logged or changed."""
    rig = rig_of()
    rig.run()
    rig.finish()
    before = list(rig.logs[0].records())
    match = rig.indexes[0].match(rig.prompts["r"], 1)
    more = (match,) if verb == "served" else ()
    for request in ("r", "never"):
        with pytest.raises(UnknownRequest, match=f"request '{request}': it was never issued, or is finished"):
            getattr(rig.ranks[0], verb)(request, *more)
    assert list(rig.logs[0].records()) == before


def test_an_unknown_request_is_ready(rig_of: RigOf) -> None:
    """There is nothing to wait for."""
    assert rig_of().ready("never")


def test_ready_is_the_demand_once(rig_of: RigOf) -> None:
    """It is False until the outcome, and logged the first time only."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    assert not rig.ready()
    assert not rig.ready()
    assert len(rig.events(ev.Wanted)) == 1
    rig.stores[0].open_all()
    rig.until(lambda: id_ not in rig.ranks[0].book.replica.in_flight or rig.prefetch(id_).terminal)
    assert rig.ready()


def test_served_says_which_prefetch_brought_the_pages(rig_of: RigOf) -> None:
    """The log names the source of each page, so that a garbled request can be traced."""
    rig = rig_of()
    rig.run("a", 3, prompt="p")
    rig.run("b", 8, prompt="p")
    rig.ranks[0].served("b", rig.indexes[0].match(rig.prompts["p"], rig.ranks[0].tick_number))
    served = rig.events(ev.PrefixServed)[0]
    assert served.sources == ((0, 3, 1), (3, 8, 2))
    assert (served.request, served.attempt, served.end_page) == ("b", 0, 8)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", ["kv_only", "deepseek_v4"])
def test_nothing_is_kept_of_what_is_finished(rig_of: RigOf, layout: str, ranks: int) -> None:
    """After many prefetches of every kind no table has grown."""
    rig = rig_of(layout, ranks, capacity=40)
    for turn in range(12):
        request = f"r{turn}"
        keys = rig.prompt(request, 8)
        if turn % 3 == 1:
            for store in rig.stores:
                store.say("kv", "111s", keys)
        id_ = rig.issue(request)
        if turn % 3 == 2:
            rig.abort(request)
        rig.until_closed(id_)
        rig.finish(request)
    rig.tick(2)
    assert all(not any(kept.values()) for kept in rig.sizes()), rig.sizes()


def test_what_a_finished_request_still_owes_lives_under_its_own_id(rig_of: RigOf) -> None:
    """The request begins anew while the read of the old prefetch is out; ids are never used twice."""
    rig = rig_of(readers=3)
    rig.stores[0].hold("kv")
    old = rig.issue()
    rig.until_held()
    rig.stores[0].holding.clear()
    rig.finish()
    new = rig.issue()
    assert new == old + 1
    rig.until_closed(new)
    assert rig.take_loaded() == 8 * PAGE_TOKENS
    assert rig.state(old) is State.DISCARDED
    rig.stores[0].open_all()
    rig.until_closed(old)
    assert rig.outcome(old).reason is Reason.ABORTED


@pytest.mark.parametrize("key", ["../../etc/passwd", "", "A" * 64, "0" * 63, 7])
def test_a_key_that_is_none_is_refused_before_anything_happens(rig_of: RigOf, key: object) -> None:
    """No port is asked, nothing is logged."""
    rig = rig_of()
    before = list(rig.logs[0].records())
    with pytest.raises(BadKey):
        rig.ranks[0].issue("r", 0, [key], rig.indexes[0].root)  # type: ignore[list-item]
    assert list(rig.logs[0].records()) == before
    assert rig.stores[0].queries == 0


def test_keys_that_do_not_pass_the_anchor_are_refused(rig_of: RigOf) -> None:
    """A prompt that is not the anchor's, or is shorter than it, is no prompt to go on from."""
    rig = rig_of()
    rig.run("a", 4)
    anchor = rig.indexes[0].match(rig.prompts["a"], 1).anchor
    for keys in (page_keys(range(32), PAGE_TOKENS), rig.prompts["a"][:2]):
        with pytest.raises(WrongAnchor, match="cannot issue request 'b': its keys do not pass the anchor at page 4"):
            rig.ranks[0].issue("b", 0, keys, anchor)
    assert rig.locks() == 0


# --- a newer attempt is all or nothing -----------------------------------------------------------------------------------


def test_an_attempt_that_the_index_refuses_takes_nothing_from_the_older_one(
    rig_of: RigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock comes first: an index that raises leaves the older attempt in flight, and no event behind."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    logged = len(list(rig.logs[0].records()))

    def busy(anchor: object) -> None:
        raise OSError("the index is busy")

    with monkeypatch.context() as patch:
        patch.setattr(rig.indexes[0], "lock", busy)
        with pytest.raises(OSError, match="busy"):
            rig.issue(attempt=1)
    assert len(list(rig.logs[0].records())) == logged
    assert rig.locks() == 1
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert isinstance(rig.outcome(id_), ev.Committed)


@pytest.mark.parametrize("unlocks_at_once", [True, False])
def test_a_newer_attempt_that_is_declined_keeps_no_lock(
    rig_of: RigOf, monkeypatch: pytest.MonkeyPatch, unlocks_at_once: bool
) -> None:
    """The older attempt is over all the same, and the lock that was taken first is dropped, at the next tick if not now."""
    rig = rig_of()
    rig.stores[0].hold("")
    older = rig.issue()
    unlock, calls = rig.indexes[0].unlock, count(1)

    def flaky(anchor: Any) -> None:
        if next(calls) == 2 and not unlocks_at_once:  # the first is that of the older attempt
            raise OSError("the index is busy")
        unlock(anchor)

    monkeypatch.setattr(rig.indexes[0], "unlock", flaky)
    declined = rig.issue(pages=0, attempt=1, prompt="none")
    assert isinstance(declined, ev.Declined)
    assert declined.reason is Reason.TOO_SHORT
    assert isinstance(rig.outcome(older), ev.Discarded)
    rig.stores[0].open_all()
    rig.until_closed(older)
    assert next(calls) == (3 if unlocks_at_once else 4)
    assert rig.locks() == 0
