"""One tick of all simulated ranks: with a lag each over its transport, without by hand; and what a failure may look like."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lifecycle.errors import HostExhausted, SyncFailed
from lifecycle.testing.sim_checks import Violation
from lifecycle.testing.sim_group import Group
from lifecycle.testing.sim_ports import PortDown
from lifecycle.testing.sim_rank import SimRank
from lifecycle.testing.sim_setup import Setup
from lifecycle.testing.sim_steps import INDEX_VERBS

_TICKS_AFTER = 2  # ticks that the ranks still run after all of them failed


class Ticker:
    """Ticks the ranks of one life. `excuses` are the injected faults that may fail a round: without one, none may."""

    def __init__(self, setup: Setup, ranks: list[SimRank], group: Group) -> None:
        self._setup, self._ranks, self._group = setup, ranks, group
        self._by_hand = setup.ranks > 1 and setup.policies.lag_ticks == 0
        self._failures: dict[int, SyncFailed] = {}
        self._ticks_since = 0
        self.excuses: list[str] = []
        self.owing = False  # a rank was closed while a port refused what was due

    @property
    def failed(self) -> bool:
        """Whether a rank has failed."""
        return bool(self._failures)

    @property
    def over(self) -> bool:
        """Whether all ranks have failed, and had time to discharge what they could."""
        return len(self._failures) == len(self._ranks) and self._ticks_since > _TICKS_AFTER

    def excuse(self, fault: str) -> None:
        """Note a fault that may fail a round."""
        self.excuses.append(fault)

    def crash(self, rank: int) -> None:
        """Make the next exchange of a rank fail."""
        self._group.crash.add(rank)
        self.excuse("the collective failed")

    def tick(self, milliseconds: Sequence[int]) -> None:
        """Let time pass, then tick every rank."""
        for rank, passed in zip(self._ranks, milliseconds, strict=True):
            rank.clock.advance_ms(passed)
        if self._by_hand:
            self._tick_by_hand()
        else:
            for rank in self._ranks:
                self._call(rank, rank.coordinator.tick)
        if self._failures:
            self._ticks_since += 1
            if len(self._failures) < len(self._ranks) and self._ticks_since > self._setup.policies.lag_ticks + 2:
                raise Violation("hang", f"ranks {sorted(self._failures)} failed, the others go on alone")

    def _tick_by_hand(self) -> None:
        rounds = [self._call(rank, rank.coordinator.begin_tick) for rank in self._ranks]
        if not self._alike(rounds):
            return
        self._reduce(rounds)
        second = [self._call(k, lambda k=k, x=x: k.coordinator.end_tick(x)) for k, x in zip(self._ranks, rounds, strict=True)]
        if self._alike(second):
            self._reduce(second)
            for rank, exchange in zip(self._ranks, second, strict=True):
                self._call(rank, lambda k=rank, x=exchange: k.coordinator.end_exchange(x))
        if self._failures and len(self._failures) < len(self._ranks):
            raise Violation("failure", f"only ranks {sorted(self._failures)} failed in a round of all")

    def _alike(self, exchanges: Sequence[Any]) -> bool:
        if len({type(exchange) for exchange in exchanges}) != 1:
            raise Violation("collectives", f"the ranks call for different exchanges, they would hang: {exchanges}")
        return exchanges[0] is not None

    @staticmethod
    def _reduce(exchanges: Sequence[Any]) -> None:
        buffers = [exchange.buffer for exchange in exchanges]
        if len({(buffer.shape, buffer.dtype) for buffer in buffers}) != 1:
            raise Violation("collectives", "the shapes of the ranks' exchanges differ: the collective would abort")
        reduced = np.minimum.reduce(buffers)
        for buffer in buffers:
            buffer[:] = reduced

    def _call(self, rank: SimRank, call: Any) -> Any:
        try:
            return call()
        except SyncFailed as failure:
            self._note(rank, failure)
        except PortDown as error:
            if self._setup.ranks > 1:
                raise Violation("ports", f"rank {rank.number} of several let {error!r} out of a tick") from error
        return None

    def _note(self, rank: SimRank, failure: SyncFailed) -> None:
        cause = failure.__cause__
        simulated = isinstance(cause, PortDown) or (isinstance(cause, RuntimeError) and "simulated" in str(cause))
        if isinstance(cause, HostExhausted):  # of an adoption, where this rank's memory refused what the budget allowed
            simulated = any(rank.injected[f"{verb} fails"] for verb in ("exhaust", "release", "quarantine"))
        if cause is not None and not simulated:
            raise Violation("failure", f"rank {rank.number} failed by itself: {cause!r}") from failure
        ports = any(rank.injected[f"{verb} fails"] for verb in INDEX_VERBS)
        if not (self.excuses or simulated or self._failures or ports):
            raise Violation("failure", f"rank {rank.number} failed for no injected fault: {failure}")
        self._failures.setdefault(rank.number, failure)
