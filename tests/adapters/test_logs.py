"""Structured logs: one line per prefetch at info, what to do at warning, detail at debug, and no configuration of its own."""

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from kit.rig import PAGE_TOKENS, Rig
from structlog.testing import CapturingLogger

from lifecycle.adapters.logs import LOGGER, StructlogObserver
from lifecycle.adapters.observe import replay
from lifecycle.events import Declined, Discarded, EventsLost, Issued, LogOpened, PageOverwritten, Record
from lifecycle.policies import OnShortfall
from lifecycle.reasons import Reason

RigOf = Callable[..., Rig]
Line = dict[str, Any]


def said(rig: Rig, rank: int = 0, level: str | None = None, extra: tuple[Record, ...] = ()) -> list[Line]:
    """Return what a rank's log says through structlog, at one level or at all."""
    with structlog.testing.capture_logs() as lines:
        replay([*rig.logs[rank].records(), *extra], StructlogObserver(structlog.get_logger()))
    return [dict(line) for line in lines if level in (None, line["log_level"])]


def of_prefetches(lines: list[Line]) -> list[Line]:
    """Return the lines that are about a prefetch."""
    return [line for line in lines if "prefetch" in line]


def test_one_line_per_prefetch_at_info(rig_of: RigOf) -> None:
    """Each prefetch has its outcome with reason, pages, tokens, queue wait and read time, bound to rank and request."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    rig.issue("a", 4)
    rig.until_held()
    rig.clock.advance(0.5)
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    rig.stores[0].say("kv", "110", rig.prompt("b", 3))
    rig.run("b", 3)
    first, second = of_prefetches(said(rig, level="info"))
    assert first == {
        "event": "prefetch committed", "log_level": "info", "rank": 0, "prefetch": 1, "request": "a", "attempt": 0,
        "reason": "completed", "pages": 4, "tokens": 4 * PAGE_TOKENS, "hit_tokens": 4 * PAGE_TOKENS,
        "queue_wait_ms": 0.0, "read_ms": 500.0,
    }  # fmt: skip
    assert (second["event"], second["reason"], second["pages"]) == ("prefetch clamped", "read_failed", 2)


def test_every_event_can_be_read_at_debug(rig_of: RigOf) -> None:
    """Each record but the quiet ones is one line, with its facts as text and numbers, page ranges as ranges."""
    rig = rig_of("dsa")
    rig.run("r", 4)
    lines = said(rig)
    names = [line["event"] for line in lines]
    records = list(rig.logs[0].records())
    assert len(lines) == len(records) - 1, "all but Synced, which says nothing of one rank alone"
    assert {"issued", "plan_agreed", "host_reserved", "pages_landed", "host_handed_over", "settled", "closed"} <= set(names)
    landed = next(line for line in lines if line["event"] == "pages_landed")
    assert (landed["request"], landed["pool"], landed["pages"]) == ("r", "kv", "[0:4)")


def test_synced_is_said_only_of_several_ranks(rig_of: RigOf) -> None:
    """Alone there is nobody to agree with; of two ranks both say so, with how long it took."""
    alone, two = rig_of(), rig_of(ranks=2)
    alone.run("r", 4)
    two.run("r", 4)
    assert not any("synced" in line["event"] or "synced_ranks" in line for line in said(alone))
    lines = said(two, rank=1)
    assert [line["participants"] for line in lines if line["event"] == "synced"] == [2]
    outcome = next(line for line in lines if line["event"] == "prefetch committed")
    assert (outcome["rank"], outcome["synced_ranks"]) == (1, 2)


def test_a_lost_read_says_what_to_do(rig_of: RigOf) -> None:
    """The lost read and its quarantined pages are warnings with advice; the outcome stays one line at info."""
    rig = rig_of(lost_read_s=1.0)
    rig.stores[0].hold("kv")
    rig.issue("r", 4)
    rig.until_held()
    rig.clock.advance(2)
    rig.until(lambda: not rig.ranks[0].book.local)
    rig.tick()
    warnings = said(rig, level="warning")
    assert [line["event"] for line in warnings] == ["read lost", "pages quarantined", "pages taken off the budget"]
    assert all(line["what_to_do"] for line in warnings)
    (outcome,) = of_prefetches(said(rig, level="info"))
    assert (outcome["reason"], outcome["tokens"]) == ("lost_read", 0)


@pytest.mark.parametrize(("answer", "warned"), [("c", True), ("i", True), ("s", True), ("l", True), ("a", True), ("0", False)])
def test_a_failed_read_is_a_warning_unless_the_page_is_only_missing(rig_of: RigOf, answer: str, warned: bool) -> None:
    """A hint that was wrong is ordinary; corrupt, short, late and failing pages are not, once per prefetch and code."""
    rig = rig_of(batch_pages=1)
    rig.stores[0].say("kv", f"1{answer}1{answer}", rig.prompt("r", 4))
    rig.run("r", 4)
    warnings = [line for line in said(rig, level="warning") if line["event"].startswith("read failed")]
    assert len(warnings) == warned
    assert all("page store" in line["what_to_do"] and line["request"] == "r" for line in warnings)


def test_a_query_that_raises_is_a_warning_with_the_outcome_in_it(rig_of: RigOf) -> None:
    """A store that cannot be asked turns prefetching off without a trace elsewhere: the one line is a warning."""
    rig = rig_of()
    rig.stores[0].query = "raise"
    rig.run("r", 4)
    (line,) = [line for line in of_prefetches(said(rig)) if line["log_level"] in ("info", "warning")]
    assert (line["log_level"], line["event"], line["reason"]) == ("warning", "existence query failed", "query_failed")


def test_a_stuck_obligation_names_the_port_and_the_error(rig_of: RigOf) -> None:
    """The obligation, its tries and the port's error are in the line."""
    rig = rig_of(stuck_after_tries=2)
    rig.stores[0].say("kv", "1110", rig.prompt("r", 4))
    rig.memories[0].spy.down["release"] = 2
    rig.run("r", 4)
    (line,) = [line for line in said(rig, level="warning") if line["event"] == "obligation stuck"]
    assert (line["obligation"], line["tries"]) == ("tail of kv", 2)
    assert "scripted: release fails" in line["error"]


def test_a_shortfall_is_ordinary_and_names_the_pool(rig_of: RigOf) -> None:
    """An all-or-nothing layout that lost a page to L3 eviction discards: at info, with the pool that was short."""
    rig = rig_of("swa", shortfall=OnShortfall.DISCARD)
    rig.stores[0].say("swa", "0000", rig.prompt("r", 4))
    rig.run("r", 4)
    (outcome,) = of_prefetches(said(rig, level="info"))
    assert (outcome["event"], outcome["reason"], outcome["pool"]) == ("prefetch discarded", "shortfall", "swa")


def opened() -> Record:
    """Return a header."""
    layout: dict[str, object] = {"name": "kv_only"}
    return Record(0, 0, LogOpened("1", "run", 3, 4, layout, {"limit_tokens": 8}, 4, {"kv": 2}, {"kv": 2}, 5, 6))


def lines_of(*records: Record) -> list[Line]:
    """Return what some records say."""
    with structlog.testing.capture_logs() as lines:
        replay(records, StructlogObserver(structlog.get_logger()))
    return [dict(line) for line in lines]


def test_a_failed_round_is_one_warning_for_all_prefetches() -> None:
    """With many in flight, the way out is said once; each prefetch keeps its line."""
    issued = [Record(n, n, Issued(n, f"r{n}", 0, 0, 1, "", "", 4)) for n in (1, 2, 3)]
    ended = [Record(3 + n, n, Discarded(n, Reason.SYNC_FAILED, None)) for n in (1, 2, 3)]
    lines = [line for line in lines_of(opened(), *issued, *ended) if line.get("reason") == "sync_failed"]
    assert [line["log_level"] for line in lines] == ["warning", "info", "info"]
    assert "start fresh ones" in lines[0]["what_to_do"]


def test_declines_are_detail_but_a_rate_limit_is_not() -> None:
    """A span that is too short happens for most requests; a limit that holds requests back is said, with its numbers."""
    short = Record(1, 1, Declined("a", 0, Reason.TOO_SHORT, 0, 1, 0, 8))
    limited = Record(2, 2, Declined("b", 0, Reason.RATE_LIMITED, 0, 4, 7, 8))
    off = [Record(n, n, Declined("c", n, Reason.READERS_LOST, 0, 4, 0, 8)) for n in (3, 4)]
    lines = lines_of(opened(), short, limited, *off)[1:]
    assert [line["log_level"] for line in lines] == ["debug", "info", "warning", "debug"]
    assert (lines[1]["request"], lines[1]["occupied_tokens"], lines[1]["limit_tokens"]) == ("b", 7, 8)


def test_an_overwritten_page_is_a_warning_that_names_the_way_to_its_readers() -> None:
    """Which page of which prefetch, and the command that lists the requests that were served it."""
    _, line = lines_of(opened(), Record(1, 1, PageOverwritten(7, "kv", 3, 9, 11, 12)))
    assert line["log_level"] == "warning"
    assert line["event"] == "a resident page was overwritten"
    assert (line["pool"], line["page"]) == ("kv", 3)
    assert "blast-radius --prefetch 7" in line["what_to_do"]


def test_lost_events_are_a_warning() -> None:
    """What is missing in the log is said with its cause."""
    lines = lines_of(opened(), Record(1, 1, EventsLost(5, 1, "disk full")))
    assert (lines[1]["log_level"], lines[1]["events"], lines[1]["cause"], lines[1]["rank"]) == ("warning", 5, "disk full", 3)


# --- in an engine that configures logging itself --------------------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[io.StringIO]:
    """Be an engine that configures `logging`, with a stream to read."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_the_engine_handlers_and_levels_hold(engine: io.StringIO, rig_of: RigOf) -> None:
    """With `logging` alone, lines go to its handlers at its level, and structlog's configuration is not touched."""
    rig = rig_of()
    rig.run("r", 4)
    before = structlog.get_config()
    replay(rig.logs[0].records(), StructlogObserver(logging.getLogger(LOGGER)))
    assert structlog.get_config() == before
    start, outcome = engine.getvalue().splitlines()
    assert start.startswith("INFO lifecycle.prefetch coordinator started rank=0")
    assert outcome.startswith("INFO lifecycle.prefetch prefetch committed rank=0 prefetch=1 request='r' attempt=0 reason=")


def test_a_request_id_cannot_forge_a_line(engine: io.StringIO) -> None:
    """A newline in an id is written as an escape."""
    logging.getLogger(LOGGER).setLevel(logging.DEBUG)
    forged = Record(1, 1, Issued(1, "x\nINFO forged", 0, 0, 1, "", "", 4))
    replay([opened(), forged], StructlogObserver(logging.getLogger(LOGGER)))
    assert len(engine.getvalue().splitlines()) == 2
    assert r"request='x\nINFO forged'" in engine.getvalue()


def test_where_structlog_is_configured_it_is_used() -> None:
    """An engine that configured structlog gets its own processors, without saying so."""
    kept = structlog.get_config()
    capturing = CapturingLogger()
    structlog.configure(logger_factory=lambda *_: capturing, processors=[structlog.processors.KeyValueRenderer()])
    try:
        replay([opened()], StructlogObserver())
    finally:
        structlog.configure(**kept)
        structlog.reset_defaults()
    assert [call.method_name for call in capturing.calls] == ["info"]


@pytest.mark.parametrize(
    "wrapper",
    [structlog.BoundLogger, structlog.stdlib.BoundLogger, structlog.make_filtering_bound_logger(logging.WARNING)],
    ids=["generic", "stdlib", "filtering"],
)
def test_any_wrapper_of_structlogs_will_do(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a wrapper can say which levels it takes or not: detail is left out where it says no, warnings come through."""
    logger = logging.getLogger("engine.of.its.own")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    capturing = CapturingLogger()
    capturing.isEnabledFor = logger.isEnabledFor  # type: ignore[attr-defined]
    log = structlog.wrap_logger(capturing, wrapper_class=wrapper, processors=[structlog.processors.KeyValueRenderer()])
    lost = Record(2, 9, EventsLost(3, 1, "a full disk"))
    replay([opened(), Record(1, 1, Issued(1, "r", 0, 0, 1, "", "", 4)), lost], StructlogObserver(log))
    said = [call.args[0] for call in capturing.calls]
    assert sum("event='events lost'" in line for line in said) == 1
    assert any("issued" in line for line in said) == (wrapper is structlog.BoundLogger)


def test_where_nothing_is_configured_logging_is_used(engine: io.StringIO) -> None:
    """structlog's default would print to standard output: the observer does not."""
    assert not structlog.is_configured()
    replay([opened()], StructlogObserver())
    assert "coordinator started" in engine.getvalue()


def test_detail_costs_nothing_where_debug_is_off(engine: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """At info, the facts of ordinary events are not even put into words."""
    asked = []
    monkeypatch.setattr("lifecycle.adapters.logs.fields_of", lambda event: asked.append(event) or {})
    issued = [Record(n, n, Issued(n, f"r{n}", 0, 0, 1, "", "", 4)) for n in range(1, 50)]
    replay([opened(), *issued], StructlogObserver(logging.getLogger(LOGGER)))
    assert [type(event) for event in asked] == [LogOpened]
