"""The shadow comes and goes while a prefetch of SGLang's is in flight: the engine does nothing otherwise, its log is lawful."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("sglang.srt", reason="needs SGLang (tests/sglang/setup.sh)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import originals
    from originals import Script, World, tokens_of

from lifecycle.adapters.known import known_difference
from lifecycle.adapters.sglang import shadow
from lifecycle.audit import verify_log
from stores.events import MemoryEventLog

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

POINTS = ("query out", "answered", "planned", "reading", "cut", "all read", "terminated", "after")
CASES = [(how, point) for how in ("whole", "stop", "abort") for point in POINTS if (how, point) != ("whole", "cut")]
WORLDS: dict[str, Callable[[], World]] = {
    "kv_only": lambda: originals.unified("kv_only", {"kv": 40}),
    "dsa": lambda: originals.unified("dsa", {"kv": 40}),
    "swa": lambda: originals.unified("swa", {"kv": 40, "swa": 8}),
    "hiradix dsa": lambda: originals.hiradix("dsa", {"kv": 40}),
}
GOOD = {"kv": [True] * 10, "indexer": [True] * 7 + [False] * 3, "swa": [True, True]}


def live(world: World, how: str, at: Callable[[str], None]) -> list[Any]:
    """Run a prefetch and another behind it; return what the engine said, and how it stood, at each step.

    `how`: "whole", or cut short by "stop" or "abort" while its second batch is read. `at` is called at each point.
    """
    cache, controller = world.cache, world.controller
    cache.prefetch_stop_policy = "best_effort" if how == "stop" else "wait_complete"
    said: list[Any] = []

    def stand(point: str, result: object = None) -> None:
        said.append((point, result, world.locks(), controller.prefetch_tokens_occupied, world.free_pages()))
        at(point)

    def reading() -> None:
        stand("reading")
        if how == "stop":
            stand("cut", cache.check_prefetch_progress("r"))
        elif how == "abort":
            stand("cut", cache.release_aborted_request("r"))

    world.storage.script = Script(10, dict(GOOD), {1: reading})
    stand("query out", cache.prefetch_from_storage("r", world.root, tokens_of(1, 10), None))
    controller.step_queries()
    stand("answered")
    world.drain()
    stand("planned")
    controller.step_reads()
    stand("all read")
    stand("terminated", cache.check_prefetch_progress("r"))
    world.drain()
    stand("after", cache.pop_prefetch_loaded_tokens("r"))
    cache.prefetch_stop_policy = "wait_complete"
    world.storage.script = Script(4, dict(GOOD))
    stand("another", cache.prefetch_from_storage("q", world.root, tokens_of(2, 4), None))
    controller.step_queries()
    world.drain()
    controller.step_reads()
    stand("its end", cache.check_prefetch_progress("q"))
    world.drain()
    stand("its tokens", cache.pop_prefetch_loaded_tokens("q"))
    return [*said, world.resident(tokens_of(1, 10)), world.resident(tokens_of(2, 4)), list(world.storage.reads)]


def unlawful(log: MemoryEventLog) -> list[str]:
    """Return what is wrong with a log, but for what is known."""
    return [str(each) for each in verify_log(log.records()) if known_difference(each) is None]


@pytest.mark.parametrize("layout", WORLDS)
@pytest.mark.parametrize(("how", "point"), CASES)
def test_detached_in_flight(layout: str, how: str, point: str) -> None:
    """The shadow goes at one point of a prefetch: the engine ends it as it would have, and what is logged is lawful."""
    plain = live(WORLDS[layout](), how, lambda point: None)
    world, log = WORLDS[layout](), MemoryEventLog()
    watch = shadow(world.cache, log)
    logged: list[int] = []

    def at(now: str) -> None:
        if now == point:
            watch.detach()
            logged.append(len(list(log.records())))

    assert live(world, how, at) == plain
    assert watch.failure is None
    assert logged == [len(list(log.records()))], "nothing is logged once it is gone"
    assert [type(each.event).__name__ for each in log.records()][:2] == ["LogOpened", "Issued"]
    assert unlawful(log) == []


@pytest.mark.parametrize("layout", WORLDS)
@pytest.mark.parametrize(("how", "point"), CASES)
def test_attached_in_flight(layout: str, how: str, point: str) -> None:
    """The shadow comes at one point of a prefetch: that one is not followed, the next is, and the log is lawful."""
    plain = live(WORLDS[layout](), how, lambda point: None)
    world, log = WORLDS[layout](), MemoryEventLog()
    watches: list[Any] = []
    assert live(world, how, lambda now: watches.append(shadow(world.cache, log)) if now == point else None) == plain
    (watch,) = watches
    assert watch.failure is None
    watch.detach()
    assert watch.failure is None
    events = [each.event for each in log.records()]
    assert [each.request for each in events if type(each).__name__ == "Issued"] == ["q"]
    assert [type(each).__name__ for each in events].count("Closed") == 1
    assert unlawful(log) == []
