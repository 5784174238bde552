"""Naming a divergence: one exchange of fixed size in which every rank shows its last commands, and the first that differs.

Built from MIN like everything else: each rank fills its own section, all others are neutral there. Only the failing path
ever runs this.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lifecycle.replica import RECENT, Replica
from lifecycle.rows import NEUTRAL

_TEXT_WORDS = 40
_HEAD = 4
_ENTRY = 2 + _TEXT_WORDS
_WORD = (1 << 31) - 1


@dataclass(slots=True)
class Naming:
    """The exchange that names why round `number` found the replicas different."""

    number: int
    buffer: NDArray[np.int32]


def build(replica: Replica, index_digest: int, rank: int, ranks: int, number: int) -> Naming:
    """Return this rank's exchange: shape [ranks, words], its own section filled."""
    buffer = np.full((ranks, _HEAD + RECENT * _ENTRY), NEUTRAL, dtype=np.int32)
    section = buffer[rank]
    section[:_HEAD] = (len(replica.in_flight), len(replica.recent), index_digest & _WORD, index_digest >> 31 & _WORD)
    for place, step in enumerate(replica.recent):
        entry = section[_HEAD + place * _ENTRY :][:_ENTRY]
        entry[:2] = step.ordinal % _WORD, step.digest & _WORD
        entry[2:] = np.frombuffer(step.text().encode("ascii")[: 4 * _TEXT_WORDS].ljust(4 * _TEXT_WORDS), dtype="<i4")
    return Naming(number, buffer.reshape(-1))


def read(naming: Naming, ranks: int) -> tuple[int | None, tuple[str, ...], str]:
    """Return the number of the first command that differs (None if none is kept), each rank's side, and both as a sentence."""
    sections = naming.buffer.reshape(ranks, -1)
    rows = [int(section[0]) for section in sections]
    sides = [_commands(section) for section in sections]
    counts = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(rows))
    ordinals = sorted({ordinal for side in sides for ordinal in side})
    first = next((o for o in ordinals if len({side.get(o, (0, ""))[0] for side in sides}) > 1), None)
    if first is None:
        indexes = "their commands are equal, but their prefix indexes are not"
        what = indexes if _indexes_differ(sections) else "it is not known why"
        return None, (), f"the replicas of the ranks differ: {what} (rows in flight: {counts})"
    texts = tuple(side.get(first, (0, "nothing"))[1] for side in sides)
    shown = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))
    kept = all(first - 1 in side for side in sides) or first == 1
    since = f"at step {first}" if kept else f"at step {first} or before it (older steps are not kept)"
    return first, texts, f"the ranks were not given the same commands: they part {since}: {shown} (rows in flight: {counts})"


def _commands(section: NDArray[np.int32]) -> dict[int, tuple[int, str]]:
    count = int(section[1])
    entries = section[_HEAD : _HEAD + count * _ENTRY].reshape(count, _ENTRY)
    texts = [entry[2:].astype("<i4").tobytes().decode("ascii", "replace").strip() for entry in entries]
    return {int(entry[0]): (int(entry[1]), text) for entry, text in zip(entries, texts, strict=True)}


def _indexes_differ(sections: NDArray[np.int32]) -> bool:
    return len({(int(section[2]), int(section[3])) for section in sections}) > 1
