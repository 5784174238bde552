"""Resident pages hashed again: an overwrite after the fact is told apart from a bad read."""

import time

import msgspec
import numpy as np
import pytest

from lifecycle import Policies, WaitComplete, dsa, page_keys
from lifecycle.audit import verify_log
from lifecycle.audit.scrub import scrub
from lifecycle.errors import LogError
from lifecycle.events import HostReserved, PagesLanded
from lifecycle.runtime import Coordinator
from stores.events import MemoryEventLog
from stores.host import TorchHostMemory
from stores.pages import MemoryPageStore
from stores.prefix import RadixIndex

PAGE_BYTES = {"kv": 64, "indexer": 16}


def served(prompts: int, pages: int = 6, capacity: int = 8) -> tuple[MemoryEventLog, TorchHostMemory]:
    """Prefetch prompts one after the other, through memory that holds one, and return log and memory."""
    store, log = MemoryPageStore(PAGE_BYTES), MemoryEventLog()
    index, memory = RadixIndex(dsa()), TorchHostMemory(dsa(), {"kv": capacity}, PAGE_BYTES)
    coordinator = Coordinator(
        dsa(), Policies(stop=WaitComplete()), 4, store=store, memory=memory, index=index, events=log, readers=1
    )
    for number in range(prompts):
        keys = page_keys(range(number * 1000, number * 1000 + pages * 4), 4)
        for pool, nbytes in PAGE_BYTES.items():
            store.write(pool, keys, [memoryview(bytes([number + 1, page] * (nbytes // 2))) for page in range(pages)])
        coordinator.issue(f"r{number}", 0, keys, index.match(keys, coordinator.tick_number).anchor)
        while coordinator.snapshot()["in_flight"]:
            coordinator.tick()
            time.sleep(0.0005)
        coordinator.finish(f"r{number}")
    coordinator.close()
    coordinator.check_integrity()
    return log, memory


def test_what_landed_and_stayed_is_clean() -> None:
    """Every resident page is checked, in every pool, and evicted ones are not."""
    log, memory = served(3)
    found = scrub(log.records(), memory)
    assert found.changed == ()
    assert found.unknown == 0
    assert 12 <= found.checked <= 16


@pytest.mark.parametrize("pool", PAGE_BYTES)
def test_an_overwrite_is_named_where_the_log_is_clean(pool: str) -> None:
    """A byte that changed after the page had landed is found with page, pool, slot and prefetch; no law is broken."""
    log, memory = served(2)
    reserved = [record.event for record in log.records() if isinstance(record.event, HostReserved)][-1]
    slot = reserved.slots[0][0]
    memory.buffers(pool, np.array([slot], dtype=np.int32))[0][0] ^= 1
    (changed,) = scrub(log.records(), memory).changed
    assert (changed.pool, changed.slot, changed.page, changed.prefetch, changed.request) == (pool, slot, 0, 2, "r1")
    assert f"page 0 of {pool} (slot {slot}), brought by prefetch 2" in str(changed)
    assert verify_log(log.records()) == []


def test_pages_without_a_checksum_are_counted_as_unknown() -> None:
    """A store that gives no checksums leaves nothing to compare, and it is said how much."""
    log, memory = served(1)
    records = [
        msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, checksums=None))
        if isinstance(record.event, PagesLanded) else record
        for record in log.records()
    ]  # fmt: skip
    found = scrub(records, memory)
    assert (found.checked, found.unknown, found.changed) == (0, 12, ())


def test_a_log_without_a_header_is_refused() -> None:
    """Which pools there are is not guessed."""
    log, memory = served(1)
    with pytest.raises(LogError, match="no header"):
        scrub(list(log.records())[1:], memory)
