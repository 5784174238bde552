"""The opening exchange: constant in size, before any shape depends on configuration. A difference is an error on all ranks."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash

from lifecycle.errors import ConfigError
from lifecycle.layout import Layout
from lifecycle.policies import Policies
from lifecycle.rows import NEUTRAL
from lifecycle.runtime.transport import Transport

MAX_OWN_POOLS = 32
MAX_WORDS = 64
"""Room for the items compared: the exchange has one size, whatever library version each rank runs."""

_WORD = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Opening:
    """What must be the same on all ranks before the first round."""

    layout: Layout
    policies: Policies
    page_size_tokens: int
    index_digest: int
    version: str

    def words(self, ranks: int) -> dict[str, int]:
        """Return each item as one 31-bit word, by name, in the same order everywhere."""
        policies = self.policies
        return {
            "library version": _hash(self.version),
            "layout": _hash(repr((self.layout.name, self.layout.pools))),
            "page size": self.page_size_tokens,
            **{f"policy {name}": _hash(repr(value)) for name, value in msgspec.to_builtins(policies).items()},
            "group size": ranks,
            "prefix index": self.index_digest % _WORD,
        }


def _hash(text: str) -> int:
    return xxhash.xxh32_intdigest(text.encode()) & _WORD


@dataclass(frozen=True, slots=True)
class Opened:
    """What the ranks agreed on: the budget of each own pool (the smallest rank's capacity) and a name for the run."""

    budget_pages: Mapping[str, int]
    run: str


def agree(opening: Opening, capacity_pages: Mapping[str, int], transport: Transport) -> Opened:
    """Compare this rank's opening with the others' and return what follows from all of them.

    Raises `ConfigError` on every rank, naming what differs.
    """
    own = [pool.name for pool in opening.layout.own]
    if len(own) > MAX_OWN_POOLS:
        raise ConfigError(f"cannot agree on {len(own)} pools with own slots: at most {MAX_OWN_POOLS}")
    capacities = [capacity_pages[pool] for pool in own]
    run = secrets.randbits(31)
    if transport.ranks == 1:
        return Opened(dict(zip(own, capacities, strict=True)), f"{run:08x}")
    words = opening.words(transport.ranks)
    values = list(words.values()) + [0] * (MAX_WORDS - len(words))
    assert len(values) == MAX_WORDS, "raise MAX_WORDS"
    buffer = np.full(2 * MAX_WORDS + 1 + MAX_OWN_POOLS, NEUTRAL, dtype=np.int32)
    buffer[: 2 * MAX_WORDS + 1] = [*values, *(-value for value in values), run]
    buffer[2 * MAX_WORDS + 1 : 2 * MAX_WORDS + 1 + len(own)] = capacities
    transport.launch(buffer)()
    low, high, agreed_run, budgets = np.split(buffer, [MAX_WORDS, 2 * MAX_WORDS, 2 * MAX_WORDS + 1])
    differing = [name for name, a, b in zip(words, low.tolist(), high.tolist(), strict=False) if a != -b]
    if differing:
        raise ConfigError(
            f"cannot start on rank {transport.rank} of {transport.ranks}: the ranks differ in {', '.join(differing)}"
            " (give every rank the same configuration and an empty index)"
        )
    return Opened(dict(zip(own, budgets.tolist(), strict=False)), f"{agreed_run.item():08x}")
