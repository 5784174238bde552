"""Event logs: in memory, as JSON lines, in SQLite; and one reader for all of them."""

from stores.events.jsonl import JsonLinesEventLog
from stores.events.lines import MAX_LINE_BYTES, TornTail
from stores.events.memory import MemoryEventLog
from stores.events.opening import open_event_log
from stores.events.reader import LogReader, read_log
from stores.events.sqlite import SqliteEventLog

__all__ = [
    "MAX_LINE_BYTES",
    "JsonLinesEventLog",
    "LogReader",
    "MemoryEventLog",
    "SqliteEventLog",
    "TornTail",
    "open_event_log",
    "read_log",
]
