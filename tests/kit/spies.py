"""The reference ports with an eye on them: what they were asked, failures on demand, and the quiescence law."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lifecycle.layout import Layout
from lifecycle.runtime.ports import Anchor, SlotArray
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex


class PortDown(Exception):
    """Raised by a port that was told to fail. Not an error of this library, as those of a real port are not."""


class Failing:
    """Counts calls per verb, and fails the next `down[verb]` of them before they do anything."""

    def __init__(self) -> None:
        self.down: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.units: Counter[str] = Counter()  # slots per verb and pool: "release kv"

    def enter(self, verb: str) -> None:
        """Count a call; fail it if that was asked for."""
        self.calls[verb] += 1
        if self.down[verb]:
            self.down[verb] -= 1
            raise PortDown(f"scripted: {verb} fails")


class Active:
    """The slots that reads of this rank may be writing right now, by thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_thread: dict[int, tuple[str, frozenset[int]]] = {}

    def begin(self, owner: str, slots: Sequence[int]) -> None:
        """Note that this thread may write the slots."""
        with self._lock:
            self._by_thread[threading.get_ident()] = (owner, frozenset(slots))

    def end(self) -> None:
        """Note that this thread writes nothing any more."""
        with self._lock:
            self._by_thread.pop(threading.get_ident(), None)

    @property
    def busy(self) -> bool:
        """Whether any read is going on."""
        with self._lock:
            return bool(self._by_thread)

    def among(self, owner: str, slots: Sequence[int]) -> set[int]:
        """Return which of the slots may be being written."""
        with self._lock:
            found = set[int]()
            for pool, busy in self._by_thread.values():
                if pool == owner:
                    found |= busy.intersection(slots)
            return found


class SpyMemory(TorchHostMemory):
    """Host memory that notes when a slot is given back or out while a read may still write it."""

    def __init__(self, layout: Layout, capacity: Mapping[str, int], page_bytes: Mapping[str, int], active: Active) -> None:
        super().__init__(layout, capacity, page_bytes)
        self.spy = Failing()
        self.active = active
        self.violations: list[str] = []
        self._own_layout = layout

    def allocate(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Allocate, and look whether a read may still write what was given."""
        self.spy.enter("allocate")
        given = super().allocate(need)
        for pool, slots in given.items():
            self.spy.units[f"allocate {pool}"] += len(slots)
            self._check("allocated", pool, slots)
        return given

    def release(self, pool: str, slots: SlotArray) -> None:
        """Release, and look whether a read may still write it."""
        self.spy.enter("release")
        super().release(pool, slots)
        self.spy.units[f"release {pool}"] += len(slots)
        self._check("released", pool, slots)

    def quarantine(self, pool: str, slots: SlotArray) -> None:
        """Quarantine."""
        self.spy.enter("quarantine")
        super().quarantine(pool, slots)
        self.spy.units[f"quarantine {pool}"] += len(slots)

    def buffers(self, pool: str, slots: Any) -> list[memoryview]:
        """Give views; the thread that asks is about to write."""
        self.active.begin(self._own_layout.owner(pool), slots.tolist())
        return super().buffers(pool, slots)

    def _check(self, what: str, pool: str, slots: SlotArray) -> None:
        if busy := self.active.among(pool, slots.tolist()):
            self.violations.append(f"slots {sorted(busy)} of {pool} were {what} while a read may write them")


class SpyIndex(RadixIndex):
    """A prefix index that fails on demand."""

    def __init__(self, layout: Layout, degrade: bool) -> None:
        super().__init__(layout, degrade)
        self.spy = Failing()

    def lock(self, anchor: Anchor) -> None:
        """Lock."""
        self.spy.enter("lock")
        super().lock(anchor)

    def unlock(self, anchor: Anchor) -> None:
        """Unlock."""
        self.spy.enter("unlock")
        super().unlock(anchor)

    def insert(self, *args: Any, **kwargs: Any) -> Any:
        """Insert."""
        self.spy.enter("insert")
        return super().insert(*args, **kwargs)

    def plan_insert(self, *args: Any, **kwargs: Any) -> Any:
        """Plan an insert."""
        self.spy.enter("plan_insert")
        return super().plan_insert(*args, **kwargs)

    def evict(self, need: Mapping[str, int]) -> dict[str, SlotArray]:
        """Evict."""
        self.spy.enter("evict")
        return super().evict(need)
