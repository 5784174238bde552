"""A pytest plugin: fixtures that find what a test of your pools and schedulers leaves behind. Loaded by its entry point.

`lifecycle_ledger` (checked empty at the end), `lifecycle_budget` (a function of the limit), `lifecycle_clock`.
"""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def lifecycle_ledger() -> Iterator[object]:
    """A `Ledger`: what is still held when the test ends fails it, by name."""
    from lifecycle.testing.ledger import Ledger

    ledger = Ledger()
    yield ledger
    ledger.check_empty()


@pytest.fixture
def lifecycle_budget(lifecycle_ledger: object) -> Callable[[int], object]:
    """Build a `TokenBudget` of so many tokens over the test's ledger."""
    from lifecycle.testing.ledger import Ledger
    from lifecycle.testing.ledger_ports import TokenBudget

    assert isinstance(lifecycle_ledger, Ledger), "the fixture of that name is ours"
    ledger = lifecycle_ledger
    return lambda limit_tokens: TokenBudget(limit_tokens, ledger)


@pytest.fixture
def lifecycle_clock() -> object:
    """A `VirtualClock`: monotonic nanoseconds that move when told to."""
    from lifecycle.testing.clock import VirtualClock

    return VirtualClock()
