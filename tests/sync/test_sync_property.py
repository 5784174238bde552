"""Random reports, any lag, any group shape: every rank takes the same decisions, those of a reference that sees all reports."""

import random
from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle import events as ev
from lifecycle.layout import deepseek_v4, dsa, kv_only, mamba, swa
from lifecycle.policies import BestEffort, OnShortfall, Policies, Pressure, Timeout, WaitComplete
from lifecycle.reasons import Reason
from lifecycle.rows import Report
from tests.sync.board import Seat, finish, seats, tick
from tests.sync.part import prompt
from tests.sync.reference import Reference

SHAPES = [(1,), (2,), (3,), (4,), (2, 2), (1, 2), (3, 1), (4, 1), (2, 1, 2)]
LAYOUTS = [kv_only(), kv_only(draft=True), dsa(), swa(2), swa(3, draft=True), mamba(), deepseek_v4(2)]

settings_of = st.builds(
    Policies,
    stop=st.sampled_from([WaitComplete(), BestEffort(), Timeout(1.0, 0.0, 1.0)]),
    pressure=st.sampled_from(Pressure),
    shortfall=st.sampled_from(OnShortfall),
    threshold_pages=st.integers(1, 2),
    max_pages=st.just(12),
    lost_read_s=st.just(3.0),
    max_lost_reads=st.just(2),
    row_capacity=st.integers(1, 5),
    mask_capacity=st.integers(1, 3),
    lag_ticks=st.integers(0, 3),
    batch_pages=st.integers(1, 4),
)
a_rank, a_number = st.integers(0, 3), st.integers(0, 5)
tick_step = st.tuples(st.just("tick"), st.integers(0, 1 << 16))
read_step = st.one_of(
    st.tuples(st.just("claim"), a_rank),
    st.tuples(st.just("answer"), a_rank, st.integers(0, 3)),
    st.tuples(st.just("read all"), a_rank),
    st.tuples(st.just("settle")),
)
step_of = st.one_of(
    tick_step,
    tick_step,
    tick_step,
    st.tuples(st.just("issue"), a_number, st.integers(1, 12)),
    st.tuples(st.just("issue"), a_number, st.integers(5, 12)),
    read_step,
    read_step,
    st.one_of(
        st.tuples(st.just("abort"), a_number),
        st.tuples(st.just("ready"), a_rank, a_number),
        st.tuples(st.just("wait"), a_rank, st.sampled_from([0.4, 1.1, 3.1])),
    ),
)
hole_of = st.tuples(a_rank, a_number, st.integers(0, 11), st.integers(0, 7), st.booleans())


class Watched:
    """The ranks of a board, with the reference beside them."""

    def __init__(self, shape: tuple[int, ...], layout: Any, policies: Policies, capacity: int) -> None:
        self.ranks = seats(shape, layout, policies, capacity=capacity, force_round=True)
        self.reference = Reference(layout, policies, len(self.ranks))
        self.attempts: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        for seat in self.ranks:
            self._watch(seat)

    def _watch(self, seat: Seat) -> None:
        """Have the reference see every report, every set and the room for every plan."""
        reference, rank, parts = self.reference, seat.place.rank, seat.coordinator._rank
        reports, room, number = seat.coordinator._ticks._reports, parts.residency.room, parts.agreement

        def told(ids: Iterable[int]) -> list[Report]:
            rows = reports(ids)
            for id_, row in zip(ids, rows, strict=True):
                reference.reports.setdefault((number.number + 1, id_), {})[rank] = row
                if (lengths := parts.transfers.of[id_].lengths) is not None:
                    reference.sets.setdefault(id_, {})[rank] = lengths.tolist()
            return rows

        def left() -> Any:
            found = room()
            if rank == 0:
                reference.rooms.append(found)
            return found

        seat.coordinator._ticks._reports = told  # type: ignore[method-assign]
        parts.residency.room = left  # type: ignore[method-assign]

    def issue(self, name: str, keys: Any) -> None:
        """Issue the next attempt on every rank."""
        attempt = self.attempts[name] = self.attempts.get(name, -1) + 1
        self.end(name, Reason.SUPERSEDED)
        found = [seat.issue(name, keys, attempt) for seat in self.ranks]
        assert all(each == found[0] for each in found)
        if isinstance(found[0], int):
            prefetch = self.ranks[0].coordinator.book.replica.in_flight[found[0]]
            self.newest[name] = prefetch.id
            self.reference.issue(prefetch.id, prefetch.start_page, prefetch.end_page)

    def abort(self, name: str) -> None:
        """Abort on every rank."""
        if name in self.attempts:
            self.end(name, Reason.ABORTED)
            for seat in self.ranks:
                seat.coordinator.abort(name)

    def end(self, name: str, reason: Reason) -> None:
        """Tell the reference what a command ends."""
        id_ = self.newest.get(name, 0)
        prefetch = self.ranks[0].coordinator.book.replica.in_flight.get(id_)
        if prefetch is not None and not prefetch.terminal:
            self.reference.end(id_, reason)

    def compare(self) -> None:
        """Find on every rank what the reference says."""
        for seat in self.ranks:
            assert [said for event in seat.events() if (said := plain(event))] == self.reference.said

    def tick(self, seed: int) -> None:
        """Tick in any order of the ranks, which must not matter; then compare."""
        ranks = random.Random(seed).sample(self.ranks, len(self.ranks))
        tick(ranks)
        self.reference.tick()
        self.compare()

    def settle(self) -> None:
        """Read all that can be read on every rank, over some ticks."""
        for turn in range(4):
            for seat in self.ranks:
                seat.read_all()
            self.tick(turn)


def plain(event: ev.Event) -> tuple[Any, ...] | None:
    """Return a replicated event as the reference puts it; None for what it does not decide."""
    match event:
        case ev.PlanAgreed():
            return "planned", event.prefetch, event.hit_page, event.plan_page
        case ev.Capped():
            return "capped", event.prefetch, event.ceiling_page
        case ev.Terminated():
            return "terminated", event.prefetch, event.reason
        case ev.Synced():
            return "synced", event.prefetch, tuple(event.agreed.values()), event.participants, event.round
        case ev.Committed():
            return "committed", event.prefetch, event.usable_page
        case ev.Clamped():
            return "clamped", event.prefetch, event.usable_page, event.reason
        case ev.Discarded():
            return "discarded", event.prefetch, event.reason
        case ev.Closed():
            return "closed", event.prefetch
        case _:
            return None


@settings(max_examples=120)
@given(
    shape=st.sampled_from(SHAPES),
    layout=st.sampled_from(LAYOUTS),
    policies=settings_of,
    capacity=st.integers(4, 40),
    steps=st.lists(step_of, min_size=30, max_size=90),
    holes=st.lists(hole_of, max_size=12),
)
def test_every_rank_decides_what_the_reference_decides(
    shape: tuple[int, ...], layout: Any, policies: Policies, capacity: int, steps: list[Any], holes: list[Any]
) -> None:
    """Hits, plans, caps, stops, outcomes and closes, in order, whatever each rank's shard, readers, clock and demand do."""
    watched = Watched(shape, layout, policies, capacity)
    names = [pool.name for pool in layout.pools]
    for rank, number, page, pool, readable in holes:
        store = watched.ranks[rank % len(watched.ranks)].store
        hole = (names[pool % len(names)], prompt(number, 12)[page])
        (store.fails if readable else store.lacks).add(hole)
    for step in steps:
        match step:
            case "tick", seed:
                watched.tick(seed)
            case ("settle",):
                watched.settle()
            case "issue", number, pages:
                watched.issue(f"r{number}", prompt(number, pages))
            case "abort", number:
                watched.abort(f"r{number}")
            case what, rank, *rest:
                act(watched.ranks[rank % len(watched.ranks)], what, rest)
    finish_watched(watched)


def act(seat: Seat, what: str, rest: list[Any]) -> None:
    """Do what is one rank's own."""
    match what:
        case "claim":
            seat.hand.claim()
        case "answer":
            seat.hand.answer(rest[0], seat)
        case "read all":
            seat.read_all()
        case "ready":
            seat.coordinator.ready(f"r{rest[0]}")
        case "wait":
            seat.clock.ns += int(rest[0] * 1e9)


def finish_watched(watched: Watched) -> None:
    """Run everything to its end, the reference beside it."""
    for _ in range(500):
        if not any(seat.coordinator.book.local for seat in watched.ranks):
            break
        for seat in watched.ranks:
            seat.read_all()
        tick(watched.ranks)
        watched.reference.tick()
    watched.compare()
    finish(watched.ranks)
