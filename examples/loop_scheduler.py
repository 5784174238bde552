"""A small continuous-batching scheduler with the prefetch lifecycle embedded, as an engine would do it.

    arrivals -> waiting (its prefetch is in flight) -> running (the forward pass) -> finished

Every rank runs the same loop and takes the same decisions: they follow from the trace, from ticks, from the prefix index
and from what the coordinator answers, all of which are alike on all ranks; never from a clock or from a read of this rank.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lifecycle.coverage import Flags
from lifecycle.events import Declined
from lifecycle.keys import KeyChain
from lifecycle.layout import Layout
from lifecycle.policies import BestEffort, Policies
from lifecycle.ranges import Range
from lifecycle.reasons import Reason
from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.ports import SlotArray
from loop_compare import Compare
from loop_faults import Upset, Upsets
from loop_options import MAX_RUNNING, MAX_WAITING
from loop_pages import fill
from loop_trace import Request
from loop_write_back import WriteBack
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex
from stores.prefix_match import RadixMatch

TICKS_PER_REQUEST = 4  # arrivals are sped up or slowed down to this mean
BEST_EFFORT_TICKS = 4  # asking ends a best-effort prefetch, so a request is not asked for before that
PREFILL_TOKENS_PER_TICK, DECODE_TOKENS_PER_TICK = 8192, 128
HOLD_TICKS = 512  # the longest that a request is held back while it waits for room to prefetch
IDLE_S = 0.0003  # a tick that moved nothing leaves the core to the readers
DRAIN_S = 30.0  # how long, in idle ticks, the end waits for reads that are out, beyond what makes them lost


@dataclass(slots=True)
class Job:
    """A request inside the scheduler. Times are on the scheduler's clock, which counts ticks."""

    request: Request
    keys: KeyChain
    upset: Upset | None
    attempt: int = 0
    admit_at: int = 0  # not asked for before this tick
    hold_until: int = 0  # held back until then, while it waits for room
    match: RadixMatch | None = None  # what it is served from, locked
    done_at: int = 0

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id


class Scheduler:
    """Runs requests to their end on one rank. `counts` and `upsets` are alike on all ranks; `pages` is this rank's own."""

    def __init__(
        self,
        layout: Layout,
        policies: Policies,
        page_size: int,
        coordinator: Coordinator,
        index: RadixIndex,
        memory: TorchHostMemory,
        write_back: WriteBack,
        requests: Sequence[Request],
        keys_of: Callable[[Request], KeyChain],
        rank: int,
        upsets: Upsets,
        compare: Compare,
    ) -> None:
        self._layout, self._pools = layout, layout.required(policies.degrade)
        self._drain_s = policies.lost_read_s + DRAIN_S
        self._patience = BEST_EFFORT_TICKS if isinstance(policies.stop, BestEffort) else 0
        self._page_size = page_size
        self._coordinator, self._index, self._memory = coordinator, index, memory
        self._write_back, self._keys_of, self._rank, self._upsets = write_back, keys_of, rank, upsets
        self._compare = compare
        self._arrivals = deque(requests)
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        last_ms = requests[-1].arrival_ms if requests else 0
        self._ticks_per_ms = TICKS_PER_REQUEST * len(requests) / max(1, last_ms)
        self.clock = 0  # ticks, and the stretches that were skipped because nothing was there to do
        self.counts: Counter[str] = Counter()
        self.upsets: Counter[str] = Counter()
        self.pages: Counter[str] = Counter()

    def run(self, progress: Callable[[int], None]) -> None:
        """Run every request, then tick until no prefetch owes anything. Calls `progress` with how many are done."""
        while self._arrivals or self._waiting or self._running:
            self.step()
            progress(self.counts["requests"])
        for _ in range(int(self._drain_s / IDLE_S)):
            if not self._coordinator.snapshot()["in_flight"]:
                break
            self._coordinator.tick()
            time.sleep(IDLE_S)

    def step(self) -> None:
        """Run one iteration of the loop."""
        if not (self._waiting or self._running):  # an engine would sleep: go straight to the next arrival
            self.clock = max(self.clock, self._arrives(self._arrivals[0]))
        moved = self._receive()
        moved |= self._disturb()
        self._coordinator.tick()
        self.clock += 1
        moved |= self._complete()
        moved |= self._admit()
        if not moved:
            time.sleep(IDLE_S)

    # --- arrivals ------------------------------------------------------------------------------------------------------

    def _arrives(self, request: Request) -> int:
        return int(request.arrival_ms * self._ticks_per_ms)

    def _receive(self) -> bool:
        """Take what has arrived into the waiting queue, and prefetch for it."""
        moved = False
        while self._arrivals and len(self._waiting) < MAX_WAITING and self._arrives(self._arrivals[0]) <= self.clock:
            request = self._arrivals.popleft()
            job = Job(request, self._keys_of(request), self._upsets.draw(request.id), admit_at=self.clock + self._patience)
            self._waiting.append(job)
            self._prefetch(job)
            moved = True
        return moved

    def _prefetch(self, job: Job) -> None:
        """Ask L3 for what L2 does not hold of the prompt; the coordinator tries again by itself."""
        match = self._index.match(job.keys, self._coordinator.tick_number)
        answer = self._coordinator.issue(job.id, job.attempt, job.keys, match.anchor)
        if isinstance(answer, Declined) and answer.reason is Reason.RATE_LIMITED:
            job.hold_until = self.clock + HOLD_TICKS

    # --- admission -----------------------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Fill the batch with those whose prefetch has its outcome. Asking is what `best_effort` stops on."""
        moved = False
        for job in list(self._waiting):
            if len(self._running) == MAX_RUNNING:
                break
            held = self.clock < job.hold_until and self._coordinator.waiting(job.id)
            if not held and self.clock >= job.admit_at and self._coordinator.ready(job.id):
                self._waiting.remove(job)
                self._start(job)
                moved = True
        return moved

    def _start(self, job: Job) -> None:
        """Begin the forward pass on what L2 holds of the prompt by now; the rest is computed."""
        match = self._index.match(job.keys, self._coordinator.tick_number)
        self._coordinator.served(job.id, match)
        self._index.lock(match.anchor)  # nobody may evict what the pass reads
        job.match = match
        compute_tokens = len(job.request.tokens) - match.pages * self._page_size
        passes = -(-compute_tokens // PREFILL_TOKENS_PER_TICK) + -(-job.request.output_tokens // DECODE_TOKENS_PER_TICK)
        job.done_at = self.clock + max(1, passes)
        self._running.append(job)
        self.counts["reuse_tokens"] += match.pages * self._page_size
        self.counts["loaded_tokens"] += self._coordinator.take_loaded(job.id)
        self.pages["served"] += self._read_prefix(job.keys, match)

    def _read_prefix(self, keys: KeyChain, match: RadixMatch) -> int:
        """Read what the forward pass reads, and compare it with what it must be; return how many pages that were."""
        read = 0
        for pool in self._pools:
            lo, hi = pool.window(0, match.pages)
            slots = match.slots(pool.name, lo, hi)
            self.pages["garbled"] += self._compare(pool.name, keys[lo:hi], slots)
            read += hi - lo
        return read

    # --- the end of a request ------------------------------------------------------------------------------------------

    def _complete(self) -> bool:
        """End the forward passes that are through: keep their pages in L3 and L2, and forget the requests."""
        done = [job for job in self._running if job.done_at <= self.clock]
        for job in done:
            self._running.remove(job)
            match, end_page = job.match, len(job.keys)
            assert match is not None, "a running request is served from a match"
            self._read_prefix(job.keys, match)  # nothing changed under the pass
            if end_page:
                self._write_back.put(job.keys, self._held(match, end_page), self.clock)
            if match.pages < end_page:
                self._coordinator.adopt(job.id, job.keys, match.anchor, end_page, self._filler(job.keys))
            self._index.unlock(match.anchor)
            self._coordinator.finish(job.id)
            self.counts["requests"] += 1
        return bool(done)

    def _held(self, match: RadixMatch, end_page: int) -> dict[str, Flags]:
        """Return, per pool, which pages of [0, end_page) can be written to L3: what L2 held, and all that was computed."""
        computed = np.ones(end_page - match.pages, np.bool_)
        return {pool.name: np.concatenate([match.slots(pool.name) >= 0, computed]) for pool in self._layout.pools}

    def _filler(self, keys: KeyChain) -> Callable[[str, Range, SlotArray], None]:
        def fill_pages(pool: str, pages: Range, slots: SlotArray) -> None:
            """Copy computed pages to L2 (here: make them)."""
            for page, buffer in zip(range(*pages), self._memory.buffers(pool, slots), strict=True):
                fill(buffer, keys[page], pool, self._rank)

        return fill_pages

    # --- on purpose ----------------------------------------------------------------------------------------------------

    def _disturb(self) -> bool:
        """Do what a seeded choice says to prefetches in every state: abort, supersede, cancel. Alike on all ranks."""
        upset = [job for job in self._waiting if job.upset is not None]
        if not upset:
            return False
        states = {story["request"]: story["state"] for story in self._coordinator.snapshot()["in_flight"]}
        for job in upset:
            assert job.upset is not None
            state = states.get(job.id, "closed")
            if not job.upset.due(state):
                continue
            what, job.upset = job.upset.what, None
            self.upsets[f"{what} {state}"] += 1
            if what in ("abort", "retry"):
                self._coordinator.abort(job.id)
            if what in ("retry", "supersede"):
                job.attempt += 1
                self._prefetch(job)
            if what == "cancel":
                self._waiting.remove(job)
                self._coordinator.finish(job.id)
                self.counts["requests"] += 1
        return True
