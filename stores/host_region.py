"""Memory of the slots of one pool as its owner declares it to a page store: where slots lie, and the room between them.

Which slots are held is the owner's business; here is only which rooms a transfer is using.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import ConfigError

ROOM_STEP_BYTES = 64
"""Room comes in multiples of this: a cache line, and how torch aligns memory, so that pages stay aligned to it."""


class Rooms:
    """Which rooms of one region are in a transfer, of whatever store, so that no two share one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[int] = set()

    def take(self, slots: Sequence[int]) -> bool:
        """Take the rooms of all these slots, or return False having taken none: one is in use, or asked for twice."""
        wanted = set(slots)
        with self._lock:
            if len(wanted) != len(slots) or not self._busy.isdisjoint(wanted):
                return False
            self._busy |= wanted
        return True

    def give_back(self, slots: Sequence[int]) -> None:
        """Let others take these rooms again."""
        with self._lock:
            assert self._busy.issuperset(slots), f"rooms given back that nobody has: {sorted({*slots} - self._busy)}"
            self._busy.difference_update(slots)

    @property
    def taken(self) -> int:
        """How many rooms are in a transfer."""
        return len(self._busy)


@dataclass(frozen=True, slots=True, eq=False)
class SlotRegion:
    """Declare memory of shape [slots, header room + page], uint8: each row is one slot's room and, behind it, its page.

    The room is the slot's: it is written while a page is read into the slot or written from it, and at no other time; the page
    alone is what is served, hashed and copied. A page store that keeps a header in front of its pages moves both in one piece
    where its header fits into the end of the room. Raises `ConfigError` for memory that is not contiguous and writable, and for
    a room that `checked_room_bytes` refuses or that leaves no byte for the page.
    """

    memory: NDArray[np.uint8]
    header_room_bytes: int = 0
    rooms: Rooms = field(default_factory=Rooms, init=False, repr=False)

    def __post_init__(self) -> None:
        memory, room = self.memory, checked_room_bytes("declare host memory", self.header_room_bytes)
        if memory.ndim != 2 or memory.dtype != np.uint8 or not memory.size:
            raise ConfigError(
                f"cannot declare host memory of shape {memory.shape}, type {memory.dtype}: need uint8 of [slots, room + page]"
            )
        if not memory.flags.c_contiguous or not memory.flags.writeable:
            raise ConfigError("cannot declare host memory: need contiguous writable rows, with their rooms")
        if room >= memory.shape[1]:
            raise ConfigError(f"cannot declare host memory: a room of {room} bytes in rows of {memory.shape[1]} leaves no page")

    def heads(self, nbytes: int) -> NDArray[np.uint8]:
        """Return the last `nbytes` of every room, shape [slots, nbytes]: what lies right before the pages.

        Raises `ConfigError` for more than the room has.
        """
        if not 0 <= nbytes <= self.header_room_bytes:
            raise ConfigError(f"cannot take {nbytes} bytes of rooms of {self.header_room_bytes} (declare more room)")
        return self.memory[:, self.header_room_bytes - nbytes : self.header_room_bytes]

    @property
    def page_bytes(self) -> int:
        """The bytes of one page, without its room."""
        return int(self.memory.shape[1]) - self.header_room_bytes


def checked_room_bytes(operation: str, room: object) -> int:
    """Return the room as a plain number, or raise `ConfigError`: it is whole, not negative, a multiple of 64 bytes."""
    if isinstance(room, bool) or not isinstance(room, int | np.integer) or room < 0 or room % ROOM_STEP_BYTES:
        raise ConfigError(f"cannot {operation}: a header room of {room!r} bytes is no multiple of {ROOM_STEP_BYTES} (0: none)")
    return int(room)
