"""The transport by itself: one order of exchanges per rank, groups of its own, a thread that fails loudly."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lifecycle.errors import ConfigError
from lifecycle.runtime.lane import Lane
from lifecycle.runtime.transport import TorchTransport
from tests.sync.harness import World, run_ranks


def test_a_lane_keeps_the_order() -> None:
    """Calls run one after the other, in the order in which they were handed over."""
    lane, done = Lane("test"), list[int]()
    waits = [lane.run(lambda number=number: done.append(number), 10.0) for number in range(50)]  # type: ignore[misc]
    for wait in reversed(waits):
        wait()
    assert done == list(range(50))
    lane.close()


def fails(error: Exception) -> Callable[[], None]:
    """Return a call that raises."""

    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize("error", [RuntimeError("no route"), ValueError("no route")])
def test_a_lane_fails_once_and_for_all(error: Exception) -> None:
    """What a call raises is raised where it is waited for, as RuntimeError; later calls do not run and fail likewise."""
    lane, done = Lane("test"), list[int]()
    waits = [lane.run(call, 10.0) for call in (lambda: done.append(0), fails(error), lambda: done.append(2))]
    waits[0]()
    for wait in waits[1:]:
        with pytest.raises(RuntimeError, match="no route"):
            wait()
    assert done == [0]
    lane.close()


def test_a_lane_is_waited_for_with_a_limit() -> None:
    """A call that does not end is given up at the limit."""
    lane, go = Lane("test"), threading.Event()
    wait = lane.run(lambda: go.wait() and None, 0.01)
    with pytest.raises(RuntimeError, match=r"took longer than 0\.01 s"):
        wait()
    go.set()
    lane.close()


def reduced(world: World, ahead: bool) -> list[list[int]]:
    """Have exchanges of several transports and of the engine on their way at once, in an order of each rank's own."""
    engine = torch.tensor([10 + world.rank])
    first, second = TorchTransport(timeout_s=10), TorchTransport(dist.group.WORLD, timeout_s=10)
    buffers = [np.array([world.rank + 3, 7 - world.rank, size], dtype=np.int32) for size in range(6)]
    waits: list[Any] = []
    for turn in (0, 1) if world.rank else (1, 0):
        transport = (first, second)[turn]
        for place in range(3):
            launch = transport.launch_ahead if ahead and place != 1 else transport.launch
            waits.append(launch(buffers[3 * turn + place]))
    dist.all_reduce(engine, op=dist.ReduceOp.MIN)  # on the same ranks' group
    for wait in waits:
        wait()
    assert engine.item() == 10
    first.close()
    return [buffer.tolist() for buffer in buffers]


@pytest.mark.parametrize("ahead", [False, True])
def test_exchanges_mix_with_no_others(ahead: bool) -> None:
    """Two transports and the engine itself over the same ranks, in another order on each: every result is its own."""
    for found in run_ranks(3, reduced, ahead):
        assert found == [[3, 5, size] for size in range(6)]


def overtaking(world: World) -> list[list[int]]:
    """Launch ahead, then at once, on a rank whose thread is held up."""
    transport, go = TorchTransport(timeout_s=10), threading.Event()
    if world.rank:
        transport._lane = Lane("held up")
        transport._lane.run(lambda: go.wait() and None, 10.0)
    buffers = [np.array([place, world.rank], dtype=np.int32) for place in (1, 2)]
    waits = [(transport.launch_ahead if world.rank else transport.launch)(buffers[0]), transport.launch(buffers[1])]
    go.set()
    for wait in waits:
        wait()
    return [buffer.tolist() for buffer in buffers]


def test_no_exchange_overtakes_another() -> None:
    """What is launched at once waits for what was launched ahead, or the ranks would reduce one with the other."""
    assert run_ranks(2, overtaking) == [[[1, 0], [2, 0]]] * 2


def no_world(world: World) -> str:
    """Build a transport where torch.distributed is not initialised."""
    dist.destroy_process_group()
    with pytest.raises(ConfigError) as caught:
        TorchTransport()
    dist.init_process_group("gloo", init_method=f"file://{world.folder / 'again'}", rank=world.rank, world_size=world.ranks)
    return str(caught.value)


def test_a_transport_needs_torch_distributed() -> None:
    """The error says what to call."""
    assert "call init_process_group" in run_ranks(1, no_world)[0]


def no_time(world: World) -> str:
    """Build a transport that may take no time."""
    with pytest.raises(ConfigError) as caught:
        TorchTransport(timeout_s=0)
    return str(caught.value)


def test_a_transport_needs_time() -> None:
    """A limit of 0 s is refused before anything is exchanged."""
    assert "timeout_s=0" in run_ranks(1, no_time)[0]
