"""The observed event log: the inner log's promises, and observers that cost it nothing, whatever they do."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
if (shared := str(ROOT / "tests" / "stores")) not in sys.path:  # where the contract of all event logs is
    sys.path.append(shared)

import pytest  # noqa: E402  # after the path is right
import structlog  # noqa: E402
from event_log_contract import EventLogContract, wanted  # noqa: E402

from lifecycle.adapters.observe import ObservedEventLog, replay  # noqa: E402
from lifecycle.errors import ConfigError, LogError  # noqa: E402
from lifecycle.events import EventsLost, Record  # noqa: E402
from lifecycle.runtime.ports import EventLog  # noqa: E402
from stores.events import MemoryEventLog  # noqa: E402


class Keeper:
    """Keeps what it is given, one list per call, and the thread that gave it."""

    def __init__(self) -> None:
        self.batches: list[list[Record]] = []
        self.threads: set[int] = set()
        self.closed = 0

    @property
    def seen(self) -> list[Record]:
        """Everything, in order."""
        return [record for batch in self.batches for record in batch]

    def observe(self, records: Sequence[Record]) -> None:
        """Keep."""
        self.threads.add(threading.get_ident())
        self.batches.append(list(records))

    def close(self) -> None:
        """Count."""
        self.closed += 1


class Broken(Keeper):
    """Raises at every call."""

    def observe(self, records: Sequence[Record]) -> None:
        """Raise."""
        super().observe(records)
        raise ZeroDivisionError("scripted")


class Slow(Keeper):
    """Waits inside until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.gate = threading.Event(), threading.Event()

    def observe(self, records: Sequence[Record]) -> None:
        """Wait, then keep."""
        self.inside.set()
        self.gate.wait()
        super().observe(records)


def put(log: EventLog, start: int, stop: int) -> list[Record]:
    """Append and flush some records."""
    records: list[Record] = wanted(start, stop)
    for record in records:
        log.append(record)
    log.flush()
    return records


class TestContract(EventLogContract):
    """An observed log keeps every promise of an event log."""

    def open(self, folder: Path, limit: int = 1_000_000) -> ObservedEventLog:
        """Observe a log in memory."""
        return ObservedEventLog(MemoryEventLog(max_records=limit), Keeper())


def test_observers_get_every_record_in_order_by_flush_on_another_thread() -> None:
    """Two flushes are two batches, given by one thread that is not the scheduler's."""
    first, second = Keeper(), Keeper()
    log = ObservedEventLog(MemoryEventLog(), first, second)
    kept = [put(log, 0, 3), put(log, 3, 5)]
    assert log.wait_observed()
    assert first.batches == second.batches == kept
    assert first.threads == second.threads
    assert threading.get_ident() not in first.threads
    log.close()


def test_nothing_is_observed_before_the_flush() -> None:
    """An append alone reaches the inner log and no observer."""
    keeper = Keeper()
    log = ObservedEventLog(MemoryEventLog(), keeper)
    log.append(wanted(0, 1)[0])
    assert log.wait_observed()
    assert keeper.batches == []
    log.close()
    assert keeper.seen == wanted(0, 1)


def test_an_observer_that_raises_is_reported_once_and_let_go() -> None:
    """The log and the other observer get everything; the broken one is called once."""
    broken, keeper = Broken(), Keeper()
    log = ObservedEventLog(MemoryEventLog(), broken, keeper)
    with structlog.testing.capture_logs() as said:
        kept = [*put(log, 0, 3), *put(log, 3, 5), *put(log, 5, 6)]
        assert log.wait_observed()
    assert [line["observer"] for line in said] == ["Broken"]
    assert isinstance(said[0]["exc_info"], ZeroDivisionError)
    assert len(broken.batches) == 1
    assert keeper.seen == kept == list(log.records())
    log.close()
    assert (broken.closed, keeper.closed) == (0, 1)


def test_slow_observers_are_bounded_and_told_what_they_missed() -> None:
    """Beyond `max_waiting` records the observers get an `EventsLost` in their place; the log loses nothing."""
    slow = Slow()
    log = ObservedEventLog(MemoryEventLog(), slow, max_waiting=4)
    kept = put(log, 0, 3)
    assert slow.inside.wait(10)
    kept += put(log, 3, 6) + put(log, 6, 8)  # with the three before, more than four
    slow.gate.set()
    assert log.wait_observed()
    kept += put(log, 8, 9)
    log.close()
    lost = slow.seen[3]
    assert isinstance(lost.event, EventsLost)
    assert (lost.event.first_seq, lost.event.events) == (3, 5)
    assert slow.seen == [*kept[:3], lost, kept[8]]
    assert list(log.records()) == kept
    assert log.lost_events == 0


def test_what_was_missed_last_is_told_at_the_close() -> None:
    """Without a later flush, the close tells the observers."""
    slow = Slow()
    log = ObservedEventLog(MemoryEventLog(), slow, max_waiting=1)
    put(log, 0, 1)
    assert slow.inside.wait(10)
    put(log, 1, 3)
    slow.gate.set()
    log.close()
    assert [type(record.event).__name__ for record in slow.seen] == ["Wanted", "EventsLost"]


def test_a_loss_of_the_inner_log_is_told_without_a_gap() -> None:
    """The observers get the events that the inner log lost, and an `EventsLost` in a place of the past."""
    keeper = Keeper()
    log = ObservedEventLog(MemoryEventLog(max_records=2), keeper)
    kept = put(log, 0, 3)
    kept += put(log, 3, 4)
    log.close()
    lost = [record for record in keeper.seen if isinstance(record.event, EventsLost)]
    assert [record for record in keeper.seen if record not in lost] == kept
    assert sum(record.event.events for record in lost) == 2  # type: ignore[union-attr]
    assert all(record.seq < after.seq for record, after in zip(keeper.seen, keeper.seen[1:], strict=False) if record in lost)


def test_close_is_bounded_when_an_observer_hangs() -> None:
    """An observer that never returns is said to hang; the inner log is closed all the same."""
    slow, inner = Slow(), MemoryEventLog()
    log = ObservedEventLog(inner, slow, close_s=0.01)
    put(log, 0, 2)
    with structlog.testing.capture_logs() as said:
        log.close()
        log.close()
    assert [line["event"] for line in said] == ["observers did not end in time"]
    with pytest.raises(LogError):
        inner.append(wanted(2, 3)[0])
    slow.gate.set()


def test_what_the_inner_log_refuses_no_observer_gets() -> None:
    """After the close an append raises, and nothing is observed."""
    keeper = Keeper()
    log = ObservedEventLog(MemoryEventLog(), keeper)
    log.close()
    with pytest.raises(LogError):
        log.append(wanted(0, 1)[0])
    assert keeper.seen == []


@pytest.mark.parametrize("settings", [{"max_waiting": 0}, {"close_s": 0.0}])
def test_limits_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    """No thread is started for them."""
    with pytest.raises(ConfigError):
        ObservedEventLog(MemoryEventLog(), **settings)  # type: ignore[arg-type]


def test_replay_gives_a_log_to_observers_in_order() -> None:
    """A log of more than one batch arrives whole, and each observer is closed at the end."""
    keeper = Keeper()
    replay(iter(wanted(0, 1_300)), keeper)
    assert keeper.seen == wanted(0, 1_300)
    assert len(keeper.batches) == 3
    assert keeper.closed == 1


@pytest.mark.parametrize("module", ["lifecycle.runtime", "lifecycle.adapters.observe", "lifecycle.adapters.logs"])
def test_what_is_off_is_not_imported(module: str) -> None:
    """Neither prometheus-client nor OpenTelemetry is loaded before their observer is imported."""
    code = (
        f"import sys, {module}, stores.events;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('prometheus_client', 'opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("module", "package"), [("metrics", "prometheus_client"), ("spans", "opentelemetry")])
def test_without_the_extra_the_error_names_it(module: str, package: str) -> None:
    """Importing an observer whose library is missing says what to install."""
    code = f"import sys; sys.modules['{package}'] = None; import lifecycle.adapters.{module}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'prefetch-lifecycle[metrics]'" in done.stderr.splitlines()[-1]
