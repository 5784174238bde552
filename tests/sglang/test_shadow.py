"""The shadow on SGLang's own classes: it changes nothing, its log holds to the laws, and what it finds is true."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

pytest.importorskip("sglang.srt", reason="needs SGLang (tests/sglang/setup.sh)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import originals
    import watched_ranks
    from cases import Case, draw, run_original
    from originals import Script, World, tokens_of

from lifecycle import State, fold
from lifecycle.adapters.guard import GuardViolation, guard
from lifecycle.adapters.known import known_difference
from lifecycle.adapters.sglang import shadow
from lifecycle.audit import verify_log
from lifecycle.audit.cli import main
from lifecycle.codec import encode
from lifecycle.events import Committed, Declined, Evicted, Issued
from stores.events import MemoryEventLog

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]
HERE = Path(__file__).parent
VERSIONS = Path(sys.prefix) / "versions"


def world_of(case: Case) -> World:
    """Return a fresh cache for a case."""
    capacity = {name: pages + case.anchor + case.present for name, pages in case.free.items()}
    build = originals.unified if case.kind == "unified" else originals.hiradix
    return build(case.layout, capacity, case.threshold)


def test_changes_nothing_and_its_log_keeps_the_laws() -> None:
    """Random cases end the same with and without it; every log is lawful but for what is known and named."""
    known = set()
    for number in range(150):
        case = draw(Random(number))
        plain = run_original(case)
        world, log = world_of(case), MemoryEventLog()
        watch = shadow(world.cache, log)
        assert run_original(case, world=world) == plain, case
        assert watch.attached
        watch.detach()
        assert watch.failure is None
        for violation in verify_log(log.records()):
            name = known_difference(violation)
            assert name is not None, f"case {number}: {violation}"
            known.add(name)
        assert not watch._recorder.by_id, "everything that began is over"
    assert known <= {"read_after_end", "limit_overshot"}


def test_detaching_leaves_no_trace() -> None:
    """Every object has the attributes it had before, and the cache goes on."""
    world = originals.unified("deepseek_v4", {"kv": 40, "swa": 8})
    objects = [world.cache, world.cache.tree_core, world.controller, world.storage, *world.pools.values()]
    before = [{name: value for name, value in vars(each).items() if callable(value)} for each in objects]
    watch = shadow(world.cache, MemoryEventLog())
    assert "check_prefetch_progress" in vars(world.cache)
    watch.detach()
    watch.detach()
    assert [{name: value for name, value in vars(each).items() if callable(value)} for each in objects] == before
    assert not watch.attached


def one_prefetch(world: World, good: dict[str, list[bool]], hit_pages: int = 8) -> int:
    """Run one prefetch of eight pages to its end; return the tokens that it loaded."""
    world.cache.prefetch_stop_policy = "wait_complete"
    world.storage.script = Script(hit_pages, good)
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 8), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    world.cache.check_prefetch_progress("r")
    world.drain()
    return int(world.cache.pop_prefetch_loaded_tokens("r"))


NO_SENSE: dict[str, tuple[type[Exception], Callable[[Any], object]]] = {
    "a check of nothing": (TypeError, lambda cache: cache.check_prefetch_progress()),
    "a check of what no request is": (TypeError, lambda cache: cache.check_prefetch_progress([])),
    "an abort of nothing": (TypeError, lambda cache: cache.release_aborted_request()),
    "an issue of nothing": (TypeError, lambda cache: cache.prefetch_from_storage()),
    "an anchor that is none": (KeyError, lambda cache: cache.prefetch_from_storage("r", -77, tokens_of(1, 8), None)),
    "tokens of nothing": (TypeError, lambda cache: cache.pop_prefetch_loaded_tokens()),
}


@pytest.mark.parametrize("call", NO_SENSE)
def test_exceptions_of_the_cache_come_through(call: str) -> None:
    """What a method raises is raised, and is no failure of the shadow's: it stays, and tells the next prefetch whole."""
    world, log = originals.unified("kv_only", {"kv": 40}), MemoryEventLog()
    watch = shadow(world.cache, log)
    raised, refused = NO_SENSE[call]
    with pytest.raises(raised):
        refused(world.cache)
    assert one_prefetch(world, {"kv": [True] * 8}) == 32
    watch.catch_up()
    assert watch.attached, watch.failure
    kinds = [type(record.event) for record in log.records()]
    assert (kinds.count(Issued), kinds.count(Committed), kinds.count(Declined)) == (1, 1, 0)
    watch.detach()
    assert not list(verify_log(log.records()))


def test_a_free_that_the_pool_refuses_is_none() -> None:
    """A pool that raises has freed nothing: the log says that pages went only once they do."""
    world, log = originals.unified("kv_only", {"kv": 40}), MemoryEventLog()
    pool, refusing = world.pools["kv"], [True]
    free = pool.free

    def busy(indices: Any) -> Any:
        if refusing:
            raise RuntimeError("not now")
        return free(indices)

    pool.free = busy
    watch = shadow(world.cache, log)
    indices = pool.alloc(4 * originals.PAGE)
    with pytest.raises(RuntimeError):
        pool.free(indices)
    watch.catch_up()
    assert not [record for record in log.records() if isinstance(record.event, Evicted)]
    refusing.clear()
    pool.free(indices)
    watch.detach()
    assert [record.event.pages for record in log.records() if isinstance(record.event, Evicted)] == [4]


def test_when_recording_fails_it_says_so_once_and_gets_out_of_the_way() -> None:
    """A log that can't be written takes the shadow off; the prefetch ends as it would have."""

    class Full(MemoryEventLog):
        def append(self, record) -> None:  # type: ignore[no-untyped-def]
            if record.seq == 6:
                raise OSError("disk full")
            super().append(record)

    world = originals.unified("dsa", {"kv": 40})
    watch = shadow(world.cache, Full())
    with structlog.testing.capture_logs() as logs:
        assert one_prefetch(world, {"kv": [True] * 8, "indexer": [True] * 8}) == 32
        watch.catch_up()
    assert [each["log_level"] for each in logs] == ["error"]
    assert isinstance(watch.failure, OSError)
    assert not watch.attached
    assert "check_prefetch_progress" not in vars(world.cache)


def test_a_log_of_it_folds() -> None:
    """Its events replay through our own state machine to the same end."""
    world, log = originals.unified("dsa", {"kv": 40}), MemoryEventLog()
    watch = shadow(world.cache, log)
    one_prefetch(world, {"kv": [True] * 8, "indexer": [True] * 5 + [False] * 3})
    watch.detach()
    events = [record.event for record in log.records()]
    book = fold(watch.layout, {"kv": 40}, events[1:-1])
    assert book.replica.in_flight == {}
    assert book.resident_pages == {"kv": 5}
    ends = [type(each).__name__.lower() for each in events if type(each).__name__ in ("Clamped", "Committed")]
    assert ends == [State.CLAMPED]


def test_guard_raises_out_of_the_call_that_broke_the_law() -> None:
    """A page freed twice: the guard raises with the story of its prefetch, after the call has gone through."""
    world = originals.unified("kv_only", {"kv": 40})
    world.pools["kv"].free = lambda indices: len(indices)  # a pool that would not notice
    watch = guard(world.cache, raises=True)
    assert one_prefetch(world, {"kv": [True] * 4 + [False] * 4}) == 16
    tail = world.controller.mem_pool_host.alloc(4).new_tensor(range(16, 20))
    with pytest.raises(GuardViolation, match="a law of the prefetch lifecycle is broken") as caught:
        world.pools["kv"].free(tail)
    assert watch.counts == {caught.value.violation.law.value: 1}
    assert watch.attached


@pytest.mark.parametrize("layout", ["kv_only", "dsa"])
def test_a_tail_goes_back_before_admission_asks(layout: str) -> None:
    """kv falls short and a tick frees its tail before the check: stopped by its read, and every law is kept."""
    world, log = originals.unified(layout, {"kv": 40}), MemoryEventLog()
    world.cache.prefetch_stop_policy = "wait_complete"
    watch = shadow(world.cache, log)
    world.storage.script = Script(8, {"kv": [True] * 5 + [False] * 3, "indexer": [True] * 8})
    world.cache.prefetch_from_storage("r", world.root, tokens_of(1, 8), None)
    world.controller.step_queries()
    world.drain()
    world.controller.step_reads()
    world.drain()
    assert world.cache.check_prefetch_progress("r")
    world.drain()
    watch.detach()
    assert [str(each) for each in verify_log(log.records())] == []
    (stopped,) = [each.event for each in log.records() if type(each.event).__name__ == "Terminated"]
    assert (stopped.reason, stopped.landed["kv"]) == ("read_failed", 5)


@pytest.mark.parametrize("policy", ["wait_complete", "best_effort", "timeout"])
def test_with_threads_that_really_run(policy: str) -> None:
    """Queries and reads on a thread of their own, stops and aborts at any time: the log is lawful, and nothing is open."""
    world, log, dice, going = originals.unified("dsa", {"kv": 60}), MemoryEventLog(), Random(1), threading.Event()
    world.cache.prefetch_stop_policy = policy
    world.cache.prefetch_timeout_base, world.cache.prefetch_timeout_per_page = 0.001, 0.0
    world.storage.script = Script(10, {"kv": [True] * 9 + [False], "indexer": [True] * 7 + [False] * 3})
    watch = shadow(world.cache, log)

    def work() -> None:
        while not going.is_set():
            world.controller.step_queries()
            world.controller.step_reads()

    thread = threading.Thread(target=work)
    thread.start()
    waiting, number = list[str](), 0
    while number < 60 or waiting:
        if number < 60 and len(waiting) < 4:
            number += 1
            waiting.append(f"r{number}")
            world.cache.prefetch_from_storage(waiting[-1], world.root, tokens_of(dice.randrange(30), 10), None)
        world.drain()
        for request in list(waiting):
            if dice.random() < 0.02:
                world.cache.release_aborted_request(request)
                waiting.remove(request)
            elif dice.random() < 0.3 and world.cache.check_prefetch_progress(request):
                world.cache.pop_prefetch_loaded_tokens(request)
                waiting.remove(request)
    going.set()
    thread.join(60)
    world.controller.step_reads()  # what was stopped before its read is read once all the same
    world.drain()
    watch.detach()
    assert watch.failure is None
    assert [str(each) for each in verify_log(log.records()) if known_difference(each) is None] == []
    assert not watch._recorder.by_id


def test_two_ranks_leave_logs_that_agree() -> None:
    """Over Gloo, each rank's log is lawful by itself and beside its peer's, but for what is known and named."""
    wrong, known = watched_ranks.run(20)
    assert wrong == []
    assert set(known) <= {"read_after_end", "limit_overshot", "reason_apart"}


def run_version(script: str, version: str) -> dict[str, dict[str, object]]:
    """Run a script under another version of SGLang; return what it printed."""
    folder = VERSIONS / version
    if not folder.is_dir():
        pytest.skip(f"needs SGLang {version} (tests/sglang/setup.sh)")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, str(HERE / script)], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    assert str(folder) in str(found["where"])
    return found


def test_guard_finds_the_faults_of_an_older_version() -> None:
    """0.5.15.post1: hits of the indexer are summed, and the whole kv prefix is published though the indexer is shorter."""
    found = run_version("old_faults.py", "0.5.15.post1")
    hole, short = found["a hole in the indexer"], found["the indexer ends early"]
    assert (hole["published"], short["published"]) == (8, 8)
    assert any("agreed on indexer 7 (right: indexer 5)" in line for line in hole["said"])  # type: ignore[attr-defined]
    assert any("committed up to page 8 (right: clamped up to 5" in line for line in short["said"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("indexer", [[True] * 5 + [False] + [True] * 2, [True] * 5 + [False] * 3])
def test_guard_does_not_find_them_in_this_version(indexer: list[bool]) -> None:
    """0.5.17 publishes five pages in both cases, and the guard has nothing to say."""
    world = originals.hiradix("dsa", {"kv": 40})
    watch = guard(world.cache)
    assert one_prefetch(world, {"kv": [True] * 8, "indexer": indexer}) == 20
    watch.detach()
    assert watch.violations == []


def test_the_newest_version_is_followed_and_what_is_not_is_named() -> None:
    """0.5.23 keeps books of another kind: all of it is lawful, and what can't be seen is said at attach."""
    found = run_version("newest.py", "0.5.23")
    loaded = {name: each["loaded"] for name, each in found.items() if name != "where"}
    assert loaded == {
        "all there": 8, "kv alone, short": 5, "the indexer ends early": 5, "aborted before its plan": 0, "aborted": 0,
        "cut short": 8, "a window": 8, "a window, short": 0, "a window behind a short kv": 0, "a window, aborted": 0,
        "a state": 8, "a state, missing": 0, "deepseek v4": 8, "deepseek v4, one rider short": 0,
        "deepseek v4, one state short": 0,
    }  # fmt: skip
    assert found["a window"]["used"] == {"kv": 8, "swa": 2}
    for name, each in found.items():
        if name != "where":
            assert (each["said"], each["known"], each["open"], each["occupied"]) == ([], {}, 0, 0), name
            assert each["served"] == ([[loaded[name], [[0, loaded[name], 1]]]] if loaded[name] else []), name
            assert each["unseen"] == [
                "what each rank brought to the agreement (only what came of it)",
                "where pages came from that are served from device memory and have no host copy any more",
            ], name


class _Request:
    """A request of the engine's, as far as its cache looks at it."""

    def __init__(self, rid: str, node: object) -> None:
        self.rid, self.last_node = rid, node


@pytest.mark.parametrize("build", [originals.unified, originals.hiradix])
def test_what_a_request_is_served_is_told_with_its_sources(build, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """Two requests are given pages that one prefetch brought; the second one never asked. The blast radius has both."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    world, log = build("dsa", {"kv": 40}), MemoryEventLog()
    world.cache.cache_unfinished_req = world.cache.cache_finished_req = lambda req: None  # the rest of them wants a device
    watch = shadow(world.cache, log)
    assert "which request is served which pages" not in watch.unseen
    good = [True] * 8
    assert one_prefetch(world, {"kv": good, "indexer": [True] * 5 + [False] * 3}) == 20
    match = world.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens_of(1, 8))))
    for rid in ("r", "s"):
        for _ in range(2):  # a prompt in two chunks
            world.cache.cache_unfinished_req(_Request(rid, match.best_match_node))
        world.cache.cache_finished_req(_Request(rid, match.best_match_node))
    watch.detach()
    assert watch.failure is None
    records = list(log.records())
    told = [r.event for r in records if type(r.event).__name__ in ("PrefixServed", "RequestFinished", "LoadedTaken")]
    assert [(type(e).__name__, e.request) for e in told] == [
        ("LoadedTaken", "r"), ("PrefixServed", "r"), ("RequestFinished", "r"), ("PrefixServed", "s"),
    ]  # fmt: skip
    assert [(e.end_page, e.sources) for e in told if type(e).__name__ == "PrefixServed"] == [(5, ((0, 5, 1),))] * 2
    assert [known_difference(each) for each in verify_log(records)] == ["served_unasked"]
    (tmp_path / "rank0.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))
    capsys.readouterr()
    main(["blast-radius", str(tmp_path), "--prefetch", "1", "--json"])
    (said,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [hit["request"] for hit in said["hits"]] == ["r", "s"]
