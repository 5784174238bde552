"""The guard on calls that SGLang's classes once made: it raises once, behind the call, and keeps no more than it must."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import torch
from msgspec.structs import replace
from recorded import RECORDED, Player

from lifecycle.adapters import guard as guard_module
from lifecycle.adapters.guard import Guard, GuardViolation, guard
from lifecycle.adapters.sglang import shadow
from lifecycle.audit import verify_log
from lifecycle.audit.laws import Law
from lifecycle.events import AnyEvent
from stores.events import MemoryEventLog


def too_many(case: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded case in which the engine counts a page of the indexer more than its leading run."""
    case = copy.deepcopy(case)

    def change(calls: list[dict[str, Any]]) -> None:
        for call in calls:
            for news in (call["ahead"], call["behind"]):
                for fact in news.values():
                    if isinstance(fact, dict) and fact.get("counted") == {"indexer": 4}:
                        fact["counted"] = {"indexer": 5}
            change(call["inside"])

    change(case["calls"])
    return case


WRONG = too_many(RECORDED["clamped by the indexer"])


def play_on(player: Player, calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Make the engine's calls, each whatever the one before raised; return what was raised, and out of which call."""
    raised = []
    for call in calls:
        try:
            player._make(call)
        except GuardViolation as error:
            raised.append((call["name"], str(error)))
            player._stack.clear()
    return raised


def guarded(raises: bool) -> tuple[list[AnyEvent], Guard, list[tuple[str, str]]]:
    """Play the wrong case under a guard; return the events, the guard, and what was raised out of which call."""
    player, log = Player(WRONG), MemoryEventLog()
    watch = guard(player.tree, log, raises=raises)
    raised = play_on(player, WRONG["calls"])
    watch.detach()
    return [record.event for record in log.records()], watch, raised


def of_prefetches(events: list[AnyEvent]) -> list[str]:
    """Return the kinds of the events, in order."""
    return [type(event).__name__ for event in events]


def test_raising_changes_neither_log_nor_books() -> None:
    """Told to raise, it logs and counts what it does when it is not."""
    with structlog.testing.capture_logs():
        calm, calm_watch, nothing = guarded(raises=False)
        loud, loud_watch, raised = guarded(raises=True)
    assert of_prefetches(loud) == of_prefetches(calm)
    assert of_prefetches(loud)[-4:-1] == ["PagesUnlocked", "LoadedTaken", "RequestFinished"]
    assert [str(each) for each in loud_watch.violations] == [str(each) for each in calm_watch.violations]
    assert loud_watch.counts == calm_watch.counts == {"outcome": 2}
    assert loud_watch.failure is None
    assert nothing == []
    assert [name for name, _ in raised] == ["check_prefetch_progress"], "once, out of the call that broke the law"


def test_what_it_says_online_is_what_the_audit_says_of_the_log() -> None:
    """The violations of a guard that raises are those that the audit finds in its log afterwards."""
    player, log = Player(WRONG), MemoryEventLog()
    with structlog.testing.capture_logs():
        watch = guard(player.tree, log, raises=True)
        play_on(player, WRONG["calls"])
        watch.detach()
    assert [str(each) for each in verify_log(log.records())] == [str(each) for each in watch.violations]


def test_the_error_names_the_first_of_several() -> None:
    """Two laws broken in one call are one error: the first violation, its story, and how many more there are."""
    player = Player(WRONG)
    watch = guard(player.tree, raises=True)
    with structlog.testing.capture_logs(), pytest.raises(GuardViolation, match=r"agreed on indexer 5.*and 1 more") as caught:
        player.play()
    assert caught.value.violation is watch.violations[0]
    assert caught.value.more == 1
    assert any("Issued" in line for line in caught.value.story)


def broken_engine(name: str, error: Exception) -> Player:
    """Return a player of the wrong case whose engine raises behind the work of one of its methods."""
    player = Player(WRONG)
    tree: Any = player.tree
    method: Callable[..., Any] = getattr(tree, name)

    def failing(*args: Any) -> Any:
        method(*args)
        raise error

    setattr(tree, name, failing)
    return player


@pytest.mark.parametrize("raises", [False, True])
def test_the_engines_own_exception_comes_through(raises: bool) -> None:
    """A call that breaks a law and fails raises what the engine raised; the violation is counted, and noted on it."""
    error = OSError("the device is gone")
    player = broken_engine("check_prefetch_progress", error)
    watch = guard(player.tree, raises=raises)
    with structlog.testing.capture_logs() as logs, pytest.raises(OSError, match="the device is gone") as caught:
        player.play()
    assert caught.value is error
    assert watch.counts == {"outcome": 2}
    assert [each["law"] for each in logs] == ["outcome", "outcome"]
    notes = getattr(error, "__notes__", [])
    assert [("agreed on indexer 5" in note) for note in notes] == ([True] if raises else [])
    assert watch.attached


def test_an_engine_that_is_handling_an_exception_still_gets_the_violation() -> None:
    """A call that goes through raises the violation, wherever it is made from."""
    player = Player(WRONG)
    guard(player.tree, raises=True)

    def recover() -> None:
        try:
            raise KeyError("the engine's own trouble")
        except KeyError:
            player.play()

    with structlog.testing.capture_logs(), pytest.raises(GuardViolation):
        recover()


def a_run(watch: Guard, prefetches: int, events: list[AnyEvent]) -> None:
    """Tell the events of one prefetch again and again, under ever new ids."""
    for number in range(1, prefetches + 1):
        for event in events:
            again = {"prefetch": number} if hasattr(event, "prefetch") else {}
            again |= {"request": f"r{number}"} if hasattr(event, "request") else {}
            watch._emit(replace(event, **again))


def make(player: Player, on: Any, name: str, *args: Any) -> None:
    """Make a call of the engine's that was not recorded."""
    player._stack.append({"name": name, "inside": [], "behind": {}, "live_args": [], "args_behind": [], "result": {"other": 0}})
    getattr(on, name)(*args)
    player._stack.pop()


def one_life() -> list[AnyEvent]:
    """Return the events of a lawful prefetch, from its issue until its pages are evicted."""
    player, log = Player(RECORDED["all there"]), MemoryEventLog()
    watch = guard(player.tree, log)
    player.play()
    (slots,) = [r.event.slots for r in log.records() if type(r.event).__name__ == "HostReserved"]
    make(player, player.pools["kv"], "free", torch.cat([torch.arange(lo * 4, hi * 4) for lo, hi in slots]))
    watch.detach()
    assert watch.counts == {}
    events = [record.event for record in log.records()]
    assert of_prefetches(events)[-2] == "Evicted"
    return events[1:-1]


def test_nothing_of_lawful_prefetches_is_kept() -> None:
    """After hundreds of prefetches that came, were published and evicted, no more stories are kept than of the last few."""
    life = one_life()
    watch = guard(Player(RECORDED["all there"]).tree)
    a_run(watch, 300, life)
    assert watch.counts == {}
    assert watch._stories.kept <= guard_module.OVER


def test_the_story_of_what_is_over_is_still_told() -> None:
    """A discharge that comes after everything was closed is told with the events that came before it."""
    life = one_life()
    watch = guard(Player(RECORDED["all there"]).tree)
    a_run(watch, 2, life)
    unlocked = next(each for each in life if type(each).__name__ == "AnchorUnlocked")
    with structlog.testing.capture_logs() as logs:
        watch._emit(replace(unlocked, prefetch=2))
    assert [each["law"] for each in logs] == ["exactly_once"]
    assert any("Issued" in line for line in logs[0]["story"])
    assert "AnchorUnlocked" in logs[0]["story"][-1]


def test_violations_are_counted_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that breaks a law in every prefetch for ever fills no memory: all are counted, the last few are kept."""
    monkeypatch.setattr(guard_module, "KEPT", 10)
    life = one_life()
    watch = guard(Player(RECORDED["all there"]).tree)
    unlocked = next(place for place, each in enumerate(life) if type(each).__name__ == "AnchorUnlocked")
    with structlog.testing.capture_logs():
        a_run(watch, 50, [*life[: unlocked + 1], *life[unlocked:]])
    assert watch.counts == {"exactly_once": 50}
    assert [each.prefetch for each in watch.violations] == list(range(41, 51))


def test_a_raise_does_not_wait_for_another_fault() -> None:
    """Once raised, a violation is not raised again out of a later call."""
    player = Player(WRONG)
    guard(player.tree, raises=True)
    with structlog.testing.capture_logs():
        assert len(play_on(player, WRONG["calls"])) == 1
        make(player, player.tree, "pop_prefetch_loaded_tokens", "another")


def test_what_is_found_at_the_detach_is_raised_behind_it() -> None:
    """A log that ends with a debt open is complete when the guard says so, and the hooks are off."""
    player, log = Player(RECORDED["all there"]), MemoryEventLog()
    watch = guard(player.tree, log, raises=True)
    player.play()
    life = [record.event for record in log.records()]
    issued = next(each for each in life if type(each).__name__ == "Issued")
    watch._emit(replace(issued, prefetch=2, request="s"))
    with structlog.testing.capture_logs(), pytest.raises(GuardViolation, match="at the stop"):
        watch.detach()
    assert type(list(log.records())[-1].event).__name__ == "CoordinatorStopped"
    assert not watch.attached
    watch.detach()


def test_what_the_engine_raised_is_not_replaced_at_the_detach() -> None:
    """In a `finally` the engine's own exception goes on; what the detach found is in the books."""
    player = Player(RECORDED["all there"])
    log = MemoryEventLog()
    watch = guard(player.tree, log, raises=True)
    player.play()
    issued = next(record.event for record in log.records() if type(record.event).__name__ == "Issued")
    watch._emit(replace(issued, prefetch=2, request="s"))

    def serve() -> None:
        try:
            raise KeyError("the engine's own")
        finally:
            watch.detach()

    with structlog.testing.capture_logs(), pytest.raises(KeyError, match="the engine's own"):
        serve()
    assert sum(watch.counts.values()) > 0


def test_an_anchor_that_is_unlocked_early_is_told() -> None:
    """A check that unlocks the anchor and goes on does so once too often: the log has both, and the law is broken."""
    case = copy.deepcopy(RECORDED["a window whole"])
    calls = case["calls"]
    at = next(place for place, call in enumerate(calls) if call["name"] == "check_prefetch_progress")
    unlock = next(call for call in calls[at]["inside"] if call["name"] == "dec_host_lock_ref")
    quiet = {"ahead": {}, "behind": {}}
    early = copy.deepcopy({**calls[at], **quiet, "inside": [{**unlock, **quiet}], "result": False})
    player, log = Player({**case, "calls": [*calls[:at], early, *calls[at:]]}), MemoryEventLog()
    watch = shadow(player.tree, log)
    player.play()
    watch.detach()
    assert [violation.law for violation in verify_log(log.records())] == [Law.EXACTLY_ONCE]
