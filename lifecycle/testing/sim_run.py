"""One seed from setup to verdict, and the sums over many seeds."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import structlog

from lifecycle import events as ev
from lifecycle.audit import verify_logs
from lifecycle.codec import encode
from lifecycle.decide import MISSES
from lifecycle.reasons import Part, ReadCode, Reason
from lifecycle.states import State
from lifecycle.testing.shrink import shrink
from lifecycle.testing.sim_checks import Violation
from lifecycle.testing.sim_setup import Setup
from lifecycle.testing.sim_steps import FAULTS, Step, generate
from lifecycle.testing.sim_world import World

_REACHED: dict[type[ev.Event], State] = {
    ev.Issued: State.ISSUED,
    ev.PlanAgreed: State.TRANSFERRING,
    ev.Terminated: State.TERMINATED,
    ev.Synced: State.SYNCED,
    ev.Committed: State.COMMITTED,
    ev.Clamped: State.CLAMPED,
    ev.Discarded: State.DISCARDED,
}


WAITS = tuple(
    [f"for {reason}" for reason in (*sorted(MISSES), Reason.RATE_LIMITED, Reason.TOO_SHORT)]
    + ["tried", *(f"over as {reason}" for reason in (Reason.RATE_LIMITED, Reason.ABORTED, Reason.SUPERSEDED))]
)
"""Why requests wait, and how that ends."""


@dataclass(slots=True)
class Failure:
    """What a run broke; `kind` says whether another run breaks the same."""

    kind: str
    text: str


@dataclass(slots=True)
class Summary:
    """Counts over one run or many."""

    runs: int = 0
    steps: int = 0
    prefetches: int = 0
    faults: int = 0  # steps that do harm
    events: int = 0
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Summary") -> None:
        """Take the counts of another one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def holes(self) -> dict[str, list[str]]:
        """Return every state, reason, read code and part that was never reached."""
        codes = [code for code in ReadCode if code is not ReadCode.CANCELLED]  # withdrawn reads say nothing in a log
        wanted: tuple[tuple[str, Counter[str], Iterable[str]], ...] = (
            ("states", self.states, State),
            ("reasons", self.reasons, Reason),
            ("read codes", self.codes, codes),
            ("parts", self.parts, Part),
            ("waits", self.waits, WAITS),
        )
        found = {what: [str(member) for member in names if not counts[member]] for what, counts, names in wanted}
        return {what: missing for what, missing in found.items() if missing}

    def count(self, world: World) -> None:
        """Count what the logs of a world say; states and reasons as rank 0 saw them."""
        self.runs += 1
        self.injected += world.injected
        for life in world.lives:
            self.events += sum(map(len, life))
            where: dict[int, State] = {}
            for event in (record.event for record in life[0]):
                self._count_state(event, where)
                match event:
                    case ev.Issued():
                        self.prefetches += 1
                    case ev.Declined(reason=reason):
                        self.reasons[reason] += 1
                    case ev.Committed():
                        self.reasons[Reason.COMPLETED] += 1
                    case ev.Clamped(reason=reason) | ev.Discarded(reason=reason):
                        self.reasons[reason] += 1
                    case ev.HostReleased(part=part):
                        self.parts[part] += 1
                    case ev.WaitBegan(reason=reason):
                        self.waits[f"for {reason}"] += 1
                    case ev.WaitEnded(reason=over):
                        self.waits[f"over as {over}" if over else "tried"] += 1
            for event in (record.event for log in life for record in log):
                if isinstance(event, ev.ReadFailed):
                    self.codes[event.code] += 1

    def _count_state(self, event: ev.Event, where: dict[int, State]) -> None:
        state = _REACHED.get(type(event))
        if state is not None:
            id_ = event.prefetch  # type: ignore[attr-defined]  # every event in the table has one
            self.states[state] += 1
            if id_ in where:
                self.moves[f"{where[id_]} -> {state}"] += 1
            where[id_] = state


def run(setup: Setup, steps: Sequence[Step], recount_every: int | None = None) -> tuple[World | None, Failure | None]:
    """Run the steps in a new world, then check the logs of all its lives; return the world and what was broken."""
    world: World | None = None
    try:
        world = World(setup) if recount_every is None else World(setup, recount_every)
        world.run(list(steps))
        _audit(world)
    except Violation as broken:
        return world, Failure(broken.kind, broken.detail)
    except Exception as error:  # whatever else a run raises is a finding, too
        return world, Failure(f"raised {type(error).__name__}", repr(error))
    return world, None


def _audit(world: World) -> None:
    """Check the logs of every life; where a rank was made to differ, each log by itself."""
    for life, ticker in zip(world.lives, world.tickers, strict=True):
        groups = [[log] for log in life] if ticker.excuses else [life]
        for group in groups:
            found = verify_logs(group)
            if ticker.owing:  # a port refused to the end, and the log says so: what it kept is missing, nothing else is
                found = [each for each in found if not any(word in str(each) for word in ("never", "at the stop"))]
            if found:
                raise Violation(f"audit {found[0].law}", f"{found[0]} (one of {len(found)})")


def shortest(setup: Setup, steps: Sequence[Step], failure: Failure, most_tries: int = 600) -> list[int]:
    """Return the numbers of the fewest steps found that break the same law."""

    def fails(kept: Sequence[int]) -> bool:
        _, found = run(setup, [steps[number] for number in kept])
        return found is not None and found.kind == failure.kind

    return shrink(range(len(steps)), fails, most_tries)


def logs_of(world: World) -> bytes:
    """Return every event of every life and rank, encoded."""
    return b"\n".join(encode(record) for life in world.lives for record in chain(*life))


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the warnings that failing ports and stores log, which a simulation does by the thousand."""
    kept = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**kept)


def run_seed(setup: Setup, steps: int) -> tuple[Summary, Failure | None]:
    """Run one seed and count what it did."""
    drawn = generate(setup, steps)
    with quiet():
        world, failure = run(setup, drawn)
    summary = Summary(steps=steps, faults=sum(step.verb in FAULTS for step in drawn))
    if world is not None:
        summary.count(world)
    return summary, failure
