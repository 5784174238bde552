"""Which files of a bounded store go to make room: those that this process used longest ago, and no other one since."""

import os
from collections import Counter
from contextlib import suppress

from stores.pages.folder import ShardFolder
from stores.pages.ledger import Ledger, PageId

_MOST_SPARED = 64  # a question to the file system each, under the lock


def make_room(ledger: Ledger, folder: ShardFolder, done: Counter[str], page: PageId | None = None, nbytes: int = 0) -> None:
    """Remove counted files until `page` (none: nothing more) fits with `nbytes`; the caller holds the ledger's lock.

    A file that is dated later than this process has used it was used by another one: it is passed over, once for that use,
    and up to 64 in a call, since readers wait meanwhile. Raises `OSError` where a file cannot be removed.
    """
    spare = min(len(ledger), _MOST_SPARED)
    while (victim := ledger.victim(page, nbytes)) is not None:
        used_at_ns = folder.dated_ns(*victim)
        if spare and used_at_ns > ledger.used_at_ns(victim):
            ledger.touch(victim, used_at_ns)
            done["spared"] += 1
            spare -= 1
            continue
        ledger.touch(victim)  # where it cannot be removed, the next write tries another one
        with suppress(FileNotFoundError):
            os.unlink(folder.path(*victim))
        ledger.drop(victim)
        done["evicted"] += 1
