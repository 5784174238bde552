"""Opening the files of a log: nobody else may read them, and one process writes them.

Knows nothing of what is in them.
"""

import fcntl
import os
import stat
from pathlib import Path

from lifecycle.errors import LogError
from lifecycle.logger import Logger

_MODE = 0o600
log = Logger(__name__)


def open_private(path: Path) -> int:
    """Open `path` for reading and appending, created if it is not there, with mode 0600; return the descriptor.

    A looser mode is tightened. Raises `LogError` for what is not a plain file, or cannot be opened or tightened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, _MODE)
    except OSError as error:
        raise LogError(f"cannot open event log {path}: {error.strerror} (use another directory)") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise LogError(f"cannot open event log {path}: it is not a plain file (move it away)")
        if stat.S_IMODE(status.st_mode) & ~_MODE:
            os.fchmod(fd, _MODE)
    except OSError as error:
        os.close(fd)
        raise LogError(f"cannot open event log {path}: others may read it, and: {error.strerror} (chmod it)") from error
    except LogError:
        os.close(fd)
        raise
    return fd


def claim(fd: int, path: Path) -> None:
    """Make this descriptor the only one that writes the log, until it is closed; raises `LogError` if there is one."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LogError(f"cannot open event log {path}: it is being written already (close that log first)") from error
    except OSError as error:  # a file system without locks: two writers cannot be told apart there
        log.warning(
            "event log not locked",
            path=str(path),
            error=str(error),
            what_to_do="see that no second process writes this file: the file system offers no locks",
        )
