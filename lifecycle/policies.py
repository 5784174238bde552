"""What the operator chooses: when to stop, what to do under pressure, and the limits. Plain values, checked when built."""

from dataclasses import dataclass, field
from enum import StrEnum

from lifecycle.errors import ConfigError

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BestEffort:
    """Stop as soon as admission wants the request."""

    name: str = field(default="best_effort", init=False)


@dataclass(frozen=True, slots=True)
class WaitComplete:
    """Stop when everything planned is read."""

    name: str = field(default="wait_complete", init=False)


@dataclass(frozen=True, slots=True)
class Timeout:
    """Stop when everything planned is read, or at min(max_s, base_s + per_ki_token_s * tokens / 1024).

    There is one such limit from issue to the first claimed read, and one from there.
    """

    base_s: float = 1.0
    per_ki_token_s: float = 0.25
    max_s: float = 30.0
    name: str = field(default="timeout", init=False)

    def __post_init__(self) -> None:
        if not (0 <= self.base_s <= self.max_s and self.per_ki_token_s >= 0 and self.max_s > 0):
            raise ConfigError(f"cannot use {self}: need 0 <= base_s <= max_s, per_ki_token_s >= 0 and max_s > 0")

    def limit_ns(self, tokens: int) -> int:
        """Return the limit for `tokens` tokens, in nanoseconds."""
        return int(min(self.max_s, self.base_s + self.per_ki_token_s * tokens / 1024) * NS_PER_S)


StopPolicy = BestEffort | WaitComplete | Timeout

STOP_POLICIES: dict[str, type[BestEffort] | type[WaitComplete] | type[Timeout]] = {
    "best_effort": BestEffort,
    "wait_complete": WaitComplete,
    "timeout": Timeout,
}


def stop_policy(name: str) -> StopPolicy:
    """Return the stop policy of that name with its defaults, or raise `ConfigError` with the names there are."""
    build = STOP_POLICIES.get(name)
    if build is None:
        raise ConfigError(f"cannot use stop policy {name!r}: there are {', '.join(STOP_POLICIES)}")
    return build()


class Pressure(StrEnum):
    """What the plan does when host memory cannot hold the whole hit."""

    SHRINK = "shrink"  # plan the longest restorable length that fits
    REVOKE = "revoke"  # the hit or nothing


class OnShortfall(StrEnum):
    """What happens when a rebuildable sidecar is short."""

    DISCARD = "discard"  # all or nothing
    DEGRADE = "degrade"  # publish KV without it


@dataclass(frozen=True, slots=True)
class Policies:
    """Everything an operator sets, equal on all ranks. Lengths in pages except fields named `_tokens`; times in seconds."""

    stop: StopPolicy = Timeout()
    pressure: Pressure = Pressure.SHRINK
    shortfall: OnShortfall = OnShortfall.DISCARD
    threshold_pages: int = 1  # shorter spans and hits are not worth a prefetch
    max_pages: int = 4096  # longer spans are cut to this
    limit_tokens: int = 1 << 20  # tokens in flight
    lost_read_s: float = 60.0  # a read unanswered for so long is lost, under every stop policy
    max_lost_reads: int = 8  # beyond it, lost readers are not replaced and `issue` declines
    row_capacity: int = 64  # prefetches agreed in one round
    mask_capacity: int = 8  # restorable sets agreed in one round (layouts with trailing pools)
    lag_ticks: int = 0  # a round launched at tick t is consumed at tick t + lag
    batch_pages: int = 128  # keys in one read
    stuck_after_tries: int = 100  # a failing port is reported as stuck after so many ticks

    def __post_init__(self) -> None:
        for name in ("threshold_pages", "max_pages", "row_capacity", "mask_capacity", "batch_pages", "stuck_after_tries"):
            if getattr(self, name) < 1:
                raise ConfigError(f"cannot use {name}={getattr(self, name)}: need at least 1")
        if self.batch_pages > 128:
            raise ConfigError(f"cannot use batch_pages={self.batch_pages}: stores take at most 128 keys a call")
        if self.threshold_pages > self.max_pages:
            raise ConfigError(f"cannot use threshold_pages={self.threshold_pages}: it is over max_pages={self.max_pages}")
        if self.lag_ticks < 0 or self.max_lost_reads < 0 or self.lost_read_s <= 0:
            raise ConfigError("cannot use a negative lag_ticks or max_lost_reads, or a lost_read_s that is not above 0")
        if self.limit_tokens < 1:
            raise ConfigError(
                f"cannot use limit_tokens={self.limit_tokens}: every prefetch would be declined (set a limit above 0)"
            )

    @property
    def degrade(self) -> bool:
        """Whether rebuildable pools are spared."""
        return self.shortfall is OnShortfall.DEGRADE

    @property
    def lost_read_ns(self) -> int:
        """`lost_read_s` in nanoseconds."""
        return int(self.lost_read_s * NS_PER_S)
