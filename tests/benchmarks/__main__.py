"""Every benchmark, one after the other, and one table of what was measured beside the goals.

    python -m tests.benchmarks [--only NAME] [--quick] [--json] [--sglang PYTHON]

Each row has the baseline of the same run. Numbers are of this machine as it was; nothing here is a test.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from tests.benchmarks import bench_append, bench_growth, bench_sync, others
from tests.benchmarks.common import Row, machine, show
from tests.benchmarks.goals import GOALS

BENCHES: dict[str, Callable[[bool, str], Iterator[Row]]] = {
    "finalise": others.finalise_rows,
    "sync": lambda quick, sglang: bench_sync.rows(quick),
    "growth": lambda quick, sglang: bench_growth.rows(quick),
    "append": lambda quick, sglang: bench_append.rows(quick),
    "audit": others.audit_rows,
    "pages": others.page_rows,
    "shadow": others.shadow_rows,
}


def measure(names: Sequence[str], quick: bool, sglang: str) -> tuple[list[Row], list[str]]:
    """Return the rows of these benchmarks, and what failed."""
    rows: list[Row] = []
    failures: list[str] = []
    for name in names:
        before, began, error = machine().rpartition("load ")[2], time.perf_counter(), ""
        try:
            rows += BENCHES[name](quick, sglang)
        except (RuntimeError, AssertionError, OSError, ValueError) as caught:  # the others can still be measured
            error = f"failed: {caught}"
            failures.append(f"{name} {error}")
        took = time.perf_counter() - began
        print(f"{name}: {took:.0f} s, load before {before} {error}".rstrip(), file=sys.stderr, flush=True)
    return rows, failures


def complete(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows in the order of the benchmarks, with one for each goal that none of them is about."""
    have = {row.key for row in rows}
    lacking = [
        Row(goal.bench, goal.what, goal.goal, "", "", "", None, "failed" if goal.bench in names else "not run", key)
        for key, goal in GOALS.items()
        if key not in have
    ]
    order = list(BENCHES)
    return sorted([*rows, *lacking], key=lambda row: order.index(row.bench))


def main() -> int:
    """Run, print, and return 1 if a benchmark failed to run; a goal that is missed is no failure."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=list(BENCHES), help="run this one; may be given several times")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller sizes: for a look")
    parser.add_argument("--json", action="store_true", help="print one object instead of the table")
    parser.add_argument(
        "--sglang", default=None, metavar="PYTHON", help="an interpreter that has SGLang (default: .venv-sglang)"
    )
    options = parser.parse_args()
    built = others.ROOT / ".venv-sglang" / "bin" / "python"
    sglang = options.sglang or (str(built) if built.exists() else sys.executable)
    names = [name for name in BENCHES if options.only is None or name in options.only]
    where = machine()
    measured, failures = measure(names, options.quick, sglang)
    rows = complete(measured, names)
    if options.json:
        print(
            json.dumps({"machine": where, "quick": options.quick, "failures": failures, "rows": [asdict(row) for row in rows]})
        )
    else:
        print(where)
        show(rows)
        print("\n".join(failures), end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
