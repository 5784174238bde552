"""The engine's own counters in the header, and rounds at every k-th tick."""

import pytest

from lifecycle import events as ev
from lifecycle.errors import ConfigError
from lifecycle.policies import Policies, WaitComplete
from tests.sync.board import finish, seats, tick
from tests.sync.part import prompt


def test_a_counter_is_the_least_that_any_rank_fed() -> None:
    """Each rank sees what all have reached, as of the last round, and never its own lead."""
    ranks = seats((3,))
    for place, seat in enumerate(ranks):
        seat.coordinator.feed(1, 10 + place)
    assert [seat.coordinator.counter(1) for seat in ranks] == [0, 0, 0]
    tick(ranks)
    assert [seat.coordinator.counter(1) for seat in ranks] == [10, 10, 10]
    ranks[0].coordinator.feed(1, 12)
    tick(ranks)
    assert [seat.coordinator.counter(1) for seat in ranks] == [11, 11, 11]
    assert [seat.coordinator.counter(0) for seat in ranks] == [0, 0, 0]
    finish(ranks)


def test_with_one_rank_a_counter_is_its_own() -> None:
    """At the next tick, as with several."""
    (alone,) = seats((1,))
    alone.coordinator.feed(3, 7)
    assert alone.coordinator.counter(3) == 0
    alone.coordinator.tick()
    assert alone.coordinator.counter(3) == 7
    alone.coordinator.close()


@pytest.mark.parametrize(("place", "value"), [(4, 1), (-1, 1), (0, 4), (0, -1), (0, 2**31 - 1)])
def test_a_counter_never_falls_and_has_a_place(place: int, value: int) -> None:
    """What is refused changes nothing."""
    (alone,) = seats((1,))
    alone.coordinator.feed(0, 5)
    with pytest.raises(ConfigError):
        alone.coordinator.feed(place, value)
    alone.coordinator.tick()
    assert alone.coordinator.counter(0) == 5
    alone.coordinator.close()


def test_rounds_run_at_every_kth_tick_by_its_number_alone() -> None:
    """Nothing in flight and nothing local decides whether a round runs; what is read between waits for the next one."""
    ranks = seats((2,), "dsa", Policies(stop=WaitComplete(), lag_ticks=1, round_every_ticks=3))
    keys = prompt(0, 6)
    for seat in ranks:
        seat.issue("r", keys)
    launched = []
    for _ in range(30):
        for seat in ranks:
            seat.read_all()
        before = ranks[0].coordinator.collectives
        tick(ranks)
        if ranks[0].coordinator.collectives > before:
            launched.append(ranks[0].coordinator.tick_number)
    assert launched == list(range(3, 31, 3))
    assert [len(seat.events(ev.Committed)) for seat in ranks] == [1, 1]
    finish(ranks)
