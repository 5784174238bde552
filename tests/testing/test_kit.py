"""The test kit: what it says of what happened twice or never, and that it finds the same around a real coordinator."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import Policies, WaitComplete, dsa, page_keys
from lifecycle.events import HostReleased, HostReserved, Issued, Record
from lifecycle.layout import KV
from lifecycle.reasons import Part
from lifecycle.runtime import Coordinator
from lifecycle.testing import (
    HandReaders,
    Ledger,
    LedgerError,
    LedgerIndex,
    LedgerLog,
    LedgerMemory,
    ScriptedStore,
    TokenBudget,
    VirtualClock,
)
from lifecycle.testing.ledger_ports import note
from lifecycle.testing.strategies import answers, fault_plans, layouts, policies, reports
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.prefix import RadixIndex

ROOT = Path(__file__).parents[2]
KEYS = page_keys(range(1000, 1040), 4)


def test_a_second_release_names_both_events_and_parts() -> None:
    """The message has the page, the pool, and what it went back as, twice."""
    ledger = Ledger()
    ledger.take("kv", range(10, 14), by="r1", event=3)
    ledger.give_back("kv", [12], "clamped", event=41)
    with pytest.raises(LedgerError) as caught:
        ledger.give_back("kv", [11, 12], "tail", event=57)
    assert str(caught.value) == "page 12 of pool kv released twice: first as clamped at event 41, again as tail at event 57"
    assert ledger.held("kv") == [10, 11, 13]


def test_what_was_never_taken_cannot_go_back() -> None:
    """A page that nobody took is not called a second release."""
    with pytest.raises(LedgerError, match="page 5 of pool swa released as tail at event 1, and it was never taken"):
        Ledger().give_back("swa", [5], "tail")


def test_a_page_taken_again_may_go_back_again() -> None:
    """The history of a page ends when it is taken anew."""
    ledger = Ledger()
    for _ in range(3):
        ledger.take("kv", [1])
        ledger.give_back("kv", [1])
    ledger.check_empty()


def test_a_page_taken_while_held_names_both_takers() -> None:
    """Two owners of one slot are both named."""
    ledger = Ledger()
    ledger.take("kv", [1], by="a")
    with pytest.raises(LedgerError, match="page 1 of pool kv taken twice: first at event 1 by a, again at event 2 by b"):
        ledger.take("kv", [1], by="b")


def test_a_lock_dropped_twice_is_named() -> None:
    """Locks belong to a holder and an anchor."""
    ledger = Ledger()
    ledger.lock("a7", "r1")
    ledger.lock("a7", "r2")
    ledger.unlock("a7", "r1")
    with pytest.raises(LedgerError, match="lock a7 by r1 dropped twice: first as unlocked at event 3, again"):
        ledger.unlock("a7", "r1")
    with pytest.raises(LedgerError, match="lock a7 by r2 was never given back"):
        ledger.check_empty()


def test_tokens_go_back_by_the_amount_reserved() -> None:
    """Another amount changes nothing; the right one ends it; a second time is named."""
    ledger = Ledger()
    budget = TokenBudget(512, ledger)
    assert budget.reserve("r1", 320)
    assert not budget.reserve("r2", 320)
    with pytest.raises(LedgerError, match="512 tokens of r1 returned at event 2: 320 were reserved at event 1"):
        budget.give_back("r1", 512)
    assert budget.used_tokens == 320
    budget.give_back("r1", 320)
    assert budget.used_tokens == 0
    with pytest.raises(LedgerError, match="reservation r1 of tokens returned twice"):
        budget.give_back("r1", 320)


def test_what_a_caller_swallowed_is_said_at_the_end() -> None:
    """An engine may take an error for a failing port; the ledger remembers it."""
    ledger = Ledger()
    with pytest.raises(LedgerError):
        ledger.give_back("kv", [1])
    with pytest.raises(LedgerError, match="never taken"):
        ledger.check_empty()


def test_a_log_that_releases_a_page_twice_is_refused_at_that_event() -> None:
    """Event and page numbers are those of the log."""
    ledger = Ledger()
    issued = Issued(1, "r", 0, 0, 8, KEYS[7], "", 32)
    events = {1: issued, 5: HostReserved(1, KV, (0, 8), ((0, 8),)), 41: HostReleased(1, KV, ((5, 8),), Part.CLAMPED)}
    for seq, event in events.items():
        note(ledger, Record(seq, 0, event))
    again = Record(57, 0, HostReleased(1, KV, ((6, 7),), Part.TAIL))
    with pytest.raises(LedgerError, match="page 6 of pool kv of prefetch 1 released twice: first as clamped at event 41"):
        note(ledger, again)


def test_the_kit_watches_a_real_coordinator() -> None:
    """A clamped and an aborted prefetch, read by hand on virtual time, leave nothing but what the index owns."""
    layout, ledger, notes, clock = dsa(), Ledger(), Ledger(), VirtualClock()
    nbytes = {pool.name: 16 for pool in layout.pools}
    store = ScriptedStore(nbytes)
    store.say("indexer", "11101", KEYS)
    index = RadixIndex(layout)
    memory = LedgerMemory(TorchHostMemory(layout, {KV: 16}, nbytes, pin=False), ledger)
    readers = HandReaders(store, memory, clock)
    log = LedgerLog(MemoryEventLog(), notes)
    coordinator = Coordinator(
        layout, Policies(stop=WaitComplete()), 4, store=store, memory=memory, index=LedgerIndex(index, ledger), events=log,
        readers=readers, clock_ns=clock,
    )  # fmt: skip
    coordinator.issue("r", 0, KEYS[:6], index.root)
    for _ in range(4):
        readers.work()
        coordinator.tick()
    match = index.match(KEYS, 9)
    assert match.pages == 3
    for pool in layout.pools:
        for page, view in enumerate(memory.buffers(pool.name, match.slots(pool.name))):
            assert bytes(view) == store.page(pool.name, KEYS[page])
    coordinator.issue("s", 0, KEYS[:9], match.anchor)
    readers.work()
    coordinator.tick()
    assert readers.claim() is not None
    assert coordinator.abort("s")
    assert len(ledger.held(KV)) > 3, "a read is out: its pages wait for it"
    readers.work()
    clock.advance_ms(5)
    coordinator.tick()
    coordinator.tick()
    assert ledger.held(KV) == sorted(match.slots(KV).tolist())
    coordinator.close()
    notes.check_empty()
    assert ledger.errors == []
    assert [leak for leak in ledger.leaks() if "lock" in leak] == []


def test_the_index_names_a_lock_too_few() -> None:
    """An unlock without a lock is named by its place."""
    index = LedgerIndex(RadixIndex(dsa()), Ledger())
    root = RadixIndex(dsa()).root
    with pytest.raises(LedgerError, match=r"lock at page 0 \(the root\) by holder 1 dropped as unlocked"):
        index.unlock(root)


def test_the_scripted_store_answers_as_told() -> None:
    """Each character is one answer; failed reads leave dirt, hints are told apart from answers."""
    store = ScriptedStore({KV: 8})
    store.say(KV, "10a", KEYS)
    store.show(KV, "01", KEYS)
    buffers = [memoryview(bytearray(8)) for _ in range(3)]
    results = store.read_into(KV, KEYS[:3], buffers)
    assert [(result.nbytes, result.code) for result in results] == [(8, None), (0, "missing"), (4, None)]
    assert bytes(buffers[0]) == store.page(KV, KEYS[0])
    assert store.restorable(KEYS[:3], [KV])[KV].tolist() == [False, True, True]
    store.batch(KV, "long")
    assert len(store.read_into(KV, KEYS[:3], buffers)) == 4
    with pytest.raises(ValueError, match="mean nothing"):
        store.say(KV, "1x", KEYS)


@given(st.data())
def test_strategies_draw_what_is_legal(data: st.DataObject) -> None:
    """Layouts build, reports have a value per pool, fault plans one entry per rank and pool."""
    layout = data.draw(layouts())
    assert len(data.draw(reports(layout)).landed) == len(layout.pools)
    plan = data.draw(fault_plans(layout, 5, ranks=2))
    assert [sorted(rank) for rank in plan] == [sorted(pool.name for pool in layout.pools)] * 2
    store = ScriptedStore({pool.name: 4 for pool in layout.pools})
    store.say(KV, data.draw(answers(5)), KEYS)
    assert data.draw(policies(lag_ticks=1)).lag_ticks == 1


def test_the_clock_goes_only_forward() -> None:
    """Time passes when told; less than none is refused."""
    clock = VirtualClock()
    before = clock()
    clock.advance_ms(3)
    assert clock() - before == 3_000_000
    with pytest.raises(ValueError, match="monotonic"):
        clock.advance_ms(-1)


def test_the_example_runs_and_is_short() -> None:
    """The example passes under the plugin, in under 60 lines; it names the planted leak."""
    example = ROOT / "examples" / "exactly_once_test.py"
    assert len(example.read_text().splitlines()) < 60
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "lifecycle.testing.plugin", str(example)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_plugin_fails_a_test_that_leaks(tmp_path: Path) -> None:
    """A test that leaves a page held fails in its teardown, by name."""
    (tmp_path / "test_leak.py").write_text("def test_it(lifecycle_ledger):\n    lifecycle_ledger.take('kv', [3], by='r9')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "lifecycle.testing.plugin", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "page 3 of pool kv was never given back: taken at event 1 by r9" in done.stdout
