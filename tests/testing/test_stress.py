"""Stress with real threads: lives of every layout keep every law, and a write into a free slot is found."""

import sys

import pytest

from lifecycle.layout import dsa
from lifecycle.ranges import EMPTY
from lifecycle.testing import stress as command
from lifecycle.testing.sim_checks import Violation
from lifecycle.testing.sim_setup import LAYOUTS
from lifecycle.testing.stress import SWITCH_S, Totals, often_switched, stress
from lifecycle.testing.stress_life import draw
from lifecycle.testing.stress_ports import PoisonedMemory


def test_lives_of_every_layout_keep_every_law() -> None:
    """Real threads, switched as often as can be: nothing garbled, nothing left, no law broken, on one rank and on two."""
    totals = Totals()
    for totals in stress(40 * 2 * len(LAYOUTS), seed=0, per_life=40):
        assert totals.violations == []
    assert totals.lives == 2 * len(LAYOUTS)
    assert totals.reasons["completed"] > 0
    assert totals.served_pages > 0
    lives = [draw(seed, 40) for seed in range(2 * len(LAYOUTS))]
    assert {life.ranks for life in lives} == {1, 2}
    assert {life.layout.name for life in lives} == {layout.name for layout in LAYOUTS.values()}


def test_a_write_into_a_free_slot_is_found() -> None:
    """Who writes a slot after its release is told at the next look, by slot and pool."""
    memory = PoisonedMemory(dsa(), {"kv": 4}, {"kv": 8, "indexer": 8})
    slots = memory.allocate({"kv": 2})["kv"]
    late = memory.buffers("indexer", slots)[1]
    memory.release("kv", slots)
    memory.look_at_all()
    late[:] = bytes(8)
    with pytest.raises(Violation, match=f"slot {int(slots[1])} of indexer was written while it was free"):
        memory.look_at_all()
    memory.allocate({"kv": 4})
    assert len(memory.violations) == 2, "once by looking, once when the slot was taken again"


def test_a_release_under_a_claimed_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What forgets that reads are out is caught by what they write into free slots."""
    monkeypatch.setattr("lifecycle.obligations.Obligations.busy", lambda self, pool: EMPTY)
    totals = Totals()
    for totals in stress(2_000, seed=1, per_life=200, fault_rate=0.6):
        if totals.violations:
            break
    assert "was written while it was free" in totals.violations[0]


def test_the_switch_interval_is_put_back() -> None:
    """It is the smallest while a run goes on, and as before afterwards."""
    before = sys.getswitchinterval()
    with often_switched():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before


def test_the_command_prints_its_totals(capsys: pytest.CaptureFixture[str]) -> None:
    """Prefetches, reasons, faults and violations; exit status 0."""
    assert command.main(["--prefetches", "20", "--seed", "3", "--ranks", "1"]) == 0
    shown = capsys.readouterr().out
    assert "reasons:" in shown
    assert "0 violations" in shown
