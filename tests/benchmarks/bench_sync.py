"""What the round costs the scheduler, beside two blocking all-reduces per prefetch in the same run.

    python -m tests.benchmarks.bench_sync

Processes over Gloo on this machine. Medians; every ratio is of medians of one run, in which both sides took turns. The
numbers that were measured, and where, stand in NOTES.md beside this file.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lifecycle.policies import Policies, WaitComplete
from lifecycle.runtime import ticks
from lifecycle.runtime.rank import Rank
from lifecycle.runtime.sockets import HostTransport
from lifecycle.runtime.transport import TorchTransport
from lifecycle.states import State
from tests.benchmarks.common import Row
from tests.benchmarks.goals import GOALS
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt

READY = (1, 8, 64, 256)
PAGES = 8
WORK_S = 0.005


class Stopwatch:
    """Adds up the time spent in some calls."""

    def __init__(self) -> None:
        self.taken_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
        began = time.perf_counter()
        yield
        self.taken_s += time.perf_counter() - began

    def wrap(self, owner: Any, name: str) -> None:
        """Count the calls of a method."""
        call = getattr(owner, name)

        def counted(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                self.taken_s += time.perf_counter() - began

        setattr(owner, name, counted)


class Timed:
    """A transport that counts the time in which the exchange holds up the scheduler: to launch it, and to wait for it."""

    def __init__(self, blocked: Stopwatch, inner: TorchTransport | HostTransport) -> None:
        self._blocked, self._inner = blocked, inner
        self.rank, self.ranks, self.groups = inner.rank, inner.ranks, inner.groups
        if isinstance(inner, TorchTransport):
            self.launch_ahead = lambda buffer: self._counted(inner.launch_ahead, buffer)

    def launch(self, buffer: Any) -> Callable[[], None]:
        """Launch, and return a wait, both counted."""
        return self._counted(self._inner.launch, buffer)

    def _counted(self, launch: Any, buffer: Any) -> Callable[[], None]:
        with self._blocked.running():
            wait = launch(buffer)

        def counted() -> None:
            with self._blocked.running():
                wait()

        return counted


def transport_of(name: str) -> TorchTransport | HostTransport:
    """Return a transport over all ranks: "gloo", or "sockets" for those of one host."""
    return HostTransport(timeout_s=60) if name == "sockets" else TorchTransport(timeout_s=60)


def two_reduces(count: int) -> float:
    """Do what SGLang 0.5.17 does per prefetch under wait_complete: agree on whether to stop, then on how much there is.

    Returns the seconds. The tensors are made from Python numbers and read back, as there.
    """
    began = time.perf_counter()
    for _ in range(count):
        states = torch.tensor([0, 0], dtype=torch.int)
        dist.all_reduce(states, op=dist.ReduceOp.MAX)
        if states[0].item() == 0:
            pages = torch.tensor(PAGES, dtype=torch.int)
            dist.all_reduce(pages, op=dist.ReduceOp.MIN)
            assert pages.item() == PAGES
    return time.perf_counter() - began


def ready_at_once(world: World, count: int, turns: int, over: str) -> list[list[float]]:
    """Have `count` prefetches ready in one tick, `turns` times; return seconds of agreement, whole tick, and baseline."""
    agreeing = Stopwatch()
    transport = Timed(agreeing, transport_of(over))
    policies = Policies(stop=WaitComplete(), row_capacity=max(64, count), limit_tokens=1 << 30)
    part = Part("dsa", policies, capacity=(turns + 2) * count * PAGES, transport=transport)
    rank = part.coordinator._rank
    for name in ("build", "header", "rows", "masks_after", "read"):
        agreeing.wrap(rank.agreement, name)
    drain = ticks.drain
    in_step = [False]

    def drain_then_meet(rank: Rank) -> None:
        drain(rank)
        if in_step[0]:
            dist.barrier()  # what the ranks agree on starts in step, as the baseline does

    ticks.drain = drain_then_meet  # this process has one rank
    out = []
    for turn in range(turns + 2):
        ids = fill(part, turn, count)
        in_step[0] = True
        dist.barrier()
        agreeing.taken_s, began = 0.0, time.perf_counter()
        part.coordinator.tick()
        whole_s = time.perf_counter() - began
        agreed_s, in_step[0] = agreeing.taken_s, False
        assert all(rank.book.replica.in_flight[id_].state is State.COMMITTED for id_ in ids)
        part.tick_until_quiet()
        for place in range(count):
            part.coordinator.finish(f"r{turn}.{place}")
        dist.barrier()
        out.append([agreed_s, whole_s, two_reduces(count)])
    part.close()
    return out[2:]  # the first ones warm up


def fill(part: Part, turn: int, count: int) -> list[Any]:
    """Bring `count` prefetches to where every answer waits for the next tick, on every rank."""
    ids = [part.issue(f"r{turn}.{place}", prompt(turn * count + place, PAGES)) for place in range(count)]
    flight = part.coordinator.book.replica.in_flight
    go, part.store._go = part.store._go, type(part.store._go)()
    part.store.held = {key for place in range(count) for key in prompt(turn * count + place, PAGES)[:1]}
    go.set()
    part.tick_until(lambda: all(flight[id_].state is State.TRANSFERRING for id_ in ids))
    part.store.let_go()
    readers = part.coordinator._rank.readers
    while readers.queue.unclaimed() or readers.queue._running:
        time.sleep(0.001)
    return ids


def work(busy: bool) -> None:
    """Spend 5 ms: asleep, as a thread that waits for the device; or busy, as Python that holds on to the interpreter."""
    if not busy:
        time.sleep(WORK_S)
        return
    end = time.perf_counter() + WORK_S
    while time.perf_counter() < end:
        pass


def with_work(world: World, lag: int, ticks: int, busy: bool, over: str) -> list[list[float]]:
    """Tick beside 5 ms of other work; return seconds blocked and per tick."""
    blocked = Stopwatch()
    transport = Timed(blocked, transport_of(over))
    part = Part("dsa", Policies(stop=WaitComplete(), lag_ticks=lag), capacity=8 * 4 * PAGES, transport=transport)
    out = []
    for tick in range(ticks + 20):
        if tick % 5 == 0:
            part.issue(f"r{tick}", prompt(tick % 20, PAGES))
        work(busy)
        blocked.taken_s, began = 0.0, time.perf_counter()
        part.coordinator.tick()
        out.append([blocked.taken_s, time.perf_counter() - began])
    part.close()
    return out[20:]


def blocked_both(world: World, ticks: int, busy: bool, over: str) -> dict[int, list[list[float]]]:
    """Measure lag 0 and lag 1 in turns, over the same group."""
    found: dict[int, list[list[float]]] = {0: [], 1: []}
    for _ in range(4):
        for lag, rows in found.items():
            rows += with_work(world, lag, ticks // 4, busy, over)
    return found


def median_us(rows: Sequence[Sequence[float]], column: int) -> float:
    """Return the median of one column, in microseconds."""
    return statistics.median(row[column] for row in rows) * 1e6


def mean_of_ranks(per_rank: Sequence[Any]) -> list[list[float]]:
    """Return, turn by turn, the mean over the ranks: each has a scheduler of its own."""
    means: list[list[float]] = np.mean(np.array(per_rank), axis=0).tolist()
    return means


def agreed(ranks: int, count: int, turns: int, over: str) -> tuple[float, float, float]:
    """Return microseconds per prefetch: what the ranks agree on, the whole tick, and the baseline."""
    rows = mean_of_ranks(run_ranks(ranks, ready_at_once, count, turns, over, patience_s=900))
    agree, tick, base = (median_us(rows, column) / count for column in range(3))
    return agree, tick, base


def blocked(ranks: int, ticks: int, busy: bool, over: str) -> tuple[list[float], list[float]]:
    """Return microseconds per tick with lag 0 and 1: blocked by the exchange, and whole."""
    found = run_ranks(ranks, blocked_both, ticks, busy, over, patience_s=900)
    lags = [mean_of_ranks([each[lag] for each in found]) for lag in ("0", "1")]
    return [median_us(rows, 0) for rows in lags], [median_us(rows, 1) for rows in lags]


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows that have goals, over Gloo, and beside each the same over the sockets of one host."""
    for over, more in (("gloo", ""), ("sockets", ", HostTransport")):
        goal = GOALS["sync-64"]
        agree, tick, base = agreed(2, 64, 5 if quick else 21, over)
        ratio, note = base / agree, f"the whole tick {tick:.1f} us each"
        yield Row("sync", goal.what + more, goal.goal, f"{base:.1f} us each", f"{agree:.1f} us each", f"{ratio:.1f}x less",
                  ratio >= 30, note, "sync-64")  # fmt: skip
        goal = GOALS["sync-blocked"]
        held, _ = blocked(2, 120 if quick else 840, False, over)
        share, hides = held[1] / held[0], over == "gloo"
        note = "the work is time.sleep" if hides else "a round without lag is short already: there is little to hide"
        yield Row("sync", goal.what + more, goal.goal if hides else "", f"{held[0]:.1f} us", f"{held[1]:.1f} us",
                  f"{100 * share:.1f} %", share <= 0.1 if hides else None, note, "sync-blocked" if hides else "")  # fmt: skip


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=21, help="measurements per cell")
    parser.add_argument("--over", choices=("gloo", "sockets"), default="gloo", help="TorchTransport or HostTransport")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, load average {load}\n")
    print("Scheduler time per prefetch, microseconds (dsa, 8 pages each; row_capacity is 64, for 256 ready 256).")
    print("agree: reports, exchange, rows read; tick: that, answers, decisions, events, hand-over, release.\n")
    print("| ranks | ready | two all-reduces each | agree | tick | agree is less by | goal |")
    print("|---|---|---|---|---|---|---|")
    for ranks in options.ranks:
        for count in READY:
            turns = max(5, options.turns // (3 if count == 256 else 1))
            agree, tick, base = agreed(ranks, count, turns, options.over)
            times = "no collective" if ranks == 1 else f"{base / agree:.1f}x"
            goal = ">= 30x" if (ranks, count) == (2, 64) else ""
            print(f"| {ranks} | {count} | {base:.1f} | {agree:.1f} | {tick:.1f} | {times} | {goal} |", flush=True)
    print("\nBlocked by the exchange per tick, microseconds, beside 5 ms of other work on the scheduler's thread.\n")
    print("| ranks | work | lag 0 | lag 1 | lag 1 is | goal | whole tick, lag 0 | whole tick, lag 1 |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks, busy in ((count, busy) for count in options.ranks if count > 1 for busy in (False, True)):
        held, whole = blocked(ranks, 40 * options.turns, busy, options.over)
        goal = "<= 10 %" if ranks == 2 and not busy else ""
        how = "Python loop" if busy else "time.sleep"
        share = f"{100 * held[1] / held[0]:.1f} %"
        print(
            f"| {ranks} | {how} | {held[0]:.1f} | {held[1]:.1f} | {share} | {goal} | {whole[0]:.1f} | {whole[1]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
