"""The round's packed tensors: one int32 row per prefetch and a header, one MIN; and the uint8 sets of lengths.

Every field is written so that MIN over ranks is the agreement: booleans that must hold everywhere as they are, booleans
that one rank may raise negated. Shapes depend on the layout and the policies alone, never on what is in flight.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lifecycle.layout import Layout
from lifecycle.policies import Policies
from lifecycle.replica import DIGEST_BITS

NEUTRAL = 0x7FFFFFFF
"""The MIN over ranks of anything and this is the other; a reason of this value is no reason."""

SPARE_WORDS = 4
"""How many monotone counters of its own an engine may have agreed: its index may move by the reduced values alone."""

_WORD = (1 << (DIGEST_BITS // 2)) - 1
_FIXED = 7
_HEADER_FIXED = 8


class Report(NamedTuple):
    """What one rank, or after the round all ranks, say of one prefetch."""

    hit_page: int  # -1: not known
    ceiling_page: int
    can_stop: bool
    must_stop: bool
    final: bool
    settled: bool
    reason: int  # a reason's code, or NEUTRAL
    landed: tuple[int, ...]  # per pool of the layout, in its order


class Header(NamedTuple):
    """What one rank, or after the round all ranks, say of themselves."""

    rows: int
    digest: int
    failed: bool
    declining: bool
    quarantined_pages: tuple[int, ...]  # per own pool, in the layout's order
    counters: tuple[int, ...]  # the engine's own, SPARE_WORDS of them


@dataclass(slots=True)
class Round:
    """One execution of the agreement step: who is in it, as of which decision, and the buffer that is reduced."""

    number: int
    ids: tuple[int, ...]
    moves: tuple[int, ...]
    hits_from: tuple[int, ...]  # the first page of those that had no plan yet; -1 of all others
    buffer: NDArray[np.int32]
    launched_ns: int = 0


@dataclass(slots=True)
class Masks:
    """One exchange of restorable sets, byte per length; follows from the rows of round `number`."""

    number: int
    ids: tuple[int, ...]
    moves: tuple[int, ...]
    buffer: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RowCodec:
    """Packs and reads the tensors of one layout and one set of policies."""

    layout: Layout
    policies: Policies
    own: int = field(init=False)
    width: int = field(init=False)
    header: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", len(self.layout.own))
        object.__setattr__(self, "width", _FIXED + len(self.layout.pools))
        object.__setattr__(self, "header", _HEADER_FIXED + self.own + SPARE_WORDS)

    @property
    def size(self) -> int:
        """How many int32 words a round has."""
        return self.header + self.policies.row_capacity * self.width

    def pack(self, header: Header, reports: list[Report]) -> NDArray[np.int32]:
        """Return a fresh buffer of shape [size], rows that are not used neutral."""
        buffer = np.full(self.size, NEUTRAL, dtype=np.int32)
        low, high = header.digest & _WORD, header.digest >> (DIGEST_BITS // 2)
        words = [
            header.rows, -header.rows, low, -low, high, -high, -header.failed, -header.declining,
            *(-pages for pages in header.quarantined_pages), *header.counters,
        ]  # fmt: skip
        for hit_page, ceiling_page, can_stop, must_stop, final, settled, reason, landed in reports:
            words += (hit_page, ceiling_page, can_stop, -must_stop, final, settled, reason, *landed)
        buffer[: len(words)] = words
        return buffer

    def read_header(self, buffer: NDArray[np.int32]) -> tuple[Header, bool]:
        """Return the header and whether all ranks gave the same rows and digest."""
        words = buffer[: self.header].tolist()
        same = words[0] == -words[1] and words[2] == -words[3] and words[4] == -words[5]
        digest = words[2] | words[4] << (DIGEST_BITS // 2)
        spare = _HEADER_FIXED + self.own
        quarantined = tuple(-word for word in words[_HEADER_FIXED:spare])
        return Header(words[0], digest, words[6] != 0, words[7] != 0, quarantined, tuple(words[spare:])), same

    def read_rows(self, buffer: NDArray[np.int32], count: int) -> list[Report]:
        """Return the first `count` rows."""
        words = buffer[self.header : self.header + count * self.width].reshape(count, self.width).tolist()
        return [Report(w[0], w[1], w[2] != 0, w[3] != 0, w[4] != 0, w[5] != 0, w[6], tuple(w[_FIXED:])) for w in words]

    def fresh_masks(self) -> NDArray[np.uint8]:
        """Return a buffer of shape [mask_capacity, max_pages], all neutral."""
        return np.full((self.policies.mask_capacity, self.policies.max_pages), 0xFF, dtype=np.uint8)
