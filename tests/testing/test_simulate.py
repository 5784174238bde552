"""The simulator: no law broken over many seeds, everything reached, the same log twice, and failures that shrink."""

from collections.abc import Iterator

import pytest

from lifecycle.errors import DoubleRelease
from lifecycle.runtime.settle import Settler
from lifecycle.testing import simulate
from lifecycle.testing.shrink import shrink
from lifecycle.testing.sim_ports import SimMemory
from lifecycle.testing.sim_run import Summary, logs_of, quiet, run, run_seed, shortest
from lifecycle.testing.sim_setup import LAYOUTS, draw
from lifecycle.testing.sim_steps import generate


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def test_many_seeds_break_no_law_and_reach_every_state_and_reason() -> None:
    """Drawn layouts, ranks, lags, policies and faults: nothing is broken and nothing is left out."""
    total = Summary()
    for seed in range(130):
        summary, failure = run_seed(draw(seed), 300)
        assert failure is None, f"python -m lifecycle.testing.simulate --seed {seed} --steps 300: {failure}"
        total.add(summary)
    assert total.holes() == {}
    assert total.prefetches > 5_000


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lag", [0, 1])
def test_each_layout_on_two_ranks_breaks_no_law(layout: str, lag: int) -> None:
    """No draw decides whether a layout is run with and without a lag."""
    for seed in (7, 8):
        summary, failure = run_seed(draw(seed, layout, 2, lag), 200)
        assert failure is None
        assert summary.prefetches > 5


@pytest.mark.parametrize("seed", [1, 2, 3, 11])
def test_a_seed_gives_the_same_log_twice(seed: int) -> None:
    """Every event of every rank and life is the same byte for byte."""
    setup = draw(seed)
    first, second = (run(setup, generate(setup, 250))[0] for _ in range(2))
    assert first is not None
    assert second is not None
    assert logs_of(first) == logs_of(second)
    assert len(logs_of(first)) > 10_000


def test_without_faults_what_is_waited_for_completes() -> None:
    """With no fault armed, most of what is planned is committed, and nothing fails."""
    total = Summary()
    for seed in range(12):
        summary, failure = run_seed(draw(seed, "dsa", 2, 1, fault_rate=0.0), 200)
        assert failure is None
        total.add(summary)
    assert not total.injected
    assert total.reasons["sync_failed"] == total.reasons["shortfall"] == 0
    assert total.reasons["completed"] > total.prefetches // 3


def test_a_second_release_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted double release is reported with a short list of steps that repeats it."""
    honest = Settler._give_back

    def twice(self: Settler, transfer: object, pool: str, part: object, pages: object, lost: bool) -> None:
        honest(self, transfer, pool, part, pages, lost)  # type: ignore[arg-type]
        slots = transfer.slots_of_ranges(pool, pages)  # type: ignore[attr-defined]
        if not lost and isinstance(self._memory, SimMemory) and self._memory._state[pool][int(slots[0])] == 0:
            with pytest.raises(DoubleRelease):
                self._memory.release(pool, slots)

    monkeypatch.setattr(Settler, "_give_back", twice)
    options = simulate.Options(150, "kv_only", 1, 0, 0.2)
    setup = options.setup(5)
    steps = generate(setup, 150)
    _, failure = run(setup, steps)
    assert failure is not None
    assert failure.kind == "quiescence"
    kept = shortest(setup, steps, failure)
    assert 1 <= len(kept) <= 8
    _, again = run(setup, [steps[number] for number in kept])
    assert again is not None
    assert again.kind == failure.kind
    text = simulate.explain(options, 5, failure)
    assert f"--keep {','.join(map(str, kept))}" in text


def test_shrinking_leaves_only_what_is_needed() -> None:
    """The shortest list holds the two items that fail together, in order."""
    assert shrink(range(100), lambda kept: 17 in kept and 83 in kept) == [17, 83]


def test_the_command_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary names prefetches, reasons, faults and violations, and the exit status is 0."""
    assert simulate.main(["--seed", "3", "--steps", "120", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "0 violations" in shown
    assert "reasons" in shown
    assert "faults injected" in shown


def test_kept_steps_are_printed_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    """`--keep` runs the named steps alone."""
    assert simulate.main(["--seed", "3", "--steps", "50", "--keep", "0,1,2"]) == 0
    assert "no law is broken" in capsys.readouterr().out
