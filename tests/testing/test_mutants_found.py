"""What mutants survived until it was tested: each of these kills one that nothing else killed."""

from collections.abc import Iterator

import pytest

from lifecycle.policies import Policies, WaitComplete
from lifecycle.requests import RequestState
from lifecycle.testing.sim_run import quiet, run
from lifecycle.testing.sim_setup import LAYOUTS, PAGE_TOKENS, Setup
from lifecycle.testing.sim_steps import Step


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def test_a_last_lock_that_the_index_will_not_drop_is_tried_again() -> None:
    """A prefetch is not forgotten before its last lock is gone, though it is closed and nothing else is owed."""
    policies = Policies(stop=WaitComplete(), limit_tokens=160 * PAGE_TOKENS, stuck_after_tries=1)
    setup = Setup(1, LAYOUTS["kv_only"], 1, policies, ({"kv": 60},), (4,), False, 0.0)
    steps = [
        Step("issue", (1, 0, 0, 8)), Step("work", (16, 1)), Step("tick", (1,)), Step("work", (16, 2)), Step("tick", (1,)),
        Step("port", (0, "unlock", 2)), Step("tick", (1,)), Step("tick", (1,)), Step("tick", (1,)),
    ]  # fmt: skip
    world, failure = run(setup, steps, recount_every=1)
    assert failure is None, failure
    assert world is not None
    assert sum(world.injected[f"unlock fails{when}"] for when in ("", " in earlier lives")) == 2


def test_a_newer_attempt_counts_from_one() -> None:
    """Queries of the same attempt add up, and what it was served stays; a newer one inherits neither."""
    first = RequestState(0).next(0, 1)
    again = first.next(0, 2)
    again.served = True
    assert (first.queries, again.queries, again.next(0, 3).served) == (1, 2, True)
    newer = again.next(1, 4)
    assert (newer.attempt, newer.prefetch, newer.queries, newer.served) == (1, 4, 1, False)


def test_a_row_launched_before_the_plan_does_not_cap_it() -> None:
    """Two rounds are on their way with a lag of 2: the one that left before the plan was made says nothing about it."""
    policies = Policies(stop=WaitComplete(), limit_tokens=160 * PAGE_TOKENS, lag_ticks=2)
    setup = Setup(1, LAYOUTS["kv_only"], 2, policies, ({"kv": 60},) * 2, (4, 4), False, 0.0)
    steps = [Step("issue", (1, 0, 0, 8)), *(Step("work", (16, 1)), Step("tick", (1, 1))) * 10]
    world, failure = run(setup, steps, recount_every=1)
    assert failure is None, failure
    assert world is not None
    kinds = [type(record.event).__name__ for record in world.lives[0][0]]
    assert "Committed" in kinds
    assert "Capped" not in kinds
