"""A page that was overwritten after it had landed: found by a scrub, and told apart from a bad read by every command."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from audit_stories import Tape, publish_under_a_read
from kit.rig import Rig
from kit.store import ScriptedStore
from logs import json_of, write

from lifecycle import Policies, WaitComplete, dsa, page_keys
from lifecycle.audit import Law, verify_log
from lifecycle.errors import CoordinatorClosed, LogError
from lifecycle.events import EventsLost, HostReserved, PageOverwritten, PagesScrubbed
from lifecycle.policies import Timeout
from lifecycle.runtime import Coordinator
from lifecycle.runtime.ports import PageResult
from lifecycle.runtime.scrub import scrub
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex

RigOf = Callable[..., Rig]
PAGE_BYTES = {"kv": 64, "indexer": 16}
PAGES = 6


class Engine:
    """One rank over real stores; each request is a prompt of its own unless told otherwise."""

    def __init__(self, capacity: int = 16) -> None:
        self.store, self.log = MemoryPageStore(PAGE_BYTES), MemoryEventLog()
        self.index, self.memory = RadixIndex(dsa()), TorchHostMemory(dsa(), {"kv": capacity}, PAGE_BYTES)
        self.coordinator = Coordinator(
            dsa(), Policies(stop=WaitComplete()), 4, store=self.store, memory=self.memory, index=self.index,
            events=self.log, readers=1,
        )  # fmt: skip

    def serve(self, request: str, prompt: int = 0) -> None:
        """Prefetch a prompt and serve it."""
        keys = page_keys(range(prompt * 1000, prompt * 1000 + PAGES * 4), 4)
        for pool, nbytes in PAGE_BYTES.items():
            self.store.write(pool, keys, [memoryview(bytes([prompt + 1, page] * (nbytes // 2))) for page in range(PAGES)])
        self.coordinator.issue(request, 0, keys, self.index.match(keys, self.coordinator.tick_number).anchor)
        while self.coordinator.snapshot()["in_flight"]:
            self.coordinator.tick()
            time.sleep(0.0005)
        self.coordinator.served(request, self.index.match(keys, self.coordinator.tick_number))

    def slot(self, prefetch: int, page: int) -> int:
        """Return where a page of a prefetch is."""
        events = [record.event for record in self.log.records()]
        (reserved,) = [each for each in events if isinstance(each, HostReserved) and each.prefetch == prefetch]
        return [slot for lo, hi in reserved.slots for slot in range(lo, hi)][page - reserved.pages[0]]

    def spoil(self, pool: str, prefetch: int, page: int) -> None:
        """Write where nobody may."""
        self.memory.buffers(pool, np.array([self.slot(prefetch, page)], dtype=np.int32))[0][0] ^= 1

    def events(self, kind: type) -> list[object]:
        """Return what was logged of a kind."""
        return [record.event for record in self.log.records() if isinstance(record.event, kind)]

    def end(self, path: Path) -> str:
        """Close and write the log to a file."""
        self.coordinator.close()
        self.coordinator.check_integrity()
        return write(path / "rank0.jsonl", self.log.records())


def test_a_scrub_that_finds_nothing_says_how_much_it_compared() -> None:
    """Every resident page is compared in every pool, one event is logged, and the log stays without fault."""
    engine = Engine()
    engine.serve("a")
    engine.serve("b", 1)
    assert engine.coordinator.scrub().changed == ()
    assert engine.events(PagesScrubbed) == [PagesScrubbed(4 * PAGES, 0, 0)]
    engine.coordinator.close()
    engine.coordinator.check_integrity()
    assert verify_log(engine.log.records()) == []


@pytest.mark.parametrize("pool", PAGE_BYTES)
def test_an_overwritten_page_is_logged_and_is_a_finding(pool: str) -> None:
    """It is logged with slot and both checksums; verify names the page, who brought it and who was served it, once."""
    engine = Engine()
    engine.serve("a")
    engine.serve("b", 1)
    engine.serve("c", 1)
    engine.spoil(pool, 2, 3)
    for _ in range(2):  # a second scrub finds it again, and it is no second finding
        (changed,) = engine.coordinator.scrub().changed
        assert (changed.pool, changed.page, changed.prefetch, changed.request) == (pool, 3, 2, "b")
    logged = engine.events(PageOverwritten)[0]
    assert logged == PageOverwritten(2, pool, 3, engine.slot(2, 3), changed.landed_checksum, changed.found_checksum)
    engine.coordinator.close()
    (found,) = verify_log(engine.log.records())
    assert (found.law, found.prefetch, found.request) == (Law.OVERWRITTEN, 2, "b")
    assert f"page 3 of {pool}" in found.what
    assert "served to 'b', 'c'" in found.what


def test_explain_tells_an_overwrite_from_a_bad_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who was served the page afterwards was garbled by an overwrite; who was served another is clean."""
    engine = Engine()
    engine.serve("a")
    engine.serve("b", 1)
    engine.spoil("indexer", 2, 3)
    engine.coordinator.scrub()
    engine.serve("late", 1)
    path = engine.end(tmp_path)
    (told,) = json_of(capsys, "explain", path, "--request", "b", status=1)
    (bad,) = told["bad"]
    assert (told["verdict"], bad["pool"], bad["pages"], bad["prefetch"]) == ("garbled", "indexer", [[3, 4]], 2)
    assert "overwritten after it had landed whole (found by a scrub, seq " in bad["why"]
    assert "nobody saw" in bad["why"]
    (told,) = json_of(capsys, "explain", path, "--request", "late", status=1)
    assert told["bad"][0]["why"].endswith("before it was served")
    (told,) = json_of(capsys, "explain", path, "--request", "a", status=0)
    assert told["bad"] == []


def test_who_was_served_before_a_clean_scrub_got_the_right_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scrub that found the page whole acquits everyone before it."""
    engine = Engine()
    engine.serve("early")
    engine.coordinator.scrub()
    engine.serve("later")
    engine.spoil("kv", 1, 0)
    engine.coordinator.scrub()
    path = engine.end(tmp_path)
    (told,) = json_of(capsys, "explain", path, "--request", "early", status=1)
    assert told["bad"] == []
    assert told["verdict"] == "at fault"
    (told,) = json_of(capsys, "explain", path, "--request", "later", status=1)
    assert told["verdict"] == "garbled"


def test_blast_radius_marks_who_was_served_what_was_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pages are listed once each, with rank and pool, and beside every request that was served them."""
    engine = Engine()
    engine.serve("a")
    engine.serve("b")
    engine.spoil("kv", 1, 2)
    engine.spoil("indexer", 1, 4)
    engine.coordinator.scrub()
    engine.coordinator.scrub()
    path = engine.end(tmp_path)
    (told,) = json_of(capsys, "blast-radius", path, "--prefetch", "1", status=0)
    assert [(each["rank"], each["pool"], each["page"]) for each in told["overwritten"]] == [(0, "kv", 2), (0, "indexer", 4)]
    assert [hit["overwritten"] for hit in told["hits"]] == [[[2, 3], [4, 5]]] * 2
    (told,) = json_of(capsys, "blast-radius", path, "--prefetch", "1", "--pages", "3-5", status=0)
    assert [each["page"] for each in told["overwritten"]] == [4]


def test_a_page_that_a_read_may_still_write_is_not_called_overwritten(
    rig_of: RigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a late-write lock nothing is compared; once the read has come back, the page is."""
    honest = ScriptedStore._read

    def with_checksum(store: ScriptedStore, pool: str, key: str, buffer: memoryview) -> PageResult:
        return PageResult(honest(store, pool, key, buffer).nbytes, None, xxhash.xxh3_64_intdigest(buffer))

    monkeypatch.setattr(ScriptedStore, "_read", with_checksum)
    rig = rig_of("kv_only", draft=True, stop=Timeout(1.0, 0.0, 1.0))
    id_ = publish_under_a_read(rig, 8)
    rig.tick()
    (reserved,) = rig.events(HostReserved)
    rig.memories[0].buffers("kv", np.array([reserved.slots[0][0]], dtype=np.int32))[0][0] ^= 1
    found = rig.ranks[0].scrub()
    assert (found.checked, found.unknown, found.changed) == (0, 8, ())
    rig.stores[0].open_all()
    rig.until_closed(id_)
    found = rig.ranks[0].scrub()
    assert (found.checked, [page.page for page in found.changed]) == (8, [0])
    rig.memories[0].buffers("kv", np.array([reserved.slots[0][0]], dtype=np.int32))[0][0] ^= 1  # as the rig left it


def test_a_closed_coordinator_does_not_scrub() -> None:
    """Its log has ended: refused, with the way out, and nothing is logged."""
    engine = Engine()
    engine.serve("a")
    engine.coordinator.close()
    before = list(engine.log.records())
    with pytest.raises(CoordinatorClosed, match=r"cannot scrub: .*lifecycle\.audit\.scrub"):
        engine.coordinator.scrub()
    assert list(engine.log.records()) == before


def test_what_landed_before_events_were_lost_is_not_compared() -> None:
    """A slot may have been given to other pages in what is missing: only what landed since is known."""
    engine = Engine()
    engine.serve("a")
    engine.serve("b", 1)
    engine.spoil("kv", 1, 0)
    engine.spoil("kv", 2, 0)
    tape = Tape(engine.log.records())
    place = tape.find(HostReserved, prefetch=2) - 3  # between the two, before the second is issued
    tape.events.insert(place, EventsLost(1, place, "a full disk"))
    found = scrub(tape.records(), engine.memory)
    assert [page.prefetch for page in found.changed] == [2]
    assert found.checked == 2 * PAGES


@pytest.mark.parametrize("slots", [((0, 1 << 40),), ((-1, 3),), ((5, 5),), ((0, 16), (0, 16))])
def test_slots_that_this_memory_has_not_are_refused(slots: tuple[tuple[int, int], ...]) -> None:
    """A log of another memory, or a forged one, is refused by record and pool, and nothing is counted up to a trillion."""
    engine = Engine()
    engine.serve("a")
    tape = Tape(engine.log.records())
    tape.change(HostReserved, new={"slots": slots}, prefetch=1)
    with pytest.raises(LogError, match=r"cannot scrub: record \d+ names slots of kv"):
        scrub(tape.records(), engine.memory)


@pytest.mark.parametrize(("event", "words"), [
    (PageOverwritten(1, "kv", 0, 15, 1, 2), "slot 15 of kv was scrubbed, and it is free"),
    (PageOverwritten(1, "kv", 0, 99, 1, 2), "slot 99 of 'kv' was scrubbed"),
    (PageOverwritten(1, "gpu", 0, 0, 1, 2), "slot 0 of 'gpu' was scrubbed"),
    (PagesScrubbed(4, 0, 3), "a scrub found 3 pages changed"),
])  # fmt: skip
def test_a_scrub_that_contradicts_the_log_is_found(event: PageOverwritten | PagesScrubbed, words: str) -> None:
    """Only resident pages are scrubbed, and each that changed is named."""
    engine = Engine()
    engine.serve("a")
    tape = Tape(engine.log.records())
    tape.events.append(event)
    assert any(words in str(found) for found in verify_log(tape.records()))
