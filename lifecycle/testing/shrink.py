"""Delta debugging: the shortest list of steps that still fails, found by leaving parts out."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[Sequence[T]], bool], most_tries: int = 2_000) -> list[T]:
    """Return a sublist, in order, that `fails` and of which no single item can be left out (or `most_tries` ran out).

    `fails(items)` must be true. Halves first, then finer parts, as in Zeller's ddmin; the tail after the failure goes with
    the first tries.
    """
    kept, parts, tries = list(items), 2, 0
    while len(kept) > 1 and tries < most_tries:
        size = max(1, len(kept) // parts)
        at, shorter = len(kept), False
        while at > 0 and tries < most_tries:  # from the back: what comes last matters least
            start = max(0, at - size)
            candidate = kept[:start] + kept[at:]
            tries += 1
            if candidate and fails(candidate):
                kept, shorter = candidate, True
            at = start
        if shorter:
            continue
        if size == 1:
            break
        parts = min(len(kept), parts * 2)
    return kept
