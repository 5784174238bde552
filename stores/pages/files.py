"""Pages as files, one per shard, pool and key: the embedded default.

A page is visible only once it is whole: it is written elsewhere and renamed into place. Nothing is synced to the disk:
a cache need not survive a power cut, and what such a cut tears, the checksum finds. Reads go straight into the caller's
buffer. What is found in a file is compared with what was asked for and never trusted.
"""

import errno
import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import xxhash
from numpy.typing import NDArray

from lifecycle.errors import ConfigError, IntegrityError, StoreError
from lifecycle.keys import Namespace
from lifecycle.reasons import ReadCode
from lifecycle.runtime.ports import PageResult
from stores.pages.bad_files import BadFiles
from stores.pages.batches import Batches
from stores.pages.files_judge import judge
from stores.pages.folder import ShardFolder, read_whole
from stores.pages.header import HEADER_BYTES, PageHeader
from stores.pages.ledger import Ledger
from stores.pages.requests import check_buffers, check_keys, checked_page_bytes, page_bytes_of
from stores.pages.room import make_room
from stores.pages.tally import Tally

_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
# Never through a link; never waiting for the other end of a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_AVOID_S = 10.0  # a file that could not be read; one with bad bytes is avoided until it is replaced
_YEAR_NS = 365 * 86_400 * 10**9
_UNREAD = PageResult(0, ReadCode.BAD_RESULT)


class FilePageStore:
    """A page store in the folder `root`, for one shard (`r0of2`, say) of one namespace. Thread-safe.

    Several processes may share a folder. `capacity_bytes` bounds the files of this shard, headers counted, that this
    process wrote or found at start; pages being written come on top. Those it used longest ago make room; one that another
    bounded process has used since is passed over, once. With `verify` off, the payload's checksum is neither checked nor
    returned. Batches of large pages are read with up to `helpers` more threads, by default one for each further core, three
    at most. Raises `StoreError` if the folder cannot be used, or a folder inside it is a link.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        page_bytes: Mapping[str, int],
        namespace: Namespace,
        shard: str,
        capacity_bytes: int | None = None,
        verify: bool = True,
        helpers: int | None = None,
    ) -> None:
        self._page_bytes = checked_page_bytes(page_bytes, capacity_bytes, HEADER_BYTES)
        if _SHARD.fullmatch(shard) is None:
            raise ConfigError(f"cannot use shard name {shard!r}: it is up to 32 of A-Z a-z 0-9 _ . - (r0of2, say)")
        digest = namespace.digest()
        self._headers = {pool: PageHeader(pool, shard, digest, size) for pool, size in self._page_bytes.items()}
        self._verify = verify
        self._folder = ShardFolder(root, shard)
        self._tally = Tally(f"file:{self._folder.base}")
        self._lock = threading.Lock()  # the ledger, and the files as far as it counts them
        self._ledger = Ledger(capacity_bytes)
        self._bad = BadFiles()
        self._used_at_ns = 0  # of the page used last: mtimes keep the order of use, whatever the clock does
        self._writing = 0
        self._closed = False
        self._batches = Batches(helpers)
        self._tally.add({"temp.swept": self._folder.swept})
        if capacity_bytes is not None:
            self._take_stock()

    # --- reading ---

    def restorable(self, keys: Sequence[str], pools: Sequence[str]) -> Mapping[str, NDArray[np.bool_]]:
        """Return, per pool, one bool per key: whether a file of the right size is there that was not found bad."""
        check_keys(keys)
        sizes = {pool: page_bytes_of(pool, self._page_bytes) + HEADER_BYTES for pool in pools}
        self._check_open("query")
        return {
            pool: np.array([self._seems_there(self._folder.path(pool, key), size) for key in keys], dtype=np.bool_)
            for pool, size in sizes.items()
        }

    def read_into(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[PageResult]:
        """Read one page per key into the buffer beside it. After a failure the buffer's content is undefined."""
        self._check_request("read", pool, keys, buffers, writable=True)
        results = [_UNREAD] * len(keys)

        def read(start: int, stop: int) -> None:
            results[start:stop] = self._read_part(pool, keys[start:stop], buffers[start:stop])

        self._batches.run(read, len(keys), self._page_bytes[pool])
        return results

    def _read_part(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> list[PageResult]:
        around = bytearray(HEADER_BYTES), bytearray(1)  # a byte read behind the payload means a file too long
        done: Counter[str] = Counter()
        results = []
        for key, buffer in zip(keys, buffers, strict=True):
            try:
                result, cause = self._read_page(pool, key, buffer, around)
            except FileNotFoundError:
                result, cause = PageResult(0, ReadCode.MISSING), "missing"
                self._found_missing(pool, key)
            except OSError as error:
                result, cause = PageResult(0, ReadCode.IO_ERROR), f"io_error.{_name(error)}"
                self._avoid(self._folder.path(pool, key))
            done[f"read.{cause}"] += 1
            if result.code is not None and result.code is not ReadCode.MISSING:
                self._tally.warn("page_unreadable", cause, path=self._folder.path(pool, key), code=str(result.code))
            results.append(result)
        self._tally.add(done)
        return results

    def _read_page(
        self, pool: str, key: str, buffer: memoryview, around: tuple[bytearray, bytearray]
    ) -> tuple[PageResult, str]:
        header, tail = around
        path = self._folder.path(pool, key)
        fd = os.open(path, _READ)
        try:
            got = read_whole(fd, (header, buffer, tail), HEADER_BYTES + buffer.nbytes)
            result, cause = judge(self._headers[pool], key, header, buffer, got, self._verify)
            if result.code is not None:
                self._bad.add(path, os.fstat(fd))
            elif self._ledger.capacity_bytes is not None:
                self._used(pool, key, fd)
        finally:
            os.close(fd)
        return result, cause

    def _avoid(self, path: str) -> None:
        with suppress(OSError):  # then it is not claimed anyway
            self._bad.add(path, os.stat(path, follow_symlinks=False), _AVOID_S)

    def _used(self, pool: str, key: str, fd: int) -> None:
        with self._lock:
            now = self._next_use_ns()
            self._ledger.touch((pool, key), now)
        try:
            os.utime(fd, ns=(now, now))  # so that the order survives a restart
        except OSError as error:
            self._tally.add({f"touch.{_name(error)}": 1})

    def _next_use_ns(self) -> int:
        self._used_at_ns = max(time.time_ns(), self._used_at_ns + 1)
        return self._used_at_ns

    def _found_missing(self, pool: str, key: str) -> None:
        with self._lock:
            if (pool, key) in self._ledger and not os.path.lexists(self._folder.path(pool, key)):
                self._ledger.drop((pool, key))

    def _seems_there(self, path: str, size: int) -> bool:
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._tally.add({f"query.{_name(error)}": 1})
            return False
        if found.st_size != size or not stat.S_ISREG(found.st_mode):
            return False
        return not self._bad.has(path, found)

    # --- writing ---

    def write(self, pool: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[bool]:
        """Store one page per key; False for a page that could not be written, of which nothing is left."""
        self._check_request("write", pool, keys, buffers, writable=False)
        done: Counter[str] = Counter()
        with self._lock:
            self._writing += 1
        try:
            return [self._write_page(pool, key, buffer, done) for key, buffer in zip(keys, buffers, strict=True)]
        finally:
            with self._lock:
                self._writing -= 1
            self._tally.add(done)

    def _write_page(self, pool: str, key: str, buffer: memoryview, done: Counter[str]) -> bool:
        header = self._headers[pool].pack(key, xxhash.xxh3_64_intdigest(buffer))
        path = self._folder.path(pool, key)
        bounded = self._ledger.capacity_bytes is not None
        try:
            temp = self._folder.stage((header, buffer))
            if bounded:
                self._publish_within_capacity(pool, key, temp, done)
            else:
                self._folder.publish(temp, path)
        except OSError as error:
            done[f"write.{_name(error)}"] += 1
            self._tally.warn("page_not_written", _name(error), path=path, error=str(error))
            return False
        done["write.ok"] += 1
        return True

    def _publish_within_capacity(self, pool: str, key: str, temp: str, done: Counter[str]) -> None:
        nbytes = HEADER_BYTES + self._page_bytes[pool]
        with self._lock:
            try:
                make_room(self._ledger, self._folder, done, (pool, key), nbytes)
            except OSError:
                self._folder.discard(temp)
                raise
            now = self._next_use_ns()
            self._folder.publish(temp, self._folder.path(pool, key), now)
            self._ledger.put((pool, key), nbytes, now)

    def delete(self, pool: str, keys: Sequence[str]) -> int:
        """Remove pages; return how many were there. Raises `StoreError` where a file cannot be removed."""
        check_keys(keys)
        page_bytes_of(pool, self._page_bytes)
        self._check_open("delete")
        removed = 0
        for key in keys:
            path = self._folder.path(pool, key)
            with self._lock:
                try:
                    os.unlink(path)
                    removed += 1
                except FileNotFoundError:
                    pass
                except OSError as error:
                    raise StoreError(f"cannot delete {path}: {error} ({removed} pages were deleted)") from error
                self._ledger.drop((pool, key))
        return removed

    # --- the books ---

    def stats(self) -> dict[str, int]:
        """Return what was done so far, counted by cause: `read.ok`, `read.corrupt.key`, `write.ENOSPC`, `evicted`, `spared`."""
        return self._tally.counts()

    @property
    def used_bytes(self) -> int:
        """How many bytes the counted files take (0 without a capacity: nothing is counted)."""
        return self._ledger.used_bytes

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the bytes counted do not add up, or a finished write left its temporary file."""
        with self._lock:
            faults = self._ledger.faults()
            if self._writing < 0:
                faults.append(f"{self._writing} writes are in flight")
            if self._writing == 0:
                faults.extend(f"temporary file {name} was left behind" for name in self._folder.own_temps())
        if faults:
            raise IntegrityError(f"the page store in {self._folder.base}", faults)

    def close(self) -> None:
        """Refuse what comes after. Calls in flight end on their own; the files stay."""
        self._closed = True
        self._batches.close()

    def _take_stock(self) -> None:
        done: Counter[str] = Counter()
        try:
            for at_ns, pool, key, nbytes in sorted(self._folder.pages()):  # by mtime: the order of use
                self._used_at_ns = min(at_ns, time.time_ns() + _YEAR_NS)  # what a file says is not trusted
                self._ledger.put((pool, key), nbytes, at_ns)
                make_room(self._ledger, self._folder, done)
        except OSError as error:
            raise StoreError(f"cannot take stock of the pages in {self._folder.base}: {error}") from error
        self._tally.add(done)

    def _check_request(
        self, operation: str, pool: str, keys: Sequence[str], buffers: Sequence[memoryview], writable: bool
    ) -> None:
        check_keys(keys)
        nbytes = page_bytes_of(pool, self._page_bytes)
        check_buffers(operation, pool, keys, buffers, nbytes, writable)
        self._check_open(operation)

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise StoreError(f"cannot {operation} pages in {self._folder.base}: the store is closed (open a new one)")


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "OSError")
