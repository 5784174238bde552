"""What lies behind some violations, in numbers: by it a difference that an engine is known for is told from a fault."""

from typing import NamedTuple

from lifecycle.events import Event
from lifecycle.ranges import Range


class LateClaim(NamedTuple):
    """A read was claimed after the end of its prefetch."""

    pool: str
    pages: Range
    next_page: int  # where the next read of the pool would have begun
    nth: int  # which claim of the pool since the end


class Overshot(NamedTuple):
    """A prefetch began, and more tokens are in flight than may be."""

    before_tokens: int  # in flight before it
    limit_tokens: int


class Overpromised(NamedTuple):
    """More pages of a pool are promised than there are."""

    over_pages: int
    returned_pages: int  # free already, of prefetches that are not closed


class LeftOut(NamedTuple):
    """A plan leaves pools out that belong in it, and is as it should be but for that."""

    span_pages: int  # what was asked for
    window_pages: int  # the shortest window of what is left out; 0 where one has none


class EvictedEarly(NamedTuple):
    """Pages were evicted that a prefetch not yet closed has handed over."""

    written: bool  # whether a read that is claimed, or lost, may write one of them


class NeverAsked(NamedTuple):
    """A request was served that is not known: it never asked, or is finished."""

    attempt: int


class Apart(NamedTuple):
    """Two ranks differ in an event that should be the same, or in the order of two."""

    here: Event | None  # on the rank that is blamed; None where it has no such event
    there: Event | None
    order: bool  # whether both events are on both ranks, the other way round


Fact = LateClaim | Overshot | Overpromised | LeftOut | EvictedEarly | NeverAsked | Apart
