"""What this library does differently, one shortest case each: the rows of the table in lifecycle/docs/sglang.md."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt", reason="needs SGLang (tests/sglang/setup.sh)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import originals
    from cases import run_original, run_ours
    from originals import PAGE, Script, World, tokens_of, unified
    from ours import Ours
    from test_agreement import case

from lifecycle import BestEffort, Reason, page_keys
from lifecycle import events as ev
from lifecycle.adapters.guard import guard
from lifecycle.adapters.sglang import shadow
from lifecycle.errors import LifecycleError
from stores.events import MemoryEventLog

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]


def test_sidecars_are_read_with_kv() -> None:
    """kv ends at page 5 of 8: there the indexer is never asked for and nothing is usable; here 5 pages are."""
    short = case("dsa", {"kv": "11111000"})
    theirs, reads = run_original(short)
    assert (theirs.usable, "indexer" in reads) == (0, False)
    ours, _ = run_ours(short, ["kv", "indexer"])
    assert ours.usable == 5


def test_one_rank_needs_no_collective() -> None:
    """With one rank each check makes tensors and asks for reductions; here no collective runs at all."""
    world = unified("kv_only", {"kv": 40})
    calls = []
    world.cache._all_reduce_attn_groups = lambda tensor, op: calls.append(op)
    whole = case("kv_only", {"kv": "11"})
    _, reads = run_original(whole, world=world)
    assert len(calls) > 2
    _, ours = run_ours(whole, reads)
    assert ours.coordinator.collectives == 0


def test_no_floor_under_the_occupancy() -> None:
    """A second return of tokens: there the counter stops at zero and the fault is gone; here it is refused by name."""
    world = unified("kv_only", {"kv": 40})
    world.storage.script = Script(0, {"kv": ()})
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 2), None)
    world.controller.prefetch_tokens_occupied = 0  # returned once too often, somewhere else
    world.cache.release_aborted_request("r")
    assert world.controller.prefetch_tokens_occupied == 0
    from lifecycle.errors import ObligationError
    from lifecycle.obligations import Obligations

    debts = Obligations(1, 8)
    debts.return_tokens(8)
    with pytest.raises(ObligationError, match="nothing is reserved"):
        debts.return_tokens(8)


def test_a_slot_waits_for_the_read_into_it() -> None:
    """Aborted while the window is being read: there its slots are free to be given out; here they are not."""
    world = unified("swa", {"kv": 40, "swa": 4})
    world.cache.prefetch_stop_policy = "wait_complete"
    free = []

    def abort() -> None:
        world.cache.release_aborted_request("r")
        world.drain()
        free.append(world.free_pages()["swa"])

    world.storage.script = Script(4, {"kv": (True,) * 4, "swa": (True,) * 2}, during_sidecars=abort)
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 4), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    assert free == [4]

    ours = Ours("swa", {"kv": 40, "swa": 4}, "wait_complete", 1, tokens_of(1, 4), 0)
    before, mid = ours.free_pages()["swa"], []
    ours.store.hit_pages, ours.store.good = 4, {"kv": (True,) * 4, "swa": (True,) * 2}
    ours.store.first = {"swa": 2}
    read = ours.store.read_into

    def read_into(pool, keys, buffers):  # type: ignore[no-untyped-def]
        if pool == "swa":
            ours.coordinator.abort("r")
            ours.coordinator.tick()
            mid.append(ours.free_pages()["swa"])
        return read(pool, keys, buffers)

    ours.store.read_into = read_into  # type: ignore[method-assign]
    ours.issue()
    for _ in range(3):
        ours.readers.work()
        ours.coordinator.tick()
    assert mid == [before - 2]
    assert ours.free_pages()["swa"] == before


def test_the_limit_runs_out_while_a_sidecar_is_read() -> None:
    """kv is there, the indexer is not yet, the limit is over: there the request waits on; here it goes on at once."""
    world = unified("dsa", {"kv": 40})
    world.cache.prefetch_stop_policy = "timeout"
    world.cache.prefetch_timeout_base, world.cache.prefetch_timeout_per_page = -1.0, 0.0
    said = []
    world.storage.script = Script(
        4, {"kv": (True,) * 4, "indexer": (True,) * 4},
        during_sidecars=lambda: said.append(world.cache.check_prefetch_progress("r")),
    )  # fmt: skip
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 4), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    assert said == [False]

    ours = Ours("dsa", {"kv": 40}, "timeout", 1, tokens_of(1, 4), 0)
    ours.store.hit_pages, ours.store.good = 4, {"kv": (True,) * 4, "indexer": (True,) * 4}
    ours.issue()
    ours.readers.work()
    ours.coordinator.tick()
    here = []

    def late() -> None:
        ours.stop()
        ours.coordinator.tick()
        here.append(ours.coordinator.ready("r"))

    ours.store.during_kv = {0: late}
    ours.readers.work()
    assert here == [True]


def test_a_stopped_prefetch_is_not_read() -> None:
    """Aborted before its first read: there one batch of kv is read all the same; here the read is withdrawn."""
    stopped = case("kv_only", {"kv": "1" * 8}, stop="best_effort", point="planned", how="abort")
    theirs, reads = run_original(stopped)
    assert reads == ["kv"]
    ours_left, ours = run_ours(stopped, reads)
    assert ours.store.batches == 0
    assert theirs == ours_left


def test_a_hit_shorter_than_the_window() -> None:
    """One page is there of a window of two: both publish kv, but there the window's page is dropped again."""
    short = replace(case("swa", {"kv": "111", "swa": "111"}), hits=(1,))
    theirs, reads = run_original(short)
    ours, _ = run_ours(short, reads)
    assert (theirs.usable, theirs.held) == (1, {"kv": 1, "swa": 0})
    assert (ours.usable, ours.held) == (1, {"kv": 1, "swa": 1})


def test_a_span_shorter_than_the_window() -> None:
    """One page is asked for: there it is published without any window; here with the page of it that it needs."""
    short = case("swa", {"kv": "1", "swa": "1"})
    theirs, reads = run_original(short)
    assert reads == ["kv"]
    ours, _ = run_ours(short, ["kv", "swa"])
    assert (theirs.held, ours.held) == ({"kv": 1, "swa": 0}, {"kv": 1, "swa": 1})


def test_the_limit_is_not_overshot() -> None:
    """Under a limit of 4 pages with 3 in flight, 4 more: there they begin; here they are declined."""
    world = unified("kv_only", {"kv": 8})  # half of the pool may be in flight
    world.cache.prefetch_from_storage("a", world.root, tokens_of(1, 3), None)
    world.cache.prefetch_from_storage("b", world.root, tokens_of(2, 4), None)
    assert world.controller.prefetch_tokens_occupied == 7 * PAGE > world.controller.prefetch_capacity_limit
    from lifecycle import Declined, Policies, Reason, kv_only, page_keys
    from lifecycle.decide import issue
    from lifecycle.replica import Replica

    replica = Replica(kv_only(), {"kv": 8})
    replica.occupied_tokens = 3 * PAGE
    said = issue(replica, Policies(limit_tokens=4 * PAGE), PAGE, "b", 0, page_keys(range(4 * PAGE), PAGE), 0, "")
    assert isinstance(said, Declined)
    assert said.reason is Reason.RATE_LIMITED


def test_a_second_attempt_ends_the_first() -> None:
    """The same request again while it is in flight: there the first is forgotten with its lock and tokens."""
    world = unified("kv_only", {"kv": 40})
    for _ in range(2):
        world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 2), None)
    world.cache.release_aborted_request("r")
    assert world.controller.prefetch_tokens_occupied == 2 * PAGE
    ours = Ours("kv_only", {"kv": 40}, "wait_complete", 1, tokens_of(1, 2), 0)
    anchor = ours.index.match((), 0).anchor
    for attempt in range(2):
        ours.coordinator.issue("r", attempt, ours.keys, anchor)
    ours.coordinator.abort("r")
    assert ours.coordinator.book.replica.occupied_tokens == 0


def test_the_window_of_a_shrunk_plan() -> None:
    """Six pages are there, four fit, the window of those is not in L3: ours would plan for a length that is restorable."""
    world = unified("swa", {"kv": 4, "swa": 4})
    world.cache.prefetch_stop_policy = "wait_complete"
    world.storage.script = Script(6, {"kv": (True,) * 6, "swa": (False, False)})
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 6), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    assert world.cache.check_prefetch_progress("r")
    assert world.resident(tokens_of(1, 6)) == 0
    import numpy as np
    from ours import LAYOUTS

    from lifecycle import Policies
    from lifecycle.coverage import Plan, plan, restorable

    window = np.array([True, True, False, False, True, True])
    lengths = restorable(LAYOUTS["swa"], False, {"kv": np.ones(6, dtype=bool), "swa": window})
    made = plan(LAYOUTS["swa"], Policies(), 0, lengths, {"kv": 4, "swa": 4})
    assert isinstance(made, Plan)
    assert made.plan_page == 2


def test_nothing_is_evicted_for_room_that_is_there() -> None:
    """Two pages are missing for a hit of four: there four pages are evicted for it; here two."""
    world = unified("kv_only", {"kv": 8})
    filled = tokens_of(3, 6)
    for page in range(6):  # six leaves of a page each, oldest first
        from sglang.srt.mem_cache.radix_cache import RadixKey

        tokens = tokens_of(10 + page, 1)
        world.cache.tree_core.insert_host(world.root, RadixKey(tokens), world.pools["kv"].alloc(PAGE), [f"{page:064x}"])
    world.storage.script = Script(4, {"kv": (True,) * 4})
    world.cache.prefetch_from_storage("r", world.root, filled[: 4 * PAGE], None)
    world.controller.step_queries()
    world.drain()
    left = sum(world.resident(tokens_of(10 + page, 1)) for page in range(6))
    assert left == 2
    assert originals.PAGE == PAGE


def test_a_promise_is_counted_until_its_end() -> None:
    """`no_budget`: eight pages promised, aborted half read: there the half is promised again; here nothing, until the end."""
    world = unified("kv_only", {"kv": 8})
    world.cache.prefetch_stop_policy = "wait_complete"
    world.controller.prefetch_capacity_limit = 1 << 20
    watch = guard(world.cache)

    def abort() -> None:
        world.cache.release_aborted_request("a")
        world.drain()
        world.storage.script.during_kv = {}
        world.cache.prefetch_from_storage("b", world.root, tokens_of(2, 4), None)
        world.controller.step_queries()
        world.drain()
        planned.append(world.cache.ongoing_prefetch["b"].operation.host_indices is not None)

    planned: list[bool] = []
    world.storage.script = Script(8, {"kv": (True,) * 8}, during_kv={1: abort})
    world.cache.prefetch_from_storage("a", world.root, tokens_of(1, 8), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    world.drain()
    assert planned == [True]
    assert watch.known["no_budget"] == 1

    ours = Ours("kv_only", {"kv": 8}, "wait_complete", 1, tokens_of(1, 8), 0)
    other = page_keys(tokens_of(2, 4), PAGE)
    ours.store.page_of.update({key: page for page, key in enumerate(other)})
    ends: list[object] = []

    def aborted() -> None:
        ours.coordinator.abort("r")
        ours.coordinator.tick()
        ours.store.during_kv = {}
        assert ours.free_pages()["kv"] == 4
        ours.coordinator.issue("b", 0, other, ours.index.match((), 0).anchor)
        ours.readers.work()
        ours.coordinator.tick()
        ends.extend(record.event for record in ours.events.records() if type(record.event).__name__ == "PlanAgreed")

    ours.store.hit_pages, ours.store.good, ours.store.during_kv = 8, {"kv": (True,) * 8}, {1: aborted}
    ours.issue()
    for _ in range(3):
        ours.readers.work()
        ours.coordinator.tick()
    assert len(ends) == 1, "only the first one has a plan while its pages are out"
    ours.coordinator.check_integrity()


def test_what_was_handed_over_is_locked_until_the_end() -> None:
    """`unlocked_early`: four of eight pages published, the rest still read: there they may be evicted; here they stay."""
    world = unified("kv_only", {"kv": 8})
    watch = guard(world.cache)
    left: list[int] = []

    def stop() -> None:
        assert world.cache.check_prefetch_progress("r")
        left.append(world.resident(tokens_of(1, 8)))
        world.cache.evict_host(4 * PAGE)
        left.append(world.resident(tokens_of(1, 8)))

    world.storage.script = Script(8, {"kv": (True,) * 8}, during_kv={1: stop})
    world.controller.prefetch_capacity_limit = 1 << 20
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 8), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    world.drain()
    assert left == [4, 0]
    assert watch.known["unlocked_early"] == 1

    ours = Ours("kv_only", {"kv": 8}, "best_effort", 1, tokens_of(1, 8), 0)
    here: list[int] = []

    def stopped() -> None:
        ours.coordinator.tick()
        ours.coordinator.ready("r")
        ours.coordinator.tick()  # stopped
        ours.coordinator.tick()  # published, the read still out
        here.append(ours.index.match(ours.keys, ours.coordinator.tick_number, ["kv"]).pages)
        here.append(ours.index.evictable_pages("kv"))

    ours.store.hit_pages, ours.store.good, ours.store.during_kv = 8, {"kv": (True,) * 8}, {1: stopped}
    ours.issue()
    for _ in range(3):
        ours.readers.work()
        ours.coordinator.tick()
    assert here == [4, 0]
    assert ours.index.evictable_pages("kv") == 4


class _Place:
    """A process group of two, as far as somebody asks it for a place."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return self._rank


def _two_ranks(goods: list[list[bool]], agreed_pages: int, late: int) -> list[tuple[World, MemoryEventLog]]:
    """Run one prefetch of eight pages on two ranks of the original, stopped while rank `late` is in its second read (or never);
    each rank's reduction gives what both have."""
    done = []
    for rank, good in enumerate(goods):
        world, log = unified("kv_only", {"kv": 8}), MemoryEventLog()
        world.controller.prefetch_capacity_limit = 1 << 20
        world.cache.attn_tp_group = _Place(rank)

        def reduce(tensor, op):  # type: ignore[no-untyped-def]
            if len(tensor) == 1 and "MIN" in repr(op):
                tensor[0] = min(int(tensor[0]), agreed_pages * PAGE)

        world.cache._all_reduce_attn_groups = reduce
        watch = shadow(world.cache, log)

        def check(world: World = world) -> None:
            assert world.cache.check_prefetch_progress("r")
            world.drain()

        def freed(world: World = world, log: MemoryEventLog = log) -> None:
            check(world)
            done.append((world, log, world.free_pages()["kv"]))

        world.storage.script = Script(8, {"kv": good}, during_kv={1: freed} if rank == late else {})
        world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 8), None)
        world.controller.step_queries()
        world.drain()
        world.controller.step_reads()
        if rank != late:
            freed()
        world.drain()
        watch.detach()
        assert watch.failure is None
    return done  # type: ignore[return-value]


def test_ranks_count_what_is_free_alike(rig_of) -> None:  # type: ignore[no-untyped-def]
    """`freed_apart`: one rank has read all, its peer half: there one gives out four pages more; here both count the same."""
    whole = [True] * 8
    free = [each[2] for each in _two_ranks([whole, whole], 4, late=1)]  # type: ignore[misc]
    assert free == [4, 0]

    rig = rig_of("kv_only", 2, capacity=8, stop=BestEffort(), batch_pages=4, readers=1)
    rig.stores[1].hold("kv")
    rig.issue()
    rig.until(lambda: rig.stores[1].waiting("kv"))
    rig.until(lambda: len(rig.events(ev.ReadEnded, 0)) == 2)
    rig.stores[1].let_go("kv")
    rig.until(lambda: rig.events(ev.ReadEnded, 1) and rig.stores[1].waiting("kv"))
    rig.ready()
    rig.until(lambda: rig.events(ev.Clamped, 1))
    rig.until(lambda: rig.events(ev.HostReleased, 0))
    assert [rig.free(rank=rank) for rank in range(2)] == [4, 0]
    assert [each.book.replica.budget("kv") for each in rig.ranks] == [0, 0]
    rig.stores[1].open_all()
    rig.until(lambda: rig.events(ev.Closed, 1))
    assert [each.book.replica.budget("kv") for each in rig.ranks] == [4, 4]
    assert rig.events(ev.Closed, 0) == rig.events(ev.Closed, 1)


def test_ranks_stop_for_one_reason(rig_of) -> None:  # type: ignore[no-untyped-def]
    """`reason_apart`: one rank has read all, its peer lacks three pages: there each has its own reason; here they share one."""
    short = [True] * 5 + [False] * 3
    logs = [each[1] for each in _two_ranks([[True] * 8, short], 5, late=-1)]
    reasons = [[r.event.reason for r in log.records() if type(r.event) is ev.Terminated] for log in logs]
    assert reasons == [[Reason.COMPLETED], [Reason.READ_FAILED]]

    rig = rig_of("kv_only", 2, capacity=8)
    rig.stores[1].say("kv", "11111000", rig.prompt("r", 8))
    assert rig.run().usable_page == 5
    ours = [[each.reason for each in rig.events(ev.Terminated, rank)] for rank in range(2)]
    assert ours == [[Reason.READ_FAILED]] * 2


def test_every_request_that_is_served_has_asked() -> None:
    """`served_unasked`: all of a prompt is there: there it is served without a word; here it is declined first, or refused."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    world = unified("kv_only", {"kv": 8})
    world.cache.prefetch_stop_policy = "wait_complete"
    world.cache.cache_unfinished_req = lambda req: None  # the rest of it wants a device
    watch = guard(world.cache)
    world.storage.script = Script(2, {"kv": (True,) * 2})
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 2), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    assert world.cache.check_prefetch_progress("r")
    match = world.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens_of(1, 2))))
    world.cache.cache_unfinished_req(SimpleNamespace(rid="s", last_node=match.best_match_node))
    assert watch.known["served_unasked"] == 1
    assert not watch.violations

    ours = Ours("kv_only", {"kv": 8}, "wait_complete", 1, tokens_of(1, 2), 0)
    ours.store.hit_pages, ours.store.good = 2, {"kv": (True,) * 2}
    ours.issue()
    for _ in range(3):
        ours.readers.work()
        ours.coordinator.tick()
    found = ours.index.match(ours.keys, ours.coordinator.tick_number, ["kv"])
    with pytest.raises(LifecycleError, match="cannot serve request 's'"):
        ours.coordinator.served("s", found)
    said = ours.coordinator.issue("s", 0, ours.keys, found.anchor)
    assert isinstance(said, ev.Declined)
    assert said.reason is Reason.TOO_SHORT
    ours.coordinator.served("s", found)


ROWS = {
    "sidecars": test_sidecars_are_read_with_kv,
    "one rank": test_one_rank_needs_no_collective,
    "occupancy": test_no_floor_under_the_occupancy,
    "aborted while a sidecar is read": test_a_slot_waits_for_the_read_into_it,
    "the limit runs out while a sidecar is read": test_the_limit_runs_out_while_a_sidecar_is_read,
    "`read_after_end`: stopped before its first read": test_a_stopped_prefetch_is_not_read,
    "the hit is shorter than the window": test_a_hit_shorter_than_the_window,
    "`window_left_out`: the span is shorter than the window": test_a_span_shorter_than_the_window,
    "`limit_overshot`: the limit on tokens in flight": test_the_limit_is_not_overshot,
    "the same request again while in flight": test_a_second_attempt_ends_the_first,
    "host pressure, with a window": test_the_window_of_a_shrunk_plan,
    "host pressure": test_nothing_is_evicted_for_room_that_is_there,
    "`no_budget`": test_a_promise_is_counted_until_its_end,
    "`unlocked_early`": test_what_was_handed_over_is_locked_until_the_end,
    "`freed_apart`": test_ranks_count_what_is_free_alike,
    "`served_unasked`": test_every_request_that_is_served_has_asked,
    "`reason_apart`": test_ranks_stop_for_one_reason,
}
"""The shortest case of each row of the table: `tests/adapters/test_known.py` holds the two equal."""
