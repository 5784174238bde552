"""One simulated rank: a real coordinator over simulated ports, clock and readers."""

from collections import Counter

from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.transport import Alone, Transport
from lifecycle.testing.clock import VirtualClock
from lifecycle.testing.sim_group import Group, SimTransport
from lifecycle.testing.sim_ports import SimIndex, SimLog, SimMemory
from lifecycle.testing.sim_readers import SimReaders
from lifecycle.testing.sim_setup import PAGE_TOKENS, Setup
from lifecycle.testing.sim_store import SimStore

WALL_NS = 1_700_000_000_000_000_000


class SimRank:
    """A rank from its start to its close. The store and the clock outlive it."""

    def __init__(self, number: int, setup: Setup, life: int, store: SimStore, clock: VirtualClock, group: Group) -> None:
        self.number, self.store, self.clock = number, store, clock
        self.injected: Counter[str] = store.injected
        self.memory = SimMemory(setup.layout, setup.capacity_pages[number], self.injected)
        self.index = SimIndex(setup.layout, setup.policies.degrade, self.injected)
        self.log = SimLog(self.injected)
        self.readers = SimReaders(store, self.memory, clock, setup.readers[number], self.injected)
        transport: Transport = SimTransport(number, group) if setup.ranks > 1 else Alone()
        self.coordinator = Coordinator(
            setup.layout,
            setup.policies,
            PAGE_TOKENS,
            store=store,
            memory=self.memory,
            index=self.index,
            events=self.log,
            transport=transport,
            readers=self.readers,
            run=f"{setup.seed & 0xFFFFFF:06x}{life:02x}",
            force_round=setup.force_round,
            clock_ns=clock,
            wall_ns=lambda: WALL_NS,
        )

    def disarm(self) -> None:
        """Take back every fault that has not come yet, and wake who hangs."""
        self.store.disarm()
        self.readers.armed.clear()
        self.memory.down.clear()
        self.index.down.clear()
        self.index.refusals.clear()
        while self.readers.hung:
            self.readers.wake(0)
