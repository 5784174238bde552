"""Choosing an event log by a word in a configuration."""

from pathlib import Path

from lifecycle.errors import ConfigError, LogError
from lifecycle.runtime.ports import EventLog
from stores.events.jsonl import JsonLinesEventLog
from stores.events.memory import MemoryEventLog
from stores.events.sqlite import SqliteEventLog

_ON_DISK = {"jsonl": JsonLinesEventLog, "sqlite": SqliteEventLog}


def open_event_log(spec: str, rank: int) -> EventLog:
    """Open the log of a rank: `memory`, `jsonl:DIR` or `sqlite:DIR` (DIR/rank0.jsonl, DIR/rank0.sqlite, ...).

    A missing directory is made, for this user alone. Raises `ConfigError` for a spec that is none of these, `LogError`
    for a directory or file that cannot be used, `SchemaTooNew` for a log that a newer library wrote.
    """
    if rank < 0:
        raise ConfigError(f"cannot open the event log of rank {rank}: ranks count from 0")
    kind, _, folder = spec.partition(":")
    if spec == "memory":
        return MemoryEventLog()
    if kind not in _ON_DISK or not folder:
        raise ConfigError(f"cannot open event log {spec!r}: use one of memory, jsonl:DIR, sqlite:DIR")
    directory = Path(folder)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LogError(
            f"cannot make event log directory {directory}: {error.strerror} (use a directory that can be written)"
        ) from error
    return _ON_DISK[kind](directory / f"rank{rank}.{kind}")
