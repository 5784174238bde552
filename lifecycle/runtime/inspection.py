"""Looking at a rank without touching it: what is in flight, and whether everything adds up."""

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from lifecycle.book import fold
from lifecycle.errors import IntegrityError
from lifecycle.local import Local
from lifecycle.runtime.rank import Rank
from lifecycle.runtime.waits import wait_of

STUCK_AFTER_S = 30.0
_TRIES = 5  # for numbers of one moment
_MOST_TRIES = 1000  # for any


def snapshot(rank: Rank, stuck_after_s: float = STUCK_AFTER_S) -> dict[str, Any]:
    """Return what is in flight and what it waits for, as plain values.

    May be called from any thread, and takes no lock: it copies while the scheduler goes on, and tries again when an event
    came between. `exact` says whether all numbers are of one moment; on the scheduler's thread they always are.
    """
    for attempt in count(1):
        before, moving = rank.events_appended, rank.moving
        try:
            found = _copy(rank)
        except RuntimeError:  # a table grew while it was copied
            if attempt == _MOST_TRIES:
                raise
            continue
        found["exact"] = not (moving or rank.moving) and before == rank.events_appended
        if found["exact"] or attempt >= _TRIES:
            break
        time.sleep(0)  # the scheduler's thread may wait for this one to let go of the interpreter
    found["stuck"] = stuck(found, stuck_after_s)
    return found


def stuck(found: Mapping[str, Any], after_s: float = STUCK_AFTER_S) -> list[str]:
    """Return, for each prefetch and round of a snapshot that waits for longer than `after_s`, the step that is missing."""
    lines = []
    if found["failure"] is not None:
        lines.append(f"rank {found['rank']} failed: {found['failure']}")
    last = found["last_round"]
    if last["number"] > last["agreed"] and last["launched_s_ago"] >= after_s:
        lines.append(f"round {last['number']} launched {last['launched_s_ago']:.0f} s ago, no result: a rank is not ticking")
    for pool, pages in found["not_taken_back_pages"].items():
        lines.append(f"host memory refuses to take back {pages} evicted pages of {pool}; tried at each tick")
    for story in found["in_flight"]:
        for_s = story["for_s"]
        late = for_s is not None and for_s >= after_s
        if late or max(story["refused"].values(), default=0) >= found["stuck_after_tries"]:
            since = "" if for_s is None else f", for {for_s:.0f} s"
            whose = f"prefetch {story['prefetch']} of request {story['request']!r}, {story['state']}"
            lines.append(f"{whose}: {story['waits_for']}{since}")
    return lines


def _copy(rank: Rank) -> dict[str, Any]:
    replica, agreement, transfers = rank.book.replica, rank.agreement, rank.transfers
    now_ns = rank.clock_ns()
    refused: dict[int, dict[str, int]] = {}
    for (id_, what), tries in rank.settler.refusals():
        refused.setdefault(id_, {})[what] = tries
    stories = [_story(rank, local, refused.get(local.shared.id, {}), now_ns) for local in list(rank.book.local.values())]
    back: dict[str, int] = {}
    for pool, slots in list(rank.residency.unreleased):
        back[pool] = back.get(pool, 0) + len(slots)
    return {
        "rank": rank.transport.rank,
        "ranks": rank.transport.ranks,
        "state": "closed" if rank.closed else "failed" if rank.failure else "running",
        "failure": None if rank.failure is None else str(rank.failure),
        "tick": rank.tick_number,
        "round": agreement.number,
        "last_round": {
            "number": agreement.number,
            "agreed": agreement.agreed_number,
            "launched_s_ago": (now_ns - agreement.launched_ns) / 1e9 if agreement.number else None,
        },
        "occupied_tokens": replica.occupied_tokens,
        "limit_tokens": rank.policies.limit_tokens,
        "budget_pages": {pool.name: replica.budget(pool.name) for pool in rank.layout.own},
        "quarantined_pages": dict(rank.book.quarantined_pages),
        "not_taken_back_pages": back,
        "lost_reads": transfers.lost_reads,
        "declining": transfers.declining,
        "lost_events": rank.events.lost_events,
        "stuck_after_tries": rank.policies.stuck_after_tries,
        "open_obligations": sum(len(story["open"]) for story in stories),
        "in_flight": stories,
        "waiting": _waiting(rank),
    }


def _waiting(rank: Rank) -> list[dict[str, Any]]:
    """Return who waits to be tried again: those in line for room by their place, then those who ask L3 again."""
    place = count(1)
    return [
        {
            "request": waiter.request,
            "attempt": waiter.attempt,
            "reason": waiter.reason.value,
            "since_tick": waiter.since_tick,
            "due_tick": waiter.due_tick,
            "place": next(place) if waiter.for_room else None,
            "tokens": waiter.tokens,
            "queries": waiter.queries,
        }
        for waiter in list(rank.book.replica.waiting)
    ]


def _story(rank: Rank, local: Local, refused: dict[str, int], now_ns: int) -> dict[str, Any]:
    shared, transfer = local.shared, rank.transfers.of.get(local.shared.id)
    wait = wait_of(local, transfer, rank.transport.ranks, refused)
    return {
        "prefetch": shared.id,
        "request": shared.request,
        "attempt": shared.attempt,
        "state": shared.state.value,
        "start_page": shared.start_page,
        "end_page": shared.end_page,
        "plan_page": shared.plan_page,
        "reserved_tokens": local.obligations.tokens or 0,
        "age_s": None if transfer is None else (now_ns - transfer.progress.issued_ns) / 1e9,
        "waits_for": wait.step,
        "for_s": None if wait.since_ns is None else (now_ns - wait.since_ns) / 1e9,
        "refused": refused,
        "open": local.obligations.open_names(),
        "reads_out": 0 if transfer is None else sum(not (job.ended or job.lost) for job in transfer.jobs),
    }


def check_integrity(rank: Rank, replay: bool) -> None:
    """Raise `IntegrityError` with everything that does not add up: pools, locks, tokens, and the log's own fold."""
    faults = rank.book.faults() + _pool_faults(rank)
    if rank.waiting_keys.keys() != {waiter.request for waiter in rank.book.replica.waiting}:
        faults.append(f"the keys of {len(rank.waiting_keys)} requests are kept, {len(rank.book.replica.waiting)} wait")
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
