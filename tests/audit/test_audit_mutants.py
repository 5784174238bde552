"""What a log alone can show: for each mutant that logs can show, one in which the audit names law, prefetch and request."""

import pytest
from audit_stories import Tape, verify
from mutant_logs import LOGS, RUNS, logs_of

from lifecycle.audit import Law
from lifecycle.testing.mutants_logs import IN_LOGS

SHOWN = {name: found for name, (found, _) in IN_LOGS.items() if isinstance(found, Law)}


def test_every_mutant_that_logs_can_show_has_one() -> None:
    """Neither is a log missing, nor is there one of a mutant of which none can be."""
    assert set(LOGS) == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_the_log_of(name: str) -> None:
    """Its law is said first, of the prefetch and the request that are at fault, with what would have been right."""
    spoilt = LOGS[name]
    found = verify(*spoilt.tapes())
    assert found, "nothing was said"
    told = "\n".join(map(str, found))
    assert (found[0].law, found[0].prefetch, found[0].request) == (SHOWN[name], spoilt.prefetch, spoilt.request), told
    assert found[0].what
    assert found[0].right
    assert len(found) <= 12, told


@pytest.mark.parametrize("story", RUNS)
def test_the_runs_that_are_spoilt_are_clean_before(story: str) -> None:
    """It is not the story that the audit finds fault with."""
    assert verify(*[Tape(log) for log in logs_of(story)]) == []
