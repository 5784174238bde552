"""One rank of the run: builds what the scheduler needs, runs it, and writes down what came of it."""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lifecycle.codec import encode
from lifecycle.errors import IntegrityError, LogError
from lifecycle.runtime.coordinator import Coordinator
from lifecycle.runtime.cuda import CudaTransport
from lifecycle.runtime.ports import EventLog, PageStore
from lifecycle.runtime.transport import TorchTransport, Transport
from lifecycle.testing.faulty_store import FaultMix, FaultyStore
from loop_compare import comparing
from loop_faults import SlowStore, Upsets
from loop_options import Options, shard
from loop_report import RankReport
from loop_scheduler import Scheduler
from loop_trace import Request
from loop_write_back import WriteBack
from stores.events import open_event_log
from stores.host import TorchHostMemory
from stores.pages import header_room, open_page_store, register_host_memory
from stores.prefix import RadixIndex

if TYPE_CHECKING:
    from loop_metrics import RankMetrics

_FAULTS = FaultMix(never=1 / 25, query_never=1 / 25)  # often enough that a run of 200 requests sees lost reads
_WRITE_FAULTS = FaultMix(query_never=0, query_raises=0, query_late=1 / 20)  # the writer's thread has nobody to end a hung call
Say = Callable[[int], None]


def run_rank(options: Options, requests: Sequence[Request], rank: int, folder: Path, run: str) -> RankReport:
    """Run the scheduler on this rank to its end. `torch.distributed` is initialised where there are several."""
    torch.set_num_threads(1)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR if options.faults else logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    started = time.monotonic()
    layout, policies = options.layout, options.policies()
    page_bytes, capacity = options.pool_bytes(), options.capacity_pages(requests)
    place = shard(rank, options.ranks)
    store = open_page_store(options.store, page_bytes, options.namespace(), place, verify=options.verify)
    memory = TorchHostMemory(layout, capacity, page_bytes, header_room_bytes=header_room(store, page_bytes))
    register_host_memory(store, memory.regions())  # for zero copy, where a store can
    if options.slow_rank is not None and options.slow_rank[0] == rank:
        store = SlowStore(store, options.slow_rank[1])
    faulty = FaultyStore(store, options.faults, options.seed, rank, _FAULTS) if options.faults else None
    written = FaultyStore(store, options.faults, options.seed, rank, _WRITE_FAULTS) if options.faults else store
    store = faulty or store
    index = RadixIndex(layout, policies.degrade)
    events = open_event_log(options.events, rank)
    metrics = _metrics(options, rank)
    if metrics is not None:
        events = metrics.observe(events)
    coordinator = Coordinator(
        layout, policies, options.page_size,
        store=store, memory=memory, index=index, events=events, transport=_transport(options, rank), run=run,
    )  # fmt: skip
    write_back = WriteBack(written, layout, page_bytes, rank, policies.degrade)
    upsets = Upsets(min(1.0, 2 * options.faults), options.seed)
    scheduler = Scheduler(
        layout,
        policies,
        options.page_size,
        coordinator,
        index,
        memory,
        write_back,
        requests,
        options.keys,
        rank,
        upsets,
        comparing(memory, rank, options.device_of(rank)),
    )

    with _progress(len(requests), rank) as say:
        scheduler.run(_also_releasing(say, faulty, 2 * policies.lost_read_s))
    write_back.close()
    if faulty is not None:
        faulty.release_all()  # what never answered writes now, into pages that are out of use
    broken = _broken(coordinator, store)
    coordinator.close()
    broken += _broken(coordinator, store)
    replica = coordinator.book.replica
    report = RankReport(
        rank=rank,
        run=run,
        log=str(_log_path(options, events, rank, folder)),
        replicated={
            "requests": 0, "reuse_tokens": 0, "loaded_tokens": 0, **scheduler.counts,
            "ticks": coordinator.tick_number, "collectives": coordinator.collectives,
            "occupied_tokens": replica.occupied_tokens, "lock_refs": index.lock_count(),
        },
        upsets=dict(scheduler.upsets),
        own={
            "served_pages": scheduler.pages["served"], "garbled_pages": scheduler.pages["garbled"],
            "leaked_pages": sum(_leaked(memory, index, pool.name) for pool in layout.own),
            "quarantined_pages": sum(memory.quarantined_pages(pool.name) for pool in layout.own),
            "host_pages": sum(capacity.values()), "open_obligations": coordinator.book.open_obligations(),
            "written_pages": write_back.pages["written"], "refused_pages": write_back.pages["refused"],
            "held_back_pages": write_back.pages["held_back"], "lost_pages": write_back.pages["lost"],
        },
        faults=_faults(faulty, written),
        broken=(*dict.fromkeys(broken), *_lost(events)),
        wall_s=time.monotonic() - started,
        write_back_blocked_s=write_back.blocked_s,
    )  # fmt: skip
    if metrics is not None:
        metrics.hold(options.metrics_hold)
        metrics.close()
    events.close()
    store.close()
    return report


def _transport(options: Options, rank: int) -> Transport | None:
    """Return the round's transport: NCCL where each rank has a GPU of its own, else Gloo; none with one rank."""
    if options.ranks == 1:
        return None
    device = options.device_of(rank)
    if device is None or torch.cuda.device_count() < options.ranks:
        return TorchTransport()
    torch.cuda.set_device(device)
    return CudaTransport(dist.new_group(backend="nccl"), device=device)


def _metrics(options: Options, rank: int) -> "RankMetrics | None":
    if options.metrics is None:
        return None
    from loop_metrics import RankMetrics  # prometheus-client is optional

    return RankMetrics(options.metrics + rank)


def _leaked(memory: TorchHostMemory, index: RadixIndex, pool: str) -> int:
    known = memory.free_pages(pool) + index.resident_pages(pool) + memory.quarantined_pages(pool)
    return memory.capacity_pages(pool) - known


def _broken(coordinator: Coordinator, store: PageStore) -> list[str]:
    try:
        coordinator.check_integrity()
        store.check_integrity()
    except (IntegrityError, LogError) as error:
        return [str(error)]
    return []


def _lost(events: EventLog) -> list[str]:
    return [f"{events.lost_events} events were lost"] if events.lost_events else []


def _faults(*stores: PageStore | None) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for store in stores:
        counts.update(store.counts if isinstance(store, FaultyStore) else {})
    return dict(counts)


def _log_path(options: Options, events: EventLog, rank: int, folder: Path) -> Path:
    """Return where the log is; one in memory is written to `folder` first."""
    kind, _, directory = options.events.partition(":")
    if directory:
        return Path(directory) / f"rank{rank}.{kind}"
    path = folder / f"rank{rank}.jsonl"
    with path.open("wb") as file:
        file.writelines(encode(record) + b"\n" for record in events.records())
    return path


def _also_releasing(say: Say, faulty: FaultyStore | None, every_s: float) -> Say:
    """Return `say`, letting reads that never answered write at last, every now and then: nothing may garble by that."""
    if faulty is None:
        return say
    due = time.monotonic() + every_s

    def say_and_release(done: int) -> None:
        nonlocal due
        say(done)
        if time.monotonic() >= due:
            faulty.release_all()
            due = time.monotonic() + every_s

    return say_and_release


def _progress(requests: int, rank: int) -> AbstractContextManager[Say]:
    console = Console()
    if rank or not console.is_terminal:
        return nullcontext(lambda done: None)
    return _Bar(console, requests)


class _Bar(AbstractContextManager[Say]):
    """A progress bar over the requests, gone when it is done."""

    def __init__(self, console: Console, requests: int) -> None:
        columns = TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("requests", total=requests)

    def __enter__(self) -> Say:
        self._bar.start()
        return lambda done: self._bar.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
