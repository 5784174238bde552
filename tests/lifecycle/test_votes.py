"""Votes and what they decide: what a rank says of a prefetch, from its state, its reads, the time and the demand."""

import pytest

from lifecycle import decide
from lifecycle import events as ev
from lifecycle.book import Book
from lifecycle.errors import ObligationError
from lifecycle.layout import KV, Layout, dsa, mamba
from lifecycle.local import Local
from lifecycle.policies import BestEffort, Policies, StopPolicy, Timeout, WaitComplete
from lifecycle.ranges import span
from lifecycle.reasons import ReadCode, Reason
from lifecycle.rows import NEUTRAL, Report
from lifecycle.votes import Progress, report

LIMIT = Timeout(1.0, 0.0, 1.0)
S = 1_000_000_000


def issued(layout: Layout) -> tuple[Book, Local]:
    """Return a book with one prefetch of four pages, issued."""
    book = Book(layout, {pool.name: 8 for pool in layout.own})
    book.apply(ev.Issued(1, "r", 0, 0, 4, "k", "", 16))
    return book, book.local[1]


def planned(layout: Layout) -> tuple[Book, Local]:
    """Return the same with its plan and one claimed read of every own pool."""
    book, local = issued(layout)
    windows = {pool.name: pool.window(0, 4) for pool in layout.own}
    book.apply(ev.HitResolved(1, 4, {}, None))
    book.apply(ev.PlanAgreed(1, 4, 4, None, windows, ()))
    for pool, pages in windows.items():
        book.apply(ev.HostReserved(1, pool, pages, ()))
        book.apply(ev.ReadClaimed(1, pool, pages))
    return book, local


def vote(local: Local, stop: StopPolicy, progress: Progress, now_ns: int = 0) -> Report:
    """Return the row of a rank."""
    return report(local.layout, Policies(stop=stop), local, progress, now_ns)


def reason_of(row: Report) -> Reason | None:
    """Return the reason that a row gives."""
    return None if row.reason == NEUTRAL else Reason.of_code(row.reason)


def test_nothing_is_final_before_there_is_a_plan() -> None:
    """Nothing of nothing is not complete: an issued prefetch waits for its hit."""
    _, local = issued(dsa())
    row = vote(local, WaitComplete(), Progress(0))
    assert row[2:5] == (False, False, False)  # can stop, must stop, final
    assert row.hit_page == -1


def test_all_answered_is_final_and_may_stop() -> None:
    """Final without demand, under a policy that waits."""
    _, local = planned(dsa())
    assert not vote(local, WaitComplete(), Progress(0, 0)).final
    row = vote(local, WaitComplete(), Progress(0, 0, all_answered=True))
    assert row.final
    assert row.can_stop
    assert not row.must_stop


@pytest.mark.parametrize(("stop", "stops"), [(BestEffort(), True), (WaitComplete(), False), (LIMIT, False)])
def test_demand_stops_best_effort_alone(stop: StopPolicy, stops: bool) -> None:
    """Without demand nothing stops; with it, what is read under best effort does."""
    book, local = planned(dsa())
    assert not vote(local, stop, Progress(0, 0)).can_stop
    book.apply(ev.Wanted(1))
    assert vote(local, stop, Progress(0, 0)).can_stop is stops


def test_the_limit_of_queueing_runs_from_issue() -> None:
    """Nothing claimed when it ends: a queue timeout."""
    _, local = issued(dsa())
    assert not vote(local, LIMIT, Progress(S), 2 * S - 1).must_stop
    assert reason_of(vote(local, LIMIT, Progress(S), 2 * S)) is Reason.QUEUE_TIMEOUT


def test_the_limit_of_reading_runs_from_the_first_claim_whatever_is_pending() -> None:
    """The time in the queue does not count, and what has landed of one pool does not stop the clock for another."""
    book, local = planned(dsa())
    book.apply(ev.PagesLanded(1, KV, (0, 4), 0))
    assert not vote(local, LIMIT, Progress(0, 5 * S), 6 * S - 1).must_stop
    row = vote(local, LIMIT, Progress(0, 5 * S), 6 * S)
    assert row.must_stop
    assert reason_of(row) is Reason.TIMEOUT
    assert not vote(local, WaitComplete(), Progress(0, 5 * S), 600 * S).must_stop


def test_a_lost_read_of_a_required_pool_must_stop_whatever_else_was_answered() -> None:
    """Under every policy, and before any other reason."""
    book, local = planned(dsa())
    book.apply(ev.ReadLost(1, KV, (0, 4)))
    for stop in (WaitComplete(), BestEffort(), LIMIT):
        row = vote(local, stop, Progress(0, 0, all_answered=True), 100 * S)
        assert row.must_stop
        assert reason_of(row) is Reason.LOST_READ


def test_a_failed_read_stops_what_is_all_or_nothing_and_caps_the_rest() -> None:
    """Where nothing shorter is usable, one failed page of a required pool ends it; elsewhere it is the ceiling."""
    book, local = planned(mamba())
    book.apply(ev.ReadFailed(1, KV, (2, 3), ReadCode.MISSING))
    assert reason_of(vote(local, WaitComplete(), Progress(0, 0))) is Reason.READ_FAILED
    book, local = planned(dsa())
    book.apply(ev.ReadFailed(1, KV, (2, 3), ReadCode.MISSING))
    row = vote(local, WaitComplete(), Progress(0, 0))
    assert not row.must_stop
    assert row.ceiling_page == 2


def test_memory_that_refused_the_plan_must_stop() -> None:
    """What the budget allowed and this rank could not hold is everyone's reason."""
    _, local = planned(dsa())
    assert reason_of(vote(local, WaitComplete(), Progress(0, reserve_failed=True))) is Reason.HOST_CAPACITY


def test_an_agreed_ceiling_caps_the_plan_on_every_rank() -> None:
    """A page that failed on one rank is no longer read for on the others; the same ceiling again says nothing."""
    book, local = planned(dsa())
    row = Report(4, 2, False, False, False, False, NEUTRAL, (0, 0))
    capped = decide.row(dsa(), local.shared, row, {}, 2, 7)
    assert capped == (ev.Capped(1, 2),)
    book.apply(capped[0])
    assert decide.row(dsa(), local.shared, row, {}, 2, 8) == ()


def test_the_agreed_values_keep_their_pools() -> None:
    """What is synced is the row's landed values under the names of the layout, in its order."""
    _, local = planned(dsa())
    row = Report(4, 4, True, False, True, False, NEUTRAL, (4, 3))
    terminated, synced = decide.row(dsa(), local.shared, row, {KV: 4, "indexer": 4}, 2, 7)
    assert isinstance(terminated, ev.Terminated)
    assert terminated.reason is Reason.COMPLETED
    assert synced == ev.Synced(1, {KV: 4, "indexer": 3}, 2, 7)


def test_a_row_of_an_ended_prefetch_closes_it_once_all_have_settled_and_does_nothing_else() -> None:
    """Whatever else the row says: nothing is terminated, synced or committed after the end."""
    book, local = planned(dsa())
    for event in decide.end(local.shared, Reason.ABORTED):
        book.apply(event)
    open_, settled = (Report(4, 4, True, True, True, ok, Reason.TIMEOUT.code, (4, 4)) for ok in (False, True))
    assert decide.row(dsa(), local.shared, open_, {}, 2, 7) == ()
    assert decide.row(dsa(), local.shared, settled, {}, 2, 7) == (ev.Closed(1),)


def test_tokens_come_back_by_the_amount_that_was_reserved_and_once() -> None:
    """Another amount, and a second return, are refused, and the counter has no floor that would hide either."""
    book, local = planned(dsa())
    with pytest.raises(ObligationError, match="return 8 tokens"):
        book.apply(ev.TokensReturned(1, 8))
    assert book.replica.occupied_tokens == 16
    book.apply(ev.TokensReturned(1, 16))
    with pytest.raises(ObligationError, match="return 16 tokens"):
        book.apply(ev.TokensReturned(1, 16))
    assert book.replica.occupied_tokens == 0
    book.replica.apply(ev.TokensReturned(1, 16))  # past the obligations, as only a fault of ours could
    assert book.replica.occupied_tokens == -16
    assert any("-16 tokens are occupied" in fault for fault in book.faults())
    assert local.obligations.tokens is None


def test_the_budget_goes_below_zero() -> None:
    """Pages that turn out to be lost after they were promised are owed by evictions: no floor hides them."""
    book, _ = planned(dsa())
    book.apply(ev.QuarantineAgreed(KV, 6))
    assert book.replica.budget(KV) == 8 - 4 - 6


def test_a_rank_with_a_read_out_has_not_settled() -> None:
    """Whatever else is discharged: a slot that a read may write is still held."""
    book, local = planned(dsa())
    for event in decide.end(local.shared, Reason.ABORTED):
        book.apply(event)
    book.apply(ev.AnchorUnlocked(1))
    local.obligations.pages.clear()
    assert not local.obligations.settled
    book.apply(ev.ReadEnded(1, KV, (0, 4)))
    assert local.obligations.settled
    assert local.obligations.busy(KV) == span(0, 0)
