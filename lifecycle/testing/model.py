"""Check the model: `python -m lifecycle.testing.model --scope small|full`.

Breadth first, so that the first violation found is one of the shortest. A state that breaks a law, an exception of the core
included, ends the search with the steps that lead to it; so does one from which nothing but ticks can happen and none helps.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from lifecycle.testing.model_scope import Scope, full, small
from lifecycle.testing.model_state import ModelState, initial, transitions

SCOPES = {"small": small, "full": full}


@dataclass(slots=True)
class Verdict:
    """What the search of one scope found."""

    scope: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = True
    broken: str = ""
    steps: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the verdict in one line."""
        how = "all" if self.complete else "the first"
        return (
            f"{self.scope}: {how} {self.states} states, {self.transitions} transitions, depth {self.depth},"
            f" {self.seconds:.1f} s: {self.broken or 'no law is broken'}"
        )


def laws(state: ModelState) -> str:
    """Return the law that a state breaks, or nothing."""
    for place, rank in enumerate(state.ranks):
        if faults := rank.book.faults():
            return f"rank {place}: {faults[0]}"
        for pool, pages in rank.scope.capacity_pages.items():
            book = rank.book
            used = book.held_pages[pool] + book.resident_pages[pool] + book.quarantined_pages[pool]
            if not 0 <= used <= pages or min(book.held_pages[pool], book.resident_pages[pool]) < 0:
                return f"rank {place}: {used} pages of {pool} are used, of {pages}"
    first = state.ranks[0].book.replica
    if any(rank.book.replica.facts() != first.facts() for rank in state.ranks[1:]):
        return "the replicas of the ranks differ"
    retry = state.ranks[0].scope.policies.retry
    if retry is not None and any(request.queries > retry.max_queries for request in first.requests.values()):
        return "an attempt asks L3 more often than it may"
    if state.done and (first.occupied_tokens or any(first.reserved_pages.values()) or any(r.book.locks for r in state.ranks)):
        return "everything is closed and something is still reserved or locked"
    return ""


def explore(scope: Scope, most_states: int | None = None) -> Verdict:
    """Search every state of a scope, or the first `most_states`."""
    began = time.monotonic()
    verdict = Verdict(scope.name)
    start = initial(scope)
    came: dict[int, tuple[int, str]] = {start.key(): (0, "")}
    ahead = deque([(start, start.key(), 0)])
    while ahead and not verdict.broken:
        state, key, depth = ahead.popleft()
        verdict.depth = max(verdict.depth, depth)
        if most_states is not None and len(came) >= most_states:
            verdict.complete = False
            break
        moved = False
        for name, take in transitions(scope, state):
            verdict.transitions += 1
            try:
                after = take()
                verdict.broken = laws(after)
            except Exception as error:  # the core refuses, or an assertion of the model fails: the steps show how
                verdict.broken = f"{type(error).__name__}: {error}"
            if verdict.broken:
                verdict.steps = (*_path(came, key), name)
                break
            found = after.key()
            moved = moved or found != key
            if found not in came:
                came[found] = key, name
                ahead.append((after, found, depth + 1))
        if not moved and not state.done and not verdict.broken:
            verdict.broken, verdict.steps = "nothing moves any more, and a prefetch is open", tuple(_path(came, key))
    verdict.states, verdict.seconds = len(came), time.monotonic() - began
    return verdict


def _path(came: dict[int, tuple[int, str]], key: int) -> list[str]:
    steps: list[str] = []
    while came[key][1]:
        key, name = came[key]
        steps.append(name)
    return steps[::-1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if no law was broken."""
    parser = argparse.ArgumentParser(prog="python -m lifecycle.testing.model", description=__doc__)
    parser.add_argument("--scope", choices=SCOPES, default="small")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each takes whole scopes")
    parser.add_argument("--most-states", type=int, help="stop each scope after so many states")
    given = parser.parse_args(argv)
    scopes = SCOPES[given.scope]()
    began, states, moves, broken = time.monotonic(), 0, 0, 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for verdict in pool.map(explore, scopes, [given.most_states] * len(scopes)):
            print(verdict.line(), flush=True)
            for number, step in enumerate(verdict.steps):
                print(f"    {number:>3}  {step}")
            states, moves = states + verdict.states, moves + verdict.transitions
            broken += bool(verdict.broken)
    print(f"{len(scopes)} scopes, {states} states, {moves} transitions, {broken} violations, {time.monotonic() - began:.1f} s")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
