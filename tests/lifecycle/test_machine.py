"""Every cell of (state, trigger), through the machine, the compiled table and the fold of events."""

from itertools import product
from types import SimpleNamespace

import pytest
from transitions import MachineError

from lifecycle.errors import IllegalTransition
from lifecycle.events import Clamped, Closed, Committed, Discarded, Event, Issued, PlanAgreed, Synced, Terminated
from lifecycle.machine import MACHINE, NEXT, build_machine, compile_machine, mermaid, step
from lifecycle.prefetch import Prefetch, evolve
from lifecycle.reasons import Reason
from lifecycle.states import TERMINAL, State
from lifecycle.table import TABLE, Trigger

CELLS = list(product(State, Trigger))

# The reference: every legal move, written down a second time.
LEGAL = {
    "issued plan": "transferring",
    "issued terminate": "terminated",
    "issued discard": "discarded",
    "transferring terminate": "terminated",
    "transferring discard": "discarded",
    "terminated sync": "synced",
    "terminated discard": "discarded",
    "synced commit": "committed",
    "synced clamp": "clamped",
    "synced discard": "discarded",
}
PATHS = {  # the shortest way to each state
    State.ISSUED: (),
    State.TRANSFERRING: (Trigger.PLAN,),
    State.TERMINATED: (Trigger.PLAN, Trigger.TERMINATE),
    State.SYNCED: (Trigger.PLAN, Trigger.TERMINATE, Trigger.SYNC),
    State.COMMITTED: (Trigger.PLAN, Trigger.TERMINATE, Trigger.SYNC, Trigger.COMMIT),
    State.CLAMPED: (Trigger.PLAN, Trigger.TERMINATE, Trigger.SYNC, Trigger.CLAMP),
    State.DISCARDED: (Trigger.DISCARD,),
}


def event_of(trigger: Trigger) -> Event:
    """Return the event that sends a trigger."""
    return {
        Trigger.PLAN: PlanAgreed(1, 8, 8, None, {"kv": (0, 8)}, ()),
        Trigger.TERMINATE: Terminated(1, Reason.TIMEOUT, {"kv": 3}),
        Trigger.SYNC: Synced(1, {"kv": 3}, 1, 1),
        Trigger.COMMIT: Committed(1, 8, {"kv": ((0, 8),)}, ()),
        Trigger.CLAMP: Clamped(1, 3, {"kv": ((0, 3),)}, (), Reason.TIMEOUT),
        Trigger.DISCARD: Discarded(1, Reason.ABORTED, None),
    }[trigger]


def in_state(state: State) -> Prefetch:
    """Return a prefetch that came to a state by events."""
    prefetch = Prefetch(Issued(1, "r", 0, 0, 8, "k", "", 32))
    for trigger in PATHS[state]:
        evolve(prefetch, event_of(trigger))
    assert prefetch.state is state
    return prefetch


def test_the_table_holds_the_legal_moves() -> None:
    """The table is the reference, cell by cell."""
    assert {f"{s} {t}": str(dest) for s, row in TABLE.items() for t, dest in row.items()} == LEGAL


@pytest.mark.parametrize(("state", "trigger"), CELLS)
def test_machine_and_compiled_table_agree(state: State, trigger: Trigger) -> None:
    """The machine and the table compiled from it take the same step, or both refuse."""
    model = SimpleNamespace(state=state)
    want = LEGAL.get(f"{state} {trigger}")
    if want is None:
        with pytest.raises(MachineError):
            MACHINE.events[trigger.value].trigger(model)
        assert trigger not in NEXT[state]
        assert model.state is state
    else:
        assert MACHINE.events[trigger.value].trigger(model)
        assert model.state is NEXT[state][trigger] is State(want)


@pytest.mark.parametrize(("state", "trigger"), CELLS)
def test_events_move_a_prefetch_as_the_table_says(state: State, trigger: Trigger) -> None:
    """An event moves a prefetch where the table leads; an illegal one names what is legal and changes nothing."""
    prefetch = in_state(state)
    want = LEGAL.get(f"{state} {trigger}")
    if want is not None:
        evolve(prefetch, event_of(trigger))
        assert prefetch.state is State(want)
        return
    before = prefetch.facts()
    with pytest.raises(IllegalTransition) as refused:
        evolve(prefetch, event_of(trigger))
    assert prefetch.facts() == before
    legal = [cell.split()[1] for cell in LEGAL if cell.startswith(f"{state} ")]
    assert sorted(refused.value.legal) == sorted(legal)
    named = ", ".join(refused.value.legal) or "nothing, terminal"
    assert str(refused.value) == f"cannot {trigger} prefetch 1: it is {state} (legal here: {named})"


@pytest.mark.parametrize("state", State)
def test_only_a_terminal_prefetch_closes_and_only_once(state: State) -> None:
    """Closing is legal after the outcome, once."""
    prefetch = in_state(state)
    if state in TERMINAL:
        evolve(prefetch, Closed(1))
        assert prefetch.closed
    before = prefetch.facts()
    with pytest.raises(IllegalTransition):
        evolve(prefetch, Closed(1))
    assert prefetch.facts() == before


def test_terminal_states_have_an_empty_row() -> None:
    """Nothing leads out of a terminal state."""
    assert {state for state, row in TABLE.items() if not row} == TERMINAL


def test_a_step_refuses_by_name() -> None:
    """The step itself names trigger, state and what is legal."""
    assert step(3, State.ISSUED, Trigger.PLAN) is State.TRANSFERRING
    with pytest.raises(IllegalTransition, match=r"cannot commit prefetch 3: it is discarded \(legal here: nothing, terminal\)"):
        step(3, State.DISCARDED, Trigger.COMMIT)


def test_the_machine_is_built_from_the_table_alone() -> None:
    """A machine built again compiles to the same steps, with no transition beside the table's."""
    assert compile_machine(build_machine()) == {state: dict(row) for state, row in TABLE.items()}
    assert set(MACHINE.events) == {trigger.value for trigger in Trigger}


def test_the_diagram_shows_every_move() -> None:
    """The diagram has one arrow for each legal move, one in and three out."""
    lines = [line.strip() for line in mermaid().splitlines()]
    assert lines[0] == "stateDiagram-v2"
    assert {line for line in lines if ":" in line} == {
        f"{cell.split()[0]} --> {dest}: {cell.split()[1]}" for cell, dest in LEGAL.items()
    }
    assert "[*] --> issued" in lines
    assert sum(line.endswith("--> [*]") for line in lines) == len(TERMINAL)
