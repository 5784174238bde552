"""Events to bytes and back: one JSON object a record, `{"seq":…,"at_ns":…,"event":"issued.1",…}`.

An old log stays readable for ever: an upcaster is a pure function on the decoded object, one version step each. Nothing
read is trusted: what does not decode raises `BadRecord` with the reason. Opens no file.
"""

from collections.abc import Callable, Mapping

import msgspec

from lifecycle.errors import LifecycleError, SchemaTooNew
from lifecycle.events import EVENT_TYPES, AnyEvent, Record

Upcaster = Callable[[dict[str, object]], dict[str, object]]

UPCASTERS: Mapping[str, Upcaster] = {}
"""By the wire name they read, for example `issued.1` -> an object of `issued.2`."""


class BadRecord(LifecycleError):
    """Raised when bytes are not an event record."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    seq: int
    at_ns: int


class _Name(msgspec.Struct, frozen=True, gc=False):
    event: str


_ENCODER = msgspec.json.Encoder()
_RECORD = msgspec.json.Decoder(Record)
_EVENT = msgspec.json.Decoder(AnyEvent)
_PLACE = msgspec.json.Decoder(_Place)
_NAME = msgspec.json.Decoder(_Name)

_UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# In a line the fields of the event stand beside seq and at_ns; with an event of its own it is a `Record` to msgspec, parsed
# once. A quote within a string is escaped, so that what is replaced is always a key.
_FLAT, _NESTED = b',"event":"', b',"event":{"event":"'


def encode(record: Record) -> bytes:
    """Return the record as one line without its newline. Half a surrogate pair, no UTF-8, is written as its escape."""
    try:
        event = _ENCODER.encode(record.event)
    except UnicodeEncodeError:
        event = _ENCODER.encode(_escaped(msgspec.to_builtins(record.event)))
    return b'{"seq":%d,"at_ns":%d,' % (record.seq, record.at_ns) + event[1:]


def decode(line: bytes, upcasters: Mapping[str, Upcaster] = UPCASTERS) -> Record:
    """Return the record of one line. Raises `BadRecord`, or `SchemaTooNew` for an event or version not known yet."""
    try:
        return _RECORD.decode(line.replace(_FLAT, _NESTED, 1) + b"}")
    except _UNREAD:
        pass  # of another version, with its fields in another order, or no record: the slow way tells
    try:
        place = _PLACE.decode(line)
        try:
            return Record(place.seq, place.at_ns, _EVENT.decode(line))
        except msgspec.ValidationError:
            return Record(place.seq, place.at_ns, _upcast(line, upcasters))
    except _UNREAD as error:
        raise BadRecord(f"cannot read an event record: {error}") from error


def decode_lines(block: bytes) -> list[Record]:
    """Return the records of lines that each end with a newline: `decode` in less time.

    Raises `BadRecord` if any is not a record of the present version; `decode`, line by line, tells which, and reads old ones.
    """
    closed = block.replace(b"\n", b"}\n")  # one byte is found five times as fast as two
    try:
        records = _RECORD.decode_lines(closed.replace(_FLAT, _NESTED))
    except _UNREAD as error:
        raise BadRecord(f"cannot read a block of event records: {error}") from error
    if len(records) != len(closed) - len(block):  # a record over two lines, or an empty line
        raise BadRecord("cannot read a block of event records: one is not a line of its own")
    return records


def _upcast(line: bytes, upcasters: Mapping[str, Upcaster]) -> AnyEvent:
    wire = _NAME.decode(line).event
    if wire not in upcasters:
        if wire not in EVENT_TYPES:
            raise SchemaTooNew(_too_new(wire))
        return _EVENT.decode(line)  # known name, wrong fields: raises what is wrong with them
    value = msgspec.json.decode(line)
    steps = dict(upcasters)  # each is taken once at most, so that a chain ends
    try:
        while step := steps.pop(wire, None):
            value = step(value)
            wire = str(value["event"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"cannot read an event record: not a good {wire[:80]!r}: {error!r}") from error
    event: AnyEvent = msgspec.convert(value, AnyEvent)
    return event


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, (list, tuple)) else value


def _version(wire: str) -> int:
    return int(wire.partition(".")[2])


def _too_new(wire: str) -> str:
    name = wire.partition(".")[0]
    known = sorted((tag for tag in EVENT_TYPES if tag.partition(".")[0] == name), key=_version)
    shown = wire if len(wire) <= 80 else wire[:77] + "..."
    if known:
        return f"cannot read event {shown!r}: this library reads {name} up to {known[-1]} (use a newer library)"
    return f"cannot read event {shown!r}: this library knows no event of that name (use a newer library)"
