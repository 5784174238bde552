"""What SGLang is known to do otherwise: named where it is just that, and never where a fault could hide behind it."""

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from lifecycle.adapters.known import known_difference
from lifecycle.audit import Law, Violation
from lifecycle.audit.facts import Apart, EvictedEarly, Fact, LateClaim, LeftOut, NeverAsked, Overpromised, Overshot
from lifecycle.events import Clamped, Closed, Declined, Discarded, Evicted, RequestFinished, Terminated
from lifecycle.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("law", "what", "right"), [
    (Law.CLAIM, "a read was claimed while it is discarded", "none"),
    (Law.BALANCE, "900 pages of kv too many are promised", "at most 8"),
    (Law.ADMISSION, "999999999 tokens are in flight", "at most 18"),
    (Law.ADMISSION, "declined as rate limited with 0 tokens in flight", "begun"),
    (Law.PLAN, "kv [0:1) reserved, swa left out", "kv [0:1), swa [0:1), nothing left out"),
    (Law.RANKS, "Terminated (reason completed)", "Terminated (reason read_failed), as on rank 0 at seq 9"),
    (Law.RANKS, "Evicted (pages 0-9)", "Committed (usable_page 8), as on rank 0"),
    (Law.QUIESCENCE, "slot 3 of kv is evicted", "slot 3 is locked until its prefetch is closed here"),
    (Law.LEGAL, "PrefixServed of a request that was never issued, or is finished", "before RequestFinished"),
])  # fmt: skip
def test_nothing_is_known_by_its_words(law: Law, what: str, right: str) -> None:
    """A violation that says what a known difference would say, with no numbers behind it that bear it out, is a fault."""
    assert known_difference(Violation(law, 0, 1, "r", (1, 2), what, right)) is None


STOPPED = Terminated(1, Reason.COMPLETED, {})
CLAMPED = Clamped(1, 5, {"kv": ((0, 5),)}, (), Reason.TIMEOUT)


@pytest.mark.parametrize(("fact", "name"), [
    (LateClaim("kv", (8, 136), 8, 1), "read_after_end"),
    (LateClaim("kv", (8, 137), 8, 1), None),
    (LateClaim("kv", (8, 9), 8, 2), None),
    (LateClaim("kv", (9, 10), 8, 1), None),
    (LateClaim("swa", (0, 200), 0, 1), "read_after_end"),
    (LateClaim("swa", (0, 200), 0, 2), None),
    (Overshot(17, 18), "limit_overshot"),
    (Overshot(18, 18), None),
    (Overshot(-1, 18), None),
    (Overpromised(4, 4), "no_budget"),
    (Overpromised(4, 3), None),
    (LeftOut(1, 2), "window_left_out"),
    (LeftOut(2, 2), None),
    (LeftOut(1, 0), None),
    (EvictedEarly(False), "unlocked_early"),
    (EvictedEarly(True), None),
    (NeverAsked(0), "served_unasked"),
    (NeverAsked(1), None),
    (Apart(STOPPED, replace(STOPPED, reason=Reason.READ_FAILED), False), "reason_apart"),
    (Apart(STOPPED, replace(STOPPED, reason=Reason.ABORTED), False), None),
    (Apart(CLAMPED, replace(CLAMPED, reason=Reason.BEST_EFFORT), False), "reason_apart"),
    (Apart(CLAMPED, replace(CLAMPED, usable_page=6, reason=Reason.BEST_EFFORT), False), None),
    (Apart(CLAMPED, Discarded(1, Reason.TIMEOUT, None), False), None),
    (Apart(Discarded(1, Reason.SHORTFALL, "swa"), Discarded(1, Reason.TIMEOUT, "swa"), False), "reason_apart"),
    (Apart(Discarded(1, Reason.SHORTFALL, "swa"), Discarded(1, Reason.SHORTFALL, "kv"), False), None),
    (Apart(Discarded(1, Reason.ABORTED, None), Discarded(1, Reason.TIMEOUT, None), False), None),
    (Apart(Closed(1), None, False), "freed_apart"),
    (Apart(Closed(1), CLAMPED, False), None),
    (Apart(Closed(1), CLAMPED, True), "freed_apart"),
    (Apart(STOPPED, CLAMPED, True), None),
    (Apart(Evicted("kv", 1, ((0, 1),), ()), Evicted("kv", 2, ((0, 2),), ()), False), "freed_apart"),
    (Apart(Evicted("kv", 1, ((0, 1),), ()), Closed(1), False), None),
    (Apart(RequestFinished("r"), Declined("r", 0, Reason.TOO_SHORT, 0, 1, 0, 8), True), None),
    (Apart(None, RequestFinished("r"), False), None),
    (None, None),
])  # fmt: skip
def test_known_by_what_lies_behind(fact: Fact | None, name: str | None) -> None:
    """A difference by design has a name, as far as the original's own rule allows it; one step further is a fault."""
    assert known_difference(Violation(Law.RANKS, 0, 1, "r", (1, 2), "", "", fact)) == name


def test_every_row_of_the_table_has_its_shortest_case() -> None:
    """What is told as a difference in the docs is a test of its own, and each such test is told of, in the same order."""
    page = (ROOT / "lifecycle" / "docs" / "sglang.md").read_text()
    table = page.partition("### What this library does differently, and why")[2].splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table if line.startswith("| ") and " | " in line][1:]
    module = ast.parse((ROOT / "tests" / "sglang" / "test_differences.py").read_text())
    (cases,) = [
        each.value for each in module.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Dict) and ast.unparse(each.targets[0]) == "ROWS"
    ]  # fmt: skip
    assert [key.value for key in cases.keys if isinstance(key, ast.Constant)] == rows
    tests = [each.name for each in module.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    assert sorted(ast.unparse(each) for each in cases.values) == sorted(tests)


def test_every_known_difference_is_a_row_of_the_table() -> None:
    """A name under which the audit sets something apart is told of in the docs."""
    page = (ROOT / "lifecycle" / "docs" / "sglang.md").read_text()
    module = ast.parse((ROOT / "lifecycle" / "audit" / "known.py").read_text())
    names = [
        each.value.value for each in module.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant) and ast.unparse(each.targets[0]).isupper()
    ]  # fmt: skip
    assert names
    assert [name for name in names if f"\n| `{name}`" not in page] == []
