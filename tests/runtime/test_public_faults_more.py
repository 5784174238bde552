"""The public record of prefetch faults, one test a row, with the right outcome as values: classes F to N.

The rows that these parts cannot express are listed in `test_public_faults.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.layout import preset
from lifecycle.policies import Timeout
from lifecycle.reasons import ReadCode, Reason
from lifecycle.states import State

RigOf = Callable[..., Rig]
LIMIT = Timeout(5, 0, 5)


def left(rig: Rig) -> dict[str, int]:
    """Return what the fault tables ask for: pages in the tree, slots that are free again, locks, tokens."""
    return {"tree": rig.resident(), "rel": rig.free() - (32 - 8), "lock": rig.locks(), "occ": rig.occupied()}


def usable(end: Any) -> int:
    """Return the published pages."""
    return 0 if isinstance(end, ev.Discarded) else int(end.usable_page)


# --- F: the limit -------------------------------------------------------------------------------------------------------


def test_sglang_33984_a_decline_says_why_and_ends(rig_of: RigOf) -> None:
    """The fourth is declined with reason, occupancy and limit; it is let in when the occupancy drops; 0 in the end."""
    rig = rig_of(limit_tokens=24 * PAGE_TOKENS, capacity=64, readers=4)
    rig.stores[0].hold("kv")
    ids = [rig.issue(name) for name in "abc"]
    declined = rig.issue("d")
    assert isinstance(declined, ev.Declined)
    assert (declined.reason, declined.occupied_tokens, declined.limit_tokens) == (
        Reason.RATE_LIMITED, 24 * PAGE_TOKENS, 24 * PAGE_TOKENS,
    )  # fmt: skip
    rig.stores[0].open_all()
    for id_ in ids:
        rig.until_closed(id_)
    assert usable(rig.run("d")) == 8
    assert rig.occupied() == 0


def test_sglang_32724_what_is_read_ends_without_being_asked(rig_of: RigOf) -> None:
    """Nobody calls `ready`: the tokens and the lock are back at the next safe point all the same."""
    rig = rig_of()
    rig.run()
    assert not rig.events(ev.Wanted)
    assert rig.occupied() == rig.locks() == 0


def test_sglang_19320_slots_are_reserved_for_the_hit_and_not_for_the_ask(rig_of: RigOf) -> None:
    """A miss evicts nothing; under pressure the reservation shrinks."""
    rig = rig_of(capacity=10)
    rig.run("hot", 8)
    rig.stores[0].show("kv", "0" * 8, rig.prompt("miss", 8))
    assert usable(rig.run("miss")) == 0
    assert not rig.events(ev.Evicted)
    assert rig.memories[0].spy.units["allocate kv"] == 8
    rig.stores[0].hold("kv")
    held = rig.issue("more", 5)
    rig.until_held()
    rig.stores[0].holding.clear()
    end = rig.run("last", 8)
    assert usable(end) == 5
    rig.stores[0].open_all()
    rig.until_closed(held)


# --- G: collectives -----------------------------------------------------------------------------------------------------


def test_sglang_30760_38273_a_round_runs_whatever_a_rank_knows(rig_of: RigOf) -> None:
    """Every tick has one exchange of one shape, whether or not anything is in flight here; the rig compares the shapes."""
    rig = rig_of(ranks=3)
    rig.tick(2)
    rig.stores[0].hold("kv")
    ids = [rig.issue(name, 4) for name in "ab"]
    rig.tick(5)
    rig.stores[0].open_all()
    for id_ in ids:
        rig.until_closed(id_)
    assert {c._rank.agreement.number for c in rig.ranks} == {rig.ranks[0].tick_number}


def test_sglang_22607_ranks_publish_the_same_length(rig_of: RigOf) -> None:
    """One rank read 2, the other 1 and hangs: 1 on both; the first releases at once, the second when its read is back."""
    rig = rig_of(ranks=2, stop=LIMIT, batch_pages=1)
    for store in rig.stores:
        store.hold("kv")
    id_ = rig.issue(pages=2)
    rig.until_held()
    rig.stores[0].open_all()
    rig.stores[1].let_go("kv", page=0)
    rig.until(lambda: len(rig.events(ev.ReadEnded, 0)) == 2 and rig.events(ev.ReadEnded, 1))
    rig.until(lambda: rig.stores[1].waiting("kv"))
    rig.clock.advance(6)
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert usable(rig.outcome()) == 1
    assert (rig.free(rank=0), rig.free(rank=1)) == (31, 30)
    rig.stores[1].open_all()
    rig.until_closed(id_)
    assert (rig.free(rank=0), rig.free(rank=1)) == (31, 31)


def test_sglang_11005_an_empty_release_is_none(rig_of: RigOf) -> None:
    """A rank with nothing to release calls nothing: port calls and free counts stay equal to the events."""
    rig = rig_of(ranks=2)
    rig.run()
    assert [memory.spy.calls["release"] for memory in rig.memories] == [0, 0]


def test_sglang_39267c_the_payload_depends_on_no_local_state(rig_of: RigOf) -> None:
    """Spans of different lengths on the way: every exchange has the shape that the configuration gave it."""
    rig = rig_of("mamba", 2, max_pages=16)
    ids = [rig.issue(f"r{pages}", pages) for pages in (1, 5, 16)]
    for id_ in ids:
        rig.until_closed(id_)
    codec = rig.ranks[0]._rank.agreement._codec
    assert codec.fresh_masks().shape == (rig.policies.mask_capacity, 16)


# --- H: no end, or too late ---------------------------------------------------------------------------------------------


def test_sglang_9397_nothing_of_nothing_is_not_complete(rig_of: RigOf) -> None:
    """Before the plan is known a prefetch is not complete, however often it is asked; later it loads 8."""
    rig = rig_of()
    rig.stores[0].hold("")
    id_ = rig.issue()
    rig.tick(3)
    assert not rig.ready()
    assert rig.state(id_) is State.ISSUED
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert rig.take_loaded() == 8 * PAGE_TOKENS


def test_sglang_16747_a_revoke_is_an_end(rig_of: RigOf) -> None:
    """Hit 1 below a threshold of 4: discarded with a reason, and the request runs."""
    rig = rig_of(threshold_pages=4)
    rig.stores[0].show("kv", "10000000", rig.prompt("r", 8))
    assert rig.run().reason is Reason.BELOW_THRESHOLD
    assert rig.ready()
    assert left(rig) == {"tree": 0, "rel": 8, "lock": 0, "occ": 0}


def test_sglang_9971_an_error_ends_wait_complete(rig_of: RigOf) -> None:
    """Two pages, then an error: ended, 2 usable, 6 released."""
    rig = rig_of()
    rig.stores[0].say("kv", "11i", rig.prompt("r", 8))
    end = rig.run()
    assert (usable(end), end.reason) == (2, Reason.READ_FAILED)  # type: ignore[union-attr]
    assert left(rig) == {"tree": 2, "rel": 6, "lock": 0, "occ": 0}


def test_sglang_35012_the_limit_does_not_wait_for_a_sidecar(rig_of: RigOf) -> None:
    """At the limit the prefetch ends by coverage: 0 without the sidecar; its slots stay until its read is back."""
    rig = rig_of("dsa", stop=LIMIT)
    rig.stores[0].hold("indexer")
    id_ = rig.issue()
    rig.until_held("indexer")
    rig.clock.advance(5)
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert usable(rig.outcome()) == 0
    assert rig.free() == 24
    rig.stores[0].open_all()
    rig.until_closed(id_)


def test_sglang_9643_refused_is_an_event(rig_of: RigOf) -> None:
    """What is neither started nor refused does not exist: each issue is in the log as one or the other."""
    rig = rig_of(limit_tokens=8 * PAGE_TOKENS)
    rig.stores[0].hold("")
    ids = [rig.issue(f"r{n}") for n in range(4)]
    assert len(rig.events(ev.Issued)) + len(rig.events(ev.Declined)) == 4
    rig.stores[0].open_all()
    rig.until_closed(ids[0])


def test_sglang_31797_time_in_the_queue_is_told_apart(rig_of: RigOf) -> None:
    """Behind a large prefetch on the only reader: `queue_timeout`, nothing read, nothing reserved, everything returned."""
    rig = rig_of(readers=1, stop=LIMIT, capacity=64)
    rig.stores[0].hold("kv")
    big = rig.issue("big", 16)
    rig.until_held()
    rig.tick()
    small = rig.issue("small", 8)
    rig.clock.advance(5)
    rig.until_closed(small)
    assert rig.outcome(small).reason is Reason.QUEUE_TIMEOUT
    assert rig.outcome(big).reason is Reason.TIMEOUT
    assert not rig.events(ev.HostReserved, prefetch=small)
    assert not rig.events(ev.TransferStarted, prefetch=small)
    assert rig.occupied() == 0
    rig.stores[0].open_all()
    rig.until_closed(big)


def test_lmcache_5047_a_request_is_not_parked_for_ever(rig_of: RigOf) -> None:
    """The retrieval never answers: finished once, failed, at the deadline; the late reply is ignored."""
    rig = rig_of(lost_read_s=30.0)
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    rig.clock.advance(29)
    rig.tick(2)
    assert not rig.ready()
    rig.clock.advance(2)
    rig.until_closed(id_)
    assert rig.outcome().reason is Reason.LOST_READ
    before = list(rig.logs[0].records())
    rig.stores[0].open_all()
    rig.until(lambda: not rig.stores[0].active.busy, tick=False)
    rig.tick(2)
    assert list(rig.logs[0].records()) == before


# --- I: the anchor ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["anchor lost", "insert dropped"])
def test_sglang_30106_a_place_that_is_gone_takes_nothing(rig_of: RigOf, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index says that it would not take the pages: discarded with that reason, and everything goes back."""
    reason = Reason(what.replace(" ", "_"))
    rig = rig_of(ranks=2)
    for index in rig.indexes:
        monkeypatch.setattr(index, "plan_insert", lambda *_: reason)
    assert rig.run().reason is reason
    assert left(rig) == {"tree": 0, "rel": 8, "lock": 0, "occ": 0}
    assert rig.take_loaded() == 0


def test_sglang_36834_an_anchor_that_is_gone_is_found_before_any_read(rig_of: RigOf) -> None:
    """Declined with `anchor_lost`; no query, no read."""
    rig = rig_of(capacity=8)
    rig.run("base", 4, prompt="p")
    anchor = rig.indexes[0].match(rig.prompt("p", 4), 1).anchor
    rig.run("other", 8)  # evicts it
    declined = rig.ranks[0].issue("more", 0, rig.prompt("p", 8), anchor)
    assert isinstance(declined, ev.Declined)
    assert declined.reason is Reason.ANCHOR_LOST
    assert rig.stores[0].queries == 2
    assert rig.locks() == 0


def test_sglang_36834_an_anchor_that_was_split_is_still_the_place(rig_of: RigOf) -> None:
    """A node that is cut in two under a prefetch stays locked in full, and takes the pages."""
    rig = rig_of()
    rig.run("base", 4, prompt="p")
    rig.stores[0].hold("kv")
    id_ = rig.issue("more", 8, prompt="p")
    rig.until_held()
    rig.indexes[0].match(rig.prompt("p", 8)[:2], rig.ranks[0].tick_number)  # cuts the node at page 2
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert rig.matched("p") == 8


# --- J: keys and attempts -----------------------------------------------------------------------------------------------


def test_sglang_26448b_the_span_is_asked_from_what_was_matched(rig_of: RigOf) -> None:
    """Three pages in L2, eight in the prompt: the other five are asked for under the keys that were written."""
    rig = rig_of()
    rig.run("a", 3, prompt="p")
    assert usable(rig.run("b", 8, prompt="p")) == 8
    assert rig.take_loaded("b") == 5 * PAGE_TOKENS
    assert set(rig.stores[0].reads.values()) == {1}


def test_sglang_39318_an_attempt_does_not_inherit(rig_of: RigOf) -> None:
    """Attempt 0's answers touch attempt 1 nowhere: its own tokens, its own pages, and attempt 0's slots go once."""
    rig = rig_of(readers=3)
    rig.stores[0].hold("kv")
    old = rig.issue()
    rig.until_held()
    rig.stores[0].holding.clear()
    rig.stores[0].say("kv", "11100000", rig.prompt("r", 8))
    new = rig.issue(attempt=1)
    rig.until_closed(new)
    assert rig.take_loaded() == 3 * PAGE_TOKENS
    rig.stores[0].open_all()
    rig.until_closed(old)
    assert rig.take_loaded() == 0
    assert left(rig) == {"tree": 3, "rel": 5, "lock": 0, "occ": 0}


# --- K to N -------------------------------------------------------------------------------------------------------------


def test_sglang_40011_a_decline_asks_nothing(rig_of: RigOf) -> None:
    """Eight times too short: no query is spent, and the same attempt then goes through."""
    rig = rig_of(threshold_pages=4)
    for _ in range(8):
        assert isinstance(rig.issue(pages=3), ev.Declined)
    assert rig.stores[0].queries == 0
    assert usable(rig.run(pages=8)) == 8


def test_sglang_38429_what_is_inserted_and_evicted_is_in_the_log(rig_of: RigOf) -> None:
    """8 pages in, 8 pages out: both are events, with the same count."""
    rig = rig_of(capacity=8)
    rig.run("a")
    rig.run("b")
    stored = sum(hi - lo for e in rig.events(ev.HostHandedOver, prefetch=1) for lo, hi in e.pages)
    assert stored == sum(e.pages for e in rig.events(ev.Evicted)) == 8


def test_sglang_37690_long_spans_are_asked_in_pieces(rig_of: RigOf) -> None:
    """220 pages: 128 and 92, and all of them land."""
    rig = rig_of(capacity=256)
    assert usable(rig.run(pages=220)) == 220
    assert sorted(hi - lo for e in rig.events(ev.ReadClaimed) for lo, hi in [e.pages]) == [92, 128]


def test_lmcache_1835_a_shortfall_is_told_in_full(rig_of: RigOf) -> None:
    """Nine asked, six there: usable 6, and the log says which pages are not."""
    rig = rig_of("kv_only")
    rig.stores[0].say("kv", "111111000", rig.prompt("r", 9))
    end = rig.run(pages=9)
    assert usable(end) == 6
    assert [(e.pages, e.code) for e in rig.events(ev.ReadFailed)] == [((6, 9), ReadCode.MISSING)]


def test_vllm_45474_one_failed_read_is_one_requests_matter(rig_of: RigOf) -> None:
    """Of two requests one fails and can be issued again; the other is untouched."""
    rig = rig_of(preset("swa"), readers=3)
    rig.stores[0].say("swa", "0" * 8, rig.prompt("bad", 8))
    ids = [rig.issue("bad"), rig.issue("good")]
    for id_ in ids:
        rig.until_closed(id_)
    assert (usable(rig.outcome(ids[0])), usable(rig.outcome(ids[1]))) == (0, 8)
    rig.stores[0].answers.clear()
    assert usable(rig.run("bad", attempt=1)) == 8
