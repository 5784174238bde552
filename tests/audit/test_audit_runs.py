"""Many drawn runs of the library as it is: the audit has nothing to say of them. `clean_runs.py` runs thousands."""

from clean_runs import Counts, check


def test_simulated_runs_are_clean() -> None:
    """Over drawn layouts, ranks, lags, policies and faults, no law is found broken."""
    counts = Counts()
    found = [(seed, str(violation)) for seed in range(25) for violation in check(seed, 100, 0.2, counts)]
    assert found == []
    assert counts.logs > 40
    assert counts.events > 10_000
