"""What SGLang does otherwise by design, so that a log of it can be read without wading through the same lines.

Each name is a row of the table "what this library does differently, and why" in `lifecycle/docs/sglang.md`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from lifecycle.audit.laws import Law, Violation
from lifecycle.audit.words import count_of
from lifecycle.events import LogOpened

_REASON = re.compile(r"reason \w+(, pool \w+)?")

READ_AFTER_END = "read_after_end"
"""A prefetch that was stopped before its first read is read all the same, one batch of kv; nothing of it counts."""

LIMIT_OVERSHOT = "limit_overshot"
"""A prefetch begins while the occupancy is below the limit, however long it is; it is declined only above."""

WINDOW_LEFT_OUT = "window_left_out"
"""A span shorter than the window is read without the window's pool."""

NO_BUDGET = "no_budget"
"""Host memory is given out by what is free at the moment, not by a budget that counts what is promised."""

UNLOCKED_EARLY = "unlocked_early"
"""What was handed over may be evicted before the prefetch is over."""

SERVED_UNASKED = "served_unasked"
"""A request that never asked L3 for anything is served pages, too: all of its prompt was in the tree."""

REASON_APART = "reason_apart"
"""Each rank stops for a reason of its own; only what is usable is agreed."""

FREED_APART = "freed_apart"
"""Each rank frees, evicts and closes when it can, not in a round that all see."""


def known_difference(violation: Violation) -> str | None:
    """Return the name of the known difference that a violation in a log of SGLang's shows, or None."""
    law, what = violation.law, violation.what
    if law is Law.CLAIM and what.startswith("a read was claimed while it is "):
        return READ_AFTER_END
    if law is Law.ADMISSION and (what.endswith(" tokens are in flight") or what.startswith("declined as rate limited with")):
        return LIMIT_OVERSHOT
    if law is Law.PLAN and " left out" in what and "nothing left out" not in what:
        return WINDOW_LEFT_OUT
    if law is Law.BALANCE and what.endswith("too many are promised"):
        return NO_BUDGET
    if law is Law.LEGAL and what.startswith("PrefixServed of a request that was never issued"):
        return SERVED_UNASKED
    if law is Law.QUIESCENCE and "is evicted" in what and "locked until its prefetch is closed" in violation.right:
        return UNLOCKED_EARLY
    if law is Law.RANKS and _REASON.sub("", what) == _REASON.sub("", violation.right.partition(", as on rank")[0]):
        return REASON_APART
    if law is Law.RANKS and any(name in what + violation.right for name in ("Closed", "Evicted", "Adopted", "RequestFinished")):
        return FREED_APART
    return None


class Known:
    """Sets the known differences of an observed engine apart from what is at fault; of a run of our own there are none."""

    def __init__(self, opened: LogOpened | None) -> None:
        self.sglang = opened is not None and opened.policies.get("observed") == "sglang"
        self.counts: Counter[str] = Counter()  # by name

    def faults(self, found: Iterable[Violation]) -> Iterator[Violation]:
        """Yield what is at fault, and count the rest."""
        for violation in found:
            name = known_difference(violation) if self.sglang else None
            if name is None:
                yield violation
            else:
                self.counts[name] += 1

    def text(self) -> Iterator[str]:
        """Yield a line for each known difference that was met."""
        for name, times in sorted(self.counts.items()):
            yield f"known difference of SGLang, no violation: {name}, {count_of(times, 'time')}"
