"""Rounds at a board, in one process: what they say of themselves, what is void, what one rank alone does not need."""

import time
from typing import Any

import pytest

from lifecycle import events as ev
from lifecycle.errors import ConfigError, CoordinatorClosed, RankDivergence, SyncFailed
from lifecycle.policies import Policies, WaitComplete
from lifecycle.reasons import Reason
from lifecycle.runtime.transport import Alone
from lifecycle.states import State
from tests.sync.board import Seat, finish, seats, tick
from tests.sync.harness import Hang, World, run_ranks
from tests.sync.part import prompt


def started(shape: tuple[int, ...], layout: str = "kv_only", **policies: Any) -> list[Seat]:
    """Return ranks with one prefetch issued."""
    ranks = seats(shape, layout, Policies(stop=WaitComplete(), **policies))
    for seat in ranks:
        seat.issue("a", prompt(0, 6))
    return ranks


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_rounds_say_what_they_were(lag: int) -> None:
    """A `RoundDone` per round with rows: its number in order, rows, sets asked for, participants, launch to result."""
    ranks = started((3,), "swa", lag_ticks=lag)
    for _ in range(lag + 1):
        tick(ranks)
    for seat in ranks:
        seat.clock.ns += 5000
    finish(ranks)
    for seat in ranks:
        done = seat.events(ev.RoundDone)
        numbers = [each.number for each in done]
        assert numbers == list(range(1, len(done) + 1))
        assert {each.participants for each in done} == {3}
        assert {each.rows for each in done} == {1}
        assert sum(each.masks for each in done) == 1
        assert sorted({each.duration_ns for each in done}) == ([0, 5000] if lag else [0])
        (synced,) = seat.events(ev.Synced)
        assert synced.participants == 3
        assert synced.round in numbers


def test_nothing_in_flight_still_launches_rounds_and_logs_none() -> None:
    """A round runs at every tick, whatever is in flight; only those with rows are logged."""
    ranks = seats((2,))
    for count in range(1, 6):
        tick(ranks)
        assert [seat.coordinator._rank.agreement.number for seat in ranks] == [count, count]
    assert not ranks[0].events(ev.RoundDone)
    finish(ranks)


def test_one_rank_needs_no_collective() -> None:
    """With one rank nothing is exchanged, no round is logged, and what ends is not said to be agreed with anyone."""
    (seat,) = seats((1,), "mamba", Policies(stop=WaitComplete()))
    assert seat.coordinator._rank.alone
    seat.issue("a", prompt(0, 6))
    while seat.coordinator.book.local:
        seat.read_all()
        seat.coordinator.tick()
    assert seat.coordinator.collectives == 0
    assert not seat.events(ev.RoundDone)
    (synced,) = seat.events(ev.Synced)
    assert (synced.participants, synced.round) == (1, 0)
    seat.coordinator.close()


def test_one_rank_can_be_made_to_run_rounds() -> None:
    """`force_round` runs the whole round with one participant, to the same end."""
    (seat,) = seats((1,), "mamba", Policies(stop=WaitComplete()), force_round=True)
    seat.issue("a", prompt(0, 6))
    finish([seat])
    assert {each.participants for each in seat.events(ev.RoundDone)} == {1}
    assert [type(event) for event in seat.events(ev.Committed)] == [ev.Committed]


def test_at_most_two_collectives_a_tick() -> None:
    """One round, and one exchange of sets however many prefetches ask for it."""
    ranks = seats((2,), "deepseek_v4", Policies(stop=WaitComplete(), lag_ticks=1, mask_capacity=4))
    for seat in ranks:
        for number in range(10):
            seat.issue(f"r{number}", prompt(number, 3))
    before = 0
    for _ in range(12):
        for seat in ranks:
            seat.read_all()
        tick(ranks)
        now = ranks[0].coordinator.collectives
        assert now - before <= 2
        before = now
    assert max(each.masks for each in ranks[0].events(ev.RoundDone)) == 4
    finish(ranks)


@pytest.mark.parametrize("lag", [1, 2])
def test_a_row_is_void_once_its_prefetch_has_moved(lag: int) -> None:
    """An abort between launch and result wins: the row that would have made a plan makes none."""
    ranks = started((2,), lag_ticks=lag)
    for seat in ranks:
        seat.read_all()
    tick(ranks)  # launches the round in which every rank knows its hit
    for seat in ranks:
        seat.coordinator.abort("a")
    for _ in range(3 * lag + 3):
        tick(ranks)
    for seat in ranks:
        assert not seat.events(ev.PlanAgreed)
        assert [event.reason for event in seat.events(ev.Discarded)] == [Reason.ABORTED]
        assert len(seat.events(ev.Closed)) == 1
    finish(ranks)


def test_a_set_is_void_once_its_prefetch_has_moved() -> None:
    """An abort while its set is on its way: no plan; the next prefetch gets its own set."""
    ranks = started((2, 2), "mamba", lag_ticks=1, mask_capacity=1)
    for seat in ranks:
        seat.read_all()
    tick(ranks)
    tick(ranks)  # the round is read, the exchange of sets launched
    assert ranks[0].coordinator.collectives == 3
    for seat in ranks:
        seat.coordinator.abort("a")
        seat.issue("b", prompt(1, 6))
    finish(ranks)
    for seat in ranks:
        assert [event.prefetch for event in seat.events(ev.PlanAgreed)] == [2]


def test_a_retry_is_planned_after_its_older_attempt_was_void() -> None:
    """Superseded while a round is on its way: the rows of the older attempt do nothing to the newer one."""
    ranks = started((2,), lag_ticks=2)
    for seat in ranks:
        seat.read_all()
    tick(ranks)
    for seat in ranks:
        seat.issue("a", prompt(0, 6), attempt=1)
    finish(ranks)
    for seat in ranks:
        assert [event.prefetch for event in seat.events(ev.Committed)] == [2]


def test_commands_go_on_while_the_divergence_is_being_named() -> None:
    """With a lag the naming takes a few ticks: commands do not raise, nothing is admitted, and everything is discarded."""
    ranks = started((2,), lag_ticks=2)
    ranks[1].issue("extra", prompt(1, 6))
    for _ in range(3):
        tick(ranks)
    for seat in ranks:
        assert seat.coordinator._rank.failure is not None, "found in the tick that reads the first round"
        assert not seat.coordinator.ready("a")
        assert isinstance(seat.issue("late", prompt(2, 6)), int)
        assert not seat.coordinator.abort("a"), "it is discarded already"
    tick(ranks)
    for seat in ranks:
        with pytest.raises(RankDivergence, match="they part at step 2: rank 0: nothing; rank 1: issued prefetch=2") as caught:
            seat.coordinator.tick()
        assert caught.value.round_number == 1
        with pytest.raises(CoordinatorClosed):
            seat.coordinator.ready("a")
        assert all(p.state is State.DISCARDED for p in seat.coordinator.book.replica.in_flight.values())
        seat.read_all()
        with pytest.raises(RankDivergence):
            seat.coordinator.tick()
        seat.coordinator.close()
        seat.coordinator.check_integrity()


class Raising(Alone):
    """A transport whose n-th launch, or wait, fails."""

    def __init__(self, at: int, in_wait: bool) -> None:
        self.left, self.in_wait = at, in_wait

    def launch(self, buffer: Any) -> Any:
        """Fail when it is time."""
        self.left -= 1
        if self.left:
            return super().launch(buffer)
        if not self.in_wait:
            raise RuntimeError("no route")
        return self._fail

    def _fail(self) -> None:
        raise RuntimeError("no route")


def until_failure(seat: Seat) -> SyncFailed:
    """Read and tick until the round fails."""
    for _ in range(20):
        seat.read_all()
        try:
            seat.coordinator.tick()
        except SyncFailed as failure:
            return failure
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("in_wait", [False, True])
@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("lag", [0, 1])
def test_a_collective_that_raises_is_a_failure(lag: int, at: int, in_wait: bool) -> None:
    """Whichever exchange it is, round or sets: SyncFailed with the cause, everything discarded, every debt paid."""
    (seat,) = started((1,), "swa", lag_ticks=lag)
    rank = seat.coordinator._rank
    rank.alone = False
    rank.agreement._launch = Raising(at, in_wait).launch
    failure = until_failure(seat)
    assert "no route" in failure.cause
    assert isinstance(failure.__cause__, RuntimeError)
    assert failure.round_number >= 1
    ends = [type(event) for event in seat.events(ev.Discarded, ev.Committed)]
    for _ in range(3):
        seat.read_all()
        with pytest.raises(SyncFailed):
            seat.coordinator.tick()
    assert [type(event) for event in seat.events(ev.Discarded, ev.Committed)] == ends
    assert not seat.coordinator.book.local
    seat.coordinator.close()
    seat.coordinator.check_integrity()
    assert seat.events(ev.CoordinatorStopped)[-1].reason is Reason.SYNC_FAILED


def test_a_tick_by_hand_has_no_lag() -> None:
    """With a lag, rounds overlap: they cannot be carried by hand one at a time."""
    (seat,) = seats((1,), policies=Policies(lag_ticks=1), force_round=True)
    with pytest.raises(ConfigError, match="cannot begin a tick by hand with a lag"):
        seat.coordinator.begin_tick()
    seat.coordinator.close()


def hang(world: World) -> None:
    """Hang, on one rank."""
    if world.rank == 1:
        time.sleep(60)


def test_the_harness_tells_a_hang_at_once() -> None:
    """A rank that hangs is named with its stack, and killed."""
    with pytest.raises(Hang, match=r"ranks \[1\] of 2 did not end within 4 s") as caught:
        run_ranks(2, hang, patience_s=4)
    assert "in hang" in str(caught.value)
