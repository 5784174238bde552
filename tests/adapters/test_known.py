"""What SGLang is known to do otherwise: named where it is just that, and never where a fault could hide behind it."""

import pytest

from lifecycle.adapters.known import known_difference
from lifecycle.audit import Law, Violation


@pytest.mark.parametrize(("law", "what", "right", "name"), [
    (Law.CLAIM, "a read was claimed while it is discarded", "none", "read_after_end"),
    (Law.CLAIM, "pages [0:2) of kv were claimed a second time", "once", None),
    (Law.ADMISSION, "40 tokens are in flight", "at most 18, so declined as rate_limited", "limit_overshot"),
    (Law.ADMISSION, "12 tokens were reserved", "16 tokens for 4 pages", None),
    (Law.BALANCE, "4 pages of kv too many are promised", "at most 8 of kv promised in all", "no_budget"),
    (Law.BALANCE, "-1 pages of kv are held", "0", None),
    (Law.PLAN, "kv [0:1) reserved, swa left out", "kv [0:1), swa [0:1), nothing left out", "window_left_out"),
    (Law.PLAN, "kv [0:1) reserved, nothing left out", "kv [0:2), nothing left out", None),
    (Law.OUTCOME, "committed up to page 8", "clamped up to 5, where indexer ends", None),
    (Law.RANKS, "Terminated (reason completed)", "Terminated (reason read_failed), as on rank 0 at seq 9", "reason_apart"),
    (Law.RANKS, "Clamped (usable_page 5, reason timeout)", "Clamped (usable_page 6, reason timeout), as on rank 0", None),
    (Law.RANKS, "Closed comes before Issued", "Issued first, as on rank 0", "freed_apart"),
    (Law.LEGAL, "PrefixServed of a request that was never issued, or is finished", "before RequestFinished", "served_unasked"),
    (Law.LEGAL, "LoadedTaken of a request that was never issued, or is finished", "before RequestFinished", None),
    (Law.PARTITION, "page 3 of kv is released, which was released before", "each page once", None),
    (Law.QUIESCENCE, "[0:2) of swa is released while a claimed read may write it", "after ReadEnded", None),
])  # fmt: skip
def test_known_by_what_is_said(law: Law, what: str, right: str, name: str | None) -> None:
    """A difference by design has a name; a fault has none."""
    assert known_difference(Violation(law, 0, 1, "r", (1, 2), what, right)) == name
