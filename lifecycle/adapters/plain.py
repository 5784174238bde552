"""Events as names and plain values, for logs and spans: page ranges as `[0:2) [5:8)`, nothing empty, no checksums."""

from collections.abc import Mapping

import msgspec

from lifecycle import ranges as r
from lifecycle.events import Event

BOUND = frozenset({"prefetch", "request", "attempt", "rank"})
"""What a line or a span has of its own, beside the facts of an event."""

_LEFT_OUT = BOUND | {"checksums", "layout", "policies"}


def name_of(event: Event) -> str:
    """Return the wire name without its version: `pages_landed`."""
    return str(event.__struct_config__.tag).partition(".")[0]


def fields_of(event: Event) -> dict[str, object]:
    """Return the facts of an event for people, without what is bound and without what is empty."""
    fields = {name: _plain(getattr(event, name)) for name in event.__struct_fields__ if name not in _LEFT_OUT}
    return {name: value for name, value in fields.items() if value not in (None, "", {})}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if not isinstance(value, tuple):
        return msgspec.to_builtins(value)
    if len(value) == 2 and all(isinstance(item, int) for item in value):
        return r.text((value,))
    if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return r.text(value)
    return " ".join(map(str, value))
