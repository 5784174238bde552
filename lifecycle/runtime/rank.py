"""One rank's coordinator, taken apart: the pieces, how they are wired, and the log they write to."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index as whole

import msgspec

from lifecycle.book import Book
from lifecycle.errors import ConfigError, SyncFailed
from lifecycle.events import AnyEvent, Event, LateWriteEnded, LogOpened, Record
from lifecycle.keys import KeyChain
from lifecycle.layout import KV, Layout
from lifecycle.policies import Policies
from lifecycle.runtime.agreement import Agreement
from lifecycle.runtime.opening import MAX_OWN_POOLS, Opening, agree, decline
from lifecycle.runtime.ports import EventLog, HostMemory, PageStore, PrefixIndex
from lifecycle.runtime.readers import ReaderPool, Readers
from lifecycle.runtime.residency import Residency
from lifecycle.runtime.settle import Settler
from lifecycle.runtime.steps import Steps
from lifecycle.runtime.transfers import Transfers
from lifecycle.runtime.transport import Transport
from lifecycle.version import VERSION


@dataclass(frozen=True, slots=True)
class Ports:
    """What the engine brings. `absent` are the pools of the layout of which this rank has no shard."""

    store: PageStore
    memory: HostMemory
    index: PrefixIndex
    events: EventLog
    transport: Transport
    clock_ns: Callable[[], int]
    wall_ns: Callable[[], int]
    absent: frozenset[str] = frozenset()


class Rank:
    """The parts of one rank. All but the readers' threads live on the scheduler's thread."""

    def __init__(
        self,
        layout: Layout,
        policies: Policies,
        page_size_tokens: int,
        ports: Ports,
        readers: int | ReaderPool,
        run: str | None,
        force_round: bool,
    ) -> None:
        self.layout, self.policies, self.page_size_tokens = layout, policies, page_size_tokens
        self.memory, self.index, self.events = ports.memory, ports.index, ports.events
        self.transport, self.clock_ns, self.absent = ports.transport, ports.clock_ns, ports.absent
        self.alone = self.transport.ranks == 1 and not force_round
        self.tick_number = 0
        self.failure: SyncFailed | None = None  # a round failed: nothing is published any more
        self.closed = False
        self.waiting_keys: dict[str, KeyChain] = {}  # of the prompts of those who wait, and of nobody else
        self._seq = 0
        self.moving = False  # an event is being applied: whoever looks from another thread sees half of it
        try:
            _check(layout, policies, page_size_tokens, readers)
            _check_absent(layout, self.absent)
            _check_index(layout, policies, self.index)
            # Whole numbers of an engine's own (numpy's, say) become plain ones, which a log can hold, wherever a port answers.
            # Slots that an earlier run left quarantined or out are none of this one's, and none of its budget.
            self.capacity_pages = {pool.name: whole(self.memory.free_pages(pool.name)) for pool in layout.own}
            self.old_quarantined_pages = {pool.name: whole(self.memory.quarantined_pages(pool.name)) for pool in layout.own}
            page_bytes = {pool.name: whole(self.memory.page_bytes(pool.name)) for pool in layout.pools}
            opening = Opening(layout, policies, page_size_tokens, self.index.digest(), VERSION)
        except Exception:  # the others wait in the opening exchange: they must learn it, or they would hang
            decline(self.transport)
            raise
        self.opening = agree(opening, self.capacity_pages, self.transport)
        self.book = Book(layout, self.opening.budget_pages, policies.degrade)
        self._append_opened(run, ports.wall_ns())
        name = f"prefetch-rank{self.transport.rank}"
        self.readers: ReaderPool = (
            Readers(ports.store, self.memory, self.clock_ns, readers, name) if isinstance(readers, int) else readers
        )
        self.transfers = Transfers(layout, policies, page_bytes, self.readers, self.clock_ns, self.emit, self.absent)
        self.residency = Residency(layout, self.book, self.memory, self.index, self.emit)
        self.settler = Settler(layout, self.memory, self.index, self.emit, policies.stuck_after_tries)
        self.steps = Steps(
            layout, policies, page_size_tokens, self.book, self.index,
            self.residency, self.transfers, self.settler, self.emit, self.waiting_keys,
        )  # fmt: skip
        self.agreement = Agreement(layout, policies, self.book, self.index, self.transport, self.clock_ns, self.emit)

    def emit(self, event: Event) -> None:
        """Evolve the book, which refuses what is not legal, and keep the event."""
        self.moving = True
        try:
            self.book.apply(event)
            self.append(event)
        finally:
            self.moving = False
        if self.waiting_keys:
            request = getattr(event, "request", None)
            if request is not None and request not in self.book.replica.waiting:
                self.waiting_keys.pop(request, None)
        if type(event) is LateWriteEnded and event.lost:
            transfer = self.transfers.of[event.prefetch]
            self.residency.taint(event.pool, transfer.slots_of_ranges(event.pool, event.pages))

    def append(self, event: Event) -> None:
        """Keep an event in the log; for those that move nothing."""
        known: AnyEvent = event  # type: ignore[assignment]  # every event class is in the union, as a test holds
        self.events.append(Record(self._seq, self.clock_ns(), known))
        self._seq += 1

    @property
    def events_appended(self) -> int:
        """How many events were kept; what is the same before and after a look did not move meanwhile."""
        return self._seq

    def _append_opened(self, run: str | None, wall_ns: int) -> None:
        self.append(
            LogOpened(
                library=VERSION,
                run=run or self.opening.run,
                rank=self.transport.rank,
                ranks=self.transport.ranks,
                layout=self.layout.declaration(),
                policies=msgspec.to_builtins(self.policies),
                page_size_tokens=self.page_size_tokens,
                capacity_pages=self.capacity_pages,
                budget_pages=dict(self.opening.budget_pages),
                wall_ns=wall_ns,
                monotonic_ns=self.clock_ns(),
                absent=tuple(sorted(self.absent)),
                groups=getattr(self.transport, "groups", ()),
            )
        )


def _check(layout: Layout, policies: Policies, page_size_tokens: int, readers: int | ReaderPool) -> None:
    if not isinstance(policies, Policies):
        raise ConfigError(f"cannot start with policies={policies!r}: use a Policies")
    if not isinstance(page_size_tokens, int) or page_size_tokens < 1:
        raise ConfigError(f"cannot start with page size {page_size_tokens!r}: use a whole number of at least 1 token")
    if len(layout.own) > MAX_OWN_POOLS:
        raise ConfigError(f"cannot start with {len(layout.own)} pools with own slots: use at most {MAX_OWN_POOLS}")
    if isinstance(readers, int) and readers < 1:
        raise ConfigError(f"cannot start with {readers} readers: use at least 1")
    if policies.limit_tokens < policies.threshold_pages * page_size_tokens:
        raise ConfigError(
            f"cannot start with limit_tokens={policies.limit_tokens}: it is below one prefetch of threshold_pages="
            f"{policies.threshold_pages} pages of {page_size_tokens} tokens, so every prefetch of layout {layout.name}"
            " would be declined (raise the limit)"
        )


def _check_absent(layout: Layout, absent: frozenset[str]) -> None:
    for name in sorted(absent):
        if layout.pool(name).name == KV:
            raise ConfigError("cannot start a rank without a shard of pool 'kv': all need it (leave it out of `absent`)")


def _check_index(layout: Layout, policies: Policies, index: PrefixIndex) -> None:
    theirs = getattr(index, "layout", layout)
    if isinstance(theirs, Layout) and theirs.pools != layout.pools:
        raise ConfigError(
            f"cannot start layout {layout.name} with a prefix index built for another layout, {theirs.name}: what it serves is"
            " covered by other pools or windows (build both from one layout)"
        )
    spares = getattr(index, "degrade", policies.degrade)
    if layout.required(spares) != layout.required(policies.degrade):
        raise ConfigError(
            f"cannot start with a prefix index of degrade={spares} and shortfall={policies.shortfall.name}: it would"
            f" {'serve' if spares else 'not find'} a prefix whose rebuildable pools are missing (build both alike)"
        )
    resident = {pool.name: pages for pool in layout.own if (pages := index.resident_pages(pool.name))}
    if resident:
        held = ", ".join(f"{pages} pages of {pool}" for pool, pages in resident.items())
        raise ConfigError(f"cannot start with a prefix index that holds {held}: start with an empty one")
