"""Requests that wait, as metrics and log lines: who waits by reason, what was tried again, and tokens that still add up."""

from collections.abc import Callable

import structlog
from kit.rig import PAGE_TOKENS, Rig
from prometheus_client import CollectorRegistry

from lifecycle.adapters.logs import StructlogObserver
from lifecycle.adapters.metrics import PrometheusObserver
from lifecycle.adapters.observe import replay
from lifecycle.adapters.stories import Stories
from lifecycle.events import Committed, Event, Issued, WaitBegan, WaitEnded
from lifecycle.policies import Retry
from lifecycle.testing.sim_run import generate, quiet, run
from lifecycle.testing.sim_setup import draw

RigOf = Callable[..., Rig]


def waited(rig_of: RigOf) -> Rig:
    """Return a rig on which `b` was given up in line for room, and `m` missed, was asked again and hit."""
    rig = rig_of(limit_tokens=8 * PAGE_TOKENS, retry=Retry(every_ticks=2, give_up_ticks=3))
    rig.stores[0].show("kv", "0" * 8, rig.prompt("m", 8))
    rig.run("m")
    rig.stores[0].show("kv", "1" * 8, rig.prompt("m", 8))
    rig.until(lambda: rig.events(Committed))
    rig.until(lambda: not rig.ranks[0].book.local)
    rig.stores[0].hold("")
    rig.issue("a")
    rig.issue("b")
    rig.tick(5)
    rig.abort("a")
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    return rig


def metrics_at(rig: Rig, kind: type[Event], nth: int = 0) -> CollectorRegistry:
    """Return the metrics up to the nth event of a kind, that one included."""
    records = list(rig.logs[0].records())
    place = [place for place, record in enumerate(records) if type(record.event) is kind][nth]
    registry = CollectorRegistry()
    replay(records[: place + 1], PrometheusObserver(registry))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return one sample, or the sum over all with these labels."""
    found = [sample for family in registry.collect() for sample in family.samples if sample.name == f"lifecycle:{name}"]
    return sum(sample.value for sample in found if labels.items() <= sample.labels.items())


def test_who_waits_is_a_gauge_by_reason(rig_of: RigOf) -> None:
    """Up as one begins to wait, down as it is tried or given up."""
    rig = waited(rig_of)
    for nth, reason in enumerate(("full_miss", "rate_limited")):
        assert value(metrics_at(rig, WaitBegan, nth), "prefetch_waiting_requests", reason=reason) == 1
        assert value(metrics_at(rig, WaitEnded, nth), "prefetch_waiting_requests") == 0


def test_what_is_tried_again_is_counted_by_why_it_waited(rig_of: RigOf) -> None:
    """Once, where it is tried; what is given up is no retry."""
    rig = waited(rig_of)
    assert value(metrics_at(rig, WaitBegan), "prefetch_retries_total") == 0
    assert value(metrics_at(rig, WaitEnded, 1), "prefetch_retries_total", reason="full_miss") == 1
    assert value(metrics_at(rig, WaitEnded, 1), "prefetch_retries_total") == 1


def test_tokens_add_up_with_several_prefetches_of_one_attempt(rig_of: RigOf) -> None:
    """The miss counts no hit, and the one that hit counts its own."""
    registry = metrics_at(waited(rig_of), Committed)
    hit, used = value(registry, "storage_prefetch_hit_tokens_total"), value(registry, "prefetched_tokens_total")
    assert hit == used == 8 * PAGE_TOKENS
    assert value(registry, "storage_prefetch_unfulfilled_tokens_total") == 0


def test_the_gauge_is_what_the_replica_holds_whatever_happens() -> None:
    """Over simulated runs with retries, aborts, ends and restarts, at each moment from the log alone."""
    seen = 0
    for seed in range(24):
        with quiet():
            world, _ = run(draw(seed, fault_rate=0.0), generate(draw(seed, fault_rate=0.0), 150))
        assert world is not None
        for life in world.lives:
            stories, waiting = Stories(), set[str]()
            for record in life[0]:
                stories.feed(record)
                event = record.event
                if isinstance(event, WaitBegan):
                    waiting.add(event.request)
                elif isinstance(event, (WaitEnded, Issued)):
                    waiting.discard(event.request)
                assert sum(stories.by_wait.values()) == len(stories.waiting)
                assert set(stories.waiting) <= waiting
                seen += len(waiting)
            assert not stories.waiting
    assert seen


def test_a_wait_is_told_at_debug_and_given_up_at_info(rig_of: RigOf) -> None:
    """One line each, bound to the request; an operator sees the one that came to nothing."""
    rig = waited(rig_of)
    with structlog.testing.capture_logs() as lines:
        replay(rig.logs[0].records(), StructlogObserver(structlog.get_logger()))
    told = [(line["log_level"], line["event"], line["request"]) for line in lines if "wait" in line["event"]]
    assert told == [("debug", "wait_began", "m"), ("debug", "wait_ended", "m"), ("debug", "wait_began", "b")]
    (given_up,) = [line for line in lines if "given up" in line["event"]]
    assert (given_up["log_level"], given_up["request"], given_up["reason"]) == ("info", "b", "rate_limited")
