"""What SGLang is known to do otherwise: named where it is just that, and never where a fault could hide behind it."""

import ast
from pathlib import Path

import pytest

from lifecycle.adapters.known import known_difference
from lifecycle.audit import Law, Violation

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("law", "what", "right", "name"), [
    (Law.CLAIM, "a read was claimed while it is discarded", "none", "read_after_end"),
    (Law.CLAIM, "pages [0:2) of kv were claimed a second time", "once", None),
    (Law.ADMISSION, "40 tokens are in flight", "at most 18, so declined as rate_limited", "limit_overshot"),
    (Law.ADMISSION, "12 tokens were reserved", "16 tokens for 4 pages", None),
    (Law.BALANCE, "4 pages of kv too many are promised", "at most 8 of kv promised in all", "no_budget"),
    (Law.BALANCE, "-1 pages of kv are held", "0", None),
    (Law.PLAN, "kv [0:1) reserved, swa left out", "kv [0:1), swa [0:1), nothing left out", "window_left_out"),
    (Law.PLAN, "kv [0:1) reserved, nothing left out", "kv [0:2), nothing left out", None),
    (Law.OUTCOME, "committed up to page 8", "clamped up to 5, where indexer ends", None),
    (Law.RANKS, "Terminated (reason completed)", "Terminated (reason read_failed), as on rank 0 at seq 9", "reason_apart"),
    (Law.RANKS, "Clamped (usable_page 5, reason timeout)", "Clamped (usable_page 6, reason timeout), as on rank 0", None),
    (Law.RANKS, "Closed comes before Issued", "Issued first, as on rank 0", "freed_apart"),
    (Law.LEGAL, "PrefixServed of a request that was never issued, or is finished", "before RequestFinished", "served_unasked"),
    (Law.LEGAL, "LoadedTaken of a request that was never issued, or is finished", "before RequestFinished", None),
    (Law.PARTITION, "page 3 of kv is released, which was released before", "each page once", None),
    (Law.QUIESCENCE, "[0:2) of swa is released while a claimed read may write it", "after ReadEnded", None),
])  # fmt: skip
def test_known_by_what_is_said(law: Law, what: str, right: str, name: str | None) -> None:
    """A difference by design has a name; a fault has none."""
    assert known_difference(Violation(law, 0, 1, "r", (1, 2), what, right)) == name


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
