"""What all ranks must decide, by DESIGN sections 7 and 8, from the reports of all at once. Shares no rule with the library.

Of a prefetch it keeps what is replicated; what it is told of each rank is its report, its restorable set, and the room that
the budgets left when a plan was made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lifecycle.layout import AllPages, Layout, Need
from lifecycle.policies import OnShortfall, Policies, Pressure
from lifecycle.reasons import Reason

Report = Any  # a row, by field name
NO_REASON = 0x7FFFFFFF


@dataclass
class Known:
    """What is replicated of one prefetch."""

    start: int
    end: int
    state: str = "issued"
    moved: int = 0
    plan: int = 0
    ceiling: int = 0
    why: Reason = Reason.COMPLETED


@dataclass
class Launched:
    """A round on its way: who is in it and how often each had moved; or the sets that it called for."""

    due: int
    number: int
    rows: dict[int, int]
    asking: set[int] = field(default_factory=set)
    sets: bool = False


class Reference:
    """The decisions of all ranks, as tuples, in order."""

    def __init__(self, layout: Layout, policies: Policies, ranks: int) -> None:
        self.layout, self.policies, self.ranks = layout, policies, ranks
        self.said: list[tuple[Any, ...]] = []
        self.reports: dict[tuple[int, int], dict[int, Report]] = {}  # (round, prefetch) -> rank -> row
        self.sets: dict[int, dict[int, list[bool]]] = {}  # prefetch -> rank -> lengths
        self.rooms: list[Mapping[str, int]] = []
        self._all: dict[int, Known] = {}
        self._pending: list[Launched] = []
        self._asked: set[int] = set()
        self._tick = self._last = 0
        degrade = policies.shortfall is OnShortfall.DEGRADE
        spared = {Need.OPTIONAL, Need.REBUILDABLE} if degrade else {Need.OPTIONAL}
        self._required = [pool for pool in layout.pools if pool.need not in spared]
        self._windows = {p.name: p.coverage.window_pages for p in layout.pools if not isinstance(p.coverage, AllPages)}
        sidecars = [pool for pool in self._required if pool.name != "kv"]
        self._clamps = all(isinstance(pool.coverage, AllPages) and pool.rides_on == "kv" for pool in sidecars)
        self._has_sets = any(pool.name in self._windows for pool in self._required)

    # --- commands ------------------------------------------------------------------------------------------------------

    def issue(self, id_: int, start: int, end: int) -> None:
        """A prefetch began."""
        self._all[id_] = Known(start, end)

    def end(self, id_: int, reason: Reason) -> None:
        """A command ended one."""
        self._say("discarded", id_, reason)

    # --- ticks ---------------------------------------------------------------------------------------------------------

    def choose(self) -> list[int]:
        """Return the rows of the round that is launched next: by id after the last sent, wrapping."""
        ids, room = sorted(self._all), self.policies.row_capacity
        later = [id_ for id_ in ids if id_ > self._last]
        return sorted(ids) if len(ids) <= room else (later + ids)[:room]

    def tick(self) -> None:
        """Consume what is due and launch a round; with lag 0 the other way round."""
        self._tick += 1
        if self.policies.lag_ticks == 0:
            self._launch()
        while self._pending and self._pending[0].due <= self._tick:
            launched = self._pending.pop(0)
            self._take_sets(launched) if launched.sets else self._take_rows(launched)
        if self.policies.lag_ticks:
            self._launch()

    def _launch(self) -> None:
        ids = self.choose()
        self._last = ids[-1] if ids else self._last
        rows = {id_: self._all[id_].moved for id_ in ids}
        asking = {id_ for id_ in ids if self._all[id_].state == "issued"}
        self._pending.append(Launched(self._tick + self.policies.lag_ticks, self._tick, rows, asking))

    def _take_rows(self, launched: Launched) -> None:
        wanted = []
        for id_, moved in launched.rows.items():
            told = [self.reports[launched.number, id_][rank] for rank in range(self.ranks)]
            if id_ in launched.asking and id_ not in self._asked and self._may_plan(told) and self._has_sets:
                start = self._all[id_].start if id_ in self._all else 0
                if min(row.hit_page for row in told) - start >= self.policies.threshold_pages:
                    wanted.append(id_)  # what was pending when the round was launched, whatever became of it
            if id_ in self._all and self._all[id_].moved == moved:
                self._decide(id_, self._all[id_], told, launched.number)
        wanted = wanted[: self.policies.mask_capacity]
        self._asked.update(wanted)
        if wanted:
            rows = {id_: launched.rows[id_] for id_ in wanted}
            sets = Launched(self._tick + self.policies.lag_ticks, launched.number, rows, sets=True)
            self._pending.insert(0 if self.policies.lag_ticks == 0 else len(self._pending), sets)

    def _take_sets(self, launched: Launched) -> None:
        for id_, moved in launched.rows.items():
            if id_ in self._all and self._all[id_].moved == moved:
                held = [self.sets[id_][rank] for rank in range(self.ranks)]
                self._plan(id_, self._all[id_], [all(each) for each in zip(*held, strict=True)])

    # --- decisions -----------------------------------------------------------------------------------------------------

    def _may_plan(self, told: Sequence[Report]) -> bool:
        stop = any(row.must_stop for row in told) or all(row.can_stop for row in told)
        return all(row.hit_page >= 0 for row in told) and not stop

    def _decide(self, id_: int, known: Known, told: Sequence[Report], number: int) -> None:
        reason = min(row.reason for row in told)
        final = all(row.final for row in told)
        if known.state == "ended":
            if all(row.settled for row in told):
                self._say("closed", id_)
        elif known.state == "issued" and self._may_plan(told):
            hit = min(row.hit_page for row in told)
            if hit - known.start < self.policies.threshold_pages:
                short = reason <= Reason.BELOW_THRESHOLD.code
                self._say("discarded", id_, Reason.of_code(reason) if short else Reason.BELOW_THRESHOLD)
            elif not self._has_sets:
                self._plan(id_, known, [known.start + place < hit for place in range(known.end - known.start)])
        elif known.state == "terminated":
            if final:
                self._end(id_, known, told, number)
        else:
            ceiling = min(row.ceiling_page for row in told)
            if known.state == "transferring" and ceiling < known.ceiling:
                self._say("capped", id_, ceiling)
            if any(row.must_stop for row in told):
                self._say("terminated", id_, Reason.of_code(reason))
            elif final:
                self._say("terminated", id_, Reason.COMPLETED if known.ceiling >= known.plan else Reason.READ_FAILED)
            elif all(row.can_stop for row in told):
                self._say("terminated", id_, Reason.BEST_EFFORT)
            if final:
                self._end(id_, known, told, number)

    def _plan(self, id_: int, known: Known, lengths: Sequence[bool]) -> None:
        room = self.rooms.pop(0)
        held = [known.start + place + 1 for place, there in enumerate(lengths) if there]
        hit = max(held, default=known.start)
        own = [pool.name for pool in self._required if pool.rides_on is None]
        fits = [p for p in held if all(self._needs(name, known.start, p) <= max(0, room[name]) for name in own)]
        plan = max(fits, default=known.start)
        if hit - known.start < self.policies.threshold_pages:
            self._say("discarded", id_, Reason.BELOW_THRESHOLD)
        elif plan - known.start < self.policies.threshold_pages or (plan < hit and self.policies.pressure is Pressure.REVOKE):
            self._say("discarded", id_, Reason.HOST_CAPACITY)
        else:
            self._say("planned", id_, hit, plan)

    def _needs(self, pool: str, start: int, prefix: int) -> int:
        return min(prefix - start, self._windows.get(pool, prefix))

    def _end(self, id_: int, known: Known, told: Sequence[Report], number: int) -> None:
        agreed = {pool.name: min(row.landed[place] for row in told) for place, pool in enumerate(self.layout.pools)}
        self._say("synced", id_, tuple(agreed.values()), self.ranks, number)
        usable = known.start
        if known.plan and self._clamps:
            usable = min(known.plan, *(agreed[pool.name] for pool in self._required))
        elif known.plan:
            want = {p.name: self._needs(p.name, known.start, known.plan) for p in self._required}
            got = {name: agreed[name] - (0 if name in self._windows else known.start) for name in want}
            usable = known.plan if got == want else known.start
        if usable == known.start:
            self._say("discarded", id_, Reason.SHORTFALL if known.plan and not self._clamps else known.why)
        elif usable == known.plan:
            self._say("committed", id_, usable)
        else:
            self._say("clamped", id_, usable, known.why)

    def _say(self, what: str, id_: int, *facts: Any) -> None:
        known = self._all[id_]
        self.said.append((what, id_, *facts))
        known.moved += 1
        match what:
            case "planned":
                known.state, (_, known.plan) = "transferring", facts
                known.ceiling = known.plan
            case "capped":
                (known.ceiling,) = facts
            case "terminated":
                known.state, known.why = "terminated", facts[0]
            case "discarded" | "committed" | "clamped":
                known.state = "ended"
            case "closed":
                del self._all[id_]
