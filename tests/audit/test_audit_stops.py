"""Why a prefetch stopped, or never began: a reason that does not follow from policy, time and hit is a fault of the log."""

from collections.abc import Callable

import msgspec
import pytest
from audit_stories import Tape, tape, verify
from kit.rig import Rig

from lifecycle.audit import Law, verify_log
from lifecycle.events import (
    Discarded,
    HitResolved,
    HostReserved,
    LogOpened,
    PlanAgreed,
    ReadClaimed,
    ReadEnded,
    ReadLost,
    Record,
    Terminated,
    TransferStarted,
    Wanted,
)  # fmt: skip
from lifecycle.policies import BestEffort, Pressure, Timeout
from lifecycle.reasons import Reason

RigOf = Callable[..., Rig]


def said(log: Tape) -> list[tuple[Law, str, str]]:
    """Return law, what and right of everything that is found."""
    return [(each.law, each.what, each.right) for each in verify(log)]


def policy(log: Tape, **changed: object) -> None:
    """Change the policies of a log's header."""
    log.change(LogOpened, new={"policies": {**log.get(LogOpened).policies, **changed}})


def test_a_stop_reason_of_another_policy() -> None:
    """Under wait_complete nothing stops for demand, and no limit runs."""
    for reason in (Reason.BEST_EFFORT, Reason.TIMEOUT, Reason.QUEUE_TIMEOUT):
        log = tape("plain")
        log.change(Terminated, new={"reason": reason}, prefetch=1)
        assert said(log)[0] == (Law.OUTCOME, f"terminated as {reason}", "another reason: the stop policy is wait_complete")


def test_best_effort_without_demand(rig_of: RigOf) -> None:
    """A prefetch of which nobody asked is not stopped for admission's sake."""
    rig = rig_of("kv_only", stop=BestEffort())
    rig.stores[0].hold("kv")
    id_ = rig.issue("r", 8)
    rig.until_held("kv")
    rig.ready("r")
    rig.tick(2)
    rig.stores[0].open_all()
    rig.until_closed(id_)
    log = Tape(rig.logs[0].records())
    assert verify(log) == []
    assert log.get(Terminated).reason is Reason.BEST_EFFORT
    log.drop(Wanted)
    assert said(log)[0] == (Law.OUTCOME, "terminated as best_effort", "only once admission wants the request")


def timed_out(rig: Rig) -> list[Record]:
    """Run into the transfer limit of 2 s, with 1 s spent in the queue."""
    rig.stores[0].hold("", "kv")
    id_ = rig.issue("r", 8)
    rig.until_held("")
    rig.clock.advance(1)
    rig.stores[0].let_go("")
    rig.until_held("kv")
    rig.tick(2)
    rig.clock.advance(2)
    rig.tick(2)
    rig.stores[0].open_all()
    rig.until_closed(id_)
    return list(rig.logs[0].records())


def test_a_limit_that_had_not_run_out(rig_of: RigOf) -> None:
    """The time in the queue does not count against the time to read, and the other way about."""
    records = timed_out(rig_of("kv_only", stop=Timeout(2.0, 0.0, 2.0)))
    assert verify_log(records) == []
    place = next(at for at, record in enumerate(records) if isinstance(record.event, Terminated))
    assert records[place].event.reason is Reason.TIMEOUT  # type: ignore[union-attr]
    early = [
        msgspec.structs.replace(record, at_ns=min(record.at_ns, records[place].at_ns - 500_000_000))
        if at < place + 1 else record
        for at, record in enumerate(records)
    ]  # fmt: skip
    (found,) = verify_log(early)
    assert (found.law, found.right) == (Law.OUTCOME, "after 2 s")
    assert found.what.startswith("terminated as timeout after 1.")


def test_reading_is_not_queueing(rig_of: RigOf) -> None:
    """Which limit ran out follows from whether a read had begun."""
    log = Tape(timed_out(rig_of("kv_only", stop=Timeout(2.0, 0.0, 2.0))))
    log.change(Terminated, new={"reason": Reason.QUEUE_TIMEOUT})
    assert (Law.OUTCOME, "terminated as queue_timeout", "timeout: its reads had begun") in said(log)
    log.change(Terminated, new={"reason": Reason.TIMEOUT})
    log.drop(TransferStarted)
    assert (Law.OUTCOME, "terminated as timeout", "queue_timeout: its reads had not begun") in said(log)


def test_the_limit_of_reads_that_no_rank_had_begun() -> None:
    """On several ranks one that reads is enough; with none it was the limit of the queue."""
    tapes = tape("ranked", 0), tape("ranked", 1)
    for log in tapes:
        policy(log, stop={"name": "timeout", "base_s": 1.0, "per_ki_token_s": 0.0, "max_s": 1.0})
        log.change(Terminated, new={"reason": Reason.TIMEOUT}, prefetch=1)
    tapes[0].drop(TransferStarted, prefetch=1)
    assert not any(each.what == "terminated as timeout" for each in verify(*tapes))
    tapes[1].drop(TransferStarted, prefetch=1)
    assert [(each.law, each.what, each.right) for each in verify(*tapes)] == [
        (Law.RANKS, "terminated as timeout", "queue_timeout: no rank had begun to read")
    ]


def test_a_lost_read_that_stops_nothing() -> None:
    """The loss of a required page is the reason, whatever else there is."""
    log = tape("lost")
    log.change(Terminated, new={"reason": Reason.READ_FAILED})
    assert (Law.OUTCOME, "terminated as read_failed", "lost_read: a read of a required pool was lost") in said(log)
    assert log.get(ReadLost)


def test_a_plan_that_was_never_reserved() -> None:
    """Where host memory refused the plan, that is why it stops."""
    log = tape("plain")
    log.events = [event for event in log.events if not isinstance(event, (HostReserved, ReadClaimed, ReadEnded))]
    assert (Law.OUTCOME, "terminated as completed", "host_capacity: this rank did not reserve what was planned") in said(log)


@pytest.mark.parametrize(("hit", "words"), [
    ({"hit_page": 7}, "a hit of 7 pages"),
    ({"hit_page": 9}, "a hit of 9 pages"),
    ({"leading": {"kv": 10, "indexer": 5}}, "a hit of 10 pages"),
    ({"miss": Reason.FULL_MISS}, "10 pages, 10 of them of kv, are a miss as full_miss"),
    ({"hit_page": 0, "leading": {"kv": 10, "indexer": 0}, "miss": Reason.BELOW_THRESHOLD},
     "0 pages, 10 of them of kv, are a miss as below_threshold"),
    ({"hit_page": 0, "leading": {"kv": 0, "indexer": 0}, "miss": Reason.SIDECAR_ABSENT},
     "0 pages, 0 of them of kv, are a miss as sidecar_absent"),
])  # fmt: skip
def test_a_hit_that_contradicts_itself(hit: dict[str, object], words: str) -> None:
    """The hit is the shortest leading run of what must be there, and a miss has the name of what was missing."""
    log = tape("short")
    log.change(HitResolved, new=hit)
    assert any(law is Law.PLAN and what == words for law, what, _ in said(log)), said(log)


def test_a_header_without_a_shard_of_kv() -> None:
    """A forged header is no way to stop the audit."""
    log = tape("short")
    log.change(LogOpened, new={"absent": ("kv", "indexer")})
    log.change(HitResolved, new={"hit_page": 3})
    assert verify(log)


def missed(rig: Rig, pages: int = 8) -> Tape:
    """Return the log of a prefetch that found nothing in L3."""
    rig.stores[0].show("kv", "0" * pages, rig.prompt("r", pages))
    rig.run("r", pages)
    return Tape(rig.logs[0].records())


def test_a_revoke_for_another_reason_than_the_hit(rig_of: RigOf) -> None:
    """A miss is told as the miss it was, and only a hit can fail for want of host memory."""
    log = missed(rig_of("kv_only"))
    assert verify(log) == []
    assert log.get(Discarded).reason is Reason.FULL_MISS
    log.change(Discarded, new={"reason": Reason.HOST_CAPACITY})
    assert said(log)[0] == (Law.OUTCOME, "discarded as host_capacity without a plan", "full_miss: the hit here is 0 pages")
    log.change(Discarded, new={"reason": Reason.BELOW_THRESHOLD})
    assert said(log)[0][1] == "discarded as below_threshold without a plan"
    log.change(Discarded, new={"reason": Reason.FULL_MISS})
    log.change(HitResolved, new={"hit_page": 8, "leading": {"kv": 8}, "miss": None})
    assert said(log)[0] == (Law.OUTCOME, "discarded as full_miss without a plan", "a plan: the hit is 8 pages")
    log.drop(HitResolved)
    assert said(log)[0][2] == "only once this rank's shard was asked"


@pytest.mark.parametrize("pressure", list(Pressure))
def test_a_revoke_for_want_of_room_that_there_was(rig_of: RigOf, pressure: Pressure) -> None:
    """With pages enough that nobody was promised, host memory is no reason."""
    log = missed(rig_of("kv_only", pressure=pressure))
    log.change(HitResolved, new={"hit_page": 8, "leading": {"kv": 8}, "miss": None})
    log.change(Discarded, new={"reason": Reason.HOST_CAPACITY})
    right = "a plan: 32 pages of kv are promised to nobody"
    assert said(log)[0] == (Law.OUTCOME, "discarded as host_capacity without a plan", right)


def test_a_plan_that_was_cut_for_nothing() -> None:
    """A plan is as long as the hit and the room allow."""
    log = tape("short")
    log.change(PlanAgreed, new={"plan_page": 6, "cut": Reason.HOST_CAPACITY, "reserved": {"kv": (0, 6)}})
    assert said(log)[0] == (Law.PLAN, "the plan is cut to page 6", "to page 10: 32 pages of kv are promised to nobody")


def test_of_an_observed_engine_none_of_this_is_known() -> None:
    """Its reasons are its own."""
    log = tape("plain")
    policy(log, observed="sglang")
    log.change(Terminated, new={"reason": Reason.BEST_EFFORT}, prefetch=1)
    assert not any("best_effort" in what for _, what, _ in said(log))
