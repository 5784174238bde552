"""The public record of prefetch faults, one test a row, with the right outcome as values: classes A to E.

Classes F to N are in `test_public_faults_more.py`.

Rows that these parts cannot express, and where they belong:

    LMCache#5032          a write that fails is never readable: page stores (tests/stores)
    sglang#29969          a file is not visible while it is written: page stores (tests/stores)
    LMCache#2954 ...      pins of L1 objects by key: an engine's own cache; here a lock belongs to (prefetch, anchor)
    vllm#46240 ...        sends: this library only receives
    LMCache#4852          a lookup's locks: there is no lookup apart from `issue`
    sglang#26449          a limit from two pool sizes: the limit is explicit here, and 0 is refused (tests/core)
    sglang#20460, #15805  which process groups exist: the transport's tests
    sglang#13146, #26448-B  key functions: one only (tests/core); the span is asked from the anchor on, see below
    sglang#31315, #36386  beliefs about presence with a time to live: a store's own
    sglang#40011          what retries cost: `test_retry_misses.py`; that a decline asks nothing is in the other part
    sglang#37503          what admission does with loaded tokens: the engine's; ours is `take_loaded`
    sglang#18846          K and V halves of one page: a store's own; one result per key here, see `bad result`
    vllm#45474            block lists per group of an engine
"""

from collections.abc import Callable
from typing import Any

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle import events as ev
from lifecycle.policies import BestEffort, OnShortfall, Timeout
from lifecycle.reasons import ReadCode, Reason

RigOf = Callable[..., Rig]
LIMIT = Timeout(5, 0, 5)


def left(rig: Rig) -> dict[str, int]:
    """Return what the fault tables ask for: pages in the tree, slots that are free again, locks, tokens."""
    return {"tree": rig.resident(), "rel": rig.free() - (32 - 8), "lock": rig.locks(), "occ": rig.occupied()}


def usable(end: Any) -> int:
    """Return the published pages."""
    return 0 if isinstance(end, ev.Discarded) else int(end.usable_page)


# --- A: the published length --------------------------------------------------------------------------------------------


def test_sglang_30057_kv_stops_early_and_the_sidecar_is_not_there(rig_of: RigOf) -> None:
    """KV landed 6 when time ran out, the indexer nothing: nothing is published."""
    rig = rig_of("dsa", stop=LIMIT, batch_pages=6)
    rig.stores[0].hold("indexer")
    id_ = rig.issue()
    rig.until(lambda: rig.events(ev.PagesLanded))
    rig.clock.advance(6)
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert usable(rig.outcome()) == 0
    assert rig.take_loaded() == 0
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert left(rig) == {"tree": 0, "rel": 8, "lock": 0, "occ": 0}


def test_sglang_31108_the_sidecar_vanishes_between_query_and_read(rig_of: RigOf) -> None:
    """A hit is a hint: reads correct it, and the prefix is what both pools gave."""
    rig = rig_of("dsa")
    rig.stores[0].say("indexer", "11111000", rig.prompt("r", 8))
    assert usable(rig.run()) == 5
    assert left(rig) == {"tree": 5, "rel": 3, "lock": 0, "occ": 0}


def test_sglang_30334_hits_are_a_leading_run_and_no_sum(rig_of: RigOf) -> None:
    """11111011 is 5 pages, and the page after the hole is dropped although it arrived."""
    rig = rig_of("dsa")
    rig.stores[0].say("indexer", "11111011", rig.prompt("r", 8))
    assert usable(rig.run()) == 5
    assert left(rig) == {"tree": 5, "rel": 3, "lock": 0, "occ": 0}


def test_sglang_31443_one_round_for_all_pools(rig_of: RigOf) -> None:
    """kv 8 idx 7 and kv 6 idx 8: 6 on both ranks, each releases two pages, and the agreement is one collective."""
    rig = rig_of("dsa", 2)
    keys = rig.prompt("r", 8)
    rig.stores[0].say("indexer", "11111110", keys)
    rig.stores[1].say("kv", "11111100", keys)
    assert usable(rig.run()) == 6
    assert left(rig) == {"tree": 6, "rel": 2, "lock": 0, "occ": 0}
    assert rig.free(rank=1) == 32 - 6


def test_sglang_39267_endpoints_are_intersected(rig_of: RigOf) -> None:
    """{1, 3} on one rank, {1, 2} on the other: one page on both."""
    rig = rig_of("mamba", 2)
    keys = rig.prompt("r", 3)
    rig.stores[0].show("mamba", "101", keys)
    rig.stores[1].show("mamba", "110", keys)
    assert usable(rig.run(pages=3)) == 1


@pytest.mark.parametrize(("layout", "pool", "want"), [("swa", "swa", 8), ("mamba", "mamba", 0)])
def test_sglang_38348_only_what_can_be_rebuilt_is_spared(rig_of: RigOf, layout: str, pool: str, want: int) -> None:
    """SWA short under `degrade`: kv is published and the window released; Mamba short: nothing is."""
    rig = rig_of(layout, shortfall=OnShortfall.DEGRADE)
    rig.stores[0].say(pool, "00001100", rig.prompt("r", 8))
    assert usable(rig.run()) == want
    assert left(rig)["rel"] == 8 - want
    assert rig.free(pool) == 32


def test_sglang_28896_an_absent_draft_pool_cannot_be_read(rig_of: RigOf) -> None:
    """The target has 8 pages; a match for the draft has none."""
    rig = rig_of("dsa", draft=True)
    rig.stores[0].say("draft", "00000000", rig.prompt("r", 8))
    assert usable(rig.run()) == 8
    assert rig.matched() == 8
    assert rig.matched(pools=["kv", "draft"]) == 0


def test_lmcache_3388_a_failed_load_loads_nothing(rig_of: RigOf) -> None:
    """All three pages fail: 0 loaded, 0 published."""
    rig = rig_of()
    rig.stores[0].say("kv", "iii", rig.prompt("r", 3))
    assert usable(rig.run(pages=3)) == 0
    assert rig.take_loaded() == 0
    assert rig.matched() == 0


# --- B: visible before valid --------------------------------------------------------------------------------------------


def test_sglang_8901b_a_page_counts_once_its_bytes_are_in_place(rig_of: RigOf) -> None:
    """Time runs out while page 0 is being copied: nothing of it is usable."""
    rig = rig_of(stop=LIMIT)
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    rig.clock.advance(6)
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert usable(rig.outcome()) == 0


def test_sglang_39269_a_truncated_page_is_a_miss_and_the_reader_lives(rig_of: RigOf) -> None:
    """Two good pages, a short one: 2 usable; the next prefetch is read by the same reader."""
    rig = rig_of(readers=1)
    rig.stores[0].say("kv", "11s", rig.prompt("r", 8))
    assert usable(rig.run()) == 2
    assert [e.code for e in rig.events(ev.ReadFailed)] == [ReadCode.SHORT]
    assert left(rig) == {"tree": 2, "rel": 6, "lock": 0, "occ": 0}
    assert usable(rig.run("next")) == 8
    assert rig.ranks[0].snapshot()["lost_reads"] == 0


def test_mooncake_3076_expired_leases_lose_pages_and_not_the_engine(rig_of: RigOf) -> None:
    """Every key of a large span answers that its lease is over: nothing usable, everything released, the code in the log."""
    rig = rig_of(capacity=300, policies=None, batch_pages=128)
    rig.stores[0].say("kv", "l" * 300, rig.prompt("r", 300))
    end = rig.run(pages=300)
    assert usable(end) == 0
    assert {e.code for e in rig.events(ev.ReadFailed)} == {ReadCode.LEASE_EXPIRED}
    assert rig.free() == 300


def test_dynamo_15079_an_answer_is_not_a_success(rig_of: RigOf) -> None:
    """Four transfers acknowledged, the second one an error: one page is loaded. The same for ok without a whole page."""
    for answer in "ia":
        rig = rig_of()
        rig.stores[0].say("kv", f"1{answer}11", rig.prompt("r", 4))
        assert usable(rig.run(pages=4)) == 1
        assert rig.take_loaded() == PAGE_TOKENS


# --- C: freed while IO may still touch it -------------------------------------------------------------------------------


def test_sglang_31445_every_pool_waits_for_its_reads(rig_of: RigOf) -> None:
    """Time runs out while the window pool is being read: kv goes, the window's slots go when its read is back, each once."""
    rig = rig_of("swa", stop=LIMIT)
    rig.stores[0].hold("swa")
    id_ = rig.issue()
    rig.until_held("swa")
    rig.until(lambda: rig.events(ev.ReadEnded))
    rig.clock.advance(6)
    rig.until(lambda: rig.prefetch(id_).terminal)
    rig.tick(3)
    assert (rig.free("kv"), rig.free("swa")) == (32, 28)
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert (rig.free("kv"), rig.free("swa")) == (32, 32)


def test_sglang_27504_a_slot_is_not_reused_under_a_late_write(rig_of: RigOf) -> None:
    """After best effort ended a prefetch, a new one does not get the slots that the indexer read may still write."""
    rig = rig_of("dsa", stop=BestEffort(), capacity=16, readers=3)
    rig.stores[0].hold("indexer")
    old = rig.issue("old")
    rig.until_held("indexer")
    rig.ready("old")
    rig.until(lambda: rig.prefetch(old).terminal)
    rig.stores[0].holding.clear()
    assert usable(rig.run("new")) == 8
    slots = [{s for lo, hi in e.slots for s in range(lo, hi)} for e in rig.events(ev.HostReserved)]
    assert not slots[0] & slots[1]
    rig.stores[0].open_all()
    rig.until_closed(old)
    assert rig.matched("new") == 8


def test_sglang_36882_a_close_leaves_no_reader_and_no_page(rig_of: RigOf) -> None:
    """What is in flight at the close is resolved as cancelled, everything is released, and no reader is left."""
    rig = rig_of(batch_pages=2)
    rig.stores[0].hold("kv")
    rig.issue()
    rig.until_held()
    rig.stores[0].open_all()
    rig.ranks[0].close()
    assert rig.outcome().reason is Reason.SHUTDOWN
    assert rig.free() == 32
    assert not any(thread.is_alive() for thread in rig.ranks[0]._rank.readers._threads)


@pytest.mark.parametrize("answered", [False, True])
def test_vllm_32255_an_aborted_load_is_freed_when_it_is_over(rig_of: RigOf, answered: bool) -> None:
    """Freed at the answer; if the answer was there before the abort, freed then, and not never."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    if answered:
        rig.stores[0].open_all()
        rig.until(lambda: not rig.stores[0].active.busy, tick=False)
    rig.abort()
    assert rig.free() == 24
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert left(rig) == {"tree": 0, "rel": 8, "lock": 0, "occ": 0}


# --- D: twice -----------------------------------------------------------------------------------------------------------


def test_sglang_13483_the_tail_is_freed_once(rig_of: RigOf) -> None:
    """Five of eight: three slots come back, not six."""
    rig = rig_of()
    rig.stores[0].say("kv", "11111000", rig.prompt("r", 8))
    assert usable(rig.run()) == 5
    assert left(rig) == {"tree": 5, "rel": 3, "lock": 0, "occ": 0}
    assert rig.memories[0].spy.units["release kv"] == 3


def test_sglang_27010_late_acks_do_not_free_the_middle_again(rig_of: RigOf) -> None:
    """Ended at 2; then 5, then 8 answer: pages 2 to 7 go once each."""
    rig = rig_of(stop=LIMIT, batch_pages=2, readers=4)
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held("kv", 3)
    rig.stores[0].let_go("kv", page=0)
    rig.until(lambda: rig.events(ev.ReadEnded))
    rig.until_held("kv", 3)
    rig.clock.advance(6)
    rig.until(lambda: rig.prefetch(id_).terminal)
    assert usable(rig.outcome()) == 2
    for page in (4, 2, 6):
        rig.stores[0].let_go("kv", page=page)
        rig.tick(2)
    rig.until_closed(id_)
    assert rig.memories[0].spy.units["release kv"] == 6


def test_sglang_22767_a_pool_that_shares_slots_frees_none(rig_of: RigOf) -> None:
    """The indexer rides on kv: 8 slots are released, and of the indexer none."""
    rig = rig_of("dsa")
    rig.stores[0].say("kv", "0", rig.prompt("r", 8))
    rig.run()
    assert rig.memories[0].spy.units == {"allocate kv": 8, "release kv": 8}


# --- E: never -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["9874: transferring", "30053: before the hit", "16369: evicted from the queue"])
def test_sglang_9874_30053_16369_every_abort_gives_everything_back(rig_of: RigOf, where: str) -> None:
    """Whatever the route, aborts by the dozen never fill the limit."""
    rig = rig_of(limit_tokens=8 * PAGE_TOKENS, batch_pages=3)
    for turn in range(12):
        request = f"r{turn}"
        rig.stores[0].hold("" if "hit" in where else "kv")
        id_ = rig.issue(request)
        assert isinstance(id_, int), "the limit is held by dead prefetches"
        rig.until_held("" if "hit" in where else "kv")
        if "queue" in where:
            rig.finish(request)
        else:
            rig.abort(request)
        assert rig.occupied() == rig.locks() == 0
        rig.stores[0].open_all()
        rig.until_closed(id_)
        assert rig.free() == 32


def test_sglang_9927_a_record_stays_until_it_is_terminal(rig_of: RigOf) -> None:
    """Asking again and again while it cannot end loses nothing."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    for _ in range(5):
        assert not rig.ready()
        rig.tick()
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert left(rig) == {"tree": 8, "rel": 0, "lock": 0, "occ": 0}


@pytest.mark.parametrize("batch", ["none", "short", "long", "raise", "bools"])
def test_sglang_8901a_a_batch_without_a_result_for_each_key_fails(rig_of: RigOf, batch: str) -> None:
    """Two pages, then a batch that answers nonsense: 2 usable, 6 released."""
    rig = rig_of(batch_pages=2, readers=1)
    rig.stores[0].hold("kv")
    id_ = rig.issue()
    rig.until_held()
    rig.stores[0].let_go("kv")
    rig.until(lambda: rig.events(ev.ReadEnded))
    rig.until_held()
    rig.stores[0].batch["kv"] = batch
    rig.stores[0].open_all()
    rig.until_closed(id_)
    assert usable(rig.outcome()) == 2
    code = ReadCode.IO_ERROR if batch == "raise" else ReadCode.BAD_RESULT
    assert rig.events(ev.ReadFailed)[0].code is code
    assert left(rig) == {"tree": 2, "rel": 6, "lock": 0, "occ": 0}


def test_sglang_38483_the_amount_returned_is_the_amount_reserved(rig_of: RigOf) -> None:
    """Eight pages asked for, five planned: 8 pages of tokens are reserved and 8 are returned, at a shutdown too."""
    rig = rig_of(capacity=5)
    rig.stores[0].hold("kv")
    rig.issue()
    rig.until_held()
    rig.stores[0].open_all()
    rig.ranks[0].close()
    assert rig.occupied() == rig.locks() == 0
    assert [e.tokens for e in rig.events(ev.TokensReturned)] == [8 * PAGE_TOKENS]
