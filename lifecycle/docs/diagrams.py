"""The diagrams and tables of the page on the house, printed from the code: the table of moves, the calls, the events."""

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import get_args

from lifecycle.docs.calls import Sources
from lifecycle.events import AnyEvent
from lifecycle.machine import mermaid
from lifecycle.states import State
from lifecycle.table import TABLE

PORTS = ("PageStore", "HostMemory", "PrefixIndex", "EventLog", "Transport")
CORE = {"decide": "decide", "votes": "votes", "Book": "book"}
"""What of the rules is drawn: where it is decided, voted and evolved."""

READERS = ("readers", "jobs")
"""Modules whose work is done on threads of their own."""

LEFT_OUT = frozenset({"inspection", "waits", "opening", "naming"})
"""Modules of the runtime that are not drawn: those that only look, and those that run once, at the start or at an end."""


def flow() -> str:
    """Return what calls what on one rank, and what comes back in queues, as a mermaid block body."""
    sources, runtime = _sources()
    edges = _edges(sources, runtime - LEFT_OUT)
    drawn = {name for edge in edges for name in edge}
    emitting = sorted(set(sources.made(_events())) & drawn & runtime - {"rank"})
    face = sorted(name for name in sources.functions["Coordinator"] if not name.startswith("_"))
    return "\n".join(
        [
            "flowchart TD",
            f'    scheduler(["the engine\'s scheduler"]) -->{_label(face)} coordinator',
            *(f"    {start} -->{_label(names)} {end}" for (start, end), names in sorted(edges.items())),
            *(
                f"    {start} -.->{_label(sorted(names))} {end}"
                for (start, end), names in sorted(sources.handed().items())
                if {start, end} <= drawn
            ),
            f'    {" & ".join(emitting)} ==>|"events"| rank',
            *_group("rules", "the rules: pure", [name for name in CORE.values() if name in drawn]),
            *_group("threads", "reader threads", list(READERS)),
            *_group("ports", "ports: what the engine brings", list(PORTS)),
        ]
    )


def _edges(sources: Sources, runtime: set[str]) -> dict[tuple[str, str], list[str]]:
    """Return who calls whom; of ports and rules, by which verbs."""
    edges: dict[tuple[str, str], set[str]] = {}
    for (module, target), names in sources.calls().items():
        if module in runtime:
            verbs = names if target in PORTS or target in CORE else set()
            end = target if target in PORTS else CORE.get(target, sources.home.get(target, target))
            if verbs or end in runtime:
                edges.setdefault((module, end), set()).update(verbs)
    callers, calling = Counter(end for _, end in edges), {start for start, _ in edges}
    kept = {name for edge in edges for name in edge if name in calling or callers[name] > 1 or name in PORTS}
    # Who has one caller and calls nobody is a part of that one.
    return {edge: sorted(names) for edge, names in edges.items() if edge[1] in kept | set(CORE.values())}


def emitters() -> str:
    """Return which module makes which events, as a markdown table."""
    sources, runtime = _sources()
    rows = [
        f"| `lifecycle/{'runtime/' if module in runtime else ''}{module}.py` | {', '.join(f'`{name}`' for name in names)} |"
        for module, names in sources.made(_events()).items()
        if module in runtime or module in CORE
    ]
    return "\n".join(["| made in | events |", "|---|---|", *rows])


def meanings() -> str:
    """Return what is true in each state, and what leads out of it, as a markdown table."""
    told = _sentences(_sources()[0].trees["states"])
    rows = [
        f"| `{state}` | {told[state.name]} | {', '.join(f'{trigger} → `{dest}`' for trigger, dest in TABLE[state].items())} |"
        for state in State
    ]
    return "\n".join(["| state | what is true | moves |", "|---|---|---|", *rows])


PARTS: Mapping[str, Callable[[], str]] = {
    "states": lambda: f"```mermaid\n{mermaid()}\n```",
    "meanings": meanings,
    "flow": lambda: f"```mermaid\n{flow()}\n```",
    "emitters": emitters,
}
"""What is printed, by the name that marks its place in a page."""


def _sources() -> tuple[Sources, set[str]]:
    return Sources("lifecycle", "lifecycle.runtime"), set(Sources("lifecycle.runtime").trees)


def _events() -> frozenset[str]:
    return frozenset(event.__name__ for event in get_args(AnyEvent))


def _label(names: list[str]) -> str:
    lines = [", ".join(names[first : first + 4]) for first in range(0, len(names), 4)]
    return f'|"{"<br/>".join(lines)}"|' if names else ""


def _group(name: str, title: str, members: list[str]) -> list[str]:
    return [f'    subgraph {name} ["{title}"]', *(f"        {member}" for member in members), "    end"]


def _sentences(states: ast.Module) -> dict[str, str]:
    """Return the sentence under each member of the states."""
    found = {}
    for node in ast.walk(states):
        for one, after in pairwise(node.body if isinstance(node, ast.ClassDef) else []):
            match one, after:
                case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
