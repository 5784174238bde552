"""Ranks in one process, in lockstep: real coordinators and reader threads over scripted stores."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from kit import ledger
from kit.clock import Clock
from kit.group import ThreadGroup, in_threads
from kit.spies import Active, SpyIndex, SpyMemory
from kit.store import PAGE_BYTES, ScriptedStore, page_of
from lifecycle.errors import SyncFailed
from lifecycle.events import Clamped, Committed, Declined, Discarded, Event
from lifecycle.keys import KeyChain, page_keys
from lifecycle.layout import Layout, preset
from lifecycle.policies import Policies, WaitComplete
from lifecycle.prefetch import Prefetch
from lifecycle.runtime.coordinator import Coordinator
from lifecycle.states import State
from stores.events.memory import MemoryEventLog

E = TypeVar("E", bound=Event)
PAGE_TOKENS = 4
PATIENCE = 2_000  # turns of at least half a millisecond


class Rig:
    """`ranks` coordinators that are given the same commands. Names of one rank take its number last."""

    def __init__(
        self,
        layout: str | Layout = "kv_only",
        ranks: int = 1,
        *,
        draft: bool = False,
        capacity: int | Sequence[int] | Mapping[str, int] = 32,
        readers: int = 2,
        force_round: bool = False,
        clock: Clock | None = None,
        frozen: bool = False,
        policies: Sequence[Policies] | None = None,
        absent: Sequence[Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.layout = preset(layout, draft=draft) if isinstance(layout, str) else layout
        self.clock = clock or Clock()
        self.policies = Policies(**{"stop": WaitComplete(), **settings})
        page_bytes = {pool.name: PAGE_BYTES for pool in self.layout.pools}
        self.actives = [Active() for _ in range(ranks)]
        self.stores = [ScriptedStore(rank, self.actives[rank]) for rank in range(ranks)]
        self.memories = [
            SpyMemory(self.layout, self._capacity(capacity, rank), page_bytes, self.actives[rank]) for rank in range(ranks)
        ]
        self.indexes = [SpyIndex(self.layout, self.policies.degrade) for _ in range(ranks)]
        self.logs = [MemoryEventLog() for _ in range(ranks)]
        self.prompts: dict[str, KeyChain] = {}
        self.failed: SyncFailed | None = None
        self.unequal = False  # a test that makes the ranks' replicas differ says so
        self.expect_leak = False  # a test that leaves a port broken says so

        def build(rank: int, group: ThreadGroup) -> Coordinator:
            return Coordinator(
                self.layout,
                policies[rank] if policies else self.policies,
                PAGE_TOKENS,
                store=self.stores[rank],
                memory=self.memories[rank],
                index=self.indexes[rank],
                events=self.logs[rank],
                transport=group if ranks > 1 else None,
                readers=readers,
                force_round=force_round,
                clock_ns=None if frozen else self.clock,
                absent=absent[rank] if absent else (),
            )

        built = in_threads(build, ranks)
        self.errors = [error for error in built if isinstance(error, BaseException)]
        self.ranks = [each for each in built if isinstance(each, Coordinator)]

    def _capacity(self, capacity: int | Sequence[int] | Mapping[str, int], rank: int) -> dict[str, int]:
        if isinstance(capacity, Mapping):
            return dict(capacity)
        pages = capacity if isinstance(capacity, int) else capacity[rank]
        return {pool.name: pages for pool in self.layout.own}

    # --- commands, alike on all ranks ----------------------------------------------------------------------------------

    def prompt(self, name: str, pages: int) -> KeyChain:
        """Return the keys of a prompt of its own for each name."""
        if name not in self.prompts or len(self.prompts[name]) < pages:
            first = 1000 * (1 + sum(map(ord, name)))
            self.add_prompt(name, range(first, first + pages * PAGE_TOKENS))
        return KeyChain(self.prompts[name][:pages])

    def add_prompt(self, name: str, tokens: Sequence[int]) -> None:
        """Make a prompt of these tokens known by name."""
        self.prompts[name] = page_keys(tokens, PAGE_TOKENS)
        for store in self.stores:
            store.page.update({key: page for page, key in enumerate(self.prompts[name])})

    def same(self, call: Callable[[int], Any]) -> Any:
        """Call for every rank and return what all returned; all must return, or raise, the same."""
        results: list[Any] = []
        for rank in range(len(self.ranks)):
            try:
                results.append((None, call(rank)))
            except Exception as error:
                results.append((error, None))
        first = results[0]
        for error, value in results[1:]:
            assert type(error) is type(first[0]), f"ranks differ: {results}"
            assert value == first[1], f"ranks differ: {results}"
        if first[0] is not None:
            raise first[0]
        return first[1]

    def issue(self, request: str = "r", pages: int = 8, attempt: int = 0, prompt: str | None = None) -> int | Declined:
        """Match and issue on every rank."""
        keys = self.prompt(prompt or request, pages)

        def go(rank: int) -> int | Declined:
            coordinator = self.ranks[rank]
            match = self.indexes[rank].match(keys, coordinator.tick_number)
            return coordinator.issue(request, attempt, keys, match.anchor)

        result: int | Declined = self.same(go)
        return result

    def abort(self, request: str = "r") -> bool:
        """Abort on every rank."""
        return bool(self.same(lambda rank: self.ranks[rank].abort(request)))

    def ready(self, request: str = "r") -> bool:
        """Ask on every rank."""
        return bool(self.same(lambda rank: self.ranks[rank].ready(request)))

    def take_loaded(self, request: str = "r") -> int:
        """Take on every rank."""
        return int(self.same(lambda rank: self.ranks[rank].take_loaded(request)))

    def finish(self, request: str = "r") -> None:
        """Finish on every rank."""
        self.same(lambda rank: self.ranks[rank].finish(request))

    def matched(self, request: str = "r", pools: Sequence[str] | None = None) -> int:
        """Return the pages that every rank serves of a prompt, having compared every byte of them."""

        def go(rank: int) -> int:
            match = self.indexes[rank].match(self.prompts[request], self.ranks[rank].tick_number, pools)
            for pool in self.layout.pools:
                slots = match.slots(pool.name)
                for page in np.flatnonzero(slots >= 0).tolist():
                    held = bytes(self.memories[rank].buffers(pool.name, slots[page : page + 1])[0])
                    self.actives[rank].end()
                    want = page_of(pool.name, self.prompts[request][page], rank)
                    assert held == want, f"garbled: page {page} of {pool.name} on rank {rank} is {held!r}, not {want!r}"
            return match.pages

        return int(self.same(go))

    def covered(self, pool: str, request: str = "r", rank: int = 0) -> list[int]:
        """Return the pages of a prompt that a pool holds."""
        match = self.indexes[rank].match(self.prompts[request], self.ranks[rank].tick_number, ["kv"])
        return [int(page) for page in np.flatnonzero(match.slots(pool) >= 0)]

    # --- ticks ---------------------------------------------------------------------------------------------------------

    def tick(self, times: int = 1) -> None:
        """Run ticks on every rank, in lockstep; afterwards all replicas must be equal."""
        for _ in range(times):
            self._tick()

    def _tick(self) -> None:
        rounds = self._collect([coordinator.begin_tick for coordinator in self.ranks])
        if rounds[0] is None:
            return
        self._reduce(rounds)
        second = self._collect([lambda c=c, r=r: c.end_tick(r) for c, r in zip(self.ranks, rounds, strict=True)])
        assert len({type(each) for each in second}) == 1, "the ranks differ in their second exchange: they would hang"
        if second[0] is not None:
            self._reduce(second)
            self._collect([lambda c=c, m=m: c.end_exchange(m) for c, m in zip(self.ranks, second, strict=True)])
        self.check_equal()

    @staticmethod
    def _reduce(exchanges: Sequence[Any]) -> None:
        buffers = [exchange.buffer for exchange in exchanges]
        assert len({(buffer.shape, buffer.dtype) for buffer in buffers}) == 1, "shapes differ: the collective would abort"
        reduced = np.minimum.reduce(buffers)
        for buffer in buffers:
            buffer[:] = reduced

    def _collect(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        results: list[Any] = []
        failures: list[SyncFailed] = []
        for call in calls:
            try:
                results.append(call())
            except SyncFailed as failure:
                failures.append(failure)
        if failures:
            assert len(failures) == len(calls), f"only some ranks failed: {failures}"
            self.failed = failures[0]
            raise failures[0]
        return results

    def check_equal(self) -> None:
        """Compare the replicas and the shapes of the indexes."""
        if self.unequal:
            return
        first = self.ranks[0].book.replica.facts()
        for rank, coordinator in enumerate(self.ranks[1:], start=1):
            facts = coordinator.book.replica.facts()
            assert facts == first, f"replica of rank {rank} differs: {facts} is not {first}"
            assert self.indexes[rank].digest() == self.indexes[0].digest(), f"index of rank {rank} differs"

    def until(self, condition: Callable[[], Any], tick: bool = True, patience: int = PATIENCE) -> None:
        """Tick until the condition holds; fail if that takes for ever."""
        for _ in range(patience):
            if condition():
                return
            if tick:
                self._tick()
            if condition():
                return
            with self.stores[0].changed:
                self.stores[0].changed.wait(0.0005)
        raise AssertionError(f"it never came to that: {[c.snapshot() for c in self.ranks]}")

    def until_held(self, pool: str = "kv", calls: int = 1) -> None:
        """Tick until every rank has that many calls held."""
        self.until(lambda: all(store.waiting(pool) >= calls for store in self.stores))

    def until_state(self, prefetch: int, *states: State) -> None:
        """Tick until a prefetch is in one of the states."""
        self.until(lambda: self.state(prefetch) in states)

    def until_closed(self, prefetch: int | Declined) -> None:
        """Tick until nothing of a prefetch is left."""
        self.until(lambda: all(prefetch not in c.book.local for c in self.ranks))

    # --- looking -------------------------------------------------------------------------------------------------------

    def prefetch(self, id_: int, rank: int = 0) -> Prefetch:
        """Return the replica's prefetch."""
        return self.ranks[rank].book.replica.in_flight[id_]

    def state(self, id_: int, rank: int = 0) -> State | None:
        """Return its state; None once it is closed."""
        prefetch = self.ranks[rank].book.replica.in_flight.get(id_)
        return None if prefetch is None else prefetch.state

    def events(self, kind: type[E], rank: int = 0, prefetch: int | None = None) -> list[E]:
        """Return what a rank logged of one kind."""
        found = [record.event for record in self.logs[rank].records() if type(record.event) is kind]
        return [e for e in found if prefetch is None or getattr(e, "prefetch", None) == prefetch]

    def outcome(self, prefetch: int | None = None) -> Committed | Clamped | Discarded:
        """Return how a prefetch (by default: the only one) ended, alike on all ranks."""
        found = []
        for rank in range(len(self.ranks)):
            ends = [e for kind in (Committed, Clamped, Discarded) for e in self.events(kind, rank, prefetch)]
            assert len(ends) == 1, f"rank {rank} has {len(ends)} outcomes"
            found.append(ends[0])
        assert all(end == found[0] for end in found), f"outcomes differ: {found}"
        return found[0]

    def run(self, request: str = "r", pages: int = 8, **more: Any) -> Committed | Clamped | Discarded:
        """Issue, run to the close, and return the outcome."""
        id_ = self.issue(request, pages, **more)
        assert isinstance(id_, int), f"declined: {id_}"
        self.until_closed(id_)
        return self.outcome(id_)

    def sizes(self) -> list[dict[str, int]]:
        """Return how many objects each rank keeps per request and per prefetch."""
        return [
            {
                "requests": len(c.book.replica.requests),
                "in_flight": len(c.book.replica.in_flight),
                "local": len(c.book.local),
                "transfers": len(c._rank.transfers.of),
                "dirty": len(c._rank.transfers.dirty),
                "retry": len(c._rank.settler.retry),
                "tries": len(c._rank.settler._tries),
                "lanes": len(c._rank.readers.queue._lanes),
                "unsent": len(c._rank.transfers._unsent),
                "masked": len(c._rank.agreement._masked),
                "waiting": len(c.book.replica.waiting),
                "waiting_keys": len(c._rank.waiting_keys),
            }
            for c in self.ranks
        ]

    def occupied(self) -> int:
        """Return the tokens that prefetches in flight reserve."""
        return int(self.same(lambda rank: self.ranks[rank].book.replica.occupied_tokens))

    def locks(self) -> int:
        """Return how many locks each index holds."""
        return int(self.same(lambda rank: self.indexes[rank].lock_count()))

    def free(self, pool: str = "kv", rank: int = 0) -> int:
        """Return the free slots of one rank."""
        return self.memories[rank].free_pages(pool)

    def resident(self, pool: str = "kv") -> int:
        """Return the pages that every index owns."""
        return int(self.same(lambda rank: self.indexes[rank].resident_pages(pool)))

    def check(self) -> None:
        """Check the books of every rank, and the laws of its log."""
        for rank, coordinator in enumerate(self.ranks):
            coordinator.check_integrity()
            self.stores[rank].check_integrity()
            events = [record.event for record in self.logs[rank].records()]
            assert not ledger.faults(events, ended=False), ledger.faults(events, ended=False)
            assert not self.memories[rank].violations, self.memories[rank].violations

    # --- the end -------------------------------------------------------------------------------------------------------

    def tear_down(self) -> None:
        """Run everything dry, close, and find no leak."""
        if not self.ranks or self.errors:
            for coordinator in self.ranks:
                coordinator.close()
            return
        if not any(coordinator._rank.closed for coordinator in self.ranks):
            self.check()
            for store in self.stores:
                store.open_all()
            if self.failed is None:
                self.until(lambda: not any(c.book.local for c in self.ranks) or self.expect_leak)
        for coordinator in self.ranks:
            coordinator.close()
        for store in self.stores:
            store.close()
        self.check()
        if not self.expect_leak:
            self.check_clean()

    def check_clean(self) -> None:
        """Find nothing in flight, nothing locked, nothing reserved, and each slot free, resident or quarantined."""
        for rank, coordinator in enumerate(self.ranks):
            book, memory = coordinator.book, self.memories[rank]
            assert not book.local, f"still open on rank {rank}: {book.local}"
            assert book.replica.occupied_tokens == 0
            assert self.indexes[rank].lock_count() == 0
            assert coordinator.snapshot()["open_obligations"] == 0
            events = [record.event for record in self.logs[rank].records()]
            assert not ledger.faults(events), ledger.faults(events)
            for pool in self.layout.own:
                free, out = memory.free_pages(pool.name), memory.quarantined_pages(pool.name)
                resident = self.indexes[rank].resident_pages(pool.name)
                assert free + out + resident == memory.capacity_pages(pool.name), f"leak in {pool.name} on rank {rank}"
                assert book.replica.reserved_pages[pool.name] == 0
            kept = {name: n for name, n in self.sizes()[rank].items() if name != "requests" and n}
            assert not kept, f"rank {rank} keeps {kept}"
        if self.failed is None:
            self.check_equal()
