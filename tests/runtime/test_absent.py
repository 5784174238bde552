"""A rank without a shard of a pool, as a pipeline stage without the draft: it contributes the neutral value."""

from collections.abc import Callable

from kit.rig import Rig

from lifecycle import events as ev
from lifecycle.audit import verify_logs
from lifecycle.errors import ConfigError

RigOf = Callable[..., Rig]


def test_a_stage_without_the_draft_does_not_keep_it_from_the_others(rig_of: RigOf) -> None:
    """The draft is published where it is, since the rank without it counts as having landed it whole."""
    rig = rig_of("dsa", 2, draft=True, absent=[(), ("draft",)])
    end = rig.run()
    assert isinstance(end, ev.Committed)
    assert end.dropped == ()
    assert {pool for pool, _ in rig.stores[0].reads} >= {"draft"}
    assert "draft" not in {pool for pool, _ in rig.stores[1].reads}
    assert verify_logs([log.records() for log in rig.logs]) == []


def test_a_short_draft_is_still_dropped_everywhere(rig_of: RigOf) -> None:
    """The neutral value hides nothing: what the other rank misses is missed by all."""
    rig = rig_of("dsa", 2, draft=True, absent=[(), ("draft",)])
    rig.stores[0].say("draft", "11011111", rig.prompt("r", 8))
    end = rig.run()
    assert isinstance(end, ev.Committed)
    assert end.dropped == ("draft",)


def test_an_absent_required_pool_is_not_asked_for(rig_of: RigOf) -> None:
    """The hit follows from the ranks that have the pool."""
    rig = rig_of("deepseek_v4", 2, absent=[(), ("swa", "c4_state", "c4_indexer_state", "c128_state")])
    rig.stores[0].show("swa", "11110000", rig.prompt("r", 8))
    rig.stores[1].show("swa", "00000000", rig.prompt("r", 8))
    end = rig.run()
    assert isinstance(end, ev.Committed)
    assert end.usable_page == 4
    assert verify_logs([log.records() for log in rig.logs]) == []


def test_kv_cannot_be_absent(rig_of: RigOf) -> None:
    """No rank is of use without kv, and every rank learns it."""
    rig = Rig("kv_only", 2, absent=[(), ("kv",)])
    assert all(isinstance(error, ConfigError) for error in rig.errors)
    assert len(rig.errors) == 2
