"""Our rules are the rules that SGLang runs: random cases through both, and each rule by a case of its own."""

import os
import warnings
from dataclasses import replace

import pytest

pytest.importorskip("sglang.srt", reason="needs SGLang (tests/sglang/setup.sh)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from agreement import compare, run_cases, run_ranks
    from cases import Case, run_original, run_ours

from lifecycle import coverage
from lifecycle.layout import KV

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]
CASES = int(os.environ.get("SGLANG_CASES", "400"))
RANK_CASES = int(os.environ.get("SGLANG_RANK_CASES", "10"))


def case(layout: str, good: dict[str, str], kind: str = "unified", **more: object) -> Case:
    """Return a case in which everything is there but what `good` says ("1101"), and nothing cuts it short."""
    span = len(good["kv"])
    flags = {pool: tuple(each == "1" for each in bits) for pool, bits in good.items()}
    pools = {"swa": {"swa": 40}, "deepseek_v4": {"swa": 40}, "mamba": {"mamba": 40}}.get(layout, {})
    for pool in agreement_pools(layout):
        flags.setdefault(pool, (True,) * span)
    plain = Case(kind, layout, "wait_complete", 1, 0, span, (span,), (flags,), {"kv": 40, **pools}, 0, "never", 0, "stop")
    return replace(plain, **more)  # type: ignore[arg-type]


def agreement_pools(layout: str) -> list[str]:
    """Return the names of all pools of a layout."""
    from ours import LAYOUTS

    return [pool.name for pool in LAYOUTS[layout].pools]


def both(one: Case) -> tuple[int, dict[str, int]]:
    """Return the usable length and the pages that stay, after checking that both sides have the same."""
    theirs, ours, _ = compare(one)
    assert theirs == ours
    return ours.usable, ours.held


def test_random_cases_agree() -> None:
    """Same usable length, pages, locks, occupancy and credit, whatever is read and whenever it is cut short."""
    ends, differences = run_cases(0, CASES)
    assert differences == []
    assert len({end[2] for end in ends} & {"committed", "clamped", "discarded", "declined"}) == 4


def test_random_cases_agree_over_two_ranks() -> None:
    """Two processes over Gloo, each with a shard of its own, agree with SGLang's two."""
    _, differences = run_ranks(0, RANK_CASES, 2)
    assert differences == []


def _forgets_a_page(rule):  # type: ignore[no-untyped-def]
    """Return the outcome rule that publishes a page less than was agreed, wherever it publishes a part."""

    def wrong(layout, degrade, start, plan, left_out, agreed):  # type: ignore[no-untyped-def]
        less = {pool: max(start, end - 1) for pool, end in agreed.items()} if agreed[KV] < plan else agreed
        return rule(layout, degrade, start, plan, left_out, less)

    return wrong


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rule forgot a page of what it clamps, the results would differ, and only there: nothing else is counted."""
    clamped = case("kv_only", {"kv": "11111000"})
    assert compare(clamped)[0].usable == compare(clamped)[1].usable == 5
    right, _ = run_cases(0, 60)
    with monkeypatch.context() as broken:
        broken.setattr("lifecycle.decide.coverage.outcome", _forgets_a_page(coverage.outcome))
        theirs, ours, end = compare(clamped)
        assert (theirs.usable, ours.usable, end) == (5, 4, ("clamped",))
        ends, differences = run_cases(0, 60)
    assert sum(ends.values()) == sum(right.values()) == 60, "every case has run to its end"
    assert differences
    assert all("SGLang Result(usable=" in line and "ours   Result(usable=" in line for line in differences)
    assert run_cases(0, 60) == (right, [])


@pytest.mark.parametrize("kind", ["unified", "hiradix"])
def test_leading_run(kind: str) -> None:
    """A hole ends the prefix: pages behind it do not count, though they arrived."""
    assert both(case("kv_only", {"kv": "111011"}, kind)) == (3, {"kv": 3})
    assert both(case("dsa", {"kv": "111111", "indexer": "110111"}, kind)) == (2, {"kv": 2})


@pytest.mark.parametrize("kind", ["unified", "hiradix"])
def test_clamp_for_an_indexer_that_rides_on_kv(kind: str) -> None:
    """The usable length is the least of kv and the indexer."""
    assert both(case("dsa", {"kv": "11111111", "indexer": "11111000"}, kind)) == (5, {"kv": 5})


@pytest.mark.parametrize(("layout", "good", "kept"), [
    ("swa", {"kv": "111111", "swa": "10"}, False), ("swa", {"kv": "111111", "swa": "11"}, True),
    ("swa", {"kv": "111110", "swa": "11"}, False), ("mamba", {"kv": "1111", "mamba": "0"}, False),
    ("mamba", {"kv": "1111", "mamba": "1"}, True), ("deepseek_v4", {"kv": "1111", "deepseek_v4_c4": "1101"}, False),
    ("deepseek_v4", {"kv": "1111", "deepseek_v4_c128_state": "10"}, False), ("deepseek_v4", {"kv": "1111"}, True),
])  # fmt: skip
def test_all_or_nothing(layout: str, good: dict[str, str], kept: bool) -> None:
    """With a window or a state at the end, the plan is published whole or not at all, and every page goes back."""
    usable, held = both(case(layout, good))
    assert usable == (len(good["kv"]) if kept else 0)
    assert any(held.values()) is kept


@pytest.mark.parametrize(("kind", "layout", "usable", "held"), [
    ("unified", "kv_only", 4, {"kv": 4}), ("hiradix", "kv_only", 4, {"kv": 4}),
    ("unified", "dsa", 0, {"kv": 0}), ("hiradix", "dsa", 0, {"kv": 0}),
    ("unified", "swa", 0, {"kv": 0, "swa": 0}), ("unified", "mamba", 0, {"kv": 0, "mamba": 0}),
    ("unified", "deepseek_v4", 0, {"kv": 0, "swa": 0}),
])  # fmt: skip
@pytest.mark.parametrize("how", ["stop", "abort"])
def test_nothing_is_read_or_counts_after_termination(
    kind: str, layout: str, usable: int, held: dict[str, int], how: str
) -> None:
    """Stopped in the second of three reads: the third is not made, no sidecar is read; what came is published or goes back."""
    cut = case(layout, {"kv": "1" * 10}, kind, stop="best_effort", point="reading", batch=1, how=how)
    theirs, reads = run_original(cut)
    assert reads == ["kv", "kv"]
    mine, ours = run_ours(cut, reads)
    assert ours.store.batches == 2
    assert mine == theirs
    if how == "abort":
        usable, held = 0, dict.fromkeys(held, 0)
    assert (mine.usable, mine.held, mine.locks, mine.occupied_tokens) == (usable, held, 0, 0)


def test_one_packed_min() -> None:
    """Ranks reduce all pools together, pool by pool, and only then take the least: one collective, no other result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import originals
    first = case("dsa", {"kv": "11111111", "indexer": "11111110"})
    world = originals.unified("dsa", {"kv": 40})
    seen = []

    def peer(tensor, op):  # type: ignore[no-untyped-def]
        if len(tensor) == 2 and "MIN" in str(op):
            seen.append(tensor.tolist())
            tensor[0], tensor[1] = min(int(tensor[0]), 6 * 4), min(int(tensor[1]), 8)

    world.cache._all_reduce_attn_groups = peer
    left, reads = run_original(first, world=world)
    assert seen == [[32, 7]]
    assert left.usable == 6
    mine, _ = run_ours(replace(first, good=({"kv": (True,) * 6 + (False,) * 2, "indexer": (True,) * 8},)), reads)
    assert mine == left
