"""Which files of a bounded store go to make room: those used longest ago, by whichever process."""

import os
from collections import Counter
from contextlib import suppress

from stores.pages.folder import ShardFolder
from stores.pages.ledger import Ledger, PageId


def make_room(ledger: Ledger, folder: ShardFolder, done: Counter[str], page: PageId | None = None, nbytes: int = 0) -> None:
    """Remove counted files until `page` (none: nothing more) fits with `nbytes`; the caller holds the ledger's lock.

    A file that is dated later than this process has used it was used by another one, and counts as used then. Raises
    `OSError` where a file cannot be removed.
    """
    spare = len(ledger)  # once around, however busy others are
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
