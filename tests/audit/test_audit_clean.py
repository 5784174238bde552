"""What an orderly run logs breaks no law, however its prefetches end."""

import random
from collections.abc import Callable

import pytest
from audit_stories import STORIES, run
from kit.rig import Rig

from lifecycle.audit import verify_log, verify_logs
from lifecycle.errors import SyncFailed
from lifecycle.events import Clamped, Committed, Discarded, Evicted, HostQuarantined
from lifecycle.layout import PRESETS
from lifecycle.policies import BestEffort, OnShortfall, Pressure, Timeout, WaitComplete
from lifecycle.reasons import Reason

RigOf = Callable[..., Rig]


def check(rig: Rig) -> None:
    """Find nothing in the logs of all ranks, together and each by itself."""
    logs = [tuple(log.records()) for log in rig.logs]
    assert not verify_logs(logs), "\n".join(map(str, verify_logs(logs)))
    for log in logs:
        assert not verify_log(log)


@pytest.mark.parametrize("story", STORIES)
def test_no_story_breaks_a_law(story: str) -> None:
    """The logs that the other tests spoil are clean before."""
    found = verify_logs(run(story))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("layout", PRESETS)
def test_complete_prefetches(rig_of: RigOf, layout: str, draft: bool, ranks: int) -> None:
    """Prefetches that read everything, one of them over what the index has, are clean in every layout."""
    rig = rig_of(layout, ranks, draft=draft)
    rig.run("a", 8)
    rig.run("b", 12, prompt="a")
    rig.take_loaded("a")
    rig.finish("a")
    check(rig)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shortfall", list(OnShortfall))
@pytest.mark.parametrize("layout", PRESETS)
def test_failed_pages(rig_of: RigOf, layout: str, shortfall: OnShortfall, ranks: int) -> None:
    """A page that fails in each pool in turn, on the last rank, breaks no law, whatever the rule makes of it."""
    rig = rig_of(layout, ranks, draft=True, shortfall=shortfall, batch_pages=3, capacity=24)
    for pool in rig.layout.pools:
        rig.stores[-1].say(pool.name, "1" * 8 + "c1", rig.prompt(pool.name, 10))
        rig.run(pool.name, 10)
    assert {type(event) for kind in (Committed, Clamped, Discarded) for event in rig.events(kind)} - {Clamped}
    check(rig)


@pytest.mark.parametrize("layout", PRESETS)
def test_aborts_at_every_stage(rig_of: RigOf, layout: str) -> None:
    """Aborted before the hit, with reads out, and superseded; the late answers change nothing."""
    rig = rig_of(layout, 2, batch_pages=2)
    for store in rig.stores:
        store.hold("kv")
    first = rig.issue("a", 8)
    rig.abort("a")
    second = rig.issue("b", 8)
    rig.until_held("kv")
    rig.tick(2)
    rig.abort("b")
    third = rig.issue("c", 8)
    rig.tick()
    fourth = rig.issue("c", 8, attempt=1)
    for store in rig.stores:
        store.open_all()
    for id_ in (first, second, third, fourth):
        rig.until_closed(id_)
    check(rig)


@pytest.mark.parametrize("layout", PRESETS)
def test_timeouts_and_lost_reads(rig_of: RigOf, layout: str) -> None:
    """Reads that come after the limit, and reads that never come."""
    rig = rig_of(
        layout, draft=True, stop=Timeout(1.0, 0.0, 1.0), lost_read_s=5.0, batch_pages=4, max_lost_reads=50, capacity=64
    )
    for round_, pool in enumerate(pool.name for pool in rig.layout.pools):
        rig.stores[0].hold(pool)
        id_ = rig.issue(pool, 8)
        rig.until_held(pool)
        rig.tick(2)
        rig.clock.advance(2)
        rig.tick(2)
        if round_ % 2:
            rig.clock.advance(9)
        else:
            rig.stores[0].open_all()
        rig.until_closed(id_)
        rig.stores[0].holding.clear()
    assert not rig.events(HostQuarantined) or rig.ranks[0].snapshot()["lost_reads"]
    check(rig)


@pytest.mark.parametrize("layout", PRESETS)
def test_pressure(rig_of: RigOf, layout: str) -> None:
    """Pages evicted, slots reused, plans cut, requests declined."""
    rig = rig_of(layout, 2, capacity=[10, 9], limit_tokens=48, threshold_pages=2)
    for number in range(6):
        rig.run(f"r{number}", 5 + number % 4)
    rig.issue("short", 1)
    rig.issue("x", 8)
    rig.issue("y", 8)
    assert rig.events(Evicted)
    check(rig)


def test_shutdown_with_reads_out(rig_of: RigOf) -> None:
    """Closed while a read is out: its pages are quarantined, and the log ends in order."""
    rig = rig_of("swa", 2, batch_pages=2)
    for store in rig.stores:
        store.hold("kv")
    rig.issue("a", 8)
    rig.until_held("kv")
    for coordinator in rig.ranks:
        coordinator.close(0.01)
    assert rig.events(Discarded)[0].reason is Reason.SHUTDOWN
    assert rig.events(HostQuarantined)
    check(rig)


def test_a_failed_round_is_no_fault_of_the_log(rig_of: RigOf) -> None:
    """One rank fails, all discard: what each logs from then on is its own."""
    rig = rig_of("dsa", 2)
    rig.run("a", 8)
    rig.issue("b", 8)
    rig.tick()

    def fails() -> None:
        raise RuntimeError("scripted: this rank fails")

    rig.ranks[1]._rank.residency.retry = fails
    with pytest.raises(SyncFailed):
        rig.tick()
    del rig.ranks[1]._rank.residency.retry
    for coordinator in rig.ranks:
        coordinator.close()
    assert rig.events(Discarded)[-1].reason is Reason.SYNC_FAILED
    check(rig)


def test_a_port_that_fails_for_a_while(rig_of: RigOf) -> None:
    """What host memory refuses is tried again, and done once."""
    rig = rig_of("swa")
    rig.stores[0].say("swa", "0" * 8, rig.prompt("r", 8))
    rig.memories[0].spy.down["release"] = 3
    rig.run("r", 8)
    check(rig)


@pytest.mark.parametrize("seed", range(6))
def test_a_walk(rig_of: RigOf, seed: int) -> None:
    """A random mixture of commands, failures, delays and ticks."""
    dice = random.Random(seed)
    rig = rig_of(
        dice.choice(list(PRESETS)), dice.choice([1, 2]), draft=dice.random() < 0.5, capacity=dice.choice([8, 20]),
        stop=dice.choice([WaitComplete(), BestEffort(), Timeout(0.5, 0.0, 0.5)]), pressure=dice.choice(list(Pressure)),
        shortfall=dice.choice(list(OnShortfall)), batch_pages=dice.choice([1, 3, 128]), lost_read_s=3.0, limit_tokens=100,
    )  # fmt: skip
    pools = [pool.name for pool in rig.layout.pools]
    attempts = dict.fromkeys("abcd", 0)
    for _ in range(40):
        name, store = dice.choice("abcd"), dice.choice(rig.stores)
        match dice.randrange(8):
            case 0 | 1:
                attempts[name] += 1
                rig.issue(name, dice.randint(1, 12), attempt=attempts[name], prompt=dice.choice("pq"))
            case 2 if attempts[name]:
                rig.abort(name)
            case 3 if attempts[name]:
                rig.ready(name)
            case 4:
                answers = "".join(dice.choice("11110ac") for _ in range(12))
                store.say(dice.choice(pools), answers, rig.prompt(dice.choice("pq"), 12))
            case 5:
                store.hold(dice.choice(pools))
            case 6:
                store.open_all()
                rig.clock.advance(dice.choice([0.1, 1.0, 4.0]))
            case _:
                rig.tick(2)
    for store in rig.stores:
        store.open_all()
    check(rig)
