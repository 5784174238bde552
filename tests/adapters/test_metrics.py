"""Prometheus metrics: every hit token ends in one place, labels are bounded, nothing is kept of what is closed."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rig import PAGE_TOKENS, Rig
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client import Counter as PrometheusCounter

from lifecycle.adapters.metrics import PrometheusObserver
from lifecycle.adapters.observe import ObservedEventLog, replay
from lifecycle.adapters.stories import Stories, Story, account
from lifecycle.errors import ConfigError
from lifecycle.events import (
    Clamped,
    Committed,
    Declined,
    Discarded,
    EventsLost,
    Issued,
    ObligationStuck,
    PageOverwritten,
    PagesScrubbed,
    PlanAgreed,
    Record,
    TokensCredited,
)  # fmt: skip
from lifecycle.keys import page_keys
from lifecycle.layout import dsa
from lifecycle.policies import BestEffort, Policies, Pressure, Retry
from lifecycle.reasons import Reason
from lifecycle.runtime import Coordinator
from lifecycle.testing.sim_run import generate, quiet, run
from lifecycle.testing.sim_setup import draw
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex

RigOf = Callable[..., Rig]
LABELS = {"reason", "outcome", "state", "pool", "result", "use", "law", "rank", "le"}


def samples(registry: CollectorRegistry, prefix: str = "lifecycle:") -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield every sample, without the prefix."""
    for family in registry.collect():
        for sample in family.samples:
            assert sample.name.startswith(prefix)
            yield sample.name.removeprefix(prefix), sample.labels, sample.value


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return the sum over the samples with these labels."""
    return sum(v for n, own, v in samples(registry) if n == name and labels.items() <= own.items())


def by(registry: CollectorRegistry, name: str, label: str) -> dict[str, float]:
    """Return what is not zero, by a label."""
    found: Counter[str] = Counter()
    for n, own, v in samples(registry):
        if n == name and v:
            found[own[label]] += v  # type: ignore[assignment]  # whole numbers
    return dict(found)


def check_sum(registry: CollectorRegistry) -> tuple[float, float, float]:
    """Fail unless hit = used + unfulfilled; return the three."""
    hit = value(registry, "storage_prefetch_hit_tokens_total")
    used = value(registry, "prefetched_tokens_total")
    unfulfilled = value(registry, "storage_prefetch_unfulfilled_tokens_total")
    assert hit == used + unfulfilled
    return hit, used, unfulfilled


def of_log(records: Iterable[Record], **settings: Any) -> CollectorRegistry:
    """Return the metrics of a log."""
    registry = CollectorRegistry()
    replay(records, PrometheusObserver(registry, **settings))
    return registry


# --- where the tokens go --------------------------------------------------------------------------------------------------


@given(
    start=st.integers(0, 5),
    cuts=st.tuples(*[st.integers(0, 6)] * 4),
    kind=st.sampled_from(["committed", "clamped", "discarded"]),
    reason=st.sampled_from(list(Reason)),
    planned=st.booleans(),
)
def test_every_hit_token_ends_in_exactly_one_place(
    start: int, cuts: tuple[int, ...], kind: str, reason: Reason, planned: bool
) -> None:
    """Whatever the plan and the outcome: hit = used + unfulfilled, and no part is negative."""
    used, duplicate, lost, over = cuts
    usable = start + used + duplicate
    plan = usable if kind == "committed" else usable + lost
    story = Story(Issued(1, "r", 0, start, plan + over, "", "", 0), 0)
    story.hit_page = plan + over
    cut = Reason.HOST_CAPACITY if over else None
    story.plan = PlanAgreed(1, plan + over, plan, cut, {}, ()) if planned or kind != "discarded" else None
    taken = {"kv": ((start + duplicate, usable),)} if used else {}
    outcome = {
        "committed": Committed(1, usable, taken, ()),
        "clamped": Clamped(1, usable, taken, (), reason),
        "discarded": Discarded(1, reason, None),
    }[kind]
    tokens = account(story, outcome, 16)  # type: ignore[arg-type]
    assert tokens.hit == (plan + over - start) * 16 == tokens.used + sum(tokens.unfulfilled.values())
    assert tokens.used == (0 if kind == "discarded" else used * 16)
    assert all(count > 0 for count in tokens.unfulfilled.values())


def test_a_prefetch_whose_shard_never_answered_has_no_hit() -> None:
    """Without a hit there is nothing to use or to miss."""
    story = Story(Issued(1, "r", 0, 3, 9, "", "", 0), 0)
    tokens = account(story, Discarded(1, Reason.QUEUE_TIMEOUT, None), 16)
    assert (tokens.hit, tokens.used, dict(tokens.unfulfilled)) == (0, 0, {})


def test_each_place_by_its_reason(rig_of: RigOf) -> None:
    """A full read, one cut by host memory, a short read, a miss, an abort and a duplicate each count where they belong."""
    rig = rig_of(capacity=8)
    rig.run("full", 4)
    rig.stores[0].say("kv", "110", rig.prompt("short", 3))
    rig.run("short", 3)
    rig.stores[0].show("kv", "000", rig.prompt("miss", 3))
    rig.run("miss", 3)
    rig.stores[0].hold("kv")
    rig.issue("gone", 2)
    rig.until_held()
    rig.abort("gone")
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    rig.run("large", 12)
    registry = of_log(rig.logs[0].records())
    assert by(registry, "storage_prefetch_unfulfilled_tokens_total", "reason") == {
        "read_failed": PAGE_TOKENS,
        "aborted": 2 * PAGE_TOKENS,
        "host_capacity": 4 * PAGE_TOKENS,
    }
    assert check_sum(registry)[1] == (4 + 2 + 8) * PAGE_TOKENS


def test_public_fault_sglang_37503_each_token_is_lost_for_one_cause(rig_of: RigOf) -> None:
    """Of 8 pages that L3 held, 5 can be used: the other 3 are unfulfilled by the reason of the short read, in all 8."""
    rig = rig_of("dsa")
    rig.stores[0].say("indexer", "11111011", rig.prompt("r", 8))
    rig.run("r", 8)
    registry = of_log(rig.logs[0].records())
    assert check_sum(registry) == (8 * PAGE_TOKENS, 5 * PAGE_TOKENS, 3 * PAGE_TOKENS)
    assert by(registry, "storage_prefetch_unfulfilled_tokens_total", "reason") == {"read_failed": 3 * PAGE_TOKENS}


def test_public_fault_sglang_33984_a_decline_is_on_record(rig_of: RigOf) -> None:
    """What the rate limit turned away is counted by its reason; occupancy and limit stand beside it."""
    rig = rig_of(limit_tokens=8 * PAGE_TOKENS)
    rig.stores[0].hold("kv")
    rig.issue("a", 6)
    assert isinstance(rig.issue("b", 6), Declined)
    registry = of_log(rig.logs[0].records())
    assert value(registry, "prefetch_outcomes_total", outcome="declined", reason="rate_limited") == 1
    assert value(registry, "prefetch_occupied_tokens") == 6 * PAGE_TOKENS
    assert value(registry, "prefetch_limit_tokens") == 8 * PAGE_TOKENS
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    assert value(of_log(rig.logs[0].records()), "prefetch_occupied_tokens") == 0


def test_pages_that_the_index_had_by_then_are_duplicates(rig_of: RigOf) -> None:
    """Two prefetches of one prompt: what the second one read is unfulfilled as `duplicate`."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    rig.issue("a", 4, prompt="p")
    rig.issue("b", 4, prompt="p")
    rig.until_held(calls=2)
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    registry = of_log(rig.logs[0].records())
    assert by(registry, "storage_prefetch_unfulfilled_tokens_total", "reason") == {"duplicate": 4 * PAGE_TOKENS}
    assert check_sum(registry) == (8 * PAGE_TOKENS, 4 * PAGE_TOKENS, 4 * PAGE_TOKENS)


@pytest.mark.parametrize("seed", range(12))
def test_simulated_runs_add_up(seed: int) -> None:
    """Failing stores, ports and ranks, on any layout: the tokens add up, and counts equal those of the log itself."""
    setup = draw(seed)
    with quiet():
        world, failure = run(setup, generate(setup, 40))
    assert world is not None
    assert failure is None, failure
    logs = [log for life in world.lives for log in life]
    registry = CollectorRegistry()
    for log in logs:
        replay(log, PrometheusObserver(registry))
        check_sum(registry)
    events = [record.event for log in logs for record in log]
    if any(isinstance(event, EventsLost) for event in events):
        assert value(registry, "prefetch_lost_events_total") > 0
        return  # what was in flight then is not counted
    assert value(registry, "prefetched_tokens_total") == sum(e.tokens for e in events if isinstance(e, TokensCredited))
    outcomes: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Committed | Clamped | Discarded | Declined):
            outcomes[type(event).__name__.lower()] += 1
    assert by(registry, "prefetch_outcomes_total", "outcome") == dict(outcomes)
    for rank in world.ranks:
        occupied = rank.coordinator.book.replica.occupied_tokens
        assert value(registry, "prefetch_occupied_tokens", rank=str(rank.coordinator._rank.transport.rank)) == occupied


# --- live -----------------------------------------------------------------------------------------------------------------


def test_live_metrics_equal_those_of_the_log() -> None:
    """What was counted while the rank ran is what its log gives afterwards, sample by sample."""
    layout, live = dsa(), CollectorRegistry()
    page_bytes = {pool.name: 8 for pool in layout.pools}
    store, index = MemoryPageStore(page_bytes), RadixIndex(layout)
    log = ObservedEventLog(MemoryEventLog(), PrometheusObserver(live))
    memory = TorchHostMemory(layout, {"kv": 16}, page_bytes)
    coordinator = Coordinator(layout, Policies(), PAGE_TOKENS, store=store, memory=memory, index=index, events=log)
    for number, indexed in enumerate((6, 3, 0)):
        keys = page_keys(range(1000 * number, 1000 * number + 6 * PAGE_TOKENS), PAGE_TOKENS)
        store.write("kv", keys, [memoryview(bytes(8))] * 6)
        store.write("indexer", keys[:indexed], [memoryview(bytes(8))] * indexed)
        coordinator.issue(f"r{number}", 0, keys, index.match(keys, coordinator.tick_number).anchor)
    while coordinator.snapshot()["in_flight"]:
        coordinator.tick()
    coordinator.close()
    assert log.wait_observed()
    replayed = of_log(log.records())
    log.close()

    def counted(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
        return [sample for sample in samples(registry) if not sample[0].endswith("_created")]

    assert counted(live) == counted(replayed)
    assert check_sum(live)[1] == 9 * PAGE_TOKENS


def test_gauges_follow_what_is_in_flight(rig_of: RigOf) -> None:
    """In flight by state, occupancy and held pages rise and fall with one prefetch, and equal the book."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    rig.issue("r", 4)
    rig.until_held()
    registry = of_log(rig.logs[0].records())
    assert by(registry, "prefetches_in_flight", "state") == {"transferring": 1}
    assert value(registry, "prefetch_occupied_tokens") == 4 * PAGE_TOKENS
    assert value(registry, "prefetch_limit_tokens") == rig.policies.limit_tokens
    assert value(registry, "prefetch_host_pages", pool="kv", use="held") == 4
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    registry = of_log(rig.logs[0].records())
    assert by(registry, "prefetches_in_flight", "state") == {}
    assert value(registry, "prefetch_occupied_tokens") == 0
    assert by(registry, "prefetch_host_pages", "use") == {"resident": 4}
    assert value(registry, "prefetch_host_capacity_pages") == 32


def test_waiting_requests_are_shown_by_reason(rig_of: RigOf) -> None:
    """Who waits for room and who waits to ask again are counted while they wait, and no longer."""
    rig = rig_of(limit_tokens=8 * PAGE_TOKENS, retry=Retry(every_ticks=50))
    rig.stores[0].show("kv", "0000", rig.prompt("missed", 4))
    rig.until_closed(rig.issue("missed", 4))
    rig.stores[0].hold("kv")
    rig.issue("first", 8)
    rig.issue("second", 8)
    shown = "prefetch_waiting_requests"
    assert by(of_log(rig.logs[0].records()), shown, "reason") == {"full_miss": 1, "rate_limited": 1}
    rig.stores[0].open_all()
    for request in ("missed", "second"):
        rig.abort(request)
    assert by(of_log(rig.logs[0].records()), shown, "reason") == {}


def test_what_a_scrub_finds_is_counted(rig_of: RigOf) -> None:
    """Pages hashed again, and by pool those that had changed."""
    found = [PageOverwritten(1, "kv", 3, 7, 11, 12), PageOverwritten(1, "kv", 4, 8, 13, 14), PagesScrubbed(9, 1, 2)]
    opened = next(iter(rig_of().logs[0].records()))
    registry = of_log([opened, *(Record(place, place, event) for place, event in enumerate(found, 1))])
    assert value(registry, "prefetch_scrubbed_pages_total") == 9
    assert by(registry, "prefetch_overwritten_pages_total", "pool") == {"kv": 2}


def test_times_are_queue_wait_read_and_sync(rig_of: RigOf) -> None:
    """Queue wait ends at the first claim, read at the end of reading; sync is counted where ranks agreed."""
    rig = rig_of(ranks=2)
    rig.stores[0].hold("kv")
    rig.stores[1].hold("kv")
    rig.issue("r", 4)
    rig.until_held()
    rig.clock.advance(2)
    for store in rig.stores:
        store.open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    registry = of_log(rig.logs[0].records())
    assert value(registry, "prefetch_queue_wait_seconds_count") == 1
    assert value(registry, "prefetch_read_seconds_sum") == pytest.approx(2)
    assert value(registry, "prefetch_sync_seconds_count") == 1
    assert value(registry, "prefetch_rounds_total") == value(registry, "prefetch_round_seconds_count") > 0


def test_one_rank_alone_syncs_with_nobody(rig_of: RigOf) -> None:
    """Without peers there is no sync time and no round."""
    rig = rig_of()
    rig.run("r", 4)
    registry = of_log(rig.logs[0].records())
    assert value(registry, "prefetch_sync_seconds_count") == value(registry, "prefetch_rounds_total") == 0


def test_lost_reads_and_quarantine_are_counted(rig_of: RigOf) -> None:
    """A read that is never answered: a lost read, quarantined pages here, and pages off the budget."""
    rig = rig_of(lost_read_s=1.0)
    rig.stores[0].hold("kv")
    rig.issue("r", 4)
    rig.until_held()
    rig.clock.advance(2)
    rig.until(lambda: not rig.ranks[0].book.local)
    rig.tick()
    registry = of_log(rig.logs[0].records())
    assert value(registry, "prefetch_lost_reads_total", pool="kv") == 1
    assert value(registry, "prefetch_host_pages", use="quarantined") == 4
    assert value(registry, "prefetch_quarantined_pages", pool="kv") == 4
    assert check_sum(registry)[0] == 4 * PAGE_TOKENS


def test_stuck_obligations_rise_and_fall(rig_of: RigOf) -> None:
    """A port that refuses is counted as stuck until it gives in; the report stays counted."""
    rig = rig_of(stuck_after_tries=2)
    rig.stores[0].say("kv", "1110", rig.prompt("r", 4))
    rig.memories[0].spy.down["release"] = 3
    rig.issue("r", 4)
    rig.until(lambda: rig.events(ObligationStuck))
    assert value(of_log(rig.logs[0].records()), "prefetch_stuck_obligations") == 1
    rig.until(lambda: not rig.ranks[0].book.local)
    registry = of_log(rig.logs[0].records())
    assert value(registry, "prefetch_stuck_obligations") == 0
    assert value(registry, "prefetch_stuck_reports_total") == 1


def test_violations_are_counted_by_law(rig_of: RigOf) -> None:
    """With `verify`, a log that was tampered with shows the law it breaks; a good one shows none; off, there is none."""
    rig = rig_of()
    rig.run("r", 4)
    good: Sequence[Record] = list(rig.logs[0].records())
    assert value(of_log(good, verify=True), "prefetch_violations_total") == 0
    twice = next(record for record in good if isinstance(record.event, TokensCredited))
    bad = [*good, Record(len(good), good[-1].at_ns, twice.event)]
    assert "exactly_once" in by(of_log(bad, verify=True), "prefetch_violations_total", "law")
    assert [n for n, _, _ in samples(of_log(good)) if n == "prefetch_violations_total"] == []


# --- names, labels, memory ------------------------------------------------------------------------------------------------


def test_names_are_those_that_sglang_users_know(rig_of: RigOf) -> None:
    """With its prefix, the storage metrics have SGLang's names."""
    rig = rig_of()
    rig.run("r", 4)
    registry = CollectorRegistry()
    replay(rig.logs[0].records(), PrometheusObserver(registry, prefix="sglang:"))
    names = {family.name for family in registry.collect()}
    theirs = {"prefetched_tokens", "storage_prefetch_hit_tokens", "storage_prefetch_unfulfilled_tokens", "prefetch_pgs"}
    assert {f"sglang:{name}" for name in theirs | {"prefetch_bandwidth"}} <= names


def test_the_docs_name_every_family() -> None:
    """The paragraph on metrics lists all of them with their labels, and nothing that is not there."""
    text = (Path(__file__).parents[2] / "lifecycle" / "docs" / "operate.md").read_text()
    (paragraph,) = re.findall(r"^\*\*Metrics\.\*\* (.*?)\n\n", text, re.DOTALL | re.MULTILINE)
    listed = dict(re.findall(r"`((?:storage_)?prefetch\w*_\w+)(?:{([\w,]+)})?`", paragraph))
    observer = PrometheusObserver(CollectorRegistry())
    made = {}
    for family in observer._families:
        (described,) = family.describe()
        name = described.name.removeprefix("lifecycle:") + ("_total" if described.type == "counter" else "")
        made[name] = ",".join(label for label in family._labelnames if label != "rank")
    mentioned = {name: labels for name, labels in listed.items() if labels}
    assert listed.keys() == made.keys()
    assert mentioned == {name: labels for name, labels in made.items() if labels}


def test_labels_are_bounded_and_hold_no_request(rig_of: RigOf) -> None:
    """The number of samples does not grow with requests, and no label holds an id."""
    rig = rig_of(capacity=200, limit_tokens=64)
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    sizes = []
    seen = 0
    for number in range(1, 41):
        rig.run("secret" + "x" * number, 4)
        if number in (20, 40):
            records = list(rig.logs[0].records())
            observer.observe(records[seen:])
            seen = len(records)
            sizes.append(len(list(samples(registry))))
    assert sizes[0] == sizes[1]
    assert {label for _, labels, _ in samples(registry) for label in labels} <= LABELS
    assert not any("secret" in text for _, labels, _ in samples(registry) for text in labels.values())


def test_nothing_is_kept_of_what_is_closed(rig_of: RigOf) -> None:
    """After the close of every prefetch the fold is empty."""
    rig = rig_of("dsa", ranks=2, stop=BestEffort())
    for number in range(6):
        rig.run(f"r{number}", 4)
    stories = Stories()
    for record in rig.logs[0].records():
        stories.feed(record)
    assert (stories.of, stories.occupied_tokens, set(stories.by_state.values())) == ({}, 0, {0})


def test_two_ranks_share_a_registry(rig_of: RigOf) -> None:
    """Ranks of one process are told apart by the label `rank`."""
    rig, registry = rig_of(ranks=2, pressure=Pressure.REVOKE), CollectorRegistry()
    rig.run("r", 4)
    for log in rig.logs:
        replay(log.records(), PrometheusObserver(registry, {"model_name": "m"}))
    ranks = {labels["rank"]: v for n, labels, v in samples(registry) if n == "prefetched_tokens_total"}
    assert ranks == {"0": 4 * PAGE_TOKENS, "1": 4 * PAGE_TOKENS}
    assert all(labels["model_name"] == "m" for _, labels, _ in samples(registry))


def test_a_name_that_is_taken_is_refused_and_nothing_is_left() -> None:
    """An engine that has the name already gets an error, and its registry as it was."""
    registry = CollectorRegistry()
    PrometheusCounter("sglang:prefetched_tokens_total", "The engine's own.", registry=registry)
    with pytest.raises(ConfigError, match="use another prefix"):
        PrometheusObserver(registry, prefix="sglang:")
    assert [family.name for family in registry.collect()] == ["sglang:prefetched_tokens"]
    PrometheusObserver(registry)


def test_a_label_of_the_families_own_is_refused() -> None:
    """A common label named `reason` would hide the one that says why."""
    with pytest.raises(ConfigError, match="reason"):
        PrometheusObserver(CollectorRegistry(), {"reason": "x"})


def test_the_default_registry_is_the_process_own() -> None:
    """Without a registry, the metrics are where prometheus-client serves from."""
    observer = PrometheusObserver(prefix="test_default:")
    assert any(family.name.startswith("test_default:") for family in REGISTRY.collect())
    for family in observer._families:
        REGISTRY.unregister(family)


def test_missing_records_forget_what_is_in_flight(rig_of: RigOf) -> None:
    """After a gap nothing hangs in the gauges, the loss is counted, and what begins later counts as ever."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    rig.issue("a", 4)
    rig.until_held()
    early = list(rig.logs[0].records())
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    gap = list(rig.logs[0].records())[len(early) :]
    rig.run("b", 3)
    late = list(rig.logs[0].records())[len(early) + len(gap) :]
    lost = Record(gap[0].seq, gap[0].at_ns, EventsLost(len(gap), gap[0].seq, "scripted"))
    registry = of_log([*early, lost, *late])
    assert value(registry, "prefetch_lost_events_total") == len(gap)
    assert by(registry, "prefetches_in_flight", "state") == {}
    assert check_sum(registry)[0] == 3 * PAGE_TOKENS
