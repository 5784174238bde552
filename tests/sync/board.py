"""Ranks in one process: a transport that is a board, readers that are run by hand, clocks that are moved."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifecycle.layout import Layout, preset
from lifecycle.policies import Policies
from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.jobs import Job, Note, run
from lifecycle.runtime.readers import ReadQueue
from stores.events.memory import MemoryEventLog
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex
from tests.sync.part import PAGE_BYTES, PAGE_TOKENS, Shard

Buffer = NDArray[Any]


class Board:
    """Where the ranks lay their buffers. Reduced over the dimensions of `shape` in turn, once all have laid theirs."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.places = np.arange(int(np.prod(shape))).reshape(shape)
        self._laid: list[dict[int, Buffer]] = []

    def lay(self, number: int, rank: int, buffer: Buffer) -> None:
        """Lay the `number`-th buffer of a rank."""
        while len(self._laid) <= number:
            self._laid.append({})
        self._laid[number][rank] = buffer

    def reduce(self, number: int) -> None:
        """Reduce the `number`-th buffers of all ranks, in place, the first time that one asks for them."""
        laid = self._laid[number]
        if not laid:
            return
        assert len(laid) == self.places.size, f"a deadlock: only ranks {sorted(laid)} have launched exchange {number}"
        kinds = {(buffer.shape, buffer.dtype) for buffer in laid.values()}
        assert len(kinds) == 1, f"the ranks exchange different things: {kinds}"
        for axis in range(self.places.ndim):
            for group in np.moveaxis(self.places, axis, -1).reshape(-1, self.places.shape[axis]).tolist():
                reduced = np.minimum.reduce([laid[rank] for rank in group])
                for rank in group:
                    laid[rank][...] = reduced
        self._laid[number] = {}


class Place:
    """The transport of one rank at the board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.rank, self.ranks = rank, int(board.places.size)
        self.open = False  # the opening exchange of equal ranks is its own result
        self._board, self._launched = board, 0

    def launch(self, buffer: Buffer) -> Callable[[], None]:
        """Lay the buffer; the wait reduces it."""
        if not self.open:
            return lambda: None
        number, self._launched = self._launched, self._launched + 1
        self._board.lay(number, self.rank, buffer)
        return lambda: self._board.reduce(number)


class Clock:
    """Monotonic nanoseconds of one rank."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Hand:
    """A reader pool that reads when told."""

    def __init__(self, clock: Clock, per_prefetch: int = 2) -> None:
        self.notes: deque[Note] = deque()
        self.queue = ReadQueue(clock, self.notes, per_prefetch)
        self.out: list[Job] = []

    def claim(self) -> bool:
        """Claim a job; it is answered later."""
        job = self.queue.claim()
        if job is not None:
            self.out.append(job)
        return job is not None

    def answer(self, place: int, rank: "Seat") -> bool:
        """Answer one of the jobs that are out."""
        if not self.out:
            return False
        job = self.out.pop(place % len(self.out))
        for note in run(job, rank.store, rank.memory):
            if note.kind == "end":
                self.queue.done(job)
            self.notes.append(note)
        return True

    def add(self) -> None:
        """Nothing holds this reader up."""

    def close(self, timeout_s: float) -> int:
        """Stop."""
        self.queue.close()
        return len(self.out)


class Seat:
    """One rank at the board: a coordinator over a shard, read by hand."""

    def __init__(
        self, board: Board, rank: int, layout: str | Layout, policies: Policies, capacity: int = 64, **more: Any
    ) -> None:
        self.layout = preset(layout) if isinstance(layout, str) else layout
        self.clock = Clock()
        self.hand = Hand(self.clock)
        self.store = Shard()
        self.memory = TorchHostMemory(
            self.layout, {p.name: capacity for p in self.layout.own}, {p.name: PAGE_BYTES for p in self.layout.pools}, pin=False
        )
        self.index = RadixIndex(self.layout, policies.degrade)
        self.log = MemoryEventLog()
        self.place = Place(board, rank)
        self.coordinator = Coordinator(
            self.layout, policies, PAGE_TOKENS, store=self.store, memory=self.memory, index=self.index, events=self.log,
            transport=self.place, readers=self.hand, run="run", clock_ns=self.clock, **more,
        )  # fmt: skip
        self.place.open = True

    def issue(self, request: str, keys: Any, attempt: int = 0) -> Any:
        """Issue after a match."""
        match = self.index.match(keys, self.coordinator.tick_number)
        return self.coordinator.issue(request, attempt, keys, match.anchor)

    def read_all(self) -> None:
        """Claim and answer everything."""
        while self.hand.claim() or self.hand.answer(0, self):
            pass

    def events(self, *kinds: type) -> list[Any]:
        """Return the events of some kinds; without kinds the replicated ones."""
        found = [record.event for record in self.log.records()]
        return [event for event in found if (isinstance(event, kinds) if kinds else event.REPLICATED)]


def seats(shape: Sequence[int], layout: str | Layout = "kv_only", policies: Policies | None = None, **more: Any) -> list[Seat]:
    """Return the ranks of a board."""
    board = Board(shape)
    return [Seat(board, rank, layout, policies or Policies(), **more) for rank in range(board.places.size)]


def tick(ranks: Sequence[Seat]) -> None:
    """Run one tick of every rank, in the order given. With lag 0 the exchanges are carried by hand."""
    if ranks[0].coordinator._rank.policies.lag_ticks:
        for seat in ranks:
            seat.coordinator.tick()
        return
    rounds = [seat.coordinator.begin_tick() for seat in ranks]
    assert all(each is not None for each in rounds)
    second = _carry(ranks, rounds, lambda seat, each: seat.coordinator.end_tick(each))
    assert len({type(each) for each in second}) == 1, "some ranks launch a second exchange and some do not"
    if second[0] is not None:
        _carry(ranks, second, lambda seat, each: seat.coordinator.end_exchange(each))


def _carry(ranks: Sequence[Seat], exchanges: Sequence[Any], end: Callable[[Seat, Any], Any]) -> list[Any]:
    waits = [seat.place.launch(each.buffer) for seat, each in zip(ranks, exchanges, strict=True)]
    for wait in waits:
        wait()
    return [end(seat, each) for seat, each in zip(ranks, exchanges, strict=True)]


def finish(ranks: Sequence[Seat]) -> None:
    """Read and tick until nothing is in flight, close, and find no leak."""
    for _ in range(1000):
        if not any(seat.coordinator.book.local for seat in ranks):
            break
        for seat in ranks:
            seat.read_all()
        tick(ranks)
    for seat in ranks:
        seat.coordinator.close()
        seat.coordinator.check_integrity()
        book = seat.coordinator.book
        assert not book.local, f"still open on rank {seat.place.rank}: {seat.coordinator.snapshot()}"
        assert book.replica.occupied_tokens == 0
        assert seat.index.lock_count() == 0
        for pool in seat.layout.own:
            kept = seat.index.resident_pages(pool.name) + seat.memory.quarantined_pages(pool.name)
            assert seat.memory.free_pages(pool.name) + kept == seat.memory.capacity_pages(pool.name), "a leak"
