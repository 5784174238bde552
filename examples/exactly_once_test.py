"""The test kit on a toy engine that does not use this library at all: run it with `pytest examples/exactly_once_test.py`.

The engine takes host pages for a prefetch and gives them back at its end. One of its ends forgets the tail: the ledger says
which page, of which pool, taken when and by whom.
"""

import pytest

from lifecycle.testing import Ledger, LedgerError, TokenBudget

PAGE_TOKENS = 64


class ToyEngine:
    """A scheduler's prefetch path: eight pages are taken, some land, the rest must go back."""

    def __init__(self, ledger: Ledger, budget: TokenBudget, leaky: bool) -> None:
        self.ledger, self.budget, self.leaky = ledger, budget, leaky
        self.free = list(range(100))

    def prefetch(self, request: str, pages: int, landed: int, aborted: bool = False) -> None:
        assert self.budget.reserve(request, pages * PAGE_TOKENS)
        slots, self.free = self.free[:pages], self.free[pages:]
        self.ledger.take("kv", slots, by=request)
        if aborted:
            self.release(slots, "aborted")
        else:
            self.release(slots[:landed], "handed over")  # the index owns them now
            if not self.leaky:
                self.release(slots[landed:], "tail")
        self.budget.give_back(request, pages * PAGE_TOKENS)

    def release(self, slots: list[int], how: str) -> None:
        self.ledger.give_back("kv", slots, how)
        self.free += slots


@pytest.mark.parametrize("landed", [0, 3, 8])
def test_every_page_goes_back_once(lifecycle_ledger: Ledger, landed: int) -> None:
    """The fixture checks at the end that nothing is held."""
    engine = ToyEngine(lifecycle_ledger, TokenBudget(1024, lifecycle_ledger), leaky=False)
    engine.prefetch("r1", pages=8, landed=landed)
    engine.prefetch("r2", pages=8, landed=landed, aborted=True)


def test_the_leak_is_named() -> None:
    """A short read leaves pages 6 and 7 behind."""
    ledger = Ledger()
    ToyEngine(ledger, TokenBudget(1024, ledger), leaky=True).prefetch("r1", pages=8, landed=6)
    with pytest.raises(LedgerError, match="page 6 of pool kv was never given back: taken at event 2 by r1"):
        ledger.check_empty()
