"""The closed enumerations: their codes in a round and their names in a log."""

import pytest

from lifecycle.reasons import Part, ReadCode, Reason

COMMANDED = {Reason.ABORTED, Reason.SUPERSEDED, Reason.SHUTDOWN, Reason.SYNC_FAILED}
NEVER_ISSUED = {Reason.DUPLICATE, Reason.TOO_SHORT, Reason.RATE_LIMITED, Reason.READERS_LOST}


@pytest.mark.parametrize("reason", Reason)
def test_code_of_a_reason_reads_back(reason: Reason) -> None:
    """A row carries a number, and the number is that reason again."""
    assert Reason.of_code(reason.code) is reason


def test_codes_are_1_to_n_in_the_order_of_declaration() -> None:
    """No reason has the code 0, and the reason declared first has the lowest."""
    assert [reason.code for reason in Reason] == list(range(1, len(Reason) + 1))


@pytest.mark.parametrize("code", [0, -1, len(Reason) + 1, 2**31 - 1])
def test_unknown_code_is_refused(code: int) -> None:
    """The neutral value of a round, and any other number, is no reason."""
    with pytest.raises(ValueError, match=f"cannot read reason code {code}: known codes are 1 to {len(Reason)}"):
        Reason.of_code(code)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (Reason.ABORTED, Reason.COMPLETED),
        (Reason.LOST_READ, Reason.READ_FAILED),
        (Reason.READ_FAILED, Reason.TIMEOUT),
        (Reason.LOST_READ, Reason.TIMEOUT),
        (Reason.TIMEOUT, Reason.BEST_EFFORT),
        (Reason.BEST_EFFORT, Reason.COMPLETED),
        (Reason.SIDECAR_ABSENT, Reason.FULL_MISS),
        (Reason.HEAD_MISSING, Reason.FULL_MISS),
        (Reason.FULL_MISS, Reason.BELOW_THRESHOLD),
        (Reason.QUERY_FAILED, Reason.FULL_MISS),
    ],
)
def test_more_telling_reason_wins_a_round(winner: Reason, loser: Reason) -> None:
    """Where ranks give different reasons, the minimum is the one that says more."""
    assert Reason.of_code(min(winner.code, loser.code)) is winner


def test_commands_come_before_all_that_ranks_propose() -> None:
    """A reason given by a command wins over any that a rank proposes."""
    assert max(r.code for r in COMMANDED) < min(r.code for r in set(Reason) - COMMANDED)


def test_reasons_of_a_decline_come_last() -> None:
    """What never became a prefetch wins over nothing."""
    assert min(r.code for r in NEVER_ISSUED) > max(r.code for r in set(Reason) - NEVER_ISSUED)


@pytest.mark.parametrize("kind", [Reason, ReadCode, Part])
def test_wire_names_are_lower_case_words(kind: type[Reason] | type[ReadCode] | type[Part]) -> None:
    """The name in a log is the member's name in lower case, so that grep finds both."""
    assert [member.value for member in kind] == [member.name.lower() for member in kind]


def test_read_codes_are_those_that_logs_know() -> None:
    """A read code may be added, and none that old logs hold may go."""
    known = {"missing", "short", "corrupt", "lease_expired", "io_error", "bad_result"}
    assert known <= {code.value for code in ReadCode}


def test_reasons_are_those_that_logs_know() -> None:
    """A reason may be added, and none that old logs hold may go."""
    known = (
        "completed rate_limited too_short duplicate below_threshold full_miss head_missing sidecar_absent "
        "host_capacity queue_timeout timeout best_effort superseded aborted read_failed lost_read shortfall "
        "anchor_lost insert_dropped sync_failed shutdown"
    )
    assert set(known.split()) <= {reason.value for reason in Reason}


def test_parts_are_those_of_the_partition_law() -> None:
    """What is not handed over is tail, clamped or duplicate, and nothing else."""
    assert {part.value for part in Part} == {"tail", "clamped", "duplicate"}
