"""All ranks of a run against each other."""

from collections.abc import Iterator

import msgspec
from audit_stories import Tape, run, tape, verify

from lifecycle.audit import Law, Violation, verify_logs
from lifecycle.audit.peers import LOOK_AHEAD, Peers
from lifecycle.audit.rank import RankAudit
from lifecycle.events import (
    AnyEvent,
    Clamped,
    Closed,
    CoordinatorStopped,
    Evicted,
    Issued,
    LoadedTaken,
    LogOpened,
    PlanAgreed,
    Record,
    RequestFinished,
    RoundDone,
    Synced,
    Terminated,
    TokensReturned,
)
from lifecycle.ranges import count
from lifecycle.reasons import Reason


def both(story: str = "ranked") -> tuple[Tape, Tape]:
    """Return fresh tapes of two ranks."""
    return tape(story, 0), tape(story, 1)


def of_ranks(found: list[Violation]) -> list[Violation]:
    """Return what was said of the ranks' differences alone."""
    return [violation for violation in found if violation.law is Law.RANKS]


def test_a_difference_is_told_once_per_prefetch() -> None:
    """The first difference of a prefetch is told, with both sides; what follows from it is not."""
    first, second = both()
    second.change(Clamped, new={"usable_page": 3, "taken": {"kv": ((0, 3),)}})
    said = of_ranks(verify(first, second))
    assert [(violation.rank, violation.prefetch) for violation in said] == [(1, 2)]
    assert "usable_page 3" in said[0].what
    assert "usable_page 4" in said[0].right


def test_two_prefetches_that_differ_are_told_apart() -> None:
    """What differs in one prefetch does not hide a difference in another."""
    first, second = both()
    second.change(Issued, prefetch=1, new={"last_key": "0" * 64})
    second.change(Terminated, prefetch=2, new={"reason": Reason.TIMEOUT})
    assert [violation.prefetch for violation in of_ranks(verify(first, second))] == [1, 2]


def test_an_event_that_one_rank_lacks() -> None:
    """An event that a rank never logged is missing there, though all that follow are the same."""
    first, second = both()
    second.drop(TokensReturned, prefetch=1)
    said = of_ranks(verify(first, second))
    assert [(violation.rank, violation.prefetch) for violation in said] == [(1, 1)]
    assert "TokensReturned" in said[0].right


def test_the_odd_one_of_three_is_blamed() -> None:
    """With three ranks, the one that stands alone is told, not the first."""
    logs = [tape("ranked", 0), tape("ranked", 1), tape("ranked", 1)]
    for rank, log in enumerate(logs):
        log.change(LogOpened, new={"rank": rank, "ranks": 3})
        for event in [place for place, each in enumerate(log.events) if isinstance(each, (Synced, RoundDone))]:
            log.events[event] = msgspec.structs.replace(log.events[event], participants=3)
    logs[0].change(PlanAgreed, prefetch=2, new={"hit_page": 7, "plan_page": 7, "reserved": {"kv": (0, 7)}})
    assert [(v.rank, v.prefetch) for v in of_ranks(verify(*logs))] == [(0, 2)]


def test_a_command_that_only_one_rank_was_given() -> None:
    """A command that came on one rank alone is told with its request."""
    first, second = both()
    second.drop(LoadedTaken)
    said = of_ranks(verify(first, second))
    assert [violation.request for violation in said] == ["a"]


def test_the_same_events_in_another_order() -> None:
    """Replicas move in one order: the same events in another are a difference, told once."""
    first, second = both()
    taken = second.drop(LoadedTaken)
    second.put(taken, Closed, prefetch=1)
    said = of_ranks(verify(first, second))
    assert len(said) == 1
    assert "before" in said[0].what


def test_the_agreed_length_is_the_least_that_any_rank_landed() -> None:
    """All ranks agree on one length, and it is more, or less, than the least of what they landed."""
    for agreed in ({"kv": 8, "indexer": 8}, {"kv": 3, "indexer": 8}):
        first, second = both()
        for log in (first, second):
            log.change(Synced, prefetch=2, new={"agreed": agreed})
        said = of_ranks(verify(first, second))
        assert [violation.prefetch for violation in said] == [2]
        assert "kv" in said[0].what
        assert said[0].right.startswith("4")


def test_a_log_that_ends_early_is_compared_as_far_as_it_goes() -> None:
    """A crash of one rank is no difference, wherever it was."""
    first, second = both()
    whole = second.records()
    for end in range(1, len(whole)):
        assert not of_ranks(verify_logs([first.records(), whole[:end]])), f"cut after {end} records"


def test_a_close_of_its_own_is_no_difference() -> None:
    """A rank that could not settle at the shutdown does not close; the other, which did, is not at fault."""
    first, second = both()
    second.drop(Closed, prefetch=2)
    del second.events[second.find(LoadedTaken) : second.find(CoordinatorStopped)]
    del first.events[first.find(LoadedTaken) : first.find(CoordinatorStopped)]
    assert not of_ranks(verify(first, second))


def test_headers_of_one_run_agree() -> None:
    """Logs of different configurations, or two of one rank, are not one run."""
    first, second = both()
    second.change(LogOpened, new={"page_size_tokens": 8})
    assert "page_size_tokens" in of_ranks(verify(first, second))[0].what
    first = tape("ranked", 0)
    assert "rank 0" in of_ranks(verify(first, tape("ranked", 0)))[0].what


def test_other_participants_are_told() -> None:
    """A length that not all ranks took part in is none."""
    first, second = both()
    for log in (first, second):
        log.change(Synced, prefetch=1, new={"participants": 1})
    assert of_ranks(verify(first, second))


def _long(rank: int, times: int, progress: list[int]) -> Iterator[Record]:
    """Yield a run that is as long as asked: one story, over and over, its pages evicted in between."""
    story = [record.event for record in run("ranked")[rank]]
    prefetches = sum(isinstance(event, Issued) for event in story)
    rounds = max(event.number for event in story if isinstance(event, RoundDone))
    taken = sum(count(pages["kv"]) for pages in (e.taken for e in story if hasattr(e, "taken")))
    body: list[AnyEvent] = [*story[1:-1], RequestFinished("b"), Evicted("kv", taken, ((0, taken),), ())]
    seq = 0
    yield Record(seq, 0, story[0])
    for time in range(times):
        for event in body:
            seq += 1
            progress[rank] = time
            new = {}
            if hasattr(event, "prefetch"):
                new["prefetch"] = event.prefetch + time * prefetches
            if isinstance(event, RoundDone):
                new["number"] = event.number + time * rounds
            if isinstance(event, Synced):
                new["round"] = event.round + time * rounds
            yield Record(seq, seq, msgspec.structs.replace(event, **new) if new else event)
    yield Record(seq + 1, seq + 1, story[-1])


def test_ranks_are_read_in_step_and_nothing_is_kept() -> None:
    """However long the logs, no rank is read far ahead of the others, and what is over is forgotten."""
    progress, found = [0, 0], list[Violation]()
    audits = [RankAudit(rank, found.append) for rank in range(2)]
    peers = Peers(audits, [_long(rank, 200, progress) for rank in range(2)], found.append)
    most = apart = 0
    while peers.advance():
        apart = max(apart, abs(progress[0] - progress[1]))
        ledgers = [audit.ledger for audit in audits if audit.ledger is not None]
        most = max([most, *(len(ledger.accounts) + len(ledger.requests) for ledger in ledgers)])
    assert not found, "\n".join(map(str, found[:5]))
    assert progress == [199, 199]
    assert apart <= 1
    assert most <= 4


def test_a_missing_event_does_not_make_the_audit_read_everything() -> None:
    """To find what one rank lacks, the others are read ahead by a bounded number of events."""
    progress, found = [0, 0], list[Violation]()

    def lacking() -> Iterator[Record]:
        events = (record.event for record in _long(1, 400, progress))
        kept = (event for event in events if not (isinstance(event, TokensReturned) and event.prefetch == 1))
        yield from (Record(seq, seq, event) for seq, event in enumerate(kept))

    audits = [RankAudit(rank, found.append) for rank in range(2)]
    stream = Peers(audits, [_long(0, 400, progress), lacking()], found.append)
    while stream.advance() and not of_ranks(found):
        pass
    assert of_ranks(found)[0].prefetch == 1
    assert 1 < progress[0] < 2 * LOOK_AHEAD // 20 < 399


def test_no_rank_is_ahead_where_the_books_of_all_are_laid_side_by_side() -> None:
    """As the end of a prefetch is compared, each rank has read its own and nothing replicated behind it."""
    last: list[AnyEvent | None] = [None, None]

    def watched(rank: int) -> Iterator[Record]:
        for record in _long(rank, 20, [0, 0]):
            if record.event.REPLICATED:
                last[rank] = record.event
            yield record

    found, compared = list[Violation](), list[int]()
    audits = [RankAudit(rank, found.append) for rank in range(2)]
    peers = Peers(audits, [watched(0), watched(1)], found.append)
    while peers.advance():
        ends = [event for event in last if isinstance(event, Terminated)]
        assert len(ends) in (0, 2), "one rank is at an end, the other is not"
        if ends:
            assert ends[0].prefetch == ends[1].prefetch
            compared.append(ends[0].prefetch)
    assert not found
    events = [record.event for record in _long(0, 20, [0, 0])]
    assert compared == [event.prefetch for event in events if isinstance(event, Terminated)]
