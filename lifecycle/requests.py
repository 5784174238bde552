"""What all ranks keep of a request until it is finished: its newest attempt, and what came of it. Plain facts."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class RequestState:
    """What is kept of a request until it is finished."""

    attempt: int
    prefetch: int | None = None  # the newest attempt's, while it is not closed
    issued: bool = False  # whether that attempt has, or had, a prefetch
    loaded_tokens: int = 0
    taken: bool = False
    queries: int = 0  # how often this attempt has asked L3
    served: bool = False  # whether this attempt was admitted: nothing waits for it any more
    waits_since: int | None = None  # the tick at which it first waited since it last asked

    def facts(self) -> tuple[Any, ...]:
        """Return every field, for comparing two replicas."""
        return (self.attempt, self.prefetch, self.issued, self.loaded_tokens, self.taken, self.queries, self.served,
                self.waits_since)  # fmt: skip

    def next(self, attempt: int, prefetch: int) -> "RequestState":
        """Return what is kept once an attempt has its prefetch: of the same attempt what was counted before goes on."""
        if attempt != self.attempt:
            return RequestState(attempt, prefetch, issued=True, queries=1)
        return RequestState(attempt, prefetch, issued=True, queries=self.queries + 1, served=self.served)
