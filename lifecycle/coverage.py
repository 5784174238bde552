"""What is restorable, what is planned and what is usable: pure functions of the layout and of what ranks hold.

Pages are absolute; `start_page` is the first page of the span (all below it is in the index and locked in every pool).
A set of lengths is a bool array whose element i says whether a prefix of start_page + 1 + i pages is restorable.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lifecycle.layout import KV, AllPages, Layout, Need, OutcomeRule, Pool, TrailingPages
from lifecycle.policies import Policies, Pressure
from lifecycle.ranges import Range, Ranges, span
from lifecycle.reasons import Reason

Flags = NDArray[np.bool_]


def leading_run(flags: Flags) -> int:
    """Return how many successes come before the first failure. Never a sum, never a maximum."""
    if flags.all():
        return len(flags)
    return int(np.argmin(flags))


def whole_windows(flags: Flags, window_pages: int) -> Flags:
    """Return for which lengths, from 1 on, there is no hole in the last `window_pages` pages (of a shorter one, in any)."""
    place = np.arange(1, len(flags) + 1)
    last_hole = np.maximum.accumulate(np.where(flags, 0, place))
    whole: Flags = place - last_hole >= np.minimum(place, window_pages)
    return whole


def restorable(layout: Layout, degrade: bool, present: Mapping[str, Flags]) -> Flags:
    """Return which lengths this rank could restore from pages that are `present` (per required pool, over the span)."""
    span_pages = len(present[KV])
    reach = span_pages
    lengths = np.ones(span_pages, dtype=np.bool_)
    for pool in layout.required(degrade):
        flags = present[pool.name]
        if isinstance(pool.coverage, AllPages):
            reach = min(reach, leading_run(flags))
        else:
            lengths &= whole_windows(flags, pool.coverage.window_pages)
    lengths[reach:] = False
    return lengths


def longest(lengths: Flags, start_page: int) -> int:
    """Return the end page of the longest restorable length; `start_page` if there is none."""
    found = np.flatnonzero(lengths)
    return start_page + int(found[-1]) + 1 if found.size else start_page


def miss_reason(present: Mapping[str, Flags], hit_pages: int, threshold_pages: int) -> Reason | None:
    """Return why a hit of `hit_pages` pages is too short for a prefetch, or None if it is not."""
    if hit_pages >= threshold_pages:
        return None
    kv = present[KV]
    if not kv.any():
        return Reason.FULL_MISS
    if not kv[0]:
        return Reason.HEAD_MISSING
    if leading_run(kv) >= threshold_pages:
        return Reason.SIDECAR_ABSENT
    return Reason.BELOW_THRESHOLD


@dataclass(frozen=True, slots=True)
class Plan:
    """What all ranks will read: [start, plan_page), with the pages of each own pool, and what is left out."""

    hit_page: int
    plan_page: int
    reserved: Mapping[str, Range]
    left_out: tuple[str, ...]

    @property
    def cut(self) -> Reason | None:
        """Why the plan is shorter than the hit."""
        return Reason.HOST_CAPACITY if self.plan_page < self.hit_page else None


def plan(layout: Layout, policies: Policies, start_page: int, lengths: Flags, room: Mapping[str, int]) -> Plan | Reason:
    """Return the plan for the agreed restorable `lengths` and the pages that each own pool has room for, or why there is none.

    `shrink`: the longest agreed length that fits; `revoke`: the longest agreed length or nothing. Optional and degradable
    pools never shorten the plan: they are left out when their room is short, and what rides on them too.
    """
    hit_page = longest(lengths, start_page)
    if hit_page - start_page < policies.threshold_pages:
        return Reason.BELOW_THRESHOLD
    required = layout.required(policies.degrade)
    fits = min(_longest_fit(pool, room[pool.name]) for pool in required if pool.rides_on is None)
    plan_page = longest(lengths[:fits], start_page)
    if plan_page < hit_page and policies.pressure is Pressure.REVOKE:
        return Reason.HOST_CAPACITY
    if plan_page - start_page < policies.threshold_pages:
        return Reason.HOST_CAPACITY
    reserved: dict[str, Range] = {}
    left_out: list[str] = []
    for group in layout.groups:
        owner = group[0]
        lo, hi = owner.window(start_page, plan_page)
        if owner not in required and hi - lo > room[owner.name]:
            left_out += [pool.name for pool in group]
        else:
            reserved[owner.name] = (lo, hi)
    return Plan(hit_page, plan_page, reserved, tuple(left_out))


def _longest_fit(pool: Pool, room_pages: int) -> int:
    """Return the longest span, in pages, for which the pool's share fits into `room_pages`."""
    if isinstance(pool.coverage, TrailingPages) and room_pages >= pool.coverage.window_pages:
        return _UNBOUNDED
    return max(0, room_pages)  # a budget below zero (a quarantine agreed late) has room for nothing


_UNBOUNDED = 1 << 31


def landed_pages(pool: Pool, start_page: int, plan_page: int, landed: int) -> Ranges:
    """Return the pages that a `landed` value stands for: an absolute end, or for trailing pools a count of keys."""
    lo, _ = pool.window(start_page, plan_page)
    if isinstance(pool.coverage, TrailingPages):
        return span(lo, lo + landed)
    return span(lo, landed)


def nothing_landed(layout: Layout, start_page: int) -> dict[str, int]:
    """Return the landed values that stand for no page at all."""
    return {p.name: 0 if isinstance(p.coverage, TrailingPages) else start_page for p in layout.pools}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The usable end page, the pools that are not published with it, and the pool that fell short, if one did."""

    usable_page: int
    dropped: tuple[str, ...] = ()
    short: str | None = None


def outcome(
    layout: Layout, degrade: bool, start_page: int, plan_page: int, left_out: tuple[str, ...], agreed: Mapping[str, int]
) -> Outcome:
    """Apply the outcome rule of the layout to the agreed landed values (DESIGN section 7)."""
    required = [pool for pool in layout.required(degrade) if pool.name not in left_out]
    rule = layout.rule(degrade)
    if rule is OutcomeRule.ALL_OR_NOTHING:
        for pool in required:
            if not _covers(pool, start_page, plan_page, plan_page, agreed[pool.name]):
                return Outcome(start_page, short=pool.name)
        usable_page = plan_page
    else:
        usable_page = min(plan_page, *(agreed[pool.name] for pool in required))
    dropped = list(left_out)
    for pool in layout.pools:
        if pool in required or pool.name in dropped:
            continue
        covered = _covers(pool, start_page, plan_page, usable_page, agreed[pool.name])
        if not covered or pool.rides_on in dropped:
            dropped.append(pool.name)
    return Outcome(usable_page, tuple(dropped), _shortest(required, usable_page, plan_page, agreed))


def _covers(pool: Pool, start_page: int, plan_page: int, usable_page: int, landed: int) -> bool:
    """Say whether what landed covers what a prefix of `usable_page` pages needs of the pool from `start_page` on."""
    lo, hi = pool.window(start_page, usable_page)
    held = landed_pages(pool, start_page, plan_page, landed)
    return lo >= hi or any(start <= lo and hi <= stop for start, stop in held)


def _shortest(required: list[Pool], usable_page: int, plan_page: int, agreed: Mapping[str, int]) -> str | None:
    if usable_page == plan_page:
        return None
    return next(pool.name for pool in required if agreed[pool.name] == usable_page)


def published(layout: Layout, start_page: int, usable_page: int, dropped: tuple[str, ...]) -> dict[str, Range]:
    """Return the page range that each published pool covers of [start_page, usable_page)."""
    if usable_page <= start_page:
        return {}
    return {p.name: p.window(start_page, usable_page) for p in layout.pools if p.name not in dropped}


def must_land(layout: Layout, degrade: bool, pool: Pool) -> bool:
    """Say whether one failed read of `pool` ends the prefetch at once (all or nothing)."""
    return layout.rule(degrade) is OutcomeRule.ALL_OR_NOTHING and is_required(degrade, pool)


def is_required(degrade: bool, pool: Pool) -> bool:
    """Say whether a usable prefix needs the pool."""
    return pool.need is Need.REQUIRED or (pool.need is Need.REBUILDABLE and not degrade)
