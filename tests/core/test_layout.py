"""Pool declarations: the presets, what is refused, and the rule that follows from them."""

import pytest

from lifecycle.errors import ConfigError, LayoutError
from lifecycle.layout import (
    KV,
    PRESETS,
    AllPages,
    Layout,
    Need,
    OutcomeRule,
    Pool,
    TrailingPages,
    deepseek_v4,
    dsa,
    mamba,
    preset,
    swa,
)

KV_POOL = Pool(KV)
CLAMP, NOTHING = OutcomeRule.CLAMP, OutcomeRule.ALL_OR_NOTHING

# name: pools in reading order, pools with slots of their own, rule, rule under `degrade`
EXPECTED = {
    "kv_only": (["kv"], ["kv"], OutcomeRule.KV, OutcomeRule.KV),
    "dsa": (["kv", "indexer"], ["kv"], CLAMP, CLAMP),
    "swa": (["kv", "swa"], ["kv", "swa"], NOTHING, OutcomeRule.KV),
    "mamba": (["kv", "mamba"], ["kv", "mamba"], NOTHING, NOTHING),
    "deepseek_v4": (
        ["kv", "c4", "c4_indexer", "c128", "swa", "c4_state", "c4_indexer_state", "c128_state"],
        ["kv", "swa"],
        NOTHING,
        NOTHING,
    ),
}


def test_every_preset_is_expected_here() -> None:
    """A preset that is added gets a line in this table."""
    assert set(PRESETS) == set(EXPECTED)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_preset_has_its_pools_and_its_rule(name: str, draft: bool) -> None:
    """A draft pool joins kv's riders and changes neither the rule nor what a prefix needs."""
    pools, own, rule, degraded = EXPECTED[name]
    layout = preset(name, draft)
    names = [p.name for p in layout.pools]
    assert [n for n in names if n != "draft"] == pools
    assert ("draft" in names) is draft
    assert [p.name for p in layout.own] == own
    assert [p.name for p in layout.required()] == pools
    assert layout.rule() is rule
    assert layout.rule(degrade=True) is degraded


@pytest.mark.parametrize("name", EXPECTED)
def test_draft_rides_on_kv_and_is_optional(name: str) -> None:
    """The draft pool uses kv's slots, is read with them, and is never required."""
    layout = preset(name, draft=True)
    draft = layout.pool("draft")
    assert (draft.rides_on, draft.need, layout.owner("draft")) == (KV, Need.OPTIONAL, KV)
    assert draft in layout.groups[0]
    assert draft not in layout.required()


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_groups_are_an_owner_and_its_riders_in_reading_order(name: str, draft: bool) -> None:
    """Each pool is in one group, after the pool whose slots it uses, and kv's group comes first."""
    layout = preset(name, draft)
    assert [p for group in layout.groups for p in group] == list(layout.pools)
    assert [group[0] for group in layout.groups] == list(layout.own)
    assert layout.pools[0].name == KV
    for group in layout.groups:
        assert all(layout.owner(p.name) == group[0].name for p in group)
    assert [layout.index_of[p.name] for p in layout.pools] == list(range(len(layout.pools)))


def test_pools_are_put_in_reading_order_whatever_the_declaration() -> None:
    """Two declarations of the same pools are one layout: kv, its riders, then the others."""
    layout = Layout(
        "x", (Pool("ride", TrailingPages(2), "own"), Pool("own", TrailingPages(2)), Pool("idx", rides_on=KV), KV_POOL)
    )
    assert [p.name for p in layout.pools] == ["kv", "idx", "own", "ride"]


@pytest.mark.parametrize(("name", "trailing", "degraded"), [
    ("kv_only", False, False), ("dsa", False, False), ("swa", True, False), ("mamba", True, True),
    ("deepseek_v4", True, True),
])  # fmt: skip
def test_trailing_layouts_restore_a_set_of_lengths(name: str, trailing: bool, degraded: bool) -> None:
    """A required trailing pool makes restorable lengths a set; a spared one does not."""
    assert preset(name).has_trailing() is trailing
    assert preset(name).has_trailing(degrade=True) is degraded


def test_degrade_spares_swa_and_never_mamba() -> None:
    """Full KV can rebuild a window state, and nothing can rebuild a recurrent state."""
    assert [p.name for p in swa().required(degrade=True)] == ["kv"]
    assert [p.name for p in mamba().required(degrade=True)] == ["kv", "mamba"]


@pytest.mark.parametrize(
    ("sidecar", "rule"),
    [
        (Pool("x", rides_on=KV), CLAMP),
        (Pool("x"), NOTHING),
        (Pool("x", TrailingPages(2)), NOTHING),
        (Pool("x", TrailingPages(2), rides_on=KV), NOTHING),
        (Pool("x", rides_on=KV, need=Need.OPTIONAL), OutcomeRule.KV),
        (Pool("x", TrailingPages(2), need=Need.OPTIONAL), OutcomeRule.KV),
    ],
    ids=["rider", "own slots", "trailing", "trailing rider", "optional rider", "optional trailing"],
)
def test_rule_follows_from_the_declaration(sidecar: Pool, rule: OutcomeRule) -> None:
    """Only sidecars that ride on kv and cover all pages are clamped to; any other required one is all or nothing."""
    assert Layout("x", (KV_POOL, sidecar)).rule() is rule


def test_one_all_or_nothing_sidecar_outweighs_the_riders() -> None:
    """With an indexer and a window state, a short indexer is no reason to publish less."""
    assert Layout("x", (KV_POOL, Pool("indexer", rides_on=KV), Pool("swa", TrailingPages(2)))).rule() is NOTHING


OWN2 = Pool("own", TrailingPages(2))
CONTRADICTIONS = {
    "no kv": ((Pool("indexer"),), KV, "every layout needs"),
    "no pool": ((), KV, "every layout needs"),
    "kv trailing": ((Pool(KV, TrailingPages(4)),), KV, "must be required, cover all pages"),
    "kv optional": ((Pool(KV, need=Need.OPTIONAL),), KV, "must be required"),
    "kv rebuildable": ((Pool(KV, need=Need.REBUILDABLE),), KV, "must be required"),
    "kv rides": ((Pool(KV, rides_on="own"), Pool("own")), KV, "slots of its own"),
    "twice": ((KV_POOL, Pool("a"), Pool("a", TrailingPages(1))), "a", "declared twice"),
    "kv twice": ((KV_POOL, KV_POOL), KV, "declared twice"),
    "window 0": ((KV_POOL, Pool("swa", TrailingPages(0))), "swa", "window of 0 pages"),
    "window -1": ((KV_POOL, Pool("swa", TrailingPages(-1))), "swa", "window of -1 pages"),
    "half a page": ((KV_POOL, Pool("swa", TrailingPages(1.5))), "swa", "window of 1.5 pages"),  # type: ignore[arg-type]
    "rides on nothing": ((KV_POOL, Pool("a", rides_on="ghost")), "a", "ghost, which is not declared"),
    "rides on itself": ((KV_POOL, Pool("a", rides_on="a")), "a", "no slots of its own"),
    "rides on a rider": ((KV_POOL, Pool("a", rides_on=KV), Pool("b", rides_on="a")), "b", "no slots of its own"),
    "ring of riders": ((KV_POOL, Pool("a", rides_on="b"), Pool("b", rides_on="a")), "a", "no slots of its own"),
    "all on trailing": ((KV_POOL, OWN2, Pool("a", rides_on="own")), "a", "own, whose slots it uses, does not hold"),
    "wider than its host": ((KV_POOL, OWN2, Pool("a", TrailingPages(3), "own")), "a", "does not hold"),
    "required on optional": ((KV_POOL, Pool("o", need=Need.OPTIONAL), Pool("a", rides_on="o")), "a", "only optional"),
    "required on rebuildable": (
        (KV_POOL, Pool("o", need=Need.REBUILDABLE), Pool("a", rides_on="o")), "a", "only rebuildable",
    ),
    "rebuildable on optional": (
        (KV_POOL, Pool("o", need=Need.OPTIONAL), Pool("a", rides_on="o", need=Need.REBUILDABLE)), "a", "only optional",
    ),
    "no name": ((KV_POOL, Pool("")), "", "a pool name is"),
    "path in a name": ((KV_POOL, Pool("../etc")), "../etc", "a pool name is"),
    "digit first": ((KV_POOL, Pool("4c")), "4c", "the first no digit"),
    "newline in a name": ((KV_POOL, Pool("a\n")), "a\n", "a pool name is"),
    "not ascii": ((KV_POOL, Pool("größe")), "größe", "a pool name is"),
    "name too long": ((KV_POOL, Pool("a" * 65)), "a" * 65, "up to 64"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradiction_is_refused_naming_the_pool(case: str) -> None:
    """A declaration that contradicts itself never becomes a layout, and the error says which pool and why."""
    pools, culprit, why = CONTRADICTIONS[case]
    with pytest.raises(LayoutError) as caught:
        Layout("odd", pools)
    assert caught.value.pool == culprit
    assert caught.value.layout == "odd"
    assert why in caught.value.why
    assert repr(culprit) in str(caught.value)
    assert isinstance(caught.value, ConfigError)


def test_a_rider_as_wide_as_its_host_is_allowed() -> None:
    """The bounds themselves are legal: an equal window, an equal need, the longest name."""
    assert Layout("x", (KV_POOL, OWN2, Pool("a", TrailingPages(2), "own"))).owner("a") == "own"
    both = (Pool("o", need=Need.REBUILDABLE), Pool("a", rides_on="o", need=Need.REBUILDABLE))
    assert Layout("x", (KV_POOL, *both)).required(degrade=True) == (KV_POOL,)
    assert Layout("x", (KV_POOL, Pool("a" * 64))).own[1].name == "a" * 64


def test_window_is_cut_to_what_is_asked_for() -> None:
    """A pool needs its window of the prefix, but nothing below the first page of the span."""
    trailing = Pool("swa", TrailingPages(4))
    assert trailing.window(0, 10) == (6, 10)
    assert trailing.window(8, 10) == (8, 10)
    assert trailing.window(0, 2) == (0, 2)
    assert Pool("a", AllPages()).window(3, 10) == (3, 10)


@pytest.mark.parametrize("build", [swa, deepseek_v4])
def test_window_of_a_preset_can_be_chosen(build: object) -> None:
    """Every trailing pool of the preset gets the window that the model has."""
    layout = build(window_pages=7)  # type: ignore[operator]
    assert {p.coverage.window_pages for p in layout.pools if isinstance(p.coverage, TrailingPages)} == {7}


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    """A misspelt preset or pool is an error that lists what there is."""
    with pytest.raises(LayoutError, match="kv_only, dsa, swa, mamba, deepseek_v4"):
        preset("dsaa")
    with pytest.raises(LayoutError, match="this layout has: kv, indexer"):
        dsa().pool("swa")


def test_layouts_compare_by_what_they_declare() -> None:
    """Equal declarations are equal layouts, so that ranks can compare theirs."""
    assert preset("dsa") == dsa()
    assert hash(preset("dsa")) == hash(dsa())
    assert dsa(draft=True) != dsa()
    assert swa(4) != swa(5)
