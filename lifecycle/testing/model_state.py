"""A state of the model and its transitions: commands, answers and faults one at a time, and the tick of all ranks.

What happens on one rank between two ticks does not touch the other, so ticks in step and everything else in any order cover
every interleaving.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lifecycle import events as ev
from lifecycle.coverage import Flags
from lifecycle.policies import BestEffort, Timeout
from lifecycle.reasons import Reason
from lifecycle.rows import Report
from lifecycle.states import State
from lifecycle.testing.model_copy import QUEUED
from lifecycle.testing.model_rank import ModelRank
from lifecycle.testing.model_reads import answer, answer_query, claim, claimed, lose, open_query
from lifecycle.testing.model_scope import Scope
from lifecycle.testing.model_waits import end_wait, try_waiting, waits_key

Row = tuple[int, int, Report]  # id, moves at launch, the agreed report
Mask = tuple[int, int, bytes]  # id, moves at launch, the agreed set


@dataclass(frozen=True, slots=True)
class ModelState:
    """All ranks, what is on its way between them, and what may still go wrong. Never changed: transitions make new ones."""

    ranks: tuple[ModelRank, ...]
    rounds: tuple[tuple[Row, ...], ...] = ()
    masks: tuple[tuple[Mask, ...], ...] = ()
    issued: int = 0
    faults: int = 0
    aborts: int = 0

    def key(self) -> int:
        """Return a hash in which equal ranks may change places."""
        return hash((tuple(sorted(rank.key() for rank in self.ranks)), self.rounds, self.masks, self.issued, self.faults,
                     self.aborts, waits_key(self.ranks[0])))  # fmt: skip

    @property
    def done(self) -> bool:
        """Whether nothing is left to happen."""
        return not any(rank.book.local or rank.book.replica.waiting for rank in self.ranks)


Transition = tuple[str, Callable[[], ModelState]]


def initial(scope: Scope) -> ModelState:
    """Return the state before anything was issued."""
    return ModelState(tuple(ModelRank(scope) for _ in range(scope.ranks)), faults=scope.faults, aborts=scope.aborts)


def transitions(scope: Scope, state: ModelState) -> Iterator[Transition]:
    """Yield everything that may happen next, named."""
    yield "tick", lambda: tick(scope, state)
    if state.issued < scope.prefetches:
        yield "issue", lambda: _issue(scope, state)
    for prefetch in state.ranks[0].book.replica.in_flight.values():
        if state.aborts and not prefetch.terminal:
            yield f"abort {prefetch.id}", lambda id_=prefetch.id: _abort(state, id_)  # type: ignore[misc]
    for waiter in state.ranks[0].book.replica.waiting:
        if state.aborts:
            yield f"abort the wait of {waiter.request}", lambda who=waiter.request: _abort_wait(state, who)  # type: ignore[misc]
    for place, rank in enumerate(state.ranks):
        for id_ in rank.book.local:
            yield from _local(scope, state, place, rank, id_)
        if state.faults and state.issued:
            yield from _rank_faults(scope, state, place, rank)


def _local(scope: Scope, state: ModelState, place: int, rank: ModelRank, id_: int) -> Iterator[Transition]:
    local, where = rank.book.local[id_], f"{id_} on rank {place}"
    fault = state.faults > 0

    def on(name: str, change: Callable[[ModelRank], None], faults: int = 0) -> Transition:
        return f"{name} {where}", lambda: _on_rank(state, place, change, faults)

    if open_query(rank, id_):
        yield on("query answered", lambda k: answer_query(k, id_, None, False))
        if fault:
            for pool in scope.layout.required(scope.policies.degrade):
                for page in range(local.shared.end_page):
                    miss = pool.name, page
                    yield on(f"query answered without {pool.name} {page}", lambda k, m=miss: answer_query(k, id_, m, False), 1)  # type: ignore[misc]
            yield on("query fails", lambda k: answer_query(k, id_, None, True), 1)
    if isinstance(scope.policies.stop, BestEffort) and not local.wanted and not local.shared.terminal:
        yield on("wanted", lambda k: k.emit(ev.Wanted(id_)))
    reads = rank.reads.get(id_)
    if reads is None:
        return
    job = claimed(rank, id_)
    if job is None:
        if any(each.status == QUEUED for each in reads.jobs):
            yield on("claim", lambda k: claim(k, id_))
        return
    yield on("read answered", lambda k: answer(k, id_, None))
    if fault:
        pool_name, (lo, hi) = job.parts[job.answered]
        if local.shared.state is State.TRANSFERRING:
            for page in range(lo, hi):
                yield on(f"read fails at {pool_name} {page}", lambda k, p=page: answer(k, id_, p), 1)  # type: ignore[misc]
        yield on("read lost", lambda k: lose(k, id_), 1)


def _rank_faults(scope: Scope, state: ModelState, place: int, rank: ModelRank) -> Iterator[Transition]:
    if isinstance(scope.policies.stop, Timeout) and not rank.late:
        yield f"limit over on rank {place}", lambda: _on_rank(state, place, lambda k: setattr(k, "late", True), 1)
    if not rank.tight and any(p.state is State.ISSUED for p in rank.book.replica.in_flight.values()):
        yield f"memory refuses on rank {place}", lambda: _on_rank(state, place, lambda k: setattr(k, "tight", True), 1)


def _on_rank(state: ModelState, place: int, change: Callable[[ModelRank], None], faults: int) -> ModelState:
    rank = state.ranks[place].clone()
    change(rank)
    ranks = (*state.ranks[:place], rank, *state.ranks[place + 1 :])
    return replace(state, ranks=ranks, faults=state.faults - faults)


def _issue(scope: Scope, state: ModelState) -> ModelState:
    request, attempt = ("r", state.issued) if scope.retry else (f"r{state.issued}", 0)
    ranks = tuple(rank.clone() for rank in state.ranks)
    for rank in ranks:
        rank.issue(request, attempt)
    return replace(state, ranks=ranks, issued=state.issued + 1)


def _abort(state: ModelState, id_: int) -> ModelState:
    ranks = tuple(rank.clone() for rank in state.ranks)
    for rank in ranks:
        rank.end(rank.book.replica.in_flight[id_], Reason.ABORTED)
    return replace(state, ranks=ranks, aborts=state.aborts - 1)


def _abort_wait(state: ModelState, request: str) -> ModelState:
    ranks = tuple(rank.clone() for rank in state.ranks)
    for rank in ranks:
        end_wait(rank, request, Reason.ABORTED)
    return replace(state, ranks=ranks, aborts=state.aborts - 1)


def tick(scope: Scope, state: ModelState) -> ModelState:
    """Run one tick of every rank: try who waits, settle, consume what is due, launch."""
    ranks = tuple(rank.clone() for rank in state.ranks)
    for rank in ranks:
        try_waiting(rank)
        rank.settle_all()
    rounds, masks = state.rounds, state.masks
    if scope.policies.lag_ticks == 0:
        wanted = _consume_round(ranks, _launch(ranks))
        _consume_masks(ranks, _launch_masks(ranks, wanted))
    else:
        launched: tuple[tuple[Mask, ...], ...] = ()
        if len(rounds) >= scope.policies.lag_ticks:
            wanted = _consume_round(ranks, rounds[0])
            rounds = rounds[1:]
            launched = (_launch_masks(ranks, wanted),)
        if len(masks) >= scope.policies.lag_ticks:
            _consume_masks(ranks, masks[0])
            masks = masks[1:]
        rounds, masks = (*rounds, _launch(ranks)), masks + launched
    return replace(state, ranks=ranks, rounds=rounds, masks=masks)


def _launch(ranks: tuple[ModelRank, ...]) -> tuple[Row, ...]:
    digests = {rank.book.replica.digest for rank in ranks}
    assert len(digests) == 1, "the replicas of the ranks differ"
    for pool in ranks[0].scope.layout.own:
        pages = max(rank.book.quarantined_pages[pool.name] + rank.book.tainted_pages[pool.name] for rank in ranks)
        for rank in ranks:
            if pages != rank.book.replica.quarantined_pages[pool.name]:
                rank.emit(ev.QuarantineAgreed(pool.name, pages))
    rows = []
    for id_, prefetch in ranks[0].book.replica.in_flight.items():
        rows.append((id_, prefetch.moves, _agree([rank.report(id_) for rank in ranks])))
    return tuple(rows)


def _agree(reports: list[Report]) -> Report:
    return Report(
        min(each.hit_page for each in reports),
        min(each.ceiling_page for each in reports),
        all(each.can_stop for each in reports),
        any(each.must_stop for each in reports),
        all(each.final for each in reports),
        all(each.settled for each in reports),
        min(each.reason for each in reports),
        tuple(min(values) for values in zip(*(each.landed for each in reports), strict=True)),
    )


def _consume_round(ranks: tuple[ModelRank, ...], rows: tuple[Row, ...]) -> list[int]:
    wanted: list[int] = []
    for place, rank in enumerate(ranks):
        in_flight = rank.book.replica.in_flight
        fresh = [(in_flight[id_], row) for id_, moves, row in rows if id_ in in_flight and in_flight[id_].moves == moves]
        asked = [prefetch.id for prefetch, row in fresh if rank.take_report(prefetch, row)]
        assert not place or asked == wanted, "the ranks ask for different sets"
        wanted = asked
    return wanted


def _launch_masks(ranks: tuple[ModelRank, ...], wanted: list[int]) -> tuple[Mask, ...]:
    masks = []
    for id_ in wanted:
        lengths: list[Flags] = [flags for rank in ranks if (flags := rank.reads[id_].lengths) is not None]
        assert len(lengths) == len(ranks), "a hit is agreed only once every rank has asked"
        agreed = np.logical_and.reduce(lengths)
        masks.append((id_, ranks[0].book.replica.in_flight[id_].moves, agreed.tobytes()))
    return tuple(masks)


def _consume_masks(ranks: tuple[ModelRank, ...], masks: tuple[Mask, ...]) -> None:
    for rank in ranks:
        for id_, moves, agreed in masks:
            prefetch = rank.book.replica.in_flight.get(id_)
            if prefetch is not None and prefetch.moves == moves:
                rank.take_lengths(prefetch, np.frombuffer(agreed, dtype=np.bool_))
