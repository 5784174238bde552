"""The clean run of every layout: each effect exactly once."""

from collections.abc import Callable

import pytest
from kit.rig import PAGE_TOKENS, Rig

from lifecycle.events import Committed
from lifecycle.layout import PRESETS

RigOf = Callable[..., Rig]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("layout", PRESETS)
def test_a_clean_run_publishes_everything(rig_of: RigOf, layout: str, draft: bool, ranks: int) -> None:
    """Every page that was planned is published, credited once and served whole."""
    rig = rig_of(layout, ranks, draft=draft)
    end = rig.run(pages=8)
    assert isinstance(end, Committed)
    assert end.usable_page == 8
    assert end.dropped == ()
    assert rig.matched() == 8
    assert rig.take_loaded() == 8 * PAGE_TOKENS
    assert rig.occupied() == rig.locks() == 0
