"""Writes chains to L3 in turns, head first, and remembers what was refused. No threads, no clock but the caller's ticks.

Believed stored is what a write said it stored, nothing else. What the store says is there is a hint, asked anew in every
turn: it decides what is worth writing, and takes a belief back, but never makes one.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lifecycle.coverage import Flags
from lifecycle.errors import ConfigError, StoreError
from lifecycle.keys import KeyChain
from lifecycle.layout import KV, AllPages, Layout
from lifecycle.runtime.ports import PageStore
from stores.pages.beliefs import Beliefs
from stores.pages.write_rule import PageNumbers, due_pages

_MOST_PAGES = 128  # in one call
_MOST_RESTING = 1 << 14

PagesOf = Callable[[str, Sequence[int]], Sequence[memoryview]]
"""Gives the bytes of pages, by pool and page numbers; called for pages that are held, when they are about to be written."""


@dataclass(frozen=True, slots=True)
class WriteRetry:
    """How often a refused page is tried again, in ticks: after `every_ticks`, then after twice as long, and so on.

    After `attempts` refusals in a row it rests for `rest_ticks`, and is counted anew.
    """

    every_ticks: int = 16
    attempts: int = 6
    rest_ticks: int = 4096

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
                raise ConfigError(f"cannot use {name}={value!r}: need a whole number from 1 to {(1 << 31) - 1}")

    def wait_ticks(self, refusals: int) -> int:
        """Return how long a page rests after so many refusals in a row."""
        return self.rest_ticks if refusals >= self.attempts else min(self.rest_ticks, self.every_ticks << refusals - 1)


class Turn(NamedTuple):
    """What a turn did, in pages of all pools: `written` and `refused` by the store, `held_back` as they rest, or
    something before them rests or was refused.

    `lost` pages had been stored and were no longer there. `asked`: the store said what seems to be there.
    """

    written: int
    refused: int
    held_back: int
    lost: int
    asked: bool


class _Rest(NamedTuple):
    refusals: int
    until_tick: int


class ChainWriter:
    """Brings chains to L3 and keeps their heads there. Belongs to one thread.

    Each turn asks what is there, and writes what is due in batches of up to 128 pages, kv first. A batch is one call, in which
    a store goes on behind a page that it refuses; after that no further batch is written in this turn, as nothing behind the
    page could be restored, and batches begin at one page again. A refused page is tried again in a later turn as `retry` says;
    until then nothing behind it is written. Raises what the store raises for a write.
    """

    def __init__(self, store: PageStore, layout: Layout, *, degrade: bool = False, retry: WriteRetry = WriteRetry()) -> None:
        self._store, self._layout, self._degrade, self._retry = store, layout, degrade, retry
        self._pools = {pool.name: pool for pool in sorted(layout.pools, key=lambda pool: pool.name != KV)}  # kv first
        self._tick = 0
        self._beliefs = Beliefs(lambda: self._tick, 0)
        self._resting: OrderedDict[tuple[str, str], _Rest] = OrderedDict()
        self._batch_pages = _MOST_PAGES

    def write(self, keys: Sequence[str], held: Mapping[str, Flags], pages_of: PagesOf, tick: int) -> Turn:
        """Take one turn for a chain, of which `held` says, per pool and page from 0 on, what host memory holds.

        Calls `pages_of` during the turn only. `tick` never falls. Raises `ConfigError` for flags that do not fit the chain.
        """
        chain = KeyChain(keys)
        if not chain:
            return Turn(0, 0, 0, 0, False)
        self._tick = tick
        there, lost, asked = self._there(chain)
        due = due_pages(self._layout, there, held, self._degrade)
        total = sum(map(len, due.values()))
        ready, ends = self._without_resting(chain, due)
        todo = np.unique(np.concatenate(list(ready.values())))
        written = refused = at = 0
        while at < len(todo) and todo[at] < max(ends.values()):
            batch = todo[at : at + self._batch_pages]
            at += len(batch)
            failed = 0
            for pool in self._pools:
                pages = ready[pool]
                pages = pages[(pages >= batch[0]) & (pages <= batch[-1]) & (pages < ends[pool])]
                bad = self._write(pool, chain, pages, pages_of)
                written, failed = written + len(pages) - len(bad), failed + len(bad)
                self._cut(ends, pool, bad)
            refused += failed
            self._batch_pages = 1 if failed else min(_MOST_PAGES, 2 * self._batch_pages)
        return Turn(written, refused, total - written - refused, lost, asked)

    def stored(self, pool: str, key: str) -> bool:
        """Say whether a write said that it stored the page, and nothing has said otherwise since."""
        return self._beliefs.stored(_name(pool, key))

    # --- what is there ---

    def _there(self, chain: KeyChain) -> tuple[dict[str, Flags], int, bool]:
        names = {pool: [_name(pool, key) for key in chain] for pool in self._pools}
        stored = {pool: np.array([self._beliefs.stored(name) for name in names[pool]], np.bool_) for pool in names}
        hints = self._ask(chain)
        if hints is None:
            return stored, 0, False
        lost = 0
        for pool, hint in hints.items():
            for page in np.flatnonzero(stored[pool] & ~hint).tolist():
                self._beliefs.not_written(names[pool][page])
                lost += 1
        return hints, lost, True

    def _ask(self, chain: KeyChain) -> dict[str, Flags] | None:
        """Return what the store says is there, or None where it does not answer for every page: beliefs have to do then."""
        try:
            answer = self._store.restorable(chain, list(self._pools))
        except StoreError:  # the store has counted it and warned
            return None
        hints = {pool: np.asarray(answer[pool], np.bool_) for pool in self._pools if pool in answer}
        return hints if len(hints) == len(self._pools) and all(len(h) == len(chain) for h in hints.values()) else None

    # --- in which order ---

    def _without_resting(
        self, chain: KeyChain, due: Mapping[str, PageNumbers]
    ) -> tuple[Mapping[str, PageNumbers], dict[str, int]]:
        """Return what may be tried now, and per pool the page that nothing is written behind: that of the chain's end."""
        ends = dict.fromkeys(self._pools, len(chain))
        if not self._resting:
            return due, ends
        ready = {}
        for pool, pages in due.items():
            rests = np.array([self._rests(pool, chain[page]) for page in pages.tolist()], np.bool_)
            ready[pool] = pages[~rests]
            self._cut(ends, pool, pages[rests].tolist())
        return ready, ends

    def _rests(self, pool: str, key: str) -> bool:
        rest = self._resting.get((pool, key))
        return rest is not None and self._tick < rest.until_tick

    def _cut(self, ends: dict[str, int], pool: str, lacking: Sequence[int]) -> None:
        """Let nothing be written that is of no use without the pages that are lacking."""
        if not lacking or not isinstance(self._pools[pool].coverage, AllPages):
            return  # a window that is missing spoils the lengths that need it, and no others
        affected = self._pools if self._pools[pool] in self._layout.required(self._degrade) else (pool,)
        for name in affected:
            ends[name] = min(ends[name], lacking[0])

    # --- writing ---

    def _write(self, pool: str, chain: KeyChain, pages: PageNumbers, pages_of: PagesOf) -> list[int]:
        """Write pages in one call; return those that the store refused, having noted what it said of each."""
        numbers = pages.tolist()
        if not numbers:
            return []
        kept = self._store.write(pool, [chain[page] for page in numbers], pages_of(pool, numbers))
        if len(kept) != len(numbers):
            raise StoreError(f"cannot write pages of pool {pool!r}: {len(kept)} answers came for {len(numbers)} pages")
        refused = []
        for page, ok in zip(numbers, kept, strict=True):
            if ok:
                self._beliefs.wrote(_name(pool, chain[page]), 0)
                self._resting.pop((pool, chain[page]), None)
            else:
                self._rest(pool, chain[page])
                refused.append(page)
        return refused

    def _rest(self, pool: str, key: str) -> None:
        before = self._resting.pop((pool, key), None)
        refusals = 1 if before is None or before.refusals >= self._retry.attempts else before.refusals + 1
        self._resting[pool, key] = _Rest(refusals, self._tick + self._retry.wait_ticks(refusals))
        if len(self._resting) > _MOST_RESTING:
            self._resting.popitem(last=False)


def _name(pool: str, key: str) -> str:
    return f"{pool}/{key}"
