"""A rank that fails, stalls or dies, over real processes: SyncFailed on all others, nothing published, nothing leaked."""

import os
import signal
from typing import Any

import pytest

from lifecycle.errors import RankDivergence, SyncFailed
from lifecycle.policies import Policies, WaitComplete
from lifecycle.states import State
from stores.events.memory import MemoryEventLog
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt


class Broken(Exception):
    """Raised by what was told to fail."""


def fail(*args: object, **more: object) -> None:
    """Raise, whatever is asked."""
    raise Broken("told to fail")


class FailingLog(MemoryEventLog):
    """An event log whose flush fails on demand."""

    down = False

    def flush(self) -> None:
        """Fail if told to."""
        if self.down:
            fail()


def loaded(layout: str, lag: int, **more: Any) -> Part:
    """Return a part with one request done, one that hangs in a read, and one that has just been issued."""
    part = Part(layout, Policies(stop=WaitComplete(), lag_ticks=lag), log=FailingLog(), **more)
    part.store.held.update(prompt(1, 8))
    part.issue("done", prompt(0, 8))
    part.tick_until_quiet()
    hung = part.issue("hung", prompt(1, 8))
    part.tick_until(lambda: part.coordinator.book.replica.in_flight[hung].state is State.TRANSFERRING)
    part.issue("new", prompt(2, 8))
    return part


def spoil(part: Part, what: str) -> None:
    """Have something fail on this rank from now on."""
    coordinator = part.coordinator
    match what:
        case "a note":
            coordinator._rank.transfers._take_note = fail  # type: ignore[method-assign]
        case "the index":
            part.index.insert = fail  # type: ignore[method-assign]
        case "a plan":
            part.index.plan_insert = fail  # type: ignore[method-assign,assignment]
        case "the report":
            part.index.digest = fail  # type: ignore[method-assign,assignment]
        case "room":
            part.index.evictable_pages = fail  # type: ignore[method-assign,assignment]
        case "the log":
            part.log.down = True  # type: ignore[attr-defined]


def spoiled(world: World, layout: str, lag: int, whats: list[str]) -> list[dict[str, Any]]:
    """Spoil each thing on rank 1, in a run of its own."""
    told = []
    for what in whats:
        part = loaded(layout, lag)
        if world.rank == 1:
            spoil(part, what)
        failure = part.tick_until_failure()
        cause = failure.__cause__
        if world.rank == 1:
            part.log.down = False  # type: ignore[attr-defined]
            vars(part.index).pop("insert", None)
            vars(part.coordinator._rank.transfers).pop("_take_note", None)
        part.wind_down()
        told.append({"text": str(failure), "round": failure.round_number, "cause": repr(cause), "ranks": failure.participants})
        assert not isinstance(failure, RankDivergence)
    return told


WHATS = ["a note", "the index", "a plan", "the report", "room", "the log"]


@pytest.mark.parametrize(
    ("ranks", "layout", "lag", "whats"),
    [
        (2, "kv_only", 0, WHATS),
        (2, "mamba", 1, WHATS),
        (2, "swa", 2, WHATS),
        (3, "dsa", 0, ["a note"]),
        (4, "swa", 1, ["room"]),
    ],
)
def test_an_error_on_one_rank_fails_the_round_on_all(ranks: int, layout: str, lag: int, whats: list[str]) -> None:
    """The rank launches its round as failed before it raises: all get SyncFailed in the same round, it with its own cause."""
    found = run_ranks(ranks, spoiled, layout, lag, whats)
    for place in range(len(whats)):
        rounds = {each[place]["round"] for each in found}
        assert len(rounds) == 1, "all fail in the same round"
        for rank, each in enumerate(found):
            assert f"of {ranks} ranks" in each[place]["text"]
            if rank == 1:
                assert "an error of this rank's own" in each[place]["text"]
                assert "Broken" in each[place]["cause"]
            else:
                assert "a rank reported an error of its own" in each[place]["text"]


def stall(world: World, lag: int) -> str:
    """Rank 1 stops ticking, and goes on only when the others have failed."""
    part = loaded("dsa", lag, timeout_s=1.0)
    others = [f"failed {rank}" for rank in range(world.ranks) if rank != 1]
    if world.rank == 1:
        for other in others:
            world.hear(other)
    failure = part.tick_until_failure()
    world.tell(f"failed {world.rank}")
    part.wind_down()
    return str(failure)


@pytest.mark.parametrize(("ranks", "lag"), [(2, 0), (3, 1)])
def test_a_rank_that_stops_ticking_fails_the_others_at_the_timeout(ranks: int, lag: int) -> None:
    """The others get SyncFailed with the round and the cause; so does the rank itself when it comes back."""
    for rank, text in enumerate(run_ranks(ranks, stall, lag)):
        assert f"of {ranks} ranks" in text
        assert rank == 1 or "Timed out" in text or "timeout" in text or "closed" in text, text


def die(world: World, lag: int, tick: int, grouped: bool) -> dict[str, Any]:
    """Rank 1 is killed; the others go on."""
    part = loaded("deepseek_v4", lag, transport=None if not grouped else two_by_two(world))
    for _ in range(tick):
        part.coordinator.tick()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    failure = part.tick_until_failure()
    again = [part.tick_until_failure(1) for _ in range(3)]
    part.wind_down()
    return {"text": str(failure), "same": all(each is failure for each in again), "depth": depth(again[-1])}


def depth(error: BaseException) -> int:
    """Return how long a traceback is."""
    frames, trace = 0, error.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    return frames


def two_by_two(world: World) -> Any:
    """Return a transport over rows and columns."""
    import torch.distributed as dist

    from lifecycle.runtime.transport import TorchTransport

    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return TorchTransport(rows[world.rank // 2], columns[world.rank % 2], timeout_s=3.0)


@pytest.mark.parametrize(
    ("ranks", "lag", "tick", "grouped"), [(2, 0, 1, False), (2, 1, 2, False), (3, 2, 3, False), (4, 1, 2, True)]
)
def test_a_killed_peer_fails_the_others(ranks: int, lag: int, tick: int, grouped: bool) -> None:
    """SyncFailed, finally and the same at every later tick, while what is owed is discharged; nothing leaks."""
    found = run_ranks(ranks, die, lag, tick, grouped, killed=(1,))
    for rank, told in enumerate(found):
        if rank != 1:
            assert f"of {ranks} ranks" in told["text"]
            assert told["same"], "the failure is final"
            assert told["depth"] < 10, "the traceback must not grow by every tick"


def closed_while_out(world: World, lag: int) -> bool:
    """Close while rounds are on their way, and start afresh over the same group."""
    for number in range(3):
        part = Part("swa", Policies(stop=WaitComplete(), lag_ticks=lag))
        part.issue("a", prompt(number, 8))
        for _ in range(number + 1):
            part.coordinator.tick()
        part.close()
    return True


@pytest.mark.parametrize("lag", [0, 2])
def test_closing_leaves_the_group_usable(lag: int) -> None:
    """Rounds that were launched and are never consumed do not disturb the next coordinator over the same group."""
    assert all(run_ranks(2, closed_while_out, lag))


def test_a_failure_is_a_sync_failure() -> None:
    """One error class covers both: the scheduler catches SyncFailed."""
    assert issubclass(RankDivergence, SyncFailed)
