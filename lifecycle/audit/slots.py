"""Where each host slot of one pool is, as the log says: one byte a slot up to the last one named, moved in runs."""

from collections.abc import Sequence

from lifecycle.ranges import Range

FREE, HELD, RESIDENT, LOCKED, TAINTED, LOCKED_TAINTED, QUARANTINED = range(7)
"""RESIDENT: the index owns it. LOCKED: so, and the prefetch that brought it is not closed. TAINTED: so, and a lost read may
still write it: quarantined when it is evicted."""

NAMES = ("free", "held", "resident", "locked until its prefetch is closed", "resident and tainted by a lost read",
         "locked until its prefetch is closed", "quarantined")  # fmt: skip

Offence = tuple[int, int]
"""A slot, and where it was."""


def _moves(steps: dict[int, int]) -> bytes:
    return bytes(steps.get(place, place) for place in range(256))


_UNLOCK = _moves({LOCKED: RESIDENT, LOCKED_TAINTED: TAINTED})
_TAINT = _moves({LOCKED: LOCKED_TAINTED, RESIDENT: TAINTED})


class PoolSlots:
    """The slots of one pool. A move is made even where it is at fault, so that one fault is not told again and again.

    After a gap in the log nothing is known: `forget` makes every slot free, and `blind`, as it may be anything.
    """

    __slots__ = ("_at", "blind", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blind = False
        self._at = bytearray()  # as far as slots were named: a header may claim any number, and all are free at first

    def forget(self) -> None:
        """Note that events were lost: every slot may be anywhere."""
        self._at = bytearray()
        self.blind = True

    def _reach(self, stop: int) -> None:
        """Have a byte for every slot below `stop`."""
        short = stop - len(self._at)
        if short > 0:
            self._at += bytes(max(short, min(len(self._at), self.capacity - len(self._at))))

    def outside(self, runs: Sequence[Range]) -> Range | None:
        """Return the first run that is not one within the pool, if there is one."""
        capacity = self.capacity
        for run in runs:
            if not 0 <= run[0] < run[1] <= capacity:
                return run
        return None

    def count(self, place: int) -> int:
        """Return how many slots are at a place."""
        return self._at.count(place) + (self.capacity - len(self._at) if place == FREE else 0)

    def move(self, runs: Sequence[Range], place: int, allowed: Sequence[int]) -> Offence | None:
        """Move slots; return the first that was in none of the `allowed` places when its turn came."""
        if len(runs) == 1:
            offence = self.check(runs, allowed)
            self.put(runs, place)
            return offence
        offence = None
        for run in runs:
            offence = offence or self.check((run,), allowed)
            self.put((run,), place)
        return offence

    def check(self, runs: Sequence[Range], allowed: Sequence[int]) -> Offence | None:
        """Return the first slot that is in none of the `allowed` places."""
        for lo, hi in runs:
            self._reach(hi)
            if self._at.count(allowed[0], lo, hi) != hi - lo and (offence := self._offence(lo, hi, allowed)):
                return offence
        return None

    def all_at(self, runs: Sequence[Range], place: int) -> bool:
        """Return whether runs that ascend and do not overlap are at a place, every slot of them."""
        at = 0
        for lo, hi in runs:
            self._reach(hi)
            if lo < at or self._at.count(place, lo, hi) != hi - lo:
                return False
            at = hi
        return True

    def put(self, runs: Sequence[Range], place: int) -> None:
        """Move slots from wherever they are."""
        for lo, hi in runs:
            self._reach(hi)
            self._at[lo:hi] = bytes((place,)) * (hi - lo)

    def first(self, run: Range, place: int) -> int | None:
        """Return the first slot of a run that is at a place."""
        self._reach(run[1])
        slot = self._at.find(place, *run)
        return None if slot < 0 else slot

    def unlock(self, runs: Sequence[Range]) -> None:
        """Note that the prefetch that brought these slots is closed."""
        self._translate(runs, _UNLOCK)

    def taint(self, runs: Sequence[Range]) -> None:
        """Note that a lost read may write these resident slots."""
        self._translate(runs, _TAINT)

    def _translate(self, runs: Sequence[Range], table: bytes) -> None:
        for lo, hi in runs:
            self._reach(hi)
            self._at[lo:hi] = self._at[lo:hi].translate(table)

    def _offence(self, lo: int, hi: int, allowed: Sequence[int]) -> Offence | None:
        known = sum(self._at.count(place, lo, hi) for place in allowed)
        if known == hi - lo or (self.blind and known + self._at.count(FREE, lo, hi) == hi - lo):
            return None
        passing = {*allowed, FREE} if self.blind else set(allowed)
        return next((slot, self._at[slot]) for slot in range(lo, hi) if self._at[slot] not in passing)
