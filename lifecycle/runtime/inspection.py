"""Looking at a rank without touching it: what is in flight, and whether everything adds up."""

from typing import Any

from lifecycle.book import fold
from lifecycle.errors import IntegrityError
from lifecycle.prefetch import Prefetch
from lifecycle.runtime.rank import Rank


def snapshot(rank: Rank) -> dict[str, Any]:
    """Return what is in flight and what it waits for, as plain values."""
    replica = rank.book.replica
    now_ns = rank.clock_ns()
    return {
        "tick": rank.tick_number,
        "round": rank.agreement.number,
        "occupied_tokens": replica.occupied_tokens,
        "limit_tokens": rank.policies.limit_tokens,
        "budget_pages": {pool.name: replica.budget(pool.name) for pool in rank.layout.own},
        "quarantined_pages": dict(rank.book.quarantined_pages),
        "lost_reads": rank.transfers.lost_reads,
        "open_obligations": rank.book.open_obligations(),
        "in_flight": [_story(rank, prefetch, now_ns) for prefetch in list(replica.in_flight.values())],
    }


def _story(rank: Rank, prefetch: Prefetch, now_ns: int) -> dict[str, Any]:
    transfer = rank.transfers.of[prefetch.id]
    return {
        "prefetch": prefetch.id,
        "request": prefetch.request,
        "attempt": prefetch.attempt,
        "state": prefetch.state.value,
        "start_page": prefetch.start_page,
        "plan_page": prefetch.plan_page,
        "age_s": (now_ns - transfer.progress.issued_ns) / 1e9,
        "open": transfer.local.obligations.open_names(),
        "reads_out": sum(not (job.ended or job.lost) for job in transfer.jobs),
    }


def check_integrity(rank: Rank, replay: bool) -> None:
    """Raise `IntegrityError` with everything that does not add up: pools, locks, tokens, and the log's own fold."""
    faults = rank.book.faults() + _pool_faults(rank)
    # What is published is owed a lock from then on; the index has it once a hand-over that failed was tried again.
    waiting = sum(t.local.obligations.resident_lock and not t.end_locked for t in rank.transfers.of.values())
    if rank.index.lock_count() < rank.book.locks - waiting:  # an engine may hold locks of its own
        faults.append(f"the index holds {rank.index.lock_count()} locks, prefetches owe {rank.book.locks - waiting}")
    if replay and not rank.events.lost_events:
        faults += _replay_faults(rank)
    if faults:
        raise IntegrityError(f"rank {rank.transport.rank}", faults)
    rank.memory.check_integrity()
    rank.index.check_integrity()


def _pool_faults(rank: Rank) -> list[str]:
    faults = []
    for pool_spec in rank.layout.own:
        pool = pool_spec.name
        book, memory = rank.book, rank.memory
        unreleased = sum(len(slots) for name, slots in rank.residency.unreleased if name == pool)
        unquarantined = sum(len(slots) for name, slots in rank.residency.unquarantined if name == pool)
        held, resident = book.held_pages[pool], book.resident_pages[pool]
        free, capacity = memory.free_pages(pool), rank.capacity_pages[pool]
        out = memory.quarantined_pages(pool) - rank.old_quarantined_pages[pool]
        if free + held + resident + out + unreleased + unquarantined != capacity:
            faults.append(
                f"pool {pool}: {free} free + {held} held + {resident} resident + {out} quarantined"
                f" + {unreleased + unquarantined} not taken back is not {capacity}"
            )
        if out + unquarantined != book.quarantined_pages[pool]:
            faults.append(f"pool {pool}: host memory quarantined {out}, the log {book.quarantined_pages[pool]}")
        if rank.index.resident_pages(pool) != resident:
            faults.append(f"pool {pool}: the index owns {rank.index.resident_pages(pool)} pages, the log says {resident}")
    return faults


def _replay_faults(rank: Rank) -> list[str]:
    rank.events.flush()
    events = [record.event for record in rank.events.records()]
    replayed = fold(rank.layout, rank.book.replica.budget_pages, events, rank.policies.degrade)
    if replayed.replica.facts() != rank.book.replica.facts():
        return ["the log does not fold to the live replica"]
    counts = ("held_pages", "resident_pages", "quarantined_pages", "tainted_pages", "locks")
    if any(getattr(replayed, name) != getattr(rank.book, name) for name in counts):
        return ["the log does not fold to the live page and lock counts"]
    return []
