"""What the operator chooses: when to stop, what to do under pressure, and the limits.

Plain values, checked when they are built. Reads no file and no environment.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType

from lifecycle.errors import ConfigError

NS_PER_S = 1_000_000_000
MOST_PAGES = 2**31 - 2  # INT32_MAX is the neutral value of a round
MOST_S = 1e15  # so that any time, in nanoseconds, is a number that can be compared
MOST_TICKS = 2**62  # so that any tick can be logged


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
        if not (0 <= self.base_s <= self.max_s <= MOST_S and 0 <= self.per_ki_token_s <= MOST_S and self.max_s > 0):
            need = f"0 <= base_s <= max_s, per_ki_token_s >= 0 and max_s > 0, all of at most {MOST_S:g}"
            raise ConfigError(f"cannot use {self}: need {need}")

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
class Retry:
    """The coordinator tries again by itself, in ticks, until the request is served, aborted or finished.

    Declined for want of room under the limit, a request waits in line and begins once there is room; nobody overtakes. After
    a miss, L3 is asked again. Neither holds up admission: `ready` is True while a request waits.
    """

    every_ticks: int = 32  # from a miss to the next query
    max_queries: int = 4  # queries of one attempt, the first one included; 1 never asks again
    max_waiting: int = 1024  # requests that wait at once; what comes then is declined for good
    give_up_ticks: int = 4096  # the longest wait for room

    def __post_init__(self) -> None:
        for name in ("every_ticks", "max_queries", "max_waiting", "give_up_ticks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TICKS:
                raise ConfigError(f"cannot use {name}={value!r}: need a whole number from 1 to {MOST_TICKS}")


@dataclass(frozen=True, slots=True)
class Policies:
    """Everything an operator sets, equal on all ranks. Raises `ConfigError` for what makes no sense.

    Lengths are in pages except in fields named `_tokens`; times are in seconds.
    """

    stop: StopPolicy = Timeout()
    pressure: Pressure = Pressure.SHRINK
    shortfall: OnShortfall = OnShortfall.DISCARD
    retry: Retry | None = None  # what is declined or missed stays so
    threshold_pages: int = 1  # shorter spans and hits are not worth a prefetch
    max_pages: int = 4096  # longer spans are cut to this
    limit_tokens: int = 1 << 20  # tokens in flight
    lost_read_s: float = 60.0  # a read unanswered for so long is lost, under every stop policy
    max_lost_reads: int = 8  # readers that hang in lost reads; while more do, none is replaced and `issue` declines
    row_capacity: int = 64  # prefetches agreed in one round
    mask_capacity: int = 8  # restorable sets agreed in one round (layouts with trailing pools)
    lag_ticks: int = 0  # a round launched at tick t is consumed at tick t + lag
    round_every_ticks: int = 1  # a round is launched at ticks that this divides
    pipeline_stages: int = 1  # a stage's tick is fed by the one before, so the lag is at least stages - 1
    batch_pages: int = 128  # keys in one read
    stuck_after_tries: int = 100  # a failing port is reported as stuck after so many ticks

    def __post_init__(self) -> None:
        for name, kinds in _CHOICES.items():  # a plain "degrade" equals the member and yet is not it
            if not isinstance(getattr(self, name), kinds):
                need = " or ".join(kind.__name__ for kind in kinds)
                raise ConfigError(f"cannot use {name}={getattr(self, name)!r}: need {need}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"cannot use {name}={value!r}: need a whole number of at least {least}")
        if self.batch_pages > 128:
            raise ConfigError(f"cannot use batch_pages={self.batch_pages}: stores take at most 128 keys a call")
        if self.max_pages > MOST_PAGES:
            raise ConfigError(f"cannot use max_pages={self.max_pages}: rounds carry 32 bits, up to {MOST_PAGES}")
        if self.threshold_pages > self.max_pages:
            over = f"it is over max_pages={self.max_pages}"
            raise ConfigError(f"cannot use threshold_pages={self.threshold_pages}: {over}")
        if self.lag_ticks < self.pipeline_stages - 1:
            stages = f"{self.pipeline_stages} pipeline stages need at least {self.pipeline_stages - 1}"
            raise ConfigError(f"cannot use lag_ticks={self.lag_ticks}: {stages}, since a stage's tick is fed by the one before")
        if not (isinstance(self.lost_read_s, (int, float)) and 0 < self.lost_read_s <= MOST_S):
            raise ConfigError(f"cannot use lost_read_s={self.lost_read_s!r}: need a time above 0 and of at most {MOST_S:g}")

    @property
    def degrade(self) -> bool:
        """Whether rebuildable pools are spared."""
        return self.shortfall is OnShortfall.DEGRADE

    @property
    def lost_read_ns(self) -> int:
        """`lost_read_s` in nanoseconds."""
        return int(self.lost_read_s * NS_PER_S)


_CHOICES: dict[str, tuple[type, ...]] = {
    "stop": (BestEffort, WaitComplete, Timeout),
    "pressure": (Pressure,),
    "shortfall": (OnShortfall,),
    "retry": (Retry, NoneType),
}

_LEAST = {
    "threshold_pages": 1,
    "max_pages": 1,
    "limit_tokens": 1,  # with 0 every prefetch would be declined
    "max_lost_reads": 0,
    "row_capacity": 1,
    "mask_capacity": 1,
    "lag_ticks": 0,
    "round_every_ticks": 1,
    "pipeline_stages": 1,
    "batch_pages": 1,
    "stuck_after_tries": 1,
}
