"""Ranks of one host over Unix sockets: the same results as over Gloo, and the same ends when a rank is gone or silent."""

import socket
import tempfile
import time
from typing import Any

import numpy as np
import pytest

from lifecycle.errors import ConfigError, SyncFailed
from lifecycle.policies import Policies, WaitComplete
from lifecycle.runtime.sockets import MOST_UNDER_WAY_BYTES, HostTransport
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt


def reduced(world: World, dtype: str) -> list[Any]:
    """Reduce buffers of several sizes, some of them too large for the sockets."""
    transport, out = HostTransport(timeout_s=10.0), list[Any]()
    for turn, size in enumerate((1, 7, 600, MOST_UNDER_WAY_BYTES, 600)):
        buffer = np.random.default_rng(100 * turn + world.rank).integers(0, 250, size).astype(dtype)
        every = [np.random.default_rng(100 * turn + rank).integers(0, 250, size).astype(dtype) for rank in range(world.ranks)]
        transport.launch(buffer)()
        out.append(bool((buffer == np.minimum.reduce(every)).all()))
    transport.close()
    return [*out, transport.rank, transport.ranks]


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_minimum_is_in_place_on_every_rank(ranks: int, dtype: str) -> None:
    """Whatever the size: what lies in the sockets, and what goes over Gloo."""
    assert run_ranks(ranks, reduced, dtype) == [[True] * 5 + [rank, ranks] for rank in range(ranks)]


def several_under_way(world: World) -> list[list[int]]:
    """Launch ahead, never wait for the first, and wait for the others in turn."""
    transport = HostTransport(timeout_s=10.0)
    buffers = [np.array([10 * turn + world.rank, 10 * turn - world.rank], dtype=np.int32) for turn in range(4)]
    waits = [transport.launch(buffer) for buffer in buffers]
    for wait in waits[1:]:
        wait()
    transport.close()
    return [buffer.tolist() for buffer in buffers[1:]]


def test_an_exchange_that_nobody_waits_for_is_passed_over() -> None:
    """As after a divergence, when what is under way is void: the next ones are not mistaken for it."""
    assert run_ranks(2, several_under_way) == [[[10, 9], [20, 19], [30, 29]]] * 2


def one_gone(world: World) -> list[Any]:
    """Rank 0 closes after one exchange; rank 1 goes on."""
    transport = HostTransport(timeout_s=60.0)
    transport.launch(np.zeros(4, dtype=np.int32))()
    if world.rank == 0:
        transport.close()
        world.tell("gone")
        return []
    world.hear("gone")
    said = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exchange with rank 0 failed") as caught:
            transport.launch(np.zeros(4, dtype=np.int32))()
        said.append(str(caught.value))
    transport.close()
    return said


def says_no_more(world: World) -> str:
    """Rank 0 goes on listening, and has ended what it sends."""
    transport = HostTransport(timeout_s=60.0)
    if world.rank == 0:
        transport._peers[1].shutdown(socket.SHUT_WR)
        world.hear("told")
        return ""
    with pytest.raises(RuntimeError, match="it is gone, or has closed its transport") as caught:
        transport.launch(np.zeros(4, dtype=np.int32))()
    world.tell("told")
    return str(caught.value)


def test_the_end_of_what_a_rank_sends_is_no_exchange() -> None:
    """Nothing is taken for its buffer, and nobody waits for the timeout, or for ever."""
    assert run_ranks(2, says_no_more)[1]


def test_a_rank_that_is_gone_fails_the_exchange_at_once_and_for_good() -> None:
    """Long before the timeout, and every later exchange with the same words."""
    _, (first, again) = run_ranks(2, one_gone)
    assert first == again


def gone_meanwhile(world: World) -> str:
    """Rank 0 closes without an answer once rank 1 has launched."""
    transport = HostTransport(timeout_s=60.0)
    if world.rank == 0:
        world.hear("launched")
        transport.close()
        world.tell("gone")
        return ""
    wait = transport.launch(np.zeros(4, dtype=np.int32))
    world.tell("launched")
    world.hear("gone")
    with pytest.raises(RuntimeError, match="exchange with rank 0 failed") as caught:
        wait()
    transport.close()
    return str(caught.value)


def test_a_rank_that_goes_while_it_is_waited_for_fails_the_exchange() -> None:
    """What it has not sent never comes, and that is known at once."""
    assert run_ranks(2, gone_meanwhile)[1]


def one_silent(world: World) -> str:
    """Rank 0 launches nothing until rank 1 has given up."""
    transport = HostTransport(timeout_s=0.3)
    if world.rank == 0:
        world.hear("given up")
        return ""
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"it has sent nothing for 0\.3 s") as caught:
        transport.launch(np.zeros(4, dtype=np.int32))()
    assert time.monotonic() - began >= 0.3
    world.tell("given up")
    return str(caught.value)


def test_a_rank_that_says_nothing_fails_the_exchange_after_the_timeout() -> None:
    """An exchange is waited for with a limit, and says of whom nothing came."""
    assert "rank 0" in run_ranks(2, one_silent)[1]


def refusal(match: str, timeout_s: float = 5.0) -> str:
    """Return why no transport is built."""
    with pytest.raises(ConfigError, match=match) as caught:
        HostTransport(timeout_s=timeout_s)
    return str(caught.value)


def cannot_meet(world: World) -> str:
    """Rank 1 is told of a place where nobody listens."""
    if world.rank == 1:
        tell = HostTransport._tell
        HostTransport._tell = lambda self, what: [  # type: ignore[method-assign]
            said if not said.startswith("/") else "/nowhere" for said in tell(self, what)
        ]
    return refusal("use TorchTransport")


def test_ranks_that_cannot_reach_each_other_are_refused_alike() -> None:
    """One that cannot connect makes all refuse, with the way out; nobody hangs."""
    zero, one = run_ranks(2, cannot_meet)
    assert "/nowhere" in one
    assert "rank 0" in zero


def nowhere_to_listen(world: World, which: tuple[int, ...], name: str) -> str:
    """Some ranks have no place for their sockets: one too long for a path, or one that does not exist."""
    if world.rank in which:
        place = world.folder / name
        if name.startswith("long"):
            place.mkdir(exist_ok=True)
        tempfile.tempdir = str(place)
    return refusal("cannot build a transport")


@pytest.mark.parametrize("which", [(0, 1), (1,)])
@pytest.mark.parametrize("name", ["long" * 25, "absent"], ids=["long", "absent"])
def test_a_rank_without_a_place_to_listen_makes_all_refuse(which: tuple[int, ...], name: str) -> None:
    """A long TMPDIR is usual on clusters: who has it is told how to help it, and the others who it is."""
    zero, one = run_ranks(2, nowhere_to_listen, which, name)
    assert "set TMPDIR" in one
    assert ("set TMPDIR" if 0 in which else "rank 1 of this group listens nowhere") in zero


def stranger_connects(world: World) -> str:
    """Something that is no rank has connected to rank 0 before anybody else."""
    stranger, tell = socket.socket(socket.AF_UNIX), HostTransport._tell

    def told(self: HostTransport, what: str) -> list[str]:
        if what.startswith("/") and world.rank == 0:
            stranger.connect(what)
            stranger.sendall((7).to_bytes(4, "little"))
        return tell(self, what)

    HostTransport._tell = told  # type: ignore[method-assign]
    return refusal("use TorchTransport")


def test_what_is_no_rank_makes_all_refuse() -> None:
    """Every rank takes part in every step up to the refusal; nobody waits for the timeout."""
    zero, one = run_ranks(2, stranger_connects)
    assert "no rank of this group connected, as 7" in zero
    assert "another rank cannot reach its peers" in one


def gone_while_they_meet(world: World) -> str:
    """Rank 1 takes part in nothing."""
    if world.rank == 1:

        def meet(self: HostTransport) -> str:
            raise RuntimeError("scripted")

        HostTransport._meet = meet  # type: ignore[method-assign]
    return refusal("went meanwhile, or says nothing", timeout_s=1.0)


def test_a_rank_that_goes_while_they_meet_makes_the_others_refuse() -> None:
    """In the library's own words, as every configuration that cannot start."""
    zero, _ = run_ranks(2, gone_while_they_meet)
    assert "on rank 0" in zero


def many_small(world: World, count: int) -> bool:
    """Launch many small exchanges ahead, as with a long lag, before the first is waited for."""
    transport = HostTransport(timeout_s=5.0)
    buffers = [np.full(1, turn + world.rank, dtype=np.int32) for turn in range(count)]
    waits = [transport.launch(buffer) for buffer in buffers]
    for wait in waits:
        wait()
    transport.close()
    return all(buffer[0] == turn for turn, buffer in enumerate(buffers))


def test_many_small_exchanges_under_way_do_not_fill_the_sockets() -> None:
    """A socket keeps more than its bytes of each; sending never waits for the other rank, which sends as well."""
    assert run_ranks(2, many_small, 600) == [True, True]


def through_a_run(world: World, lag: int, layout: str) -> list[Any]:
    """Run prefetches to their ends over sockets, and return what was logged alike."""
    part = Part(layout, Policies(stop=WaitComplete(), lag_ticks=lag), transport=HostTransport(timeout_s=10.0), capacity=64)
    for number in range(6):
        part.issue(f"r{number}", prompt(number, 4))
    part.tick_until_quiet()
    events = part.events()
    part.close()
    return events


@pytest.mark.parametrize(("lag", "layout"), [(0, "dsa"), (2, "dsa"), (1, "swa")])
def test_a_run_over_sockets_is_alike_on_all_ranks(lag: int, layout: str) -> None:
    """Everything is committed, and the replicated events are the same."""
    zero, one = run_ranks(2, through_a_run, lag, layout)
    assert zero == one
    assert sum(name == "committed.1" for name, _ in zero) == 6


def gone_in_a_run(world: World) -> str:
    """Rank 0 closes its transport in the middle of a run."""
    transport = HostTransport(timeout_s=60.0)
    part = Part("dsa", Policies(stop=WaitComplete()), transport=transport, capacity=64)
    part.store.held = {prompt(0, 4)[0]}
    part.issue("r0", prompt(0, 4))
    for _ in range(3):
        part.coordinator.tick()
    if world.rank == 0:
        transport.close()
        part.store.let_go()
        return "closed"
    failure = part.tick_until_failure()
    assert isinstance(failure, SyncFailed)
    part.wind_down()
    return str(failure)


def test_a_rank_that_goes_in_a_run_is_a_failed_round() -> None:
    """The other gets `SyncFailed`, publishes nothing more, and owes nothing in the end."""
    closed, failure = run_ranks(2, gone_in_a_run)
    assert closed == "closed"
    assert "the exchange with rank 0 failed" in failure
