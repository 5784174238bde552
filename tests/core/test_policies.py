"""What an operator may set, and what is refused before anything starts."""

from dataclasses import FrozenInstanceError

import pytest

from lifecycle.errors import ConfigError
from lifecycle.policies import (
    MOST_PAGES,
    MOST_TICKS,
    STOP_POLICIES,
    BestEffort,
    OnShortfall,
    Policies,
    Pressure,
    Retry,
    Timeout,
    WaitComplete,
    stop_policy,
)

NAN, INF = float("nan"), float("inf")


def test_defaults_are_timeout_shrink_and_discard() -> None:
    """Who sets nothing gets a limit, a shrinking plan and no degraded prefix."""
    policies = Policies()
    assert isinstance(policies.stop, Timeout)
    assert policies.pressure is Pressure.SHRINK
    assert policies.shortfall is OnShortfall.DISCARD
    assert not policies.degrade


def test_degrade_is_the_shortfall_policy() -> None:
    """Rebuildable pools are spared only when the operator says so."""
    assert Policies(shortfall=OnShortfall.DEGRADE).degrade


@pytest.mark.parametrize(
    ("tokens", "limit_ns"),
    [
        (0, 1_000_000_000),
        (512, 1_125_000_000),
        (4096, 2_000_000_000),
        (116 * 1024, 30_000_000_000),
        (2**40, 30_000_000_000),
    ],
)
def test_timeout_grows_with_tokens_up_to_its_maximum(tokens: int, limit_ns: int) -> None:
    """The limit is min(max, base + per_ki_token * tokens / 1024), in nanoseconds."""
    assert Timeout(base_s=1.0, per_ki_token_s=0.25, max_s=30.0).limit_ns(tokens) == limit_ns


def test_timeout_may_be_constant() -> None:
    """The bounds themselves are legal: no base, no growth, base equal to the maximum."""
    assert Timeout(0.0, 0.0, 1.0).limit_ns(1024) == 0
    assert Timeout(2.0, 0.0, 2.0).limit_ns(1024) == 2_000_000_000


@pytest.mark.parametrize(
    "values",
    [(-1, 0, 1), (2, 0, 1), (0, -0.1, 1), (0, 0, 0), (0, 0, -1), (NAN, 0, 1), (0, NAN, 1), (0, 0, NAN), (0, INF, 1),
     (0, 0, INF), (INF, 0, INF), (1e300, 0, 1e300), (0, 10**400, 1), (0, 0, 10**400)],
)  # fmt: skip
def test_timeout_that_makes_no_sense_is_refused(values: tuple[float, float, float]) -> None:
    """A negative, unbounded or undefined limit is refused when it is built, not when it runs out."""
    with pytest.raises(ConfigError, match="need 0 <= base_s <= max_s"):
        Timeout(*values)


@pytest.mark.parametrize("name", STOP_POLICIES)
def test_stop_policy_is_found_by_its_name(name: str) -> None:
    """The name in the log is the name that builds the policy."""
    assert stop_policy(name).name == name
    assert Policies(stop=stop_policy(name)).stop == stop_policy(name)


def test_unknown_stop_policy_is_refused_with_the_known_ones() -> None:
    """A misspelt policy never becomes another one."""
    with pytest.raises(ConfigError, match="'wait': there are best_effort, wait_complete, timeout"):
        stop_policy("wait")


@pytest.mark.parametrize(
    ("field", "least"),
    [("threshold_pages", 1), ("max_pages", 1), ("limit_tokens", 1), ("max_lost_reads", 0), ("row_capacity", 1),
     ("mask_capacity", 1), ("lag_ticks", 0), ("batch_pages", 1), ("stuck_after_tries", 1)],
)  # fmt: skip
def test_count_below_its_least_is_refused_by_name(field: str, least: int) -> None:
    """The least value is legal; one below, a fraction and a text are refused, naming the field."""
    assert getattr(Policies(**{field: least}), field) == least
    for bad in (least - 1, least + 0.5, NAN, str(least)):
        with pytest.raises(ConfigError, match=f"{field}=.*need a whole number of at least {least}"):
            Policies(**{field: bad})


@pytest.mark.parametrize("field", ["every_ticks", "max_queries", "max_waiting", "give_up_ticks"])
def test_a_retry_that_could_not_be_counted_is_refused(field: str) -> None:
    """Each of its numbers is a whole one that a tick or a count can reach, and that a log can hold."""
    assert getattr(Retry(**{field: 1}), field) == 1
    for bad in (0, True, 1.5, NAN, "1", MOST_TICKS + 1, 2**64):
        with pytest.raises(ConfigError, match=f"{field}=.*need a whole number from 1"):
            Retry(**{field: bad})


def test_limit_of_no_tokens_is_refused_at_start() -> None:
    """A limit that declines every prefetch is an error, not a silent end of prefetching."""
    with pytest.raises(ConfigError, match="limit_tokens=0"):
        Policies(limit_tokens=0)


@pytest.mark.parametrize("seconds", [0, -1.0, NAN, INF, 1e300, 10**400])
def test_lost_read_time_must_be_finite_and_above_0(seconds: float) -> None:
    """A read is given up after some time under every policy."""
    with pytest.raises(ConfigError, match=r"lost_read_s=.*need a time above 0"):
        Policies(lost_read_s=seconds)


def test_lost_read_time_in_nanoseconds() -> None:
    """Seconds and nanoseconds say the same."""
    assert Policies(lost_read_s=0.25).lost_read_ns == 250_000_000


def test_batch_is_at_most_what_a_store_takes() -> None:
    """A batch of 128 keys is the largest."""
    assert Policies(batch_pages=128).batch_pages == 128
    with pytest.raises(ConfigError, match="batch_pages=129: stores take at most 128 keys"):
        Policies(batch_pages=129)


def test_lengths_fit_the_words_of_a_round() -> None:
    """The longest span stays below the neutral value of a round."""
    assert Policies(max_pages=MOST_PAGES).max_pages == 2**31 - 2
    with pytest.raises(ConfigError, match="max_pages=2147483647: rounds carry 32 bits"):
        Policies(max_pages=MOST_PAGES + 1)


def test_threshold_over_the_longest_span_is_refused() -> None:
    """A threshold that no span can reach would decline everything."""
    assert Policies(threshold_pages=8, max_pages=8).threshold_pages == 8
    with pytest.raises(ConfigError, match="threshold_pages=9: it is over max_pages=8"):
        Policies(threshold_pages=9, max_pages=8)


@pytest.mark.parametrize(
    ("field", "value", "need"),
    [("shortfall", "degrade", "OnShortfall"), ("pressure", "revoke", "Pressure"),
     ("stop", "best_effort", "BestEffort or WaitComplete or Timeout"), ("stop", BestEffort, "BestEffort or")],
)  # fmt: skip
def test_name_in_the_place_of_a_choice_is_refused(field: str, value: object, need: str) -> None:
    """A plain string equals the member it spells, and must not be kept and then ignored."""
    with pytest.raises(ConfigError, match=f"{field}=.*need {need}"):
        Policies(**{field: value})  # type: ignore[arg-type]


def test_policies_never_change() -> None:
    """What all ranks agreed on at the start stays."""
    with pytest.raises(FrozenInstanceError):
        Policies().lag_ticks = 1  # type: ignore[misc]
    assert Policies(stop=WaitComplete()) == Policies(stop=WaitComplete())
    assert Policies(stop=WaitComplete()) != Policies()
