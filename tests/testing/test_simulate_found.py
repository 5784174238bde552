"""What the simulator has found, as the steps it shrank them to: each broke a law before it was mended."""

from collections.abc import Iterator, Sequence

import pytest

from lifecycle.policies import Policies, WaitComplete
from lifecycle.testing.sim_run import quiet, run
from lifecycle.testing.sim_setup import LAYOUTS, PAGE_TOKENS, Setup
from lifecycle.testing.sim_steps import Step


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def one(layout: str = "dsa", kv_pages: int = 60, **settings: object) -> Setup:
    """Return a single rank with every recount after every step."""
    policies = Policies(stop=WaitComplete(), limit_tokens=160 * PAGE_TOKENS, stuck_after_tries=1, **settings)  # type: ignore[arg-type]
    return Setup(1, LAYOUTS[layout], 1, policies, ({"kv": kv_pages},), (4,), False, 0.0)


def steps(*texts: tuple[object, ...]) -> list[Step]:
    """Return steps of (verb, args...)."""
    return [Step(str(verb), tuple(args)) for verb, *args in texts]  # type: ignore[arg-type]


READ = (("work", 16, 1), ("tick", 1), ("work", 16, 2))


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(
            (("issue", 1, 0, 0, 8), ("work", 16, 1), ("tick", 1), ("arm_reader", 0, "duplicate"), ("work", 16, 2), ("tick", 1)),
            id="answers-twice",
        ),
        pytest.param(
            (("issue", 1, 0, 0, 8), ("work", 16, 1), ("tick", 1), ("port", 0, "release", 2), ("abort", 1), ("tick", 1)),
            id="release-at-a-later-try-is-closed",
        ),
        pytest.param(
            (("issue", 1, 0, 0, 8), *READ, ("port", 0, "plan_insert", 1), ("tick", 1), ("tick", 1), ("served", 1)),
            id="plan-that-raises-leaves-the-state",
        ),
        pytest.param(
            (("issue", 1, 0, 0, 8), *READ, ("port", 0, "insert", 1), ("tick", 1), ("issue", 2, 0, 0, 8), *READ, ("tick", 1)),
            id="insert-that-raises-is-waited-for",
        ),
        pytest.param(
            (("issue", 1, 0, 0, 8), *READ, ("port", 0, "lock", 2), ("tick", 1), ("tick", 1), ("served", 1)),
            id="lock-that-raises-owes-no-lock-yet",
        ),
        pytest.param((("port", 0, "insert", 1), ("adopt", 2, 5), ("adopt", 2, 5)), id="adoption-that-fails-gives-back"),
        pytest.param((("port", 0, "unlock", 1), ("adopt", 3, 5), ("tick", 1)), id="adoption-keeps-no-lock"),
        pytest.param((("issue", 1, 0, 0, 8), ("port", 0, "allocate", 1), *READ, ("tick", 1)), id="allocation-that-raises"),
        pytest.param((("issue", 1, 0, 0, 8), ("adopt", 6, 10), ("port", 0, "evict", 1), *READ, ("tick", 1)), id="evict-raises"),
    ],
)
@pytest.mark.parametrize("kv_pages", [10, 60])
def test_what_was_found_stays_mended(trace: Sequence[tuple[object, ...]], kv_pages: int) -> None:
    """Every law is checked after every step, and at the end nothing is left."""
    _, failure = run(one(kv_pages=kv_pages), steps(*trace), recount_every=1)
    assert failure is None, failure


def test_evicted_pages_that_memory_refuses_to_the_end_are_excused_by_that() -> None:
    """A rank that closes while host memory takes no evicted page back has leaked nothing by itself."""
    trace = steps(("adopt", 2, 5), ("port", 0, "release", 9), ("adopt", 6, 5), ("restart", 0, 0))
    assert run(one(kv_pages=5), trace)[1] is None


def test_no_eviction_breaks_the_promise_of_an_insert_that_is_tried_again() -> None:
    """An index that raises while it takes what is partly there stops every plan until it has taken it."""
    trace = steps(
        ("issue", 1, 0, 0, 3), ("work", 16, 1), ("tick", 1), ("issue", 2, 0, 0, 3), ("work", 16, 2), ("tick", 1), ("tick", 1),
        ("port", 0, "insert", 1), ("issue", 3, 0, 4, 5), ("work", 16, 3), ("tick", 1), ("tick", 1), ("work", 16, 4),
    )  # fmt: skip
    _, failure = run(one(kv_pages=8), trace, recount_every=1)
    assert failure is None, failure
