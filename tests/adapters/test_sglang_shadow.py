"""The shadow against calls that SGLang's classes once made: what it tells of them, and that it only looks on."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import torch
from recorded import RECORDED, Player

from lifecycle.adapters.guard import GuardViolation, guard
from lifecycle.adapters.known import known_difference
from lifecycle.adapters.sglang import shadow
from lifecycle.adapters.sglang_ends import Scope
from lifecycle.adapters.sglang_pools import Slots, starts
from lifecycle.adapters.sglang_recorder import Recorder
from lifecycle.adapters.sglang_scribe import FellBehind
from lifecycle.adapters.sglang_told import Teller
from lifecycle.audit import verify_log
from lifecycle.errors import ConfigError
from lifecycle.events import AnyEvent, Record
from lifecycle.layout import kv_only
from stores.events import MemoryEventLog


def play(name: str, change: Callable[[Player], None] = lambda player: None) -> tuple[list[AnyEvent], list[str]]:
    """Replay a recorded case under the shadow; return the events, and what the audit says of them."""
    player, log = Player(RECORDED[name]), MemoryEventLog()
    change(player)
    watch = shadow(player.tree, log)
    player.play()
    watch.detach()
    assert watch.failure is None
    records = list(log.records())
    said = [each for each in verify_log(records) if known_difference(each) is None]
    return [record.event for record in records], [str(each) for each in said]


def names(events: list[AnyEvent]) -> list[str]:
    """Return the kinds of the events, without those of reads."""
    kinds = [type(each).__name__ for each in events]
    return [kind for kind in kinds if kind not in ("ReadClaimed", "ReadEnded", "PagesLanded", "ReadFailed", "TransferStarted")]


def only(events: list[AnyEvent], kind: str) -> Any:
    """Return the one event of a kind."""
    (found,) = [each for each in events if type(each).__name__ == kind]
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_case_is_lawful(name: str) -> None:
    """What SGLang 0.5.17 does keeps the laws, but for what is known and named, and nothing stays open."""
    events, said = play(name)
    assert said == []
    assert type(events[-1]).__name__ == "CoordinatorStopped"


def test_a_whole_life_is_told() -> None:
    """Issue, hit, plan, pages, end, credit, hand-over, unlock, return: each once, in order."""
    events, _ = play("all there")
    assert names(events) == [
        "LogOpened", "Issued", "HitResolved", "PlanAgreed", "HostReserved", "Terminated", "Synced", "Committed",
        "TokensCredited", "TokensReturned", "HostHandedOver", "AnchorUnlocked", "Settled", "Closed", "PagesUnlocked",
        "LoadedTaken", "RequestFinished", "CoordinatorStopped",
    ]  # fmt: skip
    assert only(events, "Committed").usable_page == 6
    assert only(events, "LoadedTaken").tokens == 24


def test_the_clamp_is_told_with_both_pools() -> None:
    """kv landed six pages and the indexer four: clamped to four, two go back."""
    events, _ = play("clamped by the indexer")
    assert only(events, "Synced").agreed == {"kv": 6, "indexer": 4}
    assert only(events, "Clamped").usable_page == 4
    assert [each.pages for each in events if type(each).__name__ == "HostReleased"] == [((4, 6),)]


def test_all_or_nothing_names_the_pool() -> None:
    """A window of two pages got one: discarded, by name, and every page of both pools goes back."""
    events, _ = play("a window short")
    assert (only(events, "Discarded").reason, only(events, "Discarded").pool) == ("shortfall", "swa")
    assert sum(hi - lo for each in events if type(each).__name__ == "HostReleased" for lo, hi in each.pages) == 4 + 2


def test_pages_that_are_there_already_are_duplicates() -> None:
    """Two pages came into the tree meanwhile: they are told as duplicates and not credited."""
    events, _ = play("there before")
    released = only(events, "HostReleased")
    assert (released.part, released.pages) == ("duplicate", ((0, 2),))
    assert only(events, "TokensCredited").tokens == 12


def test_an_abort_and_a_refusal_are_told() -> None:
    """An abort discards; a span below the threshold is declined; a miss is revoked with its reason."""
    assert only(play("aborted")[0], "Discarded").reason == "aborted"
    assert only(play("too short")[0], "Declined").reason == "too_short"
    assert only(play("nothing there")[0], "Discarded").reason == "full_miss"


def test_replaying_without_and_with_it_is_the_same() -> None:
    """Results and facts are those that were recorded, hooks on or off."""
    assert _results(hooked=True) == _results(hooked=False) == [True] * 3


def _results(hooked: bool) -> list[object]:
    player = Player(RECORDED["all there"])
    if hooked:
        shadow(player.tree, MemoryEventLog())
    tree: Any = player.tree
    checked, results = tree.check_prefetch_progress, list[object]()
    tree.check_prefetch_progress = lambda *args: results.append(checked(*args))
    player.play()
    return results


def test_what_is_wrapped_by_others_meanwhile_stays() -> None:
    """Somebody else's wrapper around ours is left alone, and ours only passes calls on."""
    player, log = Player(RECORDED["all there"]), MemoryEventLog()
    watch = shadow(player.tree, log)
    ours = player.tree.check_prefetch_progress  # type: ignore[attr-defined]
    theirs = lambda *args: ours(*args)  # noqa: E731
    player.tree.check_prefetch_progress = theirs  # type: ignore[attr-defined]
    watch.detach()
    before = len(list(log.records()))
    player.play()
    assert player.tree.check_prefetch_progress is theirs  # type: ignore[attr-defined]
    assert len(list(log.records())) == before


def test_a_failing_log_takes_it_off_and_is_said_once() -> None:
    """The replay goes on to its end without it."""

    class Broken(MemoryEventLog):
        def append(self, record: Record) -> None:
            if record.seq > 3:
                raise OSError("disk full")

    player = Player(RECORDED["all there"])
    watch = shadow(player.tree, Broken())
    with structlog.testing.capture_logs() as logs:
        player.play()
        watch.catch_up()
    assert [each["log_level"] for each in logs] == ["error"]
    assert "disk full" in logs[0]["where"]
    assert "exc_info" not in logs[0], "whoever renders the locals of a trace would show the engine's tensors"
    assert isinstance(watch.failure, OSError)
    assert not watch.attached
    assert not [name for name in vars(player.tree) if name in ("check_prefetch_progress", "prefetch_from_storage")]


def _sum_of_hits(player: Player) -> None:
    """Make the engine count one page of the indexer more than the leading run."""
    for call in _all_calls(player.case["calls"]):
        for news in (call["ahead"], call["behind"]):
            for fact in news.values():
                if isinstance(fact, dict) and fact.get("counted") == {"indexer": 4}:
                    fact["counted"] = {"indexer": 5}


def _all_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for call in calls for each in (call, *_all_calls(call["inside"]))]


def test_guard_logs_counts_and_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that sums hits: the guard tells the story of the prefetch, counts the law, and raises if told to."""
    import copy

    wrong = copy.deepcopy(RECORDED["clamped by the indexer"])
    player = Player(wrong)
    _sum_of_hits(player)
    watch = guard(player.tree)
    with structlog.testing.capture_logs() as logs:
        player.play()
    assert watch.counts == {"outcome": 2}
    assert "agreed on indexer 5 (right: indexer 4)" in logs[0]["what"]
    assert any("Issued" in line for line in logs[0]["story"])

    player = Player(wrong)
    _sum_of_hits(player)
    guard(player.tree, raises=True)
    with pytest.raises(GuardViolation, match="agreed on indexer 5"):
        player.play()


def test_a_cache_that_cannot_be_looked_at_is_refused() -> None:
    """No controller, missing methods, host memory that is no tier: each says why."""
    with pytest.raises(ConfigError, match="hierarchical cache is off"):
        shadow(SimpleNamespace(cache_controller=None), MemoryEventLog())
    with pytest.raises(ConfigError, match="it has no prefetch_from_storage"):
        shadow(SimpleNamespace(cache_controller=SimpleNamespace()), MemoryEventLog())
    player = Player(RECORDED["all there"])
    player.tree.host_memory_mode = "buffer_only"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="bounce buffer"):
        shadow(player.tree, MemoryEventLog())


def test_what_cannot_be_seen_is_named() -> None:
    """A controller without a place to look at its reads is followed all the same, and the gap is said."""
    player = Player(RECORDED["all there"])
    player.controller.storage_backend = None  # type: ignore[attr-defined]
    watch = shadow(player.tree, MemoryEventLog())
    assert "results of sidecar reads, page by page" in watch.unseen


def test_the_scheduler_writes_nothing() -> None:
    """Every record is appended by a thread of the shadow's own, in order, with the time of what happened."""
    writers = set[int]()

    class Watched(MemoryEventLog):
        def append(self, record: Record) -> None:
            writers.add(threading.get_ident())
            super().append(record)

    player, log = Player(RECORDED["all there"]), Watched()
    watch = shadow(player.tree, log)
    writers.clear()
    player.play()
    deadline = time.monotonic() + 10
    while not any(type(each.event).__name__ == "LoadedTaken" for each in log.records()):
        assert time.monotonic() < deadline, "it never wrote the last fact"
    assert threading.get_ident() not in writers
    assert len(writers) == 1
    watch.detach()
    records = list(log.records())
    assert [each.seq for each in records] == list(range(len(records)))
    assert sorted(each.at_ns for each in records) == [each.at_ns for each in records]


def test_a_log_that_takes_nothing_never_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that wait are bounded: beyond that the shadow is off, and the engine has waited for nothing."""
    monkeypatch.setattr("lifecycle.adapters.sglang_watch.MOST_WAITING", 3)
    monkeypatch.setattr("lifecycle.adapters.sglang.CLOSE_S", 0.01)
    going = threading.Event()

    class Stuck(MemoryEventLog):
        def append(self, record: Record) -> None:
            if record.seq:
                going.wait(30)
            super().append(record)

    player = Player(RECORDED["all there"])
    watch = shadow(player.tree, Stuck())
    player.play()
    assert not watch.attached
    assert isinstance(watch.failure, FellBehind)
    going.set()


def told_of_one() -> tuple[Teller, list[Any], object]:
    """Return who tells of one prefetch of kv alone that has begun, what was told, and its operation."""
    told = list[Any]()
    recorder = Recorder(kv_only(), {"kv": Slots(SimpleNamespace(page_size=4, size=32))}, 4, 1, 1 << 20, told.append, lambda: 7)
    teller = Teller(kv_only(), recorder, 4, False, 4)
    recorder.reads.planned = teller.planned
    return teller, told, object()


def test_what_threads_say_too_early_is_kept() -> None:
    """A read that begins before its prefetch is told of, or has its plan, is told behind both."""
    teller, told, operation = told_of_one()
    teller.said("hit", operation, 3)
    teller.said("reading", operation, 0, 3)
    assert told == []
    teller.issued("r", operation, None, 0, range(12), 12, "")
    assert names(told) == ["Issued", "HitResolved"]
    teller.said("plan", operation, 12, [0, 4, 8], ())
    assert names(told) == ["Issued", "HitResolved", "PlanAgreed", "HostReserved"]
    assert type(told[-1]).__name__ == "TransferStarted"


def test_a_tail_that_is_back_before_the_check_was_stopped_by_its_thread() -> None:
    """A read that falls short is over, and its tail free, before admission asks: terminated there, and only once."""
    teller, told, operation = told_of_one()
    teller.issued("r", operation, None, 0, range(12), 12, "")
    teller.said("plan", operation, 12, [0, 4, 8], ())
    teller.said("reading", operation, 0, 3)
    teller.said("read", operation, 0, 3, 8, False)
    teller.said("over", operation)
    teller.freed("kv", [8])
    teller.terminated("check", operation, 8, False, "wait_complete")
    assert names(told)[-2:] == ["Terminated", "HostReleased"]
    ended, released = told[-2:]
    assert (ended.reason, ended.landed) == ("read_failed", {"kv": 2})
    assert (released.part, released.pages) == ("tail", ((2, 3),))


def test_what_a_thread_says_in_the_middle_of_an_abort_is_told_behind_it() -> None:
    """A read that is answered while its prefetch is being aborted ends behind the outcome, and nothing of it has landed."""
    teller, told, operation = told_of_one()
    teller.issued("r", operation, None, 0, range(12), 12, "")
    teller.said("plan", operation, 12, [0, 4, 8], ())
    teller.said("reading", operation, 0, 3)
    teller.terminated("abort", operation, 0, False, "wait_complete")
    teller.said("read", operation, 0, 3, 0, False)
    teller.said("over", operation)
    call = Scope("abort", "r", operation, 12, 0, None)
    call.unlocks = 1
    teller.ended(call, "abort", False, 0, 12, 0, None, "wait_complete", None)
    kinds = [type(each).__name__ for each in told]
    behind = ["TokensReturned", "AnchorUnlocked", "ReadEnded", "RequestFinished"]
    assert kinds[kinds.index("Discarded") + 1 :] == behind
    assert "PagesLanded" not in kinds


def test_slots_are_copied_where_they_are_seen() -> None:
    """What becomes of a tensor of indices later does not show in a fact."""
    indices = torch.arange(8, 24)
    seen = starts(indices, 4)
    indices.zero_()
    assert seen == [8, 12, 16, 20]


@pytest.mark.parametrize("asked", [True, False])
def test_what_is_served_is_told_with_its_sources(asked: bool) -> None:
    """The path of a request: pages that a prefetch brought, pages that the engine had before, pages without a host copy."""
    player, log = Player(RECORDED["all there"]), MemoryEventLog()
    tree: Any = player.tree
    tree.cache_unfinished_req = tree.cache_finished_req = lambda req: None
    watch = shadow(tree, log)
    player.play()
    watch.catch_up()
    (held,) = [r.event for r in log.records() if type(r.event).__name__ == "HostHandedOver"]
    (slots,) = [r.event.slots for r in log.records() if type(r.event).__name__ == "HostReserved"]
    (run,) = slots
    assert held.pages == ((0, 6),)
    root = SimpleNamespace(parent=None, key=())
    brought = SimpleNamespace(parent=root, key=range(24), host_value=torch.arange(run[0] * 4, run[1] * 4))
    on_device = SimpleNamespace(parent=brought, key=range(8), host_value=None)
    request = SimpleNamespace(rid="r" if asked else "other", last_node=on_device)
    tree.cache_unfinished_req(request)
    tree.cache_unfinished_req(request)
    tree.cache_finished_req(request)
    watch.detach()
    events = [r.event for r in log.records()]
    served = only(events, "PrefixServed")
    assert (served.end_page, served.sources) == (8, ((0, 6, 1),))
    finished = [e.request for e in events if type(e).__name__ == "RequestFinished"]
    assert finished == (["r"] if asked else [])
    assert watch.failure is None
