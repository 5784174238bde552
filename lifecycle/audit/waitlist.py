"""Who waits, as one log says. Judges nothing."""

from dataclasses import dataclass, field

from lifecycle.events import Declined
from lifecycle.reasons import Reason


@dataclass(slots=True)
class Wait:
    """One request that waits. `seq` is the record that says so."""

    attempt: int
    reason: Reason
    since_tick: int
    due_tick: int
    tokens: int
    seq: int
    since_seq: int  # the first record that said so


@dataclass(slots=True)
class Waits:
    """Everyone who waits, and what was said last: a try, a decline."""

    line: dict[str, Wait] = field(default_factory=dict)  # for room, in order
    asking: dict[str, Wait] = field(default_factory=dict)
    tick: int = 0  # the last one that a wait told
    tried: tuple[str, int, int] | None = None  # request, attempt, and the record that says it is tried now
    from_line: bool = False  # whether that one stood in line for room
    declined: tuple[Declined, int, bool] | None = None  # the last one, its record, and whether it was a try
    owed: tuple[str, int, int, Reason] | None = None  # request, attempt, the record at which its wait begins, and why
    superseded: dict[str, tuple[int, int]] = field(default_factory=dict)  # waits that a newer attempt ended: attempt, record

    def get(self, request: str) -> Wait | None:
        """Return how a request waits."""
        return self.line.get(request) or self.asking.get(request)

    def drop(self, request: str) -> None:
        """Let a request go."""
        if self.line.pop(request, None) is None:
            self.asking.pop(request, None)
