"""The readers of one simulated rank: jobs are claimed and answered move by move, by the real generator, in a drawn order."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random

from lifecycle.runtime.jobs import Job, Note, run
from lifecycle.runtime.ports import PageStore
from lifecycle.runtime.readers import ReadQueue
from lifecycle.testing.sim_ports import SimMemory


class Reader:
    """A reader in a job."""

    __slots__ = ("blind", "duplicates", "job", "notes")

    def __init__(self, job: Job, notes: Iterator[Note]) -> None:
        self.job, self.notes = job, notes
        self.blind = self.duplicates = False


class SimReaders:
    """A `ReaderPool` without threads. What is armed befalls the next reader that moves.

    `hang`: it stays where it is, with its job, until `wake`. `duplicate`: each of its notes comes twice. `blind`: it looked
    whether to stop before it was told to, and so reads on. `slow`: its move is passed over.
    """

    def __init__(
        self, store: PageStore, memory: SimMemory, clock_ns: Callable[[], int], count: int, injected: Counter[str]
    ) -> None:
        self.notes: deque[Note] = deque()
        self.queue = ReadQueue(clock_ns, self.notes, per_prefetch=max(1, count - 1))
        self.armed: deque[str] = deque()
        self.hung: list[Reader] = []
        self.closing: tuple[int, int] = (0, 0)  # moves that readers still make while they are being closed, and their order
        self._count = count
        self._busy: list[Reader] = []
        self._store, self._memory, self._injected = store, memory, injected

    @property
    def busy(self) -> int:
        """How many readers are in a job and do move."""
        return len(self._busy)

    def add(self) -> None:
        """Have one more reader."""
        self._count += 1

    def close(self, timeout_s: float) -> int:
        """Take no more jobs; let readers move on as long as drawn; return how many are still in a read."""
        self.queue.close()
        moves, salt = self.closing
        self.work(moves, salt)
        return len(self._busy) + len(self.hung)

    def work(self, moves: int, salt: int) -> None:
        """Make up to `moves` moves in the order that `salt` draws."""
        dice = Random(salt)
        for _ in range(moves):
            if not self.move(dice.randrange(64)):
                return

    def work_all(self) -> None:
        """Move until nothing moves."""
        while self.move(0) or self.move(1):
            pass

    def move(self, pick: int) -> bool:
        """Make one move; say whether one was possible."""
        idle = self._count - len(self._busy) - len(self.hung)
        at = pick % (len(self._busy) + 1)
        if at == len(self._busy) or not self._busy:
            if idle > 0 and self._claim():
                return True
            at = pick % len(self._busy) if self._busy else 0
        if not self._busy:
            return False
        self._step(self._busy[at])
        return True

    def wake(self, pick: int) -> None:
        """Let a hung reader move on."""
        if self.hung:
            self._busy.append(self.hung.pop(pick % len(self.hung)))

    def _claim(self) -> bool:
        job = self.queue.claim()
        if job is None:
            return False
        self._mark(job, 1)
        self._busy.append(Reader(job, run(job, self._store, self._memory)))
        return True

    def _step(self, reader: Reader) -> None:
        if self.armed and self._befall(reader, self.armed.popleft()):
            return
        stopped = reader.job.stopped
        if reader.blind:
            reader.job.stopped = False
        note = next(reader.notes)
        reader.job.stopped = stopped
        if note.kind == "end":
            self._mark(reader.job, -1)
            self._busy.remove(reader)
            self.queue.done(reader.job)
        self.notes.append(note)
        if reader.duplicates:
            self.notes.append(note)

    def _befall(self, reader: Reader, fault: str) -> bool:
        self._injected[fault] += 1
        if fault == "hang":
            self._busy.remove(reader)
            self.hung.append(reader)
        elif fault == "duplicate":
            reader.duplicates = True
        elif fault == "blind":
            reader.blind = True
        return fault in ("hang", "slow")

    def _mark(self, job: Job, by: int) -> None:
        if job.parts:
            writing = self._memory.writing[job.owner]
            for slot in {slot for part in job.parts for slot in part.slots.tolist()}:
                writing[slot] += by
                if not writing[slot]:
                    del writing[slot]
