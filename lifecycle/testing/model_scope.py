"""The scopes of the model checker: which layouts, policies and faults are explored to the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lifecycle.keys import KeyChain, page_keys
from lifecycle.layout import KV, Layout, Need, Pool, TrailingPages, kv_only
from lifecycle.policies import BestEffort, OnShortfall, Policies, Retry, StopPolicy, Timeout, WaitComplete


@dataclass(frozen=True)
class Scope:
    """One state space: two prefetches of one prompt on two ranks, some faults, some aborts."""

    name: str
    layout: Layout
    policies: Policies
    capacity_pages: Mapping[str, int]
    pages: int = 3
    ranks: int = 2
    prefetches: int = 2
    retry: bool = False  # the second prefetch is a newer attempt of the first one's request
    faults: int = 1
    aborts: int = 1
    fault_kinds: tuple[str, ...] = ("miss", "no_answer", "bad", "lost", "late", "tight")
    keys: KeyChain = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", page_keys(range(self.pages), 1))


_SIDECARS: Mapping[str, tuple[Pool, ...]] = {
    "kv": (),
    "rider": (Pool("indexer", rides_on=KV),),
    "rebuildable": (Pool("swa", TrailingPages(2), need=Need.REBUILDABLE),),
    "trailing": (Pool("mamba", TrailingPages(1)),),
    "optional": (Pool("draft", need=Need.OPTIONAL),),
}


def _layout(*names: str) -> Layout:
    pools = tuple(pool for name in names for pool in _SIDECARS[name])
    return Layout("_".join(("kv", *names)), (Pool(KV), *pools)) if pools else kv_only()


def _policies(stop: StopPolicy, lag: int, degrade: bool) -> Policies:
    return Policies(
        stop=stop,
        shortfall=OnShortfall.DEGRADE if degrade else OnShortfall.DISCARD,
        lag_ticks=lag,
        max_pages=4,
        limit_tokens=64,
        row_capacity=4,
        mask_capacity=2,
    )


_WAIT = WaitComplete()


def _scope(
    sidecars: tuple[str, ...], lag: int, stop: StopPolicy = _WAIT, *, degrade: bool = False, pages: int = 3,
    prefetches: int = 2, retry: bool = False, faults: int = 1, aborts: int = 1,
) -> Scope:  # fmt: skip
    layout = _layout(*sidecars)
    room = {pool.name: 2 * pages - 1 if pool.name == KV else 2 for pool in layout.own}  # the second plan must shrink
    name = f"{'+'.join(('kv', *sidecars))}, lag {lag}, {stop.name}, {prefetches} prefetches of {pages} pages"
    name += (", degrade" if degrade else "") + (", retry" if retry else "") + f", {faults} faults, {aborts} aborts"
    return Scope(name, layout, _policies(stop, lag, degrade), room, pages, 2, prefetches, retry, faults, aborts)


def _waiting(lag: int, prefetches: int = 2, faults: int = 1, aborts: int = 0) -> Scope:
    """Return a scope in which requests wait: there is room for one at a time, and L3 is asked again after a miss."""
    scope = _scope((), lag, pages=2, prefetches=prefetches, faults=faults, aborts=aborts)
    again = Retry(every_ticks=2, max_queries=2, max_waiting=2, give_up_ticks=3)
    return replace(scope, name=f"{scope.name}, waiting", policies=replace(scope.policies, limit_tokens=2, retry=again))


_LIMIT = Timeout(base_s=1.0, per_ki_token_s=0.0, max_s=1.0)


def small() -> list[Scope]:
    """Return scopes that take some seconds: one of each kind."""
    return [
        _scope(("rider",), 0, prefetches=1),
        _scope(("rebuildable",), 1, prefetches=1, pages=2),
        _scope((), 1, _LIMIT, pages=2, prefetches=1),
        _scope(("trailing", "optional"), 0, prefetches=1, pages=2, aborts=0),
        _scope((), 0, pages=2, aborts=0),
        _waiting(0),
        _waiting(1),
    ]


def full() -> list[Scope]:
    """Return every scope: kv alone and with each kind of sidecar, both lags, every stop policy, and all sidecars at once."""
    scopes = []
    for lag in (0, 1):
        for kind in _SIDECARS:
            sidecars = () if kind == "kv" else (kind,)
            scopes.append(_scope(sidecars, lag))
            scopes.append(_scope(sidecars, lag, _LIMIT))
        scopes.append(_scope(("rider",), lag, BestEffort()))
        scopes.append(_scope(("rebuildable",), lag, degrade=True))
        scopes.append(_scope(("rider",), lag, retry=True))
        scopes.append(_scope(("rider", "rebuildable", "trailing", "optional"), lag, prefetches=1))
        scopes.append(_scope(("rider", "rebuildable", "trailing", "optional"), lag, _LIMIT, prefetches=1, faults=2))
        scopes.append(_waiting(lag, aborts=1))
    return scopes
