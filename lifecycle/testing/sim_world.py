"""The simulated world: all ranks, what the engine asks of them, and what fate does to them, step by step."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from lifecycle.errors import AnchorLost, CoordinatorClosed, HostExhausted, LifecycleError
from lifecycle.events import Record
from lifecycle.keys import KeyChain
from lifecycle.ranges import Range
from lifecycle.reasons import Reason
from lifecycle.runtime.ports import Anchor, SlotArray
from lifecycle.testing import sim_checks as checks
from lifecycle.testing.clock import VirtualClock
from lifecycle.testing.sim_checks import Violation
from lifecycle.testing.sim_group import Group
from lifecycle.testing.sim_ports import PortDown
from lifecycle.testing.sim_rank import SimRank
from lifecycle.testing.sim_setup import KEYS, Setup, chain
from lifecycle.testing.sim_steps import INDEX_VERBS, MEMORY_VERBS, Step
from lifecycle.testing.sim_store import SimStore, page_of
from lifecycle.testing.sim_tick import Ticker
from lifecycle.testing.sim_waits import Line

RECOUNT_EVERY = 50  # steps; a recount walks all slots and the whole index


class World:
    """Runs steps. Raises `Violation` at the first law broken. `lives` has the logs of every start, per rank; `tickers` what
    may have failed it."""

    def __init__(self, setup: Setup, recount_every: int = RECOUNT_EVERY) -> None:
        self.setup = setup
        self.injected: Counter[str] = Counter()
        self.lives: list[list[list[Record]]] = []
        self.tickers: list[Ticker] = []
        self._stores = [SimStore(rank, self.injected) for rank in range(setup.ranks)]
        self._clocks = [VirtualClock(1_000_000_000 * (rank + 1)) for rank in range(setup.ranks)]
        self._recount_every = recount_every
        self._steps = 0
        self._start()

    def _start(self) -> None:
        for verb in INDEX_VERBS:  # counted per life, since with several ranks they end it
            self.injected[f"{verb} fails in earlier lives"] += self.injected.pop(f"{verb} fails", 0)
        group = Group(self.setup.ranks)
        life = len(self.lives)

        def build(rank: int) -> SimRank:
            return SimRank(rank, self.setup, life, self._stores[rank], self._clocks[rank], group)

        self.ranks = group.build(build) if self.setup.ranks > 1 else [build(0)]
        self.lives.append([rank.log.kept for rank in self.ranks])
        self.ticker = Ticker(self.setup, self.ranks, group)
        self.tickers.append(self.ticker)
        self._lines = [Line(rank) for rank in self.ranks]
        self._prompt_of: dict[str, KeyChain] = {}
        self._stash: dict[int, list[Anchor]] = {}

    def run(self, steps: list[Step]) -> None:
        """Run the steps, then let everything come to its end, and find nothing left."""
        for step in steps:
            self.apply(step)
        self.finish()

    def apply(self, step: Step) -> None:
        """Run one step and check every law."""
        self._steps += 1
        getattr(self, f"_do_{step.verb}")(*step.args)
        if self.ticker.over:
            self._restart(0, 0)
        self.check(step.verb == "tick", full=self._steps % self._recount_every == 0)

    def check(self, compare: bool, full: bool) -> None:
        """Check the laws on every rank: the cheap ones, `compare` the replicas, with `full` recount."""
        if any(self.injected[f"{verb} fails"] for verb in INDEX_VERBS):
            self.ticker.excuse("an index port failed")
        held_up = self.ticker.failed or self.ticker.excuses or any(rank.index.refused for rank in self.ranks)
        for rank, line in zip(self.ranks, self._lines, strict=True):
            checks.balance(rank, self.setup.layout)
            line.check(compare and not held_up)
            if full:
                checks.recount(rank, replay=self._steps % (8 * self._recount_every) == 0)
        if compare and not self.ticker.failed and self.setup.ranks > 1 and not self.ticker.excuses:
            checks.equal(self.ranks)

    # --- what the engine asks, alike on all ranks ----------------------------------------------------------------------

    def _same(self, call: Callable[[SimRank], Any]) -> Any:
        """Call for every rank; all return, or refuse, alike. A port that fails on one rank is found out by the round."""
        results: list[Any] = []
        for rank in self.ranks:
            try:
                results.append(call(rank))
                if rank.coordinator.fault is not None:  # kept for the next round, so that the peers learn it
                    raise rank.coordinator.fault
            except PortDown:
                results.append(None)
                self.ticker.excuse("a port failed in a command")
            except HostExhausted as error:
                results.append(None)
                self.ticker.excuse("host memory failed in a command")
                if not (self.injected["exhaust fails"] or self.injected["release fails"]):
                    raise Violation("host memory", f"the budget allowed what rank {rank.number} could not hold") from error
            except LifecycleError as error:
                results.append(type(error))
        if not self.ticker.excuses and not self.ticker.failed and any(result != results[0] for result in results[1:]):
            raise Violation("commands", f"the ranks answer the same command differently: {results}")
        return results[0]

    def _do_issue(self, request: int, attempt: int, prompt: int, pages: int) -> None:
        keys, name = chain(prompt, pages), f"r{request}"
        self._prompt_of[name] = keys
        self._same(lambda r: r.coordinator.issue(name, attempt, keys, r.index.match(keys, r.coordinator.tick_number).anchor))

    def _do_again(self, request: int) -> None:
        name = f"r{request}"
        state = self.ranks[0].coordinator.book.replica.requests.get(name)
        if state is not None:  # a duplicate, unless it was declined
            keys = chain(0, 8) if state.issued else self._prompt_of[name]
            anchors = [rank.index.match(keys, rank.coordinator.tick_number).anchor for rank in self.ranks]
            self._same(lambda rank: rank.coordinator.issue(name, state.attempt, keys, anchors[rank.number]))

    def _do_stash(self, prompt: int) -> None:
        keys = chain(prompt, 6)
        self._stash[prompt] = [rank.index.match(keys, rank.coordinator.tick_number).anchor for rank in self.ranks]

    def _do_issue_stashed(self, request: int, prompt: int) -> None:
        anchors = self._stash.pop(prompt, None)
        if anchors is not None:
            name, keys = f"r{request}", chain(prompt, len(KEYS[prompt]))
            self._prompt_of[name] = keys
            self._same(lambda rank: rank.coordinator.issue(name, 0, keys, anchors[rank.number]))

    def _do_ready(self, request: int) -> None:
        self._same(lambda rank: rank.coordinator.ready(f"r{request}"))

    def _do_take(self, request: int) -> None:
        name = f"r{request}"
        tokens = [self._same(lambda rank: rank.coordinator.take_loaded(name)) for _ in range(2)]
        if isinstance(tokens[0], int) and tokens[0] and tokens[1]:
            raise Violation("credit", f"{tokens} tokens of {name} were taken, one after the other")

    def _do_finish(self, request: int) -> None:
        self._same(lambda rank: rank.coordinator.finish(f"r{request}"))

    def _do_abort(self, request: int) -> None:
        self._same(lambda rank: rank.coordinator.abort(f"r{request}"))

    def _do_served(self, request: int) -> None:
        name = f"r{request}"
        keys = self._prompt_of.get(name)
        if keys is None or name not in self.ranks[0].coordinator.book.replica.requests:
            return

        def go(rank: SimRank) -> tuple[int, object]:
            match = rank.index.match(keys, rank.coordinator.tick_number)
            checks.pages_are_right(rank, self.setup.layout, keys, match)
            checks.what_is_published_is_served(rank, name, match)
            rank.coordinator.served(name, match)
            return match.pages, match.sources

        self._same(go)

    def _do_adopt(self, prompt: int, pages: int) -> None:
        keys = chain(prompt, pages)

        def go(rank: SimRank) -> int:
            def fill(pool: str, span: Range, slots: SlotArray) -> None:
                for page, buffer in zip(range(*span), rank.memory.buffers(pool, slots), strict=True):
                    buffer[:] = page_of(pool, keys[page], rank.number)

            coordinator = rank.coordinator
            anchor = rank.index.match(keys, coordinator.tick_number).anchor
            try:
                return coordinator.adopt("engine", keys, anchor, pages, fill)
            except AnchorLost:
                return -1

        self._same(go)

    # --- what fate does ------------------------------------------------------------------------------------------------

    def _do_tick(self, *milliseconds: int) -> None:
        self.ticker.tick(milliseconds)

    def _do_work(self, moves: int, salt: int) -> None:
        for rank in self.ranks:
            rank.readers.work(moves, salt + rank.number)

    def _do_arm_read(self, rank: int, kind: str, place: int, wait: int) -> None:
        self._stores[rank].reads.append((kind, place, wait))

    def _do_arm_query(self, rank: int, kind: str) -> None:
        self._stores[rank].queries.append(kind)

    def _do_arm_reader(self, rank: int, kind: str) -> None:
        self.ranks[rank].readers.armed.append(kind)

    def _do_wake(self, rank: int, pick: int) -> None:
        self.ranks[rank].readers.wake(pick)

    def _do_lose(self, rank: int, pool: str, prompt: int, lo: int, hi: int) -> None:
        self._stores[rank].delete(pool, KEYS[prompt][lo:hi])
        self.injected["pages lost"] += 1

    def _do_write(self, rank: int, prompt: int) -> None:
        for pool in self.setup.layout.pools:
            self._stores[rank].write(pool.name, KEYS[prompt], ())

    def _do_port(self, rank: int, verb: str, times: int) -> None:
        if verb in MEMORY_VERBS:
            self.ranks[rank].memory.down[verb] += times
        else:
            self.ranks[rank].index.down[verb] += times

    def _do_exhaust(self, rank: int) -> None:
        self.ranks[rank].memory.down["exhaust"] += 1

    def _do_plan(self, reason: str) -> None:
        for rank in self.ranks:
            rank.index.refusals.append(Reason(reason))

    def _do_log_full(self, rank: int, events: int) -> None:
        self.ranks[rank].log.full += events

    def _do_crash(self, rank: int) -> None:
        if self.setup.ranks == 1:
            return
        self.injected["collective fails"] += 1
        if self.setup.policies.lag_ticks:
            self.ticker.crash(rank)
        else:
            self._restart(0, 0)  # by hand there is no collective of ours: the engine sees it fail, and closes

    def _do_diverge(self, rank: int) -> None:
        if self.setup.ranks == 1 or self.ticker.failed:
            return
        keys, odd = chain(0, 8), self.ranks[rank]
        try:
            odd.coordinator.issue("odd", 0, keys, odd.index.match(keys, odd.coordinator.tick_number).anchor)
        except (CoordinatorClosed, PortDown):
            return
        finally:
            self.ticker.excuse("a rank was given another command")
        self.injected["another command"] += 1

    def _do_restart(self, moves: int, salt: int) -> None:
        self.injected["restart"] += 1
        self._restart(moves, salt)

    # --- ends ----------------------------------------------------------------------------------------------------------

    def _restart(self, moves: int, salt: int) -> None:
        self.close(moves, salt)
        self._start()

    def close(self, moves: int = 0, salt: int = 0) -> None:
        """Close every rank; what ports do not refuse is discharged by then."""
        for rank in self.ranks:
            rank.readers.closing = moves, salt + rank.number
            before = rank.memory.refused + rank.index.refused
            rank.coordinator.close(0.0)
            checks.balance(rank, self.setup.layout)
            checks.recount(rank, replay=True)
            refused = rank.memory.refused + rank.index.refused > before
            unpaid = rank.coordinator.book.open_obligations() or any(pages.total() for pages in checks.not_taken_back(rank))
            if unpaid and refused:
                self.ticker.owing = True
            else:
                checks.nothing_left(rank, self.setup.layout)

    def finish(self, patience: int = 400) -> None:
        """Take all faults back, let time pass until nothing is in flight, find nothing left, close."""
        for rank in self.ranks:
            rank.disarm()
        for _ in range(patience):
            for rank in self.ranks:
                rank.readers.work_all()
            self.ticker.tick([5] * self.setup.ranks)
            if self.ticker.over:
                self._restart(0, 0)
            self.check(compare=True, full=False)
            if not any(rank.coordinator.book.local or rank.coordinator.book.replica.waiting for rank in self.ranks):
                break
        else:
            found = [rank.coordinator.snapshot() for rank in self.ranks]
            raise Violation("stuck", f"{[(told['rank'], told['in_flight'], told['waiting']) for told in found]}")
        self.check(compare=True, full=True)
        for rank in self.ranks:
            checks.nothing_left(rank, self.setup.layout)
        for name, keys in self._prompt_of.items():
            if name in self.ranks[0].coordinator.book.replica.requests:
                self._do_served(int(name[1:]))
                assert keys, "a prompt has pages"
        self.close()
