"""Rounds that the engine reduces itself: what it says when a reduction fails."""

from collections.abc import Callable

import pytest
from kit.rig import Rig

from lifecycle import events as ev
from lifecycle.errors import ConfigError, CoordinatorClosed, SyncFailed
from lifecycle.reasons import Reason
from lifecycle.runtime.naming import Naming

RigOf = Callable[..., Rig]


def test_a_reduction_that_failed_is_told_and_final(rig_of: RigOf) -> None:
    """`fail_tick` raises `SyncFailed` from the engine's error, and discards; each later tick says so again."""
    rig = rig_of(ranks=2)
    rig.issue("r", 4)
    error = ValueError("our communicator was aborted")
    for rank, coordinator in enumerate(rig.ranks):
        assert coordinator.begin_tick() is not None
        with pytest.raises(SyncFailed, match=r"cannot finish round 1 of 2 ranks: .*our communicator was aborted") as caught:
            coordinator.fail_tick(error)
        assert caught.value.__cause__ is error
        assert [event.reason for event in rig.events(ev.Discarded, rank)] == [Reason.SYNC_FAILED]
        with pytest.raises(SyncFailed) as again:
            coordinator.begin_tick()
        assert again.value is caught.value
        with pytest.raises(SyncFailed) as twice:
            coordinator.fail_tick(ValueError("another"))
        assert twice.value is caught.value, "the first failure is the one that is told"
    rig.failed = caught.value


@pytest.mark.parametrize("how", ["close", "fail"])
def test_a_tick_that_has_ended_meanwhile_takes_nothing(rig_of: RigOf, how: str) -> None:
    """A round that was begun before a close, or before a failure, is void: it is refused, and nothing more is logged."""
    rig = rig_of("swa", ranks=2)
    rig.issue("r", 4)
    rounds = [coordinator.begin_tick() for coordinator in rig.ranks]
    rig._reduce(rounds)
    for coordinator, round_, log in zip(rig.ranks, rounds, rig.logs, strict=True):
        assert round_ is not None
        if how == "close":
            coordinator.close()
        else:
            with pytest.raises(SyncFailed) as caught:
                coordinator.fail_tick(ValueError("gone"))
            rig.failed = caught.value
        kept = len(list(log.records()))
        for end in (coordinator.end_tick, coordinator.end_exchange):
            with pytest.raises(CoordinatorClosed if how == "close" else SyncFailed):
                end(round_)  # type: ignore[arg-type]
        assert len(list(log.records())) == kept


def test_an_exchange_of_names_that_failed_is_final_too(rig_of: RigOf) -> None:
    """When the second exchange of a divergence fails, every later tick raises, as after any failure."""
    rig = rig_of(ranks=2)
    rig.unequal = True
    keys = rig.prompt("r", 4)
    rig.ranks[0].issue("r", 0, keys, rig.indexes[0].match(keys, 0).anchor)  # and not on rank 1
    rounds = [coordinator.begin_tick() for coordinator in rig.ranks]
    rig._reduce(rounds)
    for coordinator, round_ in zip(rig.ranks, rounds, strict=True):
        assert round_ is not None
        assert isinstance(coordinator.end_tick(round_), Naming)
        with pytest.raises(SyncFailed, match="gone"):
            coordinator.fail_tick(ValueError("gone"))
        with pytest.raises(SyncFailed, match="gone") as caught:
            coordinator.begin_tick()
    rig.failed = caught.value


def test_where_no_round_was_begun_there_is_nothing_to_fail(rig_of: RigOf) -> None:
    """One rank alone, or a closed coordinator, refuses; nothing changes."""
    rig = rig_of()
    prefetch = rig.issue("r", 4)
    before = rig.ranks[0].book.replica.facts()
    with pytest.raises(ConfigError, match="cannot fail a tick: one rank alone"):
        rig.ranks[0].fail_tick(ValueError("no"))
    assert rig.ranks[0].book.replica.facts() == before
    rig.until_closed(prefetch)
    rig.ranks[0].close()
    with pytest.raises(CoordinatorClosed, match="cannot fail a tick"):
        rig.ranks[0].fail_tick(ValueError("no"))
