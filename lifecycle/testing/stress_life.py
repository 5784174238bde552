"""One life of a stress run: every rank on a thread of its own, its readers on theirs, from the start to the close."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from lifecycle.audit import verify_logs
from lifecycle.events import Record
from lifecycle.keys import KeyChain
from lifecycle.layout import KV, Layout
from lifecycle.policies import BestEffort, OnShortfall, Policies, Pressure, Retry, StopPolicy, Timeout, WaitComplete
from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.transport import Alone, Transport
from lifecycle.testing.faulty_store import FaultMix, FaultyStore
from lifecycle.testing.sim_checks import Violation
from lifecycle.testing.sim_setup import KEYS, LAYOUTS, PAGE_TOKENS
from lifecycle.testing.sim_store import PAGE_BYTES, page_of
from lifecycle.testing.stress_ports import PATIENCE_S, PoisonedMemory, ThreadGroup, ThreadTransport
from stores.events.memory import MemoryEventLog
from stores.pages.memory import MemoryPageStore
from stores.prefix import RadixIndex

_LIVE = 24  # requests at a time
_LOOK_EVERY = 64  # ticks
_MIX = FaultMix(late=0.3, query_late=0.3, never=1 / 120, query_never=1 / 200, late_min_s=0.0005, late_max_s=0.01)


@dataclass(frozen=True, slots=True)
class Life:
    """What one life is made of, drawn from its seed."""

    seed: int
    layout: Layout
    ranks: int
    policies: Policies
    prefetches: int
    fault_rate: float

    def text(self) -> str:
        """Return the life in one line."""
        policies = self.policies
        return (
            f"seed {self.seed}: {self.layout.name}, {self.ranks} ranks, lag {policies.lag_ticks}, {policies.stop.name},"
            f" {policies.pressure}, {policies.shortfall}, retry {policies.retry is not None}"
        )


def draw(seed: int, prefetches: int, ranks: int | None = None, fault_rate: float = 0.2) -> Life:
    """Return the life of a seed: layouts and ranks in turn, the rest drawn."""
    dice = Random(f"life/{seed}")
    layout = LAYOUTS[sorted(LAYOUTS)[seed % len(LAYOUTS)]]
    stops: tuple[StopPolicy, ...] = (Timeout(0.02, 0.0, 0.02), WaitComplete(), BestEffort(), Timeout(0.1, 0.5, 0.2))
    policies = Policies(
        stop=dice.choice(stops),
        pressure=dice.choice((Pressure.SHRINK, Pressure.SHRINK, Pressure.REVOKE)),
        shortfall=dice.choice((OnShortfall.DISCARD, OnShortfall.DEGRADE)),
        retry=dice.choice((None, Retry(every_ticks=4, max_queries=2, give_up_ticks=64))),
        limit_tokens=dice.choice((100, 300, 600)) * PAGE_TOKENS,
        max_pages=16,
        lost_read_s=0.15,
        max_lost_reads=24,
        row_capacity=dice.choice((4, 32)),
        lag_ticks=dice.choice((0, 1)),
        batch_pages=dice.choice((2, 4, 128)),
    )
    return Life(seed, layout, (seed // 2) % 2 + 1 if ranks is None else ranks, policies, prefetches, fault_rate)


class StressRank:
    """One rank: a real coordinator with real readers, and the engine that asks alike on every rank."""

    def __init__(self, life: Life, rank: int, transport: Transport) -> None:
        self.life, self.rank = life, rank
        page_bytes = {pool.name: PAGE_BYTES for pool in life.layout.pools}
        inner = MemoryPageStore(page_bytes)
        for pool in page_bytes:
            for keys in KEYS:
                inner.write(pool, keys, [memoryview(page_of(pool, key, rank)) for key in keys])
        self.store = FaultyStore(inner, life.fault_rate, life.seed, rank, _MIX)
        capacity = {pool.name: 110 if pool.name == KV else 40 for pool in life.layout.own}
        self.memory = PoisonedMemory(life.layout, capacity, page_bytes)
        self.index = RadixIndex(life.layout, life.policies.degrade)
        self.log = MemoryEventLog(max_records=10_000_000)
        self.coordinator = Coordinator(
            life.layout, life.policies, PAGE_TOKENS, store=self.store, memory=self.memory, index=self.index, events=self.log,
            transport=transport, readers=4, run=f"{life.seed:08x}",
        )  # fmt: skip
        self._dice = Random(f"commands/{life.seed}")  # the same on every rank
        self._own = Random(f"fate/{life.seed}/{rank}")
        self._live: dict[str, tuple[KeyChain, int]] = {}  # request -> what it asks for, attempt
        self._next = 0
        self.served_pages = 0

    def run(self) -> None:
        """Run the life to its close; raises at the first law that is broken."""
        replica, most_ticks = self.coordinator.book.replica, 400 * self.life.prefetches + 20_000
        while replica.next_id <= self.life.prefetches:
            self._ask()
            self._tick(most_ticks)
        for request in list(self._live):
            self._serve(request)
        until = time.monotonic() + PATIENCE_S
        while replica.in_flight:
            self.store.release_all()
            self._tick(most_ticks)
            if time.monotonic() > until:
                raise Violation("stuck", f"rank {self.rank}: {self.coordinator.snapshot()['in_flight'][:2]}")
        self._look(replay=True)
        self._leave()

    def _tick(self, most_ticks: int) -> None:
        coordinator = self.coordinator
        coordinator.tick()
        if coordinator.tick_number > most_ticks:
            raise Violation("stuck", f"rank {self.rank}: {coordinator.snapshot()}")
        if self.memory.violations or coordinator.tick_number % _LOOK_EVERY == 0:
            self._look(replay=False)
        if self._own.random() < 0.002:
            self.store.release_all()  # whoever never answered answers now, late
        if self._own.random() < 0.05:
            self._move_pages()
        time.sleep(0)

    def _ask(self) -> None:
        dice = self._dice
        while len(self._live) < _LIVE and dice.random() < 0.7:
            self._next += 1
            self._issue(f"r{self._next}", 0)
        for request in list(self._live):
            roll = dice.random()
            if roll < 0.005:
                self.coordinator.abort(request)
            elif roll < 0.01:
                self._issue(request, self._live[request][1] + 1)
            elif roll < 0.012:
                self.coordinator.finish(request)
                del self._live[request]
            elif roll < 0.3 and self.coordinator.ready(request):
                self._serve(request)

    def _issue(self, request: str, attempt: int) -> None:
        prompt = KEYS[self._dice.randrange(len(KEYS))]
        keys = KeyChain(prompt[: self._dice.randint(3, len(prompt))])
        self._live[request] = keys, attempt
        self.coordinator.issue(request, attempt, keys, self.index.match(keys, self.coordinator.tick_number).anchor)

    def _serve(self, request: str) -> None:
        keys, _ = self._live.pop(request)
        match = self.index.match(keys, self.coordinator.tick_number)
        for pool in self.life.layout.pools:
            slots = match.slots(pool.name)
            there = np.flatnonzero(slots >= 0)
            for page, buffer in zip(there.tolist(), self.memory.buffers(pool.name, slots[there]), strict=True):
                if buffer != page_of(pool.name, keys[page], self.rank):
                    raise Violation("garbled", f"rank {self.rank} serves page {page} of {pool.name} with other bytes")
        self.served_pages += match.pages
        self.coordinator.served(request, match)
        self.coordinator.take_loaded(request)
        self.coordinator.finish(request)

    def _move_pages(self) -> None:
        """Lose some pages of this rank's shard, or bring a prompt's back."""
        pool = self._own.choice(self.life.layout.pools).name
        keys = KEYS[self._own.randrange(len(KEYS))]
        if self._own.random() < 0.4:
            self.store.delete(pool, keys[self._own.randrange(len(keys)) :])
        else:
            self.store.write(pool, keys, [memoryview(page_of(pool, key, self.rank)) for key in keys])

    def _look(self, replay: bool) -> None:
        self.memory.look_at_all()
        self.coordinator.check_integrity(replay)

    def stop_reading(self) -> None:
        """Send the readers home, after a failure: the run goes on without them."""
        self.store.close()
        self.coordinator._rank.readers.close(1.0)

    def _leave(self) -> None:
        coordinator = self.coordinator
        self.store.close()
        coordinator.close()
        self._look(replay=True)
        left = coordinator.book.open_obligations(), self.index.lock_count(), coordinator.book.replica.occupied_tokens
        if any(left):
            raise Violation("leak", f"rank {self.rank}: obligations, locks and tokens left: {left}")


def run_life(life: Life) -> tuple[list[list[Record]], list[StressRank]]:
    """Run a life, then check its logs; return them, one per rank. Raises what a rank raised, or a `Violation`."""
    group = ThreadGroup(life.ranks)
    ranks: list[StressRank | None] = [None] * life.ranks
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            transport: Transport = ThreadTransport(rank, group) if life.ranks > 1 else Alone()
            built = StressRank(life, rank, transport)
            ranks[rank] = built
            built.run()
        except BaseException as error:  # whatever it is, the run has to say it, and the peers must not wait
            errors.append(error)
            group.leave()
            failed = ranks[rank]
            if failed is not None:
                failed.stop_reading()

    _in_threads(work, life.ranks)
    if errors:
        raise errors[0]
    done = [rank for rank in ranks if rank is not None]
    logs = [list(rank.log.records()) for rank in done]
    if violations := verify_logs(logs):
        raise Violation(f"audit {violations[0].law}", f"{violations[0]} (one of {len(violations)})")
    return logs, done


def _in_threads(work: Callable[[int], None], ranks: int) -> None:
    threads = [threading.Thread(target=work, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
