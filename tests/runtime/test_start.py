"""What is refused when a rank starts, before anything began: each names what is wrong, and the way out."""

from typing import Any

import numpy as np
import pytest

from lifecycle.errors import ConfigError
from lifecycle.layout import Layout, dsa, kv_only, preset, swa
from lifecycle.policies import OnShortfall, Policies
from lifecycle.runtime import Coordinator
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex


def start(layout: Layout, index: RadixIndex, policies: Policies | None = None, **more: Any) -> Coordinator:
    """Start one rank over 16 pages of 64 bytes in each pool."""
    sizes = {pool.name: 64 for pool in layout.pools}
    memory = TorchHostMemory(layout, {pool.name: 16 for pool in layout.own}, sizes, pin=False)
    more = {"page_size_tokens": 4, "policies": policies or Policies(), "events": MemoryEventLog(), **more}
    return Coordinator(layout, store=MemoryPageStore(sizes), memory=memory, index=index, **more)


@pytest.mark.parametrize(("spares", "shortfall", "does"), [(True, "DISCARD", "serve"), (False, "DEGRADE", "not find")])
def test_an_index_that_spares_other_pools_than_the_policy_is_refused(spares: bool, shortfall: str, does: str) -> None:
    """It would serve a prefix that the rule calls useless, or never find one that was published; nothing is logged."""
    events = MemoryEventLog()
    policies = Policies(shortfall=OnShortfall[shortfall])
    with pytest.raises(ConfigError, match=f"degrade={spares} and shortfall={shortfall}: it would {does} a prefix") as refused:
        start(swa(), RadixIndex(swa(), spares), policies, events=events)
    assert "build both alike" in str(refused.value)
    assert list(events.records()) == []


def test_where_no_pool_can_be_rebuilt_the_index_may_be_built_either_way() -> None:
    """`degrade` means nothing for a layout without rebuildable pools."""
    coordinator = start(preset("dsa"), RadixIndex(preset("dsa"), degrade=True))
    coordinator.close()
    coordinator.check_integrity()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"page_size_tokens": 0}, "cannot start with page size 0: use a whole number of at least 1 token"),
        ({"page_size_tokens": "16"}, "cannot start with page size '16': use a whole number of at least 1 token"),
        ({"readers": 0}, "cannot start with 0 readers: use at least 1"),
        ({"absent": {"kv"}}, "cannot start a rank without a shard of pool 'kv'"),
        ({"absent": {"draft"}}, "cannot find pool 'draft' in layout 'kv_only': no such pool"),
        ({"policies": Policies(limit_tokens=3)}, "cannot start with limit_tokens=3: it is below one prefetch"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(more: dict[str, Any], said: str) -> None:
    """The value, what is allowed, and no event in the log."""
    events = MemoryEventLog()
    with pytest.raises(ConfigError, match=said):
        start(preset("kv_only"), RadixIndex(preset("kv_only")), events=events, **more)
    assert list(events.records()) == []


def test_an_index_with_pages_is_refused() -> None:
    """A coordinator knows nothing of pages that it did not bring."""
    layout = preset("kv_only")
    index = RadixIndex(layout)
    keys = ["0" * 64]
    index.insert(index.root, keys, {"kv": (0, 1)}, {"kv": np.zeros(1, np.int32)}, 0, 0)
    with pytest.raises(ConfigError, match="a prefix index that holds 1 pages of kv: start with an empty one"):
        start(layout, index)


@pytest.mark.parametrize(("layout", "other"), [("dsa", kv_only()), ("swa", swa(window_pages=1)), ("kv_only", dsa())])
def test_an_index_of_another_layout_is_refused(layout: str, other: Layout) -> None:
    """A match would be covered by other pools, or by a shorter window, than the model needs."""
    with pytest.raises(ConfigError, match="built for another layout"):
        start(preset(layout), RadixIndex(other))
