"""What a log's header says about the run: the terms that the rest of the log is held to. Nothing in it is trusted."""

from collections.abc import Mapping
from dataclasses import dataclass

from lifecycle.audit.words import plain
from lifecycle.errors import ConfigError, LayoutError, LogError
from lifecycle.events import LogOpened
from lifecycle.layout import Layout
from lifecycle.policies import MOST_S, NS_PER_S, STOP_POLICIES, OnShortfall, Pressure, Timeout

MOST_SLOTS = 2**28  # of all pools: each may take a byte; 16 TiB of host memory in pages of 64 KiB
MOST_POOLS = 64


class BadHeader(LogError):
    """Raised when a header does not describe a run that can be checked."""


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """What bounds the waits of a run, in ticks and counts."""

    every_ticks: int
    max_queries: int
    max_waiting: int
    give_up_ticks: int


@dataclass(frozen=True, slots=True)
class Terms:
    """One rank's terms. Page counts are per pool with own slots."""

    run: str
    rank: int
    ranks: int
    layout: Layout
    degrade: bool
    pressure: Pressure
    threshold_pages: int
    max_pages: int
    limit_tokens: int
    lag_ticks: int
    page_size_tokens: int
    capacity_pages: Mapping[str, int]
    budget_pages: Mapping[str, int]
    retry: RetryTerms | None = None  # nothing is tried again
    stop: str | None = None  # the stop policy; None where it is not known, as of an engine that is only observed
    limit: Timeout | None = None  # of that policy
    absent: frozenset[str] = frozenset()  # pools of which the rank has no shard: they land without a read
    library: str = ""
    row_capacity: int | None = None  # None, here and below, where the log does not say
    mask_capacity: int | None = None
    round_every_ticks: int | None = None
    lost_read_ns: int | None = None
    observed: bool = False  # an engine of another make, of which only what it did is known

    def shared(self) -> Mapping[str, object]:
        """Return what must be the same on all ranks, by name."""
        return {name: getattr(self, name) for name in _SHARED}


_SHARED = ("ranks", "layout", "degrade", "pressure", "threshold_pages", "max_pages", "limit_tokens", "lag_ticks",
           "page_size_tokens", "budget_pages", "retry", "stop", "limit", "library", "row_capacity", "mask_capacity",
           "round_every_ticks", "lost_read_ns")  # fmt: skip


def terms_of(opened: LogOpened) -> Terms:
    """Return the terms of a header, or raise `BadHeader` with what is wrong with it."""
    pools = opened.layout.get("pools")
    if isinstance(pools, (list, tuple)) and len(pools) > MOST_POOLS:
        raise BadHeader(f"cannot check a layout of {len(pools)} pools: at most {MOST_POOLS}")
    try:
        layout = Layout.of_declaration(opened.layout)
    except LayoutError as error:
        raise BadHeader(f"cannot check this log: {error}") from error
    if not 0 <= opened.rank < opened.ranks:
        raise BadHeader(f"cannot check the log of rank {opened.rank} of {opened.ranks}: there is no such rank")
    if opened.page_size_tokens < 1:
        raise BadHeader(f"cannot check a log with pages of {opened.page_size_tokens} tokens")
    own = {pool.name for pool in layout.own}
    for what, pages in (("capacity_pages", opened.capacity_pages), ("budget_pages", opened.budget_pages)):
        if set(pages) != own:
            raise BadHeader(f"cannot check this log: {what} has {sorted(pages)}, the pools with slots are {sorted(own)}")
    if sum(opened.capacity_pages.values()) > MOST_SLOTS:
        raise BadHeader(f"cannot check this log: its pools have {sum(opened.capacity_pages.values())} slots, over {MOST_SLOTS}")
    for pool, capacity in opened.capacity_pages.items():
        if capacity < 0:
            raise BadHeader(f"cannot check this log: pool {pool} has {capacity} slots")
        if opened.budget_pages[pool] > capacity:
            raise BadHeader(f"cannot check this log: the budget of {pool}, the least of all ranks, is over its capacity")
    policies = opened.policies
    try:
        degrade = OnShortfall(_word(policies, "shortfall")) is OnShortfall.DEGRADE
        pressure = Pressure(_word(policies, "pressure"))
    except ValueError as error:
        raise BadHeader(f"cannot check this log: {error}") from error
    return Terms(
        opened.run, opened.rank, opened.ranks, layout, degrade, pressure, _number(policies, "threshold_pages"),
        _number(policies, "max_pages"), _number(policies, "limit_tokens"), _number(policies, "lag_ticks"),
        opened.page_size_tokens, dict(opened.capacity_pages), dict(opened.budget_pages), _retry(policies),
        *_stop(policies), frozenset(opened.absent), opened.library, _optional(policies, "row_capacity"),
        _optional(policies, "mask_capacity"), _optional(policies, "round_every_ticks"), _lost_read_ns(policies),
        "observed" in policies,
    )  # fmt: skip


def _retry(policies: Mapping[str, object]) -> RetryTerms | None:
    retry = policies.get("retry")  # logs of older versions have none
    if retry is None:
        return None
    if not isinstance(retry, Mapping):
        raise BadHeader(f"cannot check this log: policy retry is {retry!r}")
    return RetryTerms(*(_number(retry, name) for name in ("every_ticks", "max_queries", "max_waiting", "give_up_ticks")))


def _stop(policies: Mapping[str, object]) -> tuple[str | None, Timeout | None]:
    stop = policies.get("stop")
    name = stop.get("name") if isinstance(stop, Mapping) and "observed" not in policies else None
    if not isinstance(stop, Mapping) or not isinstance(name, str) or name not in STOP_POLICIES:
        return None, None
    if STOP_POLICIES[name] is not Timeout:
        return name, None
    numbers = [stop.get(field) for field in ("base_s", "per_ki_token_s", "max_s")]
    if not all(isinstance(number, (int, float)) and abs(number) < 1e9 for number in numbers):
        raise BadHeader(f"cannot check this log: policy stop is {plain(repr(dict(stop)))}")
    try:
        return name, Timeout(*numbers)  # type: ignore[arg-type]  # numbers, as was just seen
    except ConfigError as error:
        raise BadHeader(f"cannot check this log: {error}") from error


def _optional(policies: Mapping[str, object], name: str) -> int | None:
    return None if policies.get(name) is None else _number(policies, name)


def _lost_read_ns(policies: Mapping[str, object]) -> int | None:
    value = policies.get("lost_read_s")
    if value is None or "observed" in policies:
        return None
    if not isinstance(value, (int, float)) or not 0 < value <= MOST_S:
        raise BadHeader(f"cannot check this log: policy lost_read_s is {value!r}, not a time above 0 and of at most {MOST_S:g}")
    return int(value * NS_PER_S)


def _word(policies: Mapping[str, object], name: str) -> str:
    value = policies.get(name)
    if not isinstance(value, str):
        raise BadHeader(f"cannot check this log: policy {name} is {value!r}")
    return value


def _number(policies: Mapping[str, object], name: str) -> int:
    value = policies.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadHeader(f"cannot check this log: policy {name} is {value!r}, not a whole number of at least 0")
    return value
