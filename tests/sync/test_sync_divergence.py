"""Divergence, over real processes: named on all ranks in the same round, for every kind of command; nothing hangs or leaks."""

from collections.abc import Callable
from typing import Any

import pytest

from lifecycle.errors import RankDivergence
from lifecycle.policies import Policies, WaitComplete
from lifecycle.states import State
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt

Act = Callable[[Part, bool], None]


def skipped_issue(part: Part, odd: bool) -> None:
    """One rank does not issue."""
    if not odd:
        part.issue("n", prompt(9, 8))


def skipped_abort(part: Part, odd: bool) -> None:
    """One rank does not abort."""
    if not odd:
        part.coordinator.abort("hung")


def other_order(part: Part, odd: bool) -> None:
    """One rank issues the same in another order."""
    for name in "yx" if odd else "xy":
        part.issue(name, prompt(ord(name) - ord("a"), 8))


def other_span(part: Part, odd: bool) -> None:
    """One rank has a shorter prompt."""
    part.issue("n", prompt(9, 7 if odd else 8))


def other_keys(part: Part, odd: bool) -> None:
    """One rank has another prompt of the same length."""
    part.issue("n", prompt(8 if odd else 9, 8))


def other_attempt(part: Part, odd: bool) -> None:
    """One rank retries what the others issue first."""
    part.issue("n", prompt(9, 8), attempt=int(odd))


def superseded(part: Part, odd: bool) -> None:
    """One rank issues a newer attempt of what is in flight."""
    if odd:
        part.issue("hung", prompt(1, 8), attempt=1)


def declined(part: Part, odd: bool) -> None:
    """One rank has an issue declined."""
    if odd:
        part.issue("n", prompt(9, 0))


def finished(part: Part, odd: bool) -> None:
    """One rank finishes a request."""
    if odd:
        part.coordinator.finish("done")


def taken(part: Part, odd: bool) -> None:
    """One rank takes the loaded tokens."""
    if odd:
        part.coordinator.take_loaded("done")


def served(part: Part, odd: bool) -> None:
    """One rank serves a request."""
    if odd:
        part.coordinator.served("done", part.index.match(prompt(0, 8), part.coordinator.tick_number))


def adopted(part: Part, odd: bool) -> None:
    """One rank writes a page of its own back."""
    if odd:
        anchor = part.index.match(prompt(7, 0), part.coordinator.tick_number).anchor
        part.coordinator.adopt("own", prompt(7, 1), anchor, 1, lambda pool, pages, slots: None)


KINDS: dict[str, tuple[Act, tuple[str, str]]] = {
    "skipped issue": (skipped_issue, ("issued prefetch=4 request='n'", "nothing")),
    "skipped abort": (skipped_abort, ("discarded prefetch=2 reason=<Reason.ABORTED", "nothing")),
    "other order": (other_order, ("issued prefetch=4 request='x'", "issued prefetch=4 request='y'")),
    "other span": (other_span, ("issued prefetch=4 request='n' attempt=0 start_page=0 end_page=8", "end_page=7")),
    "other keys": (other_keys, ("issued prefetch=4 request='n'", "issued prefetch=4 request='n'")),
    "other attempt": (other_attempt, ("attempt=0", "attempt=1")),
    "superseded": (superseded, ("nothing", "discarded prefetch=2 reason=<Reason.SUPERSEDED")),
    "declined": (declined, ("nothing", "declined request='n' attempt=0 reason=<Reason.TOO_SHORT")),
    "finished": (finished, ("nothing", "request_finished request='done'")),
    "taken": (taken, ("nothing", "loaded_taken request='done' attempt=0 tokens=32")),
    "served": (served, ("nothing", "prefix_served request='done' attempt=0 end_page=8")),
    "adopted": (adopted, ("nothing", "adopted request='own' pages={'kv': 1} end_page=1")),
}


def diverge(world: World, name: str, odd: int, lag: int) -> dict[str, Any]:
    """Bring a rank into a loaded state, let rank `odd` part from the others, and tick until it fails."""
    part = Part("swa" if name == "skipped issue" else "dsa", Policies(stop=WaitComplete(), lag_ticks=lag))
    part.store.held.update(prompt(1, 8))
    part.issue("done", prompt(0, 8))
    part.tick_until_quiet()
    hung, read = part.issue("hung", prompt(1, 8)), part.issue("read", prompt(2, 8))
    replica = part.coordinator.book.replica
    part.tick_until(lambda: replica.in_flight[hung].state is State.TRANSFERRING and read not in replica.in_flight)
    published = part.published()
    KINDS[name][0](part, world.rank == odd)
    before = part.coordinator.tick_number
    ready, failure = [], None
    while failure is None:
        try:
            part.coordinator.tick()
        except RankDivergence as error:
            failure = error
        else:
            ready.append(part.coordinator.ready("hung"))  # commands go on until the scheduler is told
    assert not any(prefetch.state is not State.DISCARDED for prefetch in replica.in_flight.values())
    assert part.published() == published
    held = part.memory.held_pages("kv") - part.index.resident_pages("kv")
    part.wind_down()
    return {
        "round": failure.round_number - before,
        "ranks": failure.participants,
        "step": failure.step,
        "sides": list(failure.sides),
        "text": str(failure),
        "ready": any(ready[lag:]),
        "held": held,
    }


def all_kinds(world: World, odd: int, lag: int, names: list[str]) -> list[dict[str, Any]]:
    """Diverge in every way, one after the other, over the same group."""
    return [diverge(world, name, odd, lag) for name in names]


@pytest.mark.parametrize(
    ("ranks", "odd", "lag", "names"),
    [
        (2, 1, 0, list(KINDS)),
        (2, 1, 1, list(KINDS)),
        (2, 0, 2, ["skipped issue", "finished"]),
        (3, 1, 0, ["skipped abort", "other span"]),
        (4, 2, 1, ["skipped issue", "other order"]),
    ],
)
def test_a_divergence_is_named_on_every_rank(ranks: int, odd: int, lag: int, names: list[str]) -> None:
    """In the round after the command, with the step and what each rank did there; all is discarded, released and closed."""
    found = run_ranks(ranks, all_kinds, odd, lag, names)
    for place, name in enumerate(names):
        told = [each[place] for each in found]
        assert all(each == told[0] for each in told), "every rank is told the same"
        assert told[0]["round"] == 1, "it is found in the next round"
        assert told[0]["ranks"] == ranks
        usual, other = KINDS[name][1]
        assert len(told[0]["sides"]) == ranks
        for rank, side in enumerate(told[0]["sides"]):
            assert (other if rank == odd else usual) in side
            assert f"rank {rank}: {side}" in told[0]["text"]
        assert f"they part at step {told[0]['step']}" in told[0]["text"]
        assert not told[0]["ready"], "nothing is admitted once the ranks differ"
        assert told[0]["held"] == 8, "the pages of the read in flight stay until it is answered"


def lonely_insert(world: World) -> list[Any]:
    """One rank's index moves without a command."""
    part = Part()
    if world.rank == 1:
        keys = prompt(3, 1)
        anchor = part.index.match(keys, 0).anchor
        part.index.insert(anchor, keys, {"kv": (0, 1)}, part.memory.allocate({"kv": 1}), 0, 0)
    failure = part.tick_until_failure()
    assert isinstance(failure, RankDivergence)
    assert part.tick_until_failure(1) is failure, "it is final"
    part.coordinator.close()
    return [failure.round_number, failure.step, list(failure.sides), str(failure)]


def test_an_index_that_moves_alone_is_a_divergence() -> None:
    """Equal commands and unequal indexes: the error says that it is the indexes."""
    first, second = run_ranks(2, lonely_insert)
    assert first == second
    assert first[:3] == [1, None, []]
    assert "their commands are equal, but their prefix indexes are not" in first[3]


def long_ago(world: World) -> str:
    """One rank leaves a step out, and then more steps follow than are kept, before the next round."""
    part = Part()
    for number in range(60):
        if number or world.rank:
            part.issue(f"r{number}", prompt(number, 1))
    text = str(part.tick_until_failure())
    part.wind_down()
    return text


def test_a_divergence_older_than_what_is_kept_says_so() -> None:
    """The first step that is known to differ is named, with the row counts."""
    first, second = run_ranks(2, long_ago)
    assert first == second
    assert "or before it (older steps are not kept)" in first
    assert "rows in flight: rank 0: 59, rank 1: 60" in first
