"""What errors say: operation, subject, state, way out; in lower case, and with nothing changed."""

import ast
from pathlib import Path

import pytest

from lifecycle import errors
from lifecycle.errors import (
    IllegalTransition,
    LayoutError,
    LifecycleError,
    NotInFlight,
    ObligationError,
    UnknownPool,
    UnknownRequest,
    WrongAnchor,
)
from lifecycle.layout import Layout, Pool, preset

ROOT = Path(__file__).parents[2]
PLAIN = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, LifecycleError)
    and not any("__init__" in vars(base) for base in kind.__mro__ if base.__module__ == errors.__name__)
}
"""The errors that are given their text where they are raised; the others make it of facts."""


def _raised() -> list[tuple[str, str]]:
    """Return where a message of ours is written beside its `raise`, and how it begins."""
    found = []
    for path in sorted(path for top in ("lifecycle", "stores", "examples") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(text)), *_])) if name in PLAIN:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
                case ast.Raise(
                    exc=ast.Call(func=ast.Name(id=name), args=[ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]), *_])
                ) if name in PLAIN:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return found


def test_every_message_begins_with_the_operation() -> None:
    """Wherever an error of ours is raised with a text, the text says first what cannot be done, and is no sentence."""
    raised = _raised()
    assert len(raised) > 100, "the walk found what is raised"
    assert [(where, text) for where, text in raised if not text.startswith("cannot ") or text.endswith(".")] == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            IllegalTransition(7, "commit", "discarded", ()),
            "cannot commit prefetch 7: it is discarded (legal here: nothing, terminal)",
        ),
        (
            NotInFlight(7, "PagesLanded"),
            "cannot apply PagesLanded to prefetch 7: it is not in flight (it was never issued, or is closed)",
        ),
        (
            ObligationError(0, "unlock the anchor at page 4", "it is not locked in this index (unlock once per lock)"),
            "cannot unlock the anchor at page 4: it is not locked in this index (unlock once per lock)",
        ),
        (UnknownRequest("finish", "r1"), "cannot finish request 'r1': it was never issued, or is finished (issue it first)"),
        (
            WrongAnchor("r1", 5, 8),
            "cannot issue request 'r1': its keys do not pass the anchor at page 5: the anchor ends with another key"
            " (match these keys, and give the anchor of that match)",
        ),
        (
            WrongAnchor("r1", 5, 3),
            "cannot issue request 'r1': its keys do not pass the anchor at page 5: there are only 3 keys"
            " (match these keys, and give the anchor of that match)",
        ),
        (
            UnknownPool("dsa", "swa", ["kv", "indexer"]),
            "cannot find pool 'swa' in layout 'dsa': no such pool (this layout has: kv, indexer)",
        ),
    ],
)
def test_messages_name_operation_subject_state_and_way_out(error: LifecycleError, text: str) -> None:
    """The text of an error, to the letter."""
    assert str(error) == text


def test_what_is_no_layout_names_no_pool() -> None:
    """An unknown preset, or something that is no pool, is not told as a fault of the pool kv."""
    with pytest.raises(LayoutError, match="cannot build layout 'gqa': no preset has this name"):
        preset("gqa")
    with pytest.raises(LayoutError, match="cannot build layout 'ours': 'indexer' is no pool with a name"):
        Layout("ours", (Pool("kv"), "indexer"))  # type: ignore[arg-type]
