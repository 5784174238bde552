"""The opening exchange: constant in size, before any shape depends on configuration. A difference is an error on all ranks."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, SyncFailed
from lifecycle.layout import Layout, Need
from lifecycle.policies import Policies
from lifecycle.rows import NEUTRAL
from lifecycle.runtime.transport import Transport

MAX_OWN_POOLS = 32
MAX_WORDS = 64
"""Room for the items compared: the exchange has one size, whatever library version each rank runs."""

_FIXED = 2 * MAX_WORDS + 2

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
            "page size": _hash(repr(self.page_size_tokens)),
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

    `capacity_pages` is what is free per own pool. Raises `ConfigError` on every rank, naming what differs, and `SyncFailed`
    when a rank does not answer.
    """
    run = secrets.randbits(31)
    budget_pages = dict(capacity_pages)
    if transport.ranks > 1:
        words = opening.words(transport.ranks)
        reduced = _exchange(list(words.values()), list(capacity_pages.values()), run, True, transport)
        low, high, (agreed_run, all_start), budgets = np.split(reduced, [MAX_WORDS, 2 * MAX_WORDS, _FIXED])
        where = f"cannot start on rank {transport.rank} of {transport.ranks}"
        if not all_start:
            raise ConfigError(f"{where}: a rank cannot start with what it was given (see what that rank raised)")
        differing = [name for name, a, b in zip(words, low.tolist(), high.tolist(), strict=False) if a != -b]
        if differing:
            raise ConfigError(
                f"{where}: the ranks differ in {', '.join(differing)}"
                " (give every rank the same configuration and an empty index)"
            )
        run = int(agreed_run)
        budget_pages = dict(zip(capacity_pages, budgets.tolist(), strict=False))
    empty = [p.name for p in opening.layout.own if p.need is Need.REQUIRED and budget_pages[p.name] < 1]
    if empty:  # every prefetch would be declined for ever
        raise ConfigError(
            f"cannot start: the rank with the least host memory has no free page of pool {', '.join(empty)}"
            " (give every rank at least one page of each required pool)"
        )
    return Opened(budget_pages, f"{run:08x}")


def decline(transport: Transport) -> None:
    """Tell the other ranks, which wait in the opening exchange, that this one cannot start."""
    if transport.ranks > 1:
        _exchange([], [], 0, False, transport)


def _exchange(words: list[int], capacities: list[int], run: int, starts: bool, transport: Transport) -> NDArray[np.int32]:
    values = words + [0] * (MAX_WORDS - len(words))
    assert len(values) == MAX_WORDS, "raise MAX_WORDS"
    buffer = np.full(_FIXED + MAX_OWN_POOLS, NEUTRAL, dtype=np.int32)
    buffer[:_FIXED] = [*values, *(-value for value in values), run, starts]
    buffer[_FIXED : _FIXED + len(capacities)] = capacities
    try:
        transport.launch(buffer)()
    except RuntimeError as error:
        raise SyncFailed(0, transport.ranks, f"the opening exchange, before the first round: {error!r}") from error
    return buffer
