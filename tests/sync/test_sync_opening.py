"""The opening exchange, over real processes: what differs at the start is an error on every rank, by name."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from lifecycle.errors import ConfigError, SyncFailed
from lifecycle.layout import Layout, Pool, dsa, kv_only, swa
from lifecycle.policies import BestEffort, OnShortfall, Policies, Pressure, Retry, Timeout, WaitComplete
from lifecycle.runtime import rank as rank_module
from lifecycle.runtime.transport import Alone, TorchTransport
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, host_memory, prompt

OTHER: dict[str, Any] = {
    "stop": BestEffort(),
    "pressure": Pressure.REVOKE,
    "shortfall": OnShortfall.DEGRADE,
    "retry": Retry(),
    "threshold_pages": 2,
    "max_pages": 5,
    "limit_tokens": 1 << 19,
    "lost_read_s": 5.0,
    "max_lost_reads": 1,
    "row_capacity": 7,
    "mask_capacity": 3,
    "lag_ticks": 1,
    "round_every_ticks": 2,
    "pipeline_stages": 2,
    "batch_pages": 16,
    "stuck_after_tries": 9,
}
NAMED = {name: f"policy {name}" for name in OTHER} | {
    "limit of a stop policy": "policy stop",
    "layout": "layout",
    "window": "layout",
    "page size": "page size",
    "version": "library version",
    "index": "prefix index",
    "several": "layout, page size, policy row_capacity",
}


def start(world: World, name: str, odd: int) -> Part:
    """Build the part of one rank; that of rank `odd` differs by `name`."""
    policies, layout, page_tokens, more = Policies(stop=WaitComplete()), swa(), 4, dict[str, Any]()
    if name == "pipeline_stages":  # two stages need a lag, so that they are all that differs
        policies = dataclasses.replace(policies, lag_ticks=1)
    if world.rank == odd:
        match name:
            case "limit of a stop policy":
                policies = dataclasses.replace(policies, stop=Timeout(max_s=31.0))
            case "layout":
                layout = dsa()
            case "window":
                layout = swa(window_pages=3)
            case "page size":
                page_tokens = 8
            case "version":
                rank_module.VERSION = "0.0.0"
            case "index":
                more["index"] = OddIndex(layout)
            case "several":
                policies, layout, page_tokens = dataclasses.replace(policies, row_capacity=9), dsa(), 16
            case _:
                policies = dataclasses.replace(policies, **{name: OTHER[name]})
    elif name == "limit of a stop policy":
        policies = dataclasses.replace(policies, stop=Timeout(max_s=30.0))
    return Part(layout, policies, page_tokens=page_tokens, **more)


class OddIndex(RadixIndex):
    """An index that has seen something else."""

    def digest(self) -> int:
        """Return what no empty index returns."""
        return super().digest() ^ 1


def refusal(call: Callable[[], Any]) -> str:
    """Return what a `ConfigError` says."""
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def differ(world: World, odd: int) -> dict[str, str]:
    """Start once for each thing that may differ, and once with nothing that differs."""
    version = rank_module.VERSION
    said = {}
    for name in NAMED:
        said[name] = refusal(lambda name=name: start(world, name, odd))
        rank_module.VERSION = version
    part = Part()  # all alike again: the group is as good as before
    part.issue("a", prompt(0, 8))
    part.tick_until_quiet()
    part.close()
    return said


@pytest.mark.parametrize(("ranks", "odd"), [(2, 1), (3, 0), (4, 2)])
def test_a_difference_at_the_start_is_an_error_on_every_rank(ranks: int, odd: int) -> None:
    """Every rank raises, names exactly what differs, and can start again with the right configuration."""
    for rank, said in enumerate(run_ranks(ranks, differ, odd)):
        for name, item in NAMED.items():
            text = f"cannot start on rank {rank} of {ranks}: the ranks differ in {item} (give every rank"
            assert said[name].startswith(text), said[name]


def test_every_policy_is_compared() -> None:
    """A policy that is added later is compared at the start, too."""
    assert {field.name for field in dataclasses.fields(Policies)} == set(OTHER)


def cannot_start(world: World) -> list[str]:
    """Start with what one rank alone refuses, before any exchange."""
    odd = world.rank == 1
    full = Layout("wide", (Pool("kv"), *(Pool(f"p{place}") for place in range(40))))
    return [
        refusal(lambda: Part(page_tokens=0 if odd else 4)),
        refusal(lambda: Part(readers=0 if odd else 4)),
        refusal(lambda: Part(policies=Policies(limit_tokens=1 if odd else 1 << 20))),
        refusal(lambda: Part(full if odd else "kv_only")),
        refusal(lambda: Part(index=used_index() if odd else None)),
        refusal(lambda: Part(memory=Unsized(kv_only(), {"kv": 32}, {"kv": 32}, pin=False) if odd else None)),
    ]


class Unsized(TorchHostMemory):
    """Host memory that cannot say how large a page is."""

    def page_bytes(self, pool: str) -> int:
        """Fail, as an engine's own port may."""
        raise ConfigError(f"no page size of {pool}")


def used_index() -> RadixIndex:
    """Return an index that an earlier run has filled."""
    part = Part(transport=Alone())
    part.issue("a", prompt(0, 8))
    while part.coordinator.book.local:
        part.coordinator.tick()
    part.coordinator.close()
    return part.index


def test_a_rank_that_cannot_start_tells_the_others() -> None:
    """What one rank refuses by itself is its own error there, and an error on every other rank, at once."""
    others, odd, third = run_ranks(3, cannot_start)
    assert all("a rank cannot start with what it was given" in text for text in others + third)
    told = ("page size 0", "0 readers", "limit_tokens=1", "41 pools", "holds 8 pages of kv", "no page size of kv")
    for text, what in zip(odd, told, strict=True):
        assert what in text


def budgets(world: World) -> list[Any]:
    """Start with capacities of one's own."""
    part = Part("mamba", capacity=9 - 2 * world.rank)
    before = [part.coordinator.book.replica.budget(pool.name) for pool in part.layout.own]
    part.issue("a", prompt(0, 8))
    part.tick_until_quiet()
    plan = next(fields for name, fields in part.events() if name == "plan_agreed.1")
    part.close()
    return [before, plan[2]]


def test_the_smallest_rank_sets_the_budget() -> None:
    """Capacities that differ are no error: each pool's budget is that of the smallest rank, and plans keep to it."""
    assert run_ranks(3, budgets) == [[[5, 5], "5"]] * 3


def debts(world: World) -> list[Any]:
    """Start a second time over host memory of which an earlier run has not given everything back."""
    part = Part()
    if world.rank == 1:
        slots = part.memory.allocate({"kv": 60})["kv"]
        part.memory.quarantine("kv", slots[:59])
    part.coordinator.close()
    again = Part(memory=part.memory)
    budget = again.coordinator.book.replica.budget("kv")
    again.issue("a", prompt(0, 8))
    again.tick_until_quiet()
    again.coordinator.close()
    again.coordinator.check_integrity()
    return [budget, again.index.resident_pages("kv")]


def test_old_debts_are_off_the_budget() -> None:
    """What an earlier run left out or quarantined on one rank is off everyone's budget, and the books add up without it."""
    assert run_ranks(2, debts) == [[4, 4], [4, 4]]


def nothing_free(world: World) -> str:
    """Start with memory of which nothing is free on one rank."""
    memory = host_memory(kv_only(), 8)
    if world.rank == 0:
        memory.allocate({"kv": 8})
    return refusal(lambda: Part(memory=memory))


def test_no_host_memory_at_all_is_an_error_at_the_start() -> None:
    """A rank without a free page would have every prefetch declined for ever: no rank starts."""
    assert all("no free page of pool kv" in text for text in run_ranks(2, nothing_free))


def silent(world: World) -> str:
    """Start on all ranks but one."""
    transport = TorchTransport(timeout_s=0.5)
    if world.rank == 1:
        world.hear("told 0")
        world.hear("told 2")
        return ""
    with pytest.raises(SyncFailed) as caught:
        Part(transport=transport)
    world.tell(f"told {world.rank}")
    return str(caught.value)


def test_a_rank_that_never_opens_is_an_error_on_the_others() -> None:
    """The opening exchange is bounded, too: round 0 failed."""
    first, _, third = run_ranks(3, silent)
    assert "cannot finish round 0 of 3 ranks" in first
    assert "cannot finish round 0 of 3 ranks" in third
