"""Pages in Mooncake Store: read straight into their place in host memory, each behind a header.

The header goes into the room in front of the page's slot where there is one, in one piece with the page, else into memory of
the store's own.

An object is `header ‖ page` under the name `plcpage1/SHARD/POOL/KEY`; the header is that of a page file. What comes back
is compared with what was asked for and never trusted: a master that was restarted hands the same memory out again, and a
page removed under a reader may be another one by the time it is through.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from lifecycle.errors import IntegrityError, StoreError
from lifecycle.keys import Namespace
from lifecycle.runtime.ports import PageResult
from stores.host_region import SlotRegion
from stores.pages.beliefs import Beliefs
from stores.pages.header import HEADER_BYTES
from stores.pages.mooncake_engine import MAX_KEYS, NOTHING_REMOVED, RPC_FAIL, Address, Engine, write_failure
from stores.pages.mooncake_judge import BAD_RESULT, RETRIED, UNREACHABLE, Answer, PoolPages
from stores.pages.mooncake_reach import Reach
from stores.pages.mooncake_transfer import Batch, Transfer, checksums
from stores.pages.requests import check_buffers, check_keys, checked_page_bytes, page_bytes_of
from stores.pages.tally import Tally

_CLOSE_S = 5.0


class MooncakePageStore:
    """A page store over a connected client (`mooncake_engine.connect`, or an engine's own), for one shard. Thread-safe.

    `register` the host memory once: pages in it are read and written where they lie; others take a detour through memory
    of the store's own, which is one copy more and is counted (`read.detour`, `write.detour`). Where memory is declared with
    room in front of its slots (`SlotRegion`), that is where headers are read to and written from, unless another transfer is
    using the room. With `verify` off the header is still compared, the checksum of the page is neither checked nor returned.

    A write of a key that is there already leaves the object as it is (the same key is the same page), unless this store
    wrote other bytes under it or found it bad: then it is replaced. A page that was found bad or could not be read is not
    claimed for `absent_s`; a write by this store ends that at once. Where the master does not answer, no call is made for
    `retry_s`, nor, given its address, until it listens. `owns_engine`: `close` closes the client too.
    """

    def __init__(
        self,
        engine: Engine,
        page_bytes: Mapping[str, int],
        namespace: Namespace,
        shard: str,
        verify: bool = True,
        *,
        master: Address | None = None,
        owns_engine: bool = False,
        absent_s: float = 10.0,
        retry_s: float = 1.0,
        clock: Callable[[], float] = lambda: time.monotonic(),  # called late, so that a frozen clock is seen
    ) -> None:
        self._page_bytes = checked_page_bytes(page_bytes, None, HEADER_BYTES)
        self._pools = {
            pool: PoolPages(pool, shard, namespace.digest(), size, verify) for pool, size in self._page_bytes.items()
        }
        self._engine, self._owns_engine = engine, owns_engine
        self._place = f"Mooncake at {master}" if master else "Mooncake"
        self._tally = Tally(self._place)
        self._beliefs = Beliefs(clock, absent_s)
        self._reach = Reach(master, clock, retry_s)
        self._transfer = Transfer(engine, max(self._page_bytes.values()))
        self._idle = threading.Condition()
        self._calls = 0
        self._closed = False

    def register(self, regions: Iterable[NDArray[np.generic] | SlotRegion]) -> None:
        """Let pages be read straight into this memory (`TorchHostMemory.regions()`, say), kept alive until `close`.

        A `SlotRegion` says how slots lie: a page of a slot with room for the header is moved in one piece with it. Raises
        `ConfigError` for an array that is not contiguous and writable, `StoreError` where the engine refuses it.
        """
        with self._call("register memory with"):
            for region in regions:
                self._transfer.register(region)

    # --- reading ---

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Return, per pool, one bool per key: whether the master knows the page and no read found otherwise of late.

        Raises `StoreError` while the master does not answer: what is there is not known then.
        """
        check_keys(keys)
        for pool in pools:
            page_bytes_of(pool, self._page_bytes)
        with self._call("query pages in"):
            return {pool: self._there(self._pools[pool].names(keys)) for pool in pools}

    def _there(self, names: list[str]) -> NDArray[np.bool_]:
        absent = self._beliefs.absent(names)
        asked = [place for place, name in enumerate(names) if name not in absent]
        there = np.zeros(len(names), np.bool_)
        for start in range(0, len(asked), MAX_KEYS):
            part = asked[start : start + MAX_KEYS]
            self._check_reach("query")
            codes = self._engine.batch_is_exist([names[place] for place in part])
            if RPC_FAIL in codes:
                self._lost("query")
                self._check_reach("query")
            if len(codes) != len(part):
                raise StoreError(f"cannot query pages in {self._place}: {len(codes)} answers came for {len(part)} keys")
            self._tally.add({"query.failed": sum(code < 0 for code in codes)})
            there[part] = [code == 1 for code in codes]
        return there

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Read one page per key into the buffer beside it. After a failure the buffer's content is undefined."""
        self._check_request("read", pool, keys, buffers, writable=True)
        results = [BAD_RESULT[0]] * len(keys)
        causes: Counter[str] = Counter()
        with self._call("read pages in"):
            for batch in self._transfer.batches(self._pools[pool], keys, buffers):
                for place, (result, _) in zip(batch.places, self._read(batch, causes), strict=True):
                    results[place] = result
        self._tally.add(causes)
        return results

    def _read(self, batch: Batch, causes: Counter[str]) -> list[Answer]:
        answers = self._fetch(batch, causes)
        if answers.count(batch.pages.ok) == len(answers):  # the usual case without verification
            causes["read.ok"] += len(answers)
            return answers
        failed = [place for place, (result, _) in enumerate(answers) if result.code is not None]
        causes["read.ok"] += len(answers) - len(failed)
        again = [place for place in failed if answers[place][0].code in RETRIED]
        if again:
            causes["read.retried"] += len(again)
            for place, answer in zip(again, self._fetch(batch.of(again), causes), strict=True):
                answers[place] = answer
        for place in failed:
            causes[f"read.{answers[place][1]}"] += 1
            self._note_failure(batch.pages, batch.keys[place], answers[place])
        return answers

    def _fetch(self, batch: Batch, causes: Counter[str]) -> list[Answer]:
        if not self._reach.is_open():
            return [UNREACHABLE] * len(batch.keys)
        names = batch.pages.names(batch.keys)
        codes, answers = self._transfer.fetch(batch, names, causes)
        if RPC_FAIL in codes:
            self._lost("read")
        elif len(codes) == len(names) and min(codes) < 0:
            batch.pages.explain(codes, names, answers, self._engine.get_size)
        return answers

    def _note_failure(self, pages: PoolPages, key: str, answer: Answer) -> None:
        result, cause = answer
        if result.code is None or answer is UNREACHABLE:  # read at the second try; or it says nothing about the page
            return
        self._beliefs.failed(pages.prefix + key, result.code)
        if not cause.startswith("missing"):
            self._tally.warn("page_unreadable", cause, page=pages.prefix + key, code=str(result.code))

    # --- writing ---

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Store one page per key; True only where the engine said that the page is stored."""
        self._check_request("write", pool, keys, buffers, writable=False)
        done = [False] * len(keys)
        causes: Counter[str] = Counter()
        with self._call("write pages in"):
            for batch in self._transfer.batches(self._pools[pool], keys, buffers):
                codes = self._write(batch, causes)
                causes.update("write.ok" if code == 0 else f"write.{write_failure(code)}" for code in codes)
                for place, code in zip(batch.places, codes, strict=True):
                    done[place] = code == 0
        self._tally.add(causes)
        return done

    def _write(self, batch: Batch, causes: Counter[str]) -> list[int]:
        if not self._reach.is_open():
            return [RPC_FAIL] * len(batch.keys)
        names, sums = batch.pages.names(batch.keys), checksums(batch)
        replaced = self._beliefs.to_replace(names, sums)
        if replaced:
            causes["write.replaced"] += len(replaced)
            self._engine.batch_remove(replaced, True)
        codes = self._transfer.put(batch, names, sums, causes)
        if len(codes) != len(names):
            raise StoreError(f"cannot write pages in {self._place}: {len(codes)} answers came for {len(names)} keys")
        for name, checksum, code in zip(names, sums, codes, strict=True):
            if code == 0:
                self._beliefs.wrote(name, checksum)
            else:
                self._beliefs.not_written(name)
                self._tally.warn("page_not_written", write_failure(code), page=name, code=code)
        if RPC_FAIL in codes:
            self._lost("write")
        return codes

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Remove pages, also those that are being read; return how many were there. Raises `StoreError` where it cannot."""
        check_keys(keys)
        page_bytes_of(pool, self._page_bytes)
        removed = 0
        with self._call("delete pages in"):
            names = self._pools[pool].names(keys)
            for start in range(0, len(names), MAX_KEYS):
                part = names[start : start + MAX_KEYS]
                self._check_reach("delete")
                codes = self._engine.batch_remove(part, True)
                self._beliefs.deleted(part)
                removed += codes.count(0)
                wrong = [code for code in codes if code not in NOTHING_REMOVED and code != 0]
                if RPC_FAIL in wrong:
                    self._lost("delete")
                if wrong:
                    raise StoreError(f"cannot delete pages in {self._place}: code {wrong[0]} ({removed} pages were deleted)")
        return removed

    # --- the books ---

    def stats(self) -> dict[str, int]:
        """Return what was done so far, counted by cause: `read.ok`, `read.corrupt.key`, `write.no_room`, `read.detour`."""
        return self._tally.counts()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if a block of the store's own memory is neither free nor in a call."""
        with self._idle:
            faults = self._transfer.faults(idle=self._calls == 0)
            if self._calls < 0:
                faults.append(f"{self._calls} calls are in flight")
        if faults:
            raise IntegrityError("the page store in Mooncake", faults)

    def close(self) -> None:
        """Refuse what comes after, wait up to five seconds for calls in flight, and let go of the memory.

        Where a call is still in flight then, memory and client stay as they are: the transport may be writing.
        """
        with self._idle:
            if self._closed:
                return
            self._closed = True
            if not self._idle.wait_for(lambda: self._calls == 0, _CLOSE_S):
                self._tally.warn("not_closed", "calls_in_flight", calls=self._calls)
                return
        self._transfer.close()
        if self._owns_engine:
            self._engine.close()

    @contextmanager
    def _call(self, operation: str) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise StoreError(f"cannot {operation} {self._place}: the store is closed (open a new one)")
            self._calls += 1
        try:
            yield
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def _check_reach(self, verb: str) -> None:
        if not self._reach.is_open():
            raise StoreError(f"cannot {verb} pages in {self._place}: the master does not answer (is it running?)")

    def _lost(self, verb: str) -> None:
        self._reach.lost()
        self._tally.add({f"{verb}.unreachable_calls": 1})
        self._tally.warn("master_unreachable", verb)

    def _check_request(
        self, operation: str, pool: str, keys: Sequence[str], buffers: Sequence[memoryview], writable: bool
    ) -> None:
        check_keys(keys)
        check_buffers(operation, pool, keys, buffers, page_bytes_of(pool, self._page_bytes), writable)
