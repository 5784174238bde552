"""What goes wrong on purpose: requests upset alike on all ranks, and a store that is slow on one of them.

A store that fails is `lifecycle.testing.faulty_store`.
"""

import random
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lifecycle.runtime.ports import PageResult, PageStore
from lifecycle.states import TERMINAL, State

_WHATS = ("abort", "retry", "supersede", "cancel")
_STATES = (State.ISSUED, State.TRANSFERRING, State.TERMINATED, State.COMMITTED)


class Upset(NamedTuple):
    """What happens to a request: abort its prefetch, do so and issue again, issue a newer attempt, cancel the request.

    It happens once its prefetch is seen in `state`; one that never is, is upset after its outcome.
    """

    what: str
    state: State

    def due(self, state: str) -> bool:
        """Say whether it happens in this state ("closed" when there is no prefetch any more)."""
        return state == self.state or state == "closed" or state in TERMINAL


class Upsets:
    """A seeded choice for each request, the same on all ranks."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate, self._seed = rate, seed

    def draw(self, request: str) -> Upset | None:
        """Return what happens to the request, if anything does."""
        dice = random.Random(f"{self._seed}/upset/{request}")
        return Upset(dice.choice(_WHATS), dice.choice(_STATES)) if dice.random() < self._rate else None


class SlowStore:
    """A page store of which every answer takes `delay_s`."""

    def __init__(self, inner: PageStore, delay_s: float) -> None:
        self._inner, self._delay_s = inner, delay_s

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Ask the inner store, slowly."""
        time.sleep(self._delay_s)
        return self._inner.restorable(keys, pools)

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Read from the inner store, slowly."""
        time.sleep(self._delay_s)
        return self._inner.read_into(pool, keys, buffers)

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Write to the inner store."""
        return self._inner.write(pool, keys, buffers)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Delete from the inner store."""
        return self._inner.delete(pool, keys)

    def check_integrity(self) -> None:
        """Check the inner store."""
        self._inner.check_integrity()

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()
