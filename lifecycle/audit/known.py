"""What SGLang does otherwise by design, so that a log of it can be read without wading through the same lines.

Each name is a row of the table "what this library does differently, and why" in `lifecycle/docs/sglang.md`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from lifecycle.audit.facts import Apart, EvictedEarly, LateClaim, LeftOut, NeverAsked, Overpromised, Overshot
from lifecycle.audit.laws import Violation
from lifecycle.audit.words import count_of
from lifecycle.events import Adopted, Clamped, Closed, Discarded, Event, Evicted, LogOpened, Terminated
from lifecycle.layout import KV
from lifecycle.reasons import Reason

READ_AFTER_END = "read_after_end"
"""A prefetch that was stopped between two reads, or before its first, is read once more, one batch; nothing of it counts."""

LIMIT_OVERSHOT = "limit_overshot"
"""A prefetch begins while the occupancy is below the limit, however long it is."""

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
"""Each rank frees, evicts, adopts and closes when it can, not in a round that all see."""


_BATCH_PAGES: Final = 128
"""Pages of kv that SGLang reads at once, at most."""

_OF_ITS_OWN = frozenset({Reason.COMPLETED, Reason.READ_FAILED, Reason.TIMEOUT, Reason.QUEUE_TIMEOUT, Reason.BEST_EFFORT})
"""Reasons that a rank finds by itself; all others come from a command or from what is agreed."""

_MISSES = frozenset({Reason.FULL_MISS, Reason.BELOW_THRESHOLD})
"""Reasons of a rank whose shard of L3 has nothing, or little, where the least that any has is too short."""

_WHEN_IT_CAN = (Closed, Evicted, Adopted)


def known_difference(violation: Violation) -> str | None:
    """Return the name of the known difference that a violation in a log of SGLang's shows, or None.

    Goes by what lies behind the violation, and no further than what SGLang's own rule allows.
    """
    fact = violation.fact
    bound = None if fact is None else _BOUNDS.get(type(fact))
    return bound(fact) if bound is not None else None


def _late_claim(fact: LateClaim) -> str | None:
    """A thread looks whether it is stopped behind each read: the one that comes next is made, and no other."""
    pages = fact.pages[1] - fact.pages[0]
    one = fact.nth == 1 and fact.pages[0] == fact.next_page and (fact.pool != KV or pages <= _BATCH_PAGES)
    return READ_AFTER_END if one else None


def _overshot(fact: Overshot) -> str | None:
    """Whether the limit is reached is asked before, without what is to begin."""
    return LIMIT_OVERSHOT if 0 <= fact.before_tokens < fact.limit_tokens else None


def _overpromised(fact: Overpromised) -> str | None:
    """What is free again is given out again, though the prefetch that had it is not closed."""
    return NO_BUDGET if fact.over_pages <= fact.returned_pages else None


def _left_out(fact: LeftOut) -> str | None:
    """Room for the window is taken when the prefetch begins, if it is as long as the window."""
    return WINDOW_LEFT_OUT if fact.span_pages < fact.window_pages else None


def _evicted_early(fact: EvictedEarly) -> str | None:
    """The tree evicts what it has, but a read may not write there any more."""
    return None if fact.written else UNLOCKED_EARLY


def _never_asked(fact: NeverAsked) -> str | None:
    """It has no attempt, then."""
    return SERVED_UNASKED if fact.attempt == 0 else None


def _apart(fact: Apart) -> str | None:
    here, there = fact.here, fact.there
    if fact.order:
        return FREED_APART if isinstance(here, _WHEN_IT_CAN) or isinstance(there, _WHEN_IT_CAN) else None
    if all(each is None or isinstance(each, _WHEN_IT_CAN) for each in (here, there)):
        return FREED_APART if here is None or there is None or type(here) is type(there) else None
    return REASON_APART if _alike_but_for_the_reason(here, there) else None


def _alike_but_for_the_reason(here: Event | None, there: Event | None) -> bool:
    if isinstance(here, Terminated) and isinstance(there, Terminated):
        return {here.reason, there.reason} <= _OF_ITS_OWN
    if isinstance(here, Clamped) and isinstance(there, Clamped):
        same = (here.usable_page, here.taken, here.dropped) == (there.usable_page, there.taken, there.dropped)
        return same and {here.reason, there.reason} <= _OF_ITS_OWN
    if isinstance(here, Discarded) and isinstance(there, Discarded):
        reasons = {here.reason, there.reason}
        return here.pool == there.pool and (reasons <= _OF_ITS_OWN | {Reason.SHORTFALL} or reasons <= _MISSES)
    return False


_BOUNDS: Mapping[type, Callable[[Any], str | None]] = {
    LateClaim: _late_claim,
    Overshot: _overshot,
    Overpromised: _overpromised,
    LeftOut: _left_out,
    EvictedEarly: _evicted_early,
    NeverAsked: _never_asked,
    Apart: _apart,
}


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
