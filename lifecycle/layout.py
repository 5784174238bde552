"""Typed declarations of the pools of a model, checked when they are built.

Which outcome rule applies to a model follows from these declarations, never from a flag. Knows nothing of bytes and
ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lifecycle.errors import LayoutError, UnknownPool

KV = "kv"


@dataclass(frozen=True, slots=True)
class AllPages:
    """The pool must hold every page of [0, p) to serve a prefix of p pages."""


@dataclass(frozen=True, slots=True)
class TrailingPages:
    """The pool must hold the pages [max(0, p - window_pages), p) to serve a prefix of p pages."""

    window_pages: int


Coverage = AllPages | TrailingPages


class Need(StrEnum):
    """What happens to the prefix when the pool does not cover it."""

    REQUIRED = "required"  # the prefix is not usable without it
    REBUILDABLE = "rebuildable"  # required, unless the policy is `degrade`: the model can recompute it from full KV
    OPTIONAL = "optional"  # never stops or shortens the target (draft pools)


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of per-page state.

    A pool that rides on another uses that pool's host slots and is never released itself.
    """

    name: str
    coverage: Coverage = AllPages()
    rides_on: str | None = None
    need: Need = Need.REQUIRED

    def window(self, start_page: int, prefix_pages: int) -> tuple[int, int]:
        """Return the pages [lo, hi) from `start_page` on that a prefix of `prefix_pages` pages needs of this pool."""
        if isinstance(self.coverage, TrailingPages):
            return max(start_page, prefix_pages - self.coverage.window_pages), prefix_pages
        return start_page, prefix_pages


class OutcomeRule(StrEnum):
    """How the usable length follows from what landed (DESIGN section 7)."""

    KV = "kv"  # u = kv
    CLAMP = "clamp"  # u = min of kv and every required sidecar
    ALL_OR_NOTHING = "all_or_nothing"  # u = P or nothing


@dataclass(frozen=True)
class Layout:
    """The pools of a model, in reading order: kv, what rides on it, then the pools with slots of their own.

    Raises `LayoutError`, naming the pool, when the declarations contradict each other.
    """

    name: str
    pools: tuple[Pool, ...]
    own: tuple[Pool, ...] = field(init=False, repr=False, compare=False)
    groups: tuple[tuple[Pool, ...], ...] = field(init=False, repr=False, compare=False)
    index_of: dict[str, int] = field(init=False, repr=False, compare=False)
    _required: tuple[tuple[Pool, ...], ...] = field(init=False, repr=False, compare=False)  # by `degrade`
    _rules: tuple[OutcomeRule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        own = sorted((p for p in self.pools if p.rides_on is None), key=lambda p: p.name != KV)
        groups = tuple((o, *(p for p in self.pools if p.rides_on == o.name)) for o in own)
        object.__setattr__(self, "own", tuple(own))
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "pools", tuple(pool for group in groups for pool in group))
        object.__setattr__(self, "index_of", {p.name: i for i, p in enumerate(self.pools)})
        required = tuple(_required(self.pools, degrade) for degrade in (False, True))
        object.__setattr__(self, "_required", required)
        object.__setattr__(self, "_rules", tuple(_rule(pools) for pools in required))

    def declaration(self) -> dict[str, object]:
        """Return the layout as plain values, as a log's header holds it; `Layout.of_declaration` reads it back."""
        return {"name": self.name, "pools": [_plain(pool) for pool in self.pools]}

    @staticmethod
    def of_declaration(value: Mapping[str, Any]) -> "Layout":
        """Return the layout of a declaration, checked like any other; raises `LayoutError` for what is not one."""
        try:
            pools = tuple(_pool_of(item) for item in value["pools"])
            return Layout(str(value["name"]), pools)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError("(from a log)", None, f"not a layout declaration: {error!r}") from error

    def pool(self, name: str) -> Pool:
        """Return the pool of that name, or raise `LayoutError`."""
        place = self.index_of.get(name)
        if place is None:
            raise UnknownPool(self.name, name, self.index_of)
        return self.pools[place]

    def owner(self, name: str) -> str:
        """Return the name of the pool whose slots `name` uses: itself, or the one it rides on."""
        return self.pool(name).rides_on or name

    def required(self, degrade: bool = False) -> tuple[Pool, ...]:
        """Return the pools that a usable prefix needs; `degrade` drops the rebuildable ones."""
        return self._required[degrade]

    def rule(self, degrade: bool = False) -> OutcomeRule:
        """Return the outcome rule that follows from the required pools."""
        return self._rules[degrade]

    def has_trailing(self, degrade: bool = False) -> bool:
        """Say whether a required pool is trailing, so that restorable lengths are a set and not a prefix."""
        return any(isinstance(p.coverage, TrailingPages) for p in self.required(degrade))


def _required(pools: tuple[Pool, ...], degrade: bool) -> tuple[Pool, ...]:
    spared = {Need.OPTIONAL, Need.REBUILDABLE} if degrade else {Need.OPTIONAL}
    return tuple(p for p in pools if p.need not in spared)


def _rule(required: tuple[Pool, ...]) -> OutcomeRule:
    sidecars = [p for p in required if p.name != KV]
    if not sidecars:
        return OutcomeRule.KV
    if all(isinstance(p.coverage, AllPages) and p.rides_on == KV for p in sidecars):
        return OutcomeRule.CLAMP
    return OutcomeRule.ALL_OR_NOTHING


def _check(layout: Layout) -> None:
    if strange := [pool for pool in layout.pools if not isinstance(pool, Pool) or not isinstance(pool.name, str)]:
        raise LayoutError(str(layout.name), None, f"{strange[0]!r} is no pool with a name (a layout is made of those)")
    by_name = {p.name: p for p in layout.pools}

    def refuse(pool: str, why: str) -> LayoutError:
        return LayoutError(layout.name, pool, why)

    if KV not in by_name:
        raise refuse(KV, "every layout needs a pool of this name")
    kv = by_name[KV]
    if not isinstance(kv.coverage, AllPages) or kv.rides_on is not None or kv.need is not Need.REQUIRED:
        raise refuse(KV, "it must be required, cover all pages and have slots of its own")
    seen: set[str] = set()
    for pool in layout.pools:
        if not isinstance(pool.need, Need) or not isinstance(pool.coverage, (AllPages, TrailingPages)):
            raise refuse(pool.name, f"need {pool.need!r} and coverage {pool.coverage!r} must be a Need and a Coverage")
        if not pool.name.isidentifier() or not pool.name.isascii() or len(pool.name) > 64:
            raise refuse(pool.name, "a pool name is up to 64 ASCII letters, digits and underscores, the first no digit")
        if pool.name in seen:
            raise refuse(pool.name, "declared twice")
        seen.add(pool.name)
        if isinstance(pool.coverage, TrailingPages):
            window = pool.coverage.window_pages
            if not isinstance(window, int) or window < 1:
                raise refuse(pool.name, f"a window of {window!r} pages is none; use a whole number of at least 1")
        if pool.rides_on is None:
            continue
        host = by_name.get(pool.rides_on)
        if host is None:
            raise refuse(pool.name, f"rides on {pool.rides_on}, which is not declared")
        if host.rides_on is not None or host is pool:
            raise refuse(pool.name, f"rides on {host.name}, which has no slots of its own")
        if isinstance(host.coverage, TrailingPages) and (
            isinstance(pool.coverage, AllPages) or pool.coverage.window_pages > host.coverage.window_pages
        ):
            raise refuse(pool.name, f"must cover pages that {host.name}, whose slots it uses, does not hold")
        if _RANK[pool.need] < _RANK[host.need]:
            raise refuse(pool.name, f"is {pool.need} but rides on {host.name}, which is only {host.need}")


def _plain(pool: Pool) -> dict[str, object]:
    window = pool.coverage.window_pages if isinstance(pool.coverage, TrailingPages) else None
    return {"name": pool.name, "trailing_pages": window, "rides_on": pool.rides_on, "need": pool.need.value}


def _pool_of(value: Mapping[str, Any]) -> Pool:
    window = value["trailing_pages"]
    coverage: Coverage = AllPages() if window is None else TrailingPages(int(window))
    rides_on = value["rides_on"]
    return Pool(str(value["name"]), coverage, None if rides_on is None else str(rides_on), Need(value["need"]))


_RANK = {Need.REQUIRED: 0, Need.REBUILDABLE: 1, Need.OPTIONAL: 2}


def _draft(pools: tuple[Pool, ...], draft: bool) -> tuple[Pool, ...]:
    return (*pools, Pool("draft", rides_on=KV, need=Need.OPTIONAL)) if draft else pools


def kv_only(draft: bool = False) -> Layout:
    """Return the layout of a model with plain attention."""
    return Layout("kv_only", _draft((Pool(KV),), draft))


def dsa(draft: bool = False) -> Layout:
    """Return the layout of sparse-attention models: an indexer page per KV page (GLM-5.x, DeepSeek-V3.2, MiniMax)."""
    return Layout("dsa", _draft((Pool(KV), Pool("indexer", rides_on=KV)), draft))


def swa(window_pages: int = 4, draft: bool = False) -> Layout:
    """Return the layout of models with sliding-window layers, which full KV can rebuild."""
    pools = (Pool(KV), Pool("swa", TrailingPages(window_pages), need=Need.REBUILDABLE))
    return Layout("swa", _draft(pools, draft))


def mamba(draft: bool = False) -> Layout:
    """Return the layout of models with recurrent layers: one state, at the end of the prefix, that nothing rebuilds."""
    return Layout("mamba", _draft((Pool(KV), Pool("mamba", TrailingPages(1))), draft))


def deepseek_v4(window_pages: int = 4, draft: bool = False) -> Layout:
    """Return the layout of DeepSeek-V4 stacks: compressed KV riding on kv, window states riding on swa."""
    trailing = TrailingPages(window_pages)
    pools = (
        Pool(KV),
        Pool("c4", rides_on=KV),
        Pool("c4_indexer", rides_on=KV),
        Pool("c128", rides_on=KV),
        Pool("swa", trailing),
        Pool("c4_state", trailing, rides_on="swa"),
        Pool("c4_indexer_state", trailing, rides_on="swa"),
        Pool("c128_state", trailing, rides_on="swa"),
    )
    return Layout("deepseek_v4", _draft(pools, draft))


PRESETS: dict[str, Callable[..., Layout]] = {
    "kv_only": kv_only,
    "dsa": dsa,
    "swa": swa,
    "mamba": mamba,
    "deepseek_v4": deepseek_v4,
}


def preset(name: str, draft: bool = False) -> Layout:
    """Return the preset layout of that name, or raise `LayoutError` with the names there are."""
    build = PRESETS.get(name)
    if build is None:
        raise LayoutError(name, None, f"no preset has this name (there are: {', '.join(PRESETS)})")
    return build(draft=draft)
