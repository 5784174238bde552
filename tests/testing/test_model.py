"""The model checker: small scopes hold to the end, planted bugs are found with the shortest steps, loops end."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from lifecycle import coverage, decide
from lifecycle.coverage import Outcome
from lifecycle.events import Event
from lifecycle.layout import Layout
from lifecycle.local import Local
from lifecycle.policies import Policies
from lifecycle.prefetch import Prefetch
from lifecycle.replica import Replica
from lifecycle.rows import Report
from lifecycle.testing import model
from lifecycle.testing.model_scope import Scope, full, small
from lifecycle.testing.model_state import initial, transitions


@pytest.mark.parametrize("scope", small(), ids=lambda scope: scope.name)
def test_a_small_scope_is_explored_to_the_end(scope: Scope) -> None:
    """Every interleaving keeps every law, and every prefetch is closed at last."""
    verdict = model.explore(scope)
    assert verdict.complete
    assert verdict.broken == "", verdict.steps
    assert verdict.states > 500


def test_the_full_scopes_begin_well() -> None:
    """Each of the big scopes is begun: kv alone and with each kind of sidecar, both lags, every policy."""
    for scope in full():
        verdict = model.explore(scope, most_states=150)
        assert verdict.broken == "", (scope.name, verdict.steps)
    assert {scope.policies.lag_ticks for scope in full()} == {0, 1}
    assert {scope.policies.stop.name for scope in full()} == {"wait_complete", "timeout", "best_effort"}


def test_the_longest_instead_of_the_shortest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A maximum over the pools publishes an indexer page that never landed: one claim, two answers, a fault."""
    honest = coverage.outcome

    def longest(
        layout: Layout, degrade: bool, start: int, plan: int, left_out: tuple[str, ...], agreed: Mapping[str, int]
    ) -> Outcome:
        return honest(layout, degrade, start, plan, left_out, dict.fromkeys(agreed, max(agreed.values())))

    monkeypatch.setattr(coverage, "outcome", longest)
    verdict = model.explore(small()[0])
    assert "are published and never landed here" in verdict.broken
    assert any("read fails" in step for step in verdict.steps)
    assert len(verdict.steps) <= 11


def test_asking_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What forgets the bound on queries asks L3 a third time after two misses, where two queries are allowed."""
    honest = decide.wait_after_miss

    def endless(replica: Replica, policies: Policies, prefetch: Prefetch, ended: Event, tick: int) -> Event | None:
        again = None if policies.retry is None else replace(policies.retry, max_queries=99)
        return honest(replica, replace(policies, retry=again), prefetch, ended, tick)

    monkeypatch.setattr(decide, "wait_after_miss", endless)
    (scope,) = [scope for scope in small() if scope.policies.retry is not None and not scope.policies.lag_ticks]
    verdict = model.explore(replace(scope, prefetches=1, faults=2))
    assert verdict.broken == "an attempt asks L3 more often than it may"
    assert sum("query" in step for step in verdict.steps) == 4  # two misses on two ranks


def test_a_release_under_a_claimed_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What forgets that a read is out releases its pages at the abort."""
    honest = Local.releasable

    def hasty(self: Local) -> list[tuple[str, object, object, object]]:
        kept, self.obligations.claimed = self.obligations.claimed, {}
        due = honest(self)
        self.obligations.claimed = kept
        return due  # type: ignore[return-value]

    monkeypatch.setattr(Local, "releasable", hasty)
    verdict = model.explore(small()[0])
    assert "a read may still write" in verdict.broken
    assert "claim" in verdict.steps[-2] or "claim" in verdict.steps[-3]


def test_a_prefetch_that_never_closes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing moves any more and something is open, the search says so."""
    honest = decide.row

    def forgetful(
        layout: Layout, prefetch: Prefetch, report: Report, here: Mapping[str, int], ranks: int, number: int
    ) -> tuple[Event, ...]:
        return () if prefetch.terminal else honest(layout, prefetch, report, here, ranks, number)

    monkeypatch.setattr(decide, "row", forgetful)
    assert model.explore(small()[0]).broken == "nothing moves any more, and a prefetch is open"


def test_a_transition_leaves_its_state_as_it_was() -> None:
    """States are shared by many paths: taking a step changes none of them."""
    scope = small()[1]
    state = initial(scope)
    for _ in range(12):
        before = state.key()
        after = [take() for _, take in transitions(scope, state)]
        assert state.key() == before
        state = next((each for each in after if each.key() != before), state)


def test_the_command_prints_states_and_verdict(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a scope, one for all, exit status 0."""
    monkeypatch.setitem(model.SCOPES, "small", lambda: small()[2:3])
    assert model.main(["--scope", "small"]) == 0
    shown = capsys.readouterr().out
    assert "no law is broken" in shown
    assert "0 violations" in shown
