"""The one state machine, built from the table, and the step that `evolve` takes.

`MACHINE` is a `transitions.Machine` without registered models: `add_model` costs up to 370 us and 8 kB a prefetch, a
trigger 7 us. The scheduler's path steps `NEXT`, which is compiled from that machine; a test walks every cell through both.
"""

from collections.abc import Mapping

from transitions import Machine

from lifecycle.errors import IllegalTransition
from lifecycle.states import TERMINAL, State
from lifecycle.table import TABLE, Trigger


def build_machine() -> Machine:
    """Return the machine of the table. Trigger an unregistered model with `machine.events[name].trigger(model)`."""
    return Machine(
        model=None,
        states=State,
        initial=State.ISSUED,
        auto_transitions=False,
        transitions=[
            {"trigger": trigger.value, "source": source, "dest": dest}
            for source, row in TABLE.items()
            for trigger, dest in row.items()
        ],
    )


def compile_machine(machine: Machine) -> Mapping[State, Mapping[Trigger, State]]:
    """Return the machine as plain dictionaries: state, trigger, next state."""
    steps: dict[State, dict[Trigger, State]] = {state: {} for state in State}
    for name, event in machine.events.items():
        for source, moves in event.transitions.items():
            for move in moves:
                steps[State[source]][Trigger(name)] = State[str(move.dest)]
    return steps


MACHINE = build_machine()
NEXT = compile_machine(MACHINE)


def step(prefetch: int, state: State, trigger: Trigger) -> State:
    """Return the state after `trigger`, or raise `IllegalTransition` naming what is legal."""
    dest = NEXT[state].get(trigger)
    if dest is None:
        raise IllegalTransition(prefetch, trigger, state, NEXT[state])
    return dest


def mermaid() -> str:
    """Return the state diagram of the table, as a mermaid block body."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.ISSUED}"]
    for source, row in TABLE.items():
        lines += [f"    {source} --> {dest}: {trigger}" for trigger, dest in row.items()]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)
