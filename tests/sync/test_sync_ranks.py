"""The same decisions on every rank, over real processes: any lag, several groups, pipeline stages, more rows than fit."""

import random
from typing import Any

import pytest
import torch.distributed as dist

from lifecycle.errors import ConfigError
from lifecycle.events import LogOpened, RoundDone
from lifecycle.policies import Policies, WaitComplete
from lifecycle.runtime.transport import TorchTransport, Transport
from lifecycle.states import State
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt

LAYOUTS = ["kv_only", "dsa", "swa", "mamba", "deepseek_v4"]


def grid(world: World) -> tuple[Any, Any]:
    """Return this rank's row and column of a grid two wide: every rank makes all groups, in the same order."""
    height = world.ranks // 2
    rows = [dist.new_group([2 * y, 2 * y + 1]) for y in range(height)]
    columns = [dist.new_group([2 * y + x for y in range(height)]) for x in range(2)]
    return rows[world.rank // 2], columns[world.rank % 2]


def work(part: Part, rank: int, seed: int) -> None:
    """Run a mixed load: commands alike on all ranks, shards and readers that are each rank's own."""
    alike, own = random.Random(seed), random.Random(1000 * seed + rank)
    part.store.pause_s = own.choice([0, 0, 0.002])
    names = [pool.name for pool in part.layout.pools]
    for number in range(10):
        keys, sparse = prompt(number, 12), number % 3
        for page, key in enumerate(keys):
            for name in names:
                if sparse and page > 3 and own.random() < 0.03 * sparse:
                    (part.store.lacks if own.random() < 0.5 else part.store.fails).add((name, key))
        part.issue(f"r{number}", keys)
        for _ in range(alike.randrange(3)):
            part.coordinator.tick()
            if alike.random() < 0.2:
                part.coordinator.abort(f"r{alike.randrange(number + 1)}")
            part.coordinator.ready(f"r{alike.randrange(number + 1)}")
    part.tick_until_quiet()
    for number in range(10):
        part.coordinator.take_loaded(f"r{number}")
        part.coordinator.finish(f"r{number}")


def outcomes(part: Part) -> dict[str, list[str]]:
    """Return how each prefetch ended."""
    ends = ("committed.1", "clamped.1", "discarded.1")
    return {fields[0]: [name, fields[1]] for name, fields in part.events() if name in ends}


def decide(world: World, lags: list[int], layouts: list[str], grouped: bool) -> list[Any]:
    """Run the load with each lag and layout; return the replicated events and the outcomes."""
    transport: Transport = TorchTransport(*(grid(world) if grouped else ()), timeout_s=10)
    told = []
    for lag in lags:
        for layout in layouts:
            part = Part(layout, Policies(stop=WaitComplete(), lag_ticks=lag, mask_capacity=3), transport=transport)
            work(part, world.rank, seed=lag + len(layout))
            part.close()
            told.append([part.events(), outcomes(part)])
    return told


@pytest.mark.parametrize(
    ("ranks", "lags", "layouts", "grouped"),
    [(2, [0, 1, 2], LAYOUTS, False), (3, [0, 2], ["dsa", "deepseek_v4"], False), (4, [0, 1, 2], ["mamba", "dsa"], True)],
)
def test_every_rank_decides_the_same(ranks: int, lags: list[int], layouts: list[str], grouped: bool) -> None:
    """Whatever the lag and the groups, all ranks log the same replicated events, in the same order."""
    found = run_ranks(ranks, decide, lags, layouts, grouped)
    kinds = set()
    for each in zip(*found, strict=True):
        assert all(events == each[0][0] for events, _ in each)
        kinds.update(end for end, _ in each[0][1].values())
    assert kinds >= {"committed.1", "discarded.1"}, "the load shows several ends"


def quiet_work(world: World, shape: str) -> dict[str, list[str]]:
    """Run a load whose outcome depends on what the shards hold, and not on when their answers come."""
    groups = {"one": (), "rows and columns": grid(world), "columns and rows": grid(world)[::-1]}[shape]
    part = Part("deepseek_v4", transport=TorchTransport(*groups, timeout_s=10))
    own = random.Random(world.rank)
    for number in range(8):
        keys = prompt(number, 12)
        part.store.lacks.update((pool, key) for pool in ("kv", "swa") for key in keys[4:] if own.random() < 0.1)
        part.issue(f"r{number}", keys)
    part.tick_until_quiet()
    part.close()
    return outcomes(part)


def shapes(world: World) -> list[dict[str, list[str]]]:
    """Run it over one group and over two."""
    return [quiet_work(world, shape) for shape in ("one", "rows and columns", "columns and rows")]


def test_two_groups_decide_as_one_does() -> None:
    """Attention CP and TP passed as two groups, reduced one after the other, agree on what one group of all ranks does."""
    found = run_ranks(4, shapes)
    assert all(each == found[0] for each in found)
    one, rows, columns = found[0]
    assert one == rows == columns
    assert len({usable for _, usable in one.values()}) > 1, "the prefetches end at different lengths"


def wrong_groups(world: World, case: str) -> str:
    """Build a transport over groups that make no sense."""
    row, column = grid(world)
    halves = [dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])]
    groups = {
        "the same twice": (row, row),
        "overlapping": (halves[world.rank == 3], row),
        "not mine": (dist.new_group([0, 1]),),
        "another order": (column, row) if world.rank == 1 else (row, column),
    }[case]
    said = ""
    try:
        TorchTransport(*groups, timeout_s=4.0)
    except ConfigError as error:
        said = str(error)
    dist.barrier()  # the engine's own groups are as good as before
    return said


@pytest.mark.parametrize("case", ["the same twice", "overlapping", "another order"])
def test_groups_that_are_no_grid_are_refused(case: str) -> None:
    """ConfigError on every rank, and no hang; the engine's own groups are as good as before."""
    for rank, said in enumerate(run_ranks(4, wrong_groups, case)):
        assert said.startswith(f"cannot build a transport on rank {rank}"), f"rank {rank} took groups that are {case}"


def test_a_group_without_this_rank_is_refused() -> None:
    """The ranks outside raise; those inside are a group of two."""
    assert ["is not in group 0 of 1" in said for said in run_ranks(4, wrong_groups, "not mine")] == [False, False, True, True]


def stages(world: World, lag: int, ticks: int) -> list[Any]:
    """Be one of two pipeline stages, each two ranks wide: a tick of stage 1 begins when the tick of stage 0 is over."""
    stage, lane = divmod(world.rank, 2)
    policies = Policies(stop=WaitComplete(), lag_ticks=lag, pipeline_stages=2)
    part = Part("swa", policies, transport=TorchTransport(*grid(world), timeout_s=10))
    path = world.pipe(f"stage{lane}")
    with open(path, "wb" if stage == 0 else "rb", buffering=0) as pipe:
        for tick in range(ticks):
            if stage:
                assert pipe.read(1) == b"."  # fed by the stage before
            if tick % 3 == 0 and tick < 30:
                part.issue(f"r{tick}", prompt(tick, 6))
            if tick == 20:
                part.coordinator.abort("r18")
            part.coordinator.tick()
            if not stage:
                pipe.write(b".")
        assert not part.coordinator.book.replica.in_flight or ticks < 100
    part.close()
    return part.events()


def test_pipeline_stages_with_a_lag_do_not_deadlock() -> None:
    """Lag 1 suffices for two stages, though stage 0 never waits for stage 1 in the same tick; all ranks decide alike."""
    found = run_ranks(4, stages, 1, 60)
    assert all(each == found[0] for each in found)
    assert sum(name == "committed.1" for name, _ in found[0]) > 3


@pytest.mark.parametrize(("stages", "lag"), [(2, 0), (3, 1), (4, 2)])
def test_a_lag_too_small_for_the_stages_is_refused(stages: int, lag: int) -> None:
    """A lag below stages - 1 would deadlock: it is refused before anything starts."""
    with pytest.raises(ConfigError, match=f"{stages} pipeline stages need at least {stages - 1}"):
        Policies(lag_ticks=lag, pipeline_stages=stages)
    assert Policies(lag_ticks=stages - 1, pipeline_stages=stages).lag_ticks == stages - 1


@pytest.mark.parametrize("wrong", [{"lag_ticks": -1}, {"row_capacity": 0}, {"mask_capacity": 0}, {"pipeline_stages": 0}])
def test_sizes_of_a_round_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    """No negative lag, no round without rows, no pipeline without a stage."""
    name, value = next(iter(wrong.items()))
    with pytest.raises(ConfigError, match=f"cannot use {name}={value}"):
        Policies(**wrong)


def rotate(world: World, lag: int) -> list[Any]:
    """Run thrice as many prefetches as a round has rows; the oldest hang."""
    policies = Policies(stop=WaitComplete(), row_capacity=4, lag_ticks=lag)
    part = Part("dsa", policies, capacity=128, readers=8)  # two are left to the others
    hung = [key for number in range(6) for key in prompt(number, 4)]
    if world.rank == 0:
        part.store.held.update(hung)
    ids = [part.issue(f"r{number}", prompt(number, 4)) for number in range(12)]
    replica = part.coordinator.book.replica
    part.tick_until(lambda: len(replica.in_flight) == 6)
    alive = list(replica.in_flight)
    for number in range(6):
        part.coordinator.abort(f"r{number}")
    part.store.let_go()
    part.tick_until_quiet()
    part.close()
    rows = [record.event.rows for record in part.log.records() if isinstance(record.event, RoundDone)]
    return [ids, alive, max(rows), part.events()]


@pytest.mark.parametrize("lag", [0, 1])
def test_no_prefetch_starves_behind_those_that_hang(lag: int) -> None:
    """With 12 prefetches for 4 rows and the 6 oldest hanging, the others run to their end; no round has more than 4 rows."""
    first, second = run_ranks(2, rotate, lag)
    assert first == second
    ids, alive, rows, _ = first
    assert alive == ids[:6]
    assert rows == 4


def states(world: World) -> list[Any]:
    """Look at the states that a rank sees, tick by tick."""
    part = Part("dsa", Policies(stop=WaitComplete(), lag_ticks=1))
    part.store.held.update(prompt(0, 4))
    id_ = part.issue("a", prompt(0, 4))
    seen = []
    for _ in range(30):
        part.coordinator.tick()
        seen.append(part.coordinator.book.replica.in_flight[id_].state)
        if seen[-1] is State.TRANSFERRING:
            break
        part.coordinator.ready("a")
    world.tell(f"seen {world.rank}")
    for rank in range(world.ranks):
        world.hear(f"seen {rank}")
    part.close()
    return seen


def test_states_change_at_the_same_tick() -> None:
    """All ranks are in the same state after every tick, and the wish of one rank's admission stays its own."""
    first, second, third = run_ranks(3, states)
    assert first == second == third


def header(world: World) -> list[Any]:
    """Open over a row and a column, and over everyone; return what the logs say of it."""
    told = []
    for groups in (grid(world), ()):
        part = Part("kv_only", transport=TorchTransport(*groups, timeout_s=10))
        opened = next(iter(part.log.records())).event
        assert isinstance(opened, LogOpened)
        told.append([opened.rank, opened.ranks, [list(ranks) for ranks in opened.groups]])
        part.close()
    return told


def test_a_log_says_which_groups_its_rounds_span() -> None:
    """At its head: the place of the rank among all that are reached, and the ranks of each group, in the order reduced."""
    found = run_ranks(4, header)
    assert [told[0] for told in found] == [[r, 4, [[r // 2 * 2, r // 2 * 2 + 1], [r % 2, r % 2 + 2]]] for r in range(4)]
    assert [told[1] for told in found] == [[r, 4, [[0, 1, 2, 3]]] for r in range(4)]
