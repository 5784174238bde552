"""The folder of one shard: `SHARD/POOL/ab/KEY` and `SHARD/.tmp/`. Places, creation, publication by rename, sweeping.

Knows nothing of headers, capacity or pages. Everything raises `OSError`; the store above says what that means.

Temporary files lie in one folder of the same file system, not beside their page, so that those of killed writers are
found at start without walking over every page.
"""

import errno
import itertools
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from lifecycle.errors import BadKey, StoreError
from lifecycle.keys import check_key

STALE_TEMP_S = 3600.0
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class ShardFolder:
    """The files of one shard under `root`. Opening it creates the folders and proves that files can be made there.

    `root` may be a link. Below it no folder may be one when the store is opened; raises `StoreError` for what is.
    """

    def __init__(self, root: str | os.PathLike[str], shard: str) -> None:
        self.root = os.path.abspath(root)
        self.base = os.path.join(self.root, shard)
        self._temp = os.path.join(self.base, ".tmp")
        self._token = secrets.token_hex(8)  # tells this writer's files from those of other processes and machines
        self._numbers = itertools.count()
        try:
            Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)
            link = self._link()
            if link is not None:
                raise StoreError(
                    f"cannot open the page store in {self.root}: {link} is a link, and may lead out of it"
                    " (replace it by a folder; the store's own folder may be a link)"
                )
            self._make(self._temp)
            self._probe()
            self.swept = self._sweep()
        except OSError as error:
            raise StoreError(
                f"cannot open the page store in {self.root}: {error} (give a folder that can be written)"
            ) from error

    def path(self, pool: str, key: str) -> str:
        """Return where a page lies. The caller has checked pool and key."""
        return f"{self.base}/{pool}/{key[:2]}/{key}"

    def stage(self, parts: Sequence[bytes | memoryview]) -> str:
        """Write the parts to a temporary file and return its path; leaves none where it fails."""
        temp = f"{self._temp}/{self._token}.{next(self._numbers)}"
        try:
            fd = os.open(temp, _CREATE, 0o600)
        except FileNotFoundError:
            self._make(self._temp)
            fd = os.open(temp, _CREATE, 0o600)
        whole = False
        try:
            try:
                _write_all(fd, parts)
            finally:
                os.close(fd)
            whole = True
        finally:
            if not whole:
                self.discard(temp)
        return temp

    def publish(self, temp: str, path: str, at_ns: int | None = None) -> None:
        """Put a staged file in its place, all at once, dated `at_ns`; removes it where that fails."""
        published = False
        try:
            if at_ns is not None:
                os.utime(temp, ns=(at_ns, at_ns))
            try:
                os.replace(temp, path)
            except FileNotFoundError:
                self._make(os.path.dirname(path))
                os.replace(temp, path)
            published = True
        finally:
            if not published:
                self.discard(temp)

    def discard(self, temp: str) -> None:
        """Remove a staged file that is not to be published."""
        with suppress(FileNotFoundError):
            os.unlink(temp)

    def pages(self) -> Iterator[tuple[int, str, str, int]]:
        """Yield (mtime in ns, pool, key, bytes) of every page file there is, in no order."""
        for pool in _folders(self.base):
            if not pool.name.isidentifier():
                continue
            for folder in _folders(pool.path):
                for entry in _entries(folder.path):
                    with suppress(BadKey, FileNotFoundError):  # not ours, or gone since it was listed
                        key, found = check_key(entry.name), entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(found.st_mode) and entry.name[:2] == folder.name:
                            yield found.st_mtime_ns, pool.name, key, found.st_size

    def dated_ns(self, pool: str, key: str) -> int:
        """Return the date of a page's file; 0 where it is gone, or no file."""
        with suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(self.path(pool, key), follow_symlinks=False)
            return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0
        return 0

    def own_temps(self) -> list[str]:
        """Return the temporary files of this writer."""
        return [entry.name for entry in _entries(self._temp) if entry.name.startswith(self._token)]

    def _make(self, folder: str) -> None:
        # Never the root: where it has gone (an unmounted disk), pages must not fill what lies beneath.
        path = self.root
        for part in os.path.relpath(folder, self.root).split(os.sep):
            path = os.path.join(path, part)
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)

    def _link(self) -> str | None:
        """Return a link in the place of a folder of ours, if there is one. Later ones would take a look at each access."""
        pools = [entry for entry in _entries(self.base) if entry.name.isidentifier()]
        inner = [entry for pool in pools if not pool.is_symlink() for entry in _entries(pool.path) if len(entry.name) == 2]
        links = [path for path in (self.base, self._temp) if os.path.islink(path)]
        links += [entry.path for entry in (*pools, *inner) if entry.is_symlink()]
        return min(links, default=None)

    def _probe(self) -> None:
        temp = f"{self._temp}/{self._token}.probe"
        try:
            os.close(os.open(temp, _CREATE, 0o600))
        except OSError as error:
            if error.errno in _NO_ROOM:  # full, but what is there can be read; writes will say so
                return
            raise
        os.unlink(temp)

    def _sweep(self) -> int:
        swept, now = 0, time.time()
        for entry in _entries(self._temp):
            with suppress(FileNotFoundError):
                # As far ahead of the clock as that: it has stepped back, and this would stay for ever.
                if abs(now - entry.stat(follow_symlinks=False).st_mtime) > STALE_TEMP_S:
                    os.unlink(entry.path)
                    swept += 1
        return swept


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(folder: str) -> list[os.DirEntry[str]]:
    return [entry for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]


def read_whole(fd: int, parts: Sequence[bytearray | memoryview], whole: int) -> int:
    """Read the file from its start into the parts, one behind the other; return how many bytes came.

    Fewer than `whole` are the end of the file, more may be.
    """
    got = os.preadv(fd, parts, 0)
    while 0 < got < whole:  # the end of the file, or the mood of the file system; only 0 is surely the end
        more = os.preadv(fd, _behind(parts, got), got)
        if more == 0:
            break
        got += more
    return got


def _write_all(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    total = sum(memoryview(part).nbytes for part in parts)
    done = 0
    while done < total:
        done += os.writev(fd, _behind(parts, done))


def _behind(parts: Sequence[bytes | bytearray | memoryview], skip: int) -> list[memoryview]:
    rest = []
    for part in parts:
        view = memoryview(part).cast("B")
        if skip < len(view):
            rest.append(view[skip:])
        skip = max(0, skip - len(view))
    return rest
