"""Events to bytes and back: every type, every recorded version, and whatever else a file may hold."""

import sys
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.codec import BadRecord, decode, decode_lines, encode
from lifecycle.errors import SchemaTooNew
from lifecycle.events import EVENT_TYPES, Event, Issued, Record, RequestFinished, Wanted

SAMPLES = Path(__file__).parent / "data" / "events"
"""One file per release: a line of every event version that the release wrote. Never edited, only added to."""

RECORDED = [line for file in sorted(SAMPLES.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
JSON = st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), st.lists, max_leaves=3)


def events(cls: type[Event]) -> st.SearchStrategy[Event]:
    """Any event of a type, built from its annotations."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values(hints[name]) for name in cls.__struct_fields__})


def values(hint: object) -> st.SearchStrategy[object]:
    if hint == dict[str, object]:
        return st.dictionaries(st.text(), JSON, max_size=3)
    return st.from_type(hint)


def wire_name(line: bytes) -> str:
    return line.split(b'"event":"')[1].split(b'"')[0].decode()


@pytest.mark.parametrize("wire", EVENT_TYPES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_every_event_comes_back_as_it_was(wire, data):
    """Decoding what was encoded gives an equal record, for every event type and whatever its fields hold."""
    seq, at_ns = data.draw(st.integers(0, 2**63)), data.draw(st.integers(0, 2**63))
    record = Record(seq, at_ns, data.draw(events(EVENT_TYPES[wire])))
    line = encode(record)
    assert decode(line) == record
    assert b"\n" not in line
    assert b"\r" not in line


@pytest.mark.parametrize("wire", EVENT_TYPES)
def test_every_event_type_has_a_recorded_sample(wire):
    """Each event type, at its present version, stands in a recorded file: old logs must stay readable."""
    assert wire in {wire_name(line) for line in RECORDED}, f"add a line of {wire} to a file of the next release"


@pytest.mark.parametrize("line", RECORDED, ids=wire_name)
def test_a_recorded_line_is_still_read(line):
    """Every line that any release wrote decodes; one of a present version is written the same to this day."""
    record = decode(line)
    if wire_name(line) in EVENT_TYPES:
        assert type(record.event) is EVENT_TYPES[wire_name(line)]
        assert encode(record) == line


def test_an_old_version_is_lifted_step_by_step():
    """Upcasters are chained, one version each, until the event is of a present type."""
    steps = {
        "issue.1": lambda old: {**old, "event": "issue.2", "attempt": 0},
        "issue.2": lambda old: {**old, "event": "issued.1", "prefetch": old.pop("id")},
    }
    line = (
        b'{"seq":4,"at_ns":5,"event":"issue.1","id":7,"request":"r","start_page":0,"end_page":2,'
        b'"last_key":"a","anchor_key":"","reserved_tokens":8}'
    )
    assert decode(line, steps) == Record(4, 5, Issued(7, "r", 0, 0, 2, "a", "", 8))


def test_an_old_version_that_lacks_a_field_is_a_bad_record():
    """An upcaster that trips over what a file holds is reported as a bad record, not as its own error."""
    steps = {"issue.1": lambda old: {"event": "wanted.1", "prefetch": old["id"]}}
    with pytest.raises(BadRecord, match=r"'issue\.1': KeyError\('id'\)"):
        decode(b'{"seq":0,"at_ns":0,"event":"issue.1"}', steps)


def test_an_upcaster_that_leads_nowhere_ends():
    """A chain that comes back to where it was is refused instead of followed for ever."""
    with pytest.raises(BadRecord):
        decode(b'{"seq":0,"at_ns":0,"event":"issue.1"}', {"issue.1": lambda old: old})


def test_a_newer_version_of_an_event_says_so():
    """An event of a newer version is no corruption: the error names the version read and the newest known."""
    with pytest.raises(SchemaTooNew, match=r"'issued\.2': this library reads issued up to issued\.1 \(use a newer"):
        decode(b'{"seq":0,"at_ns":0,"event":"issued.2","prefetch":{"id":1}}')


def test_an_unknown_event_says_so():
    """An event that this library does not know at all is one of a newer library."""
    with pytest.raises(SchemaTooNew, match=r"'teleported\.1': this library knows no event of that name"):
        decode(b'{"seq":0,"at_ns":0,"event":"teleported.1"}')


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00" * 64,
        b"null",
        b"[]",
        b'"issued.1"',
        b'{"seq":0,"at_ns":0}',
        b'{"seq":0,"at_ns":0,"event":7}',
        b'{"seq":"0","at_ns":0,"event":"wanted.1","prefetch":1}',
        b'{"seq":true,"at_ns":0,"event":"wanted.1","prefetch":1}',
        b'{"seq":0.5,"at_ns":0,"event":"wanted.1","prefetch":1}',
        b'{"at_ns":0,"event":"wanted.1","prefetch":1}',
        b'{"seq":0,"at_ns":0,"event":"wanted.1"}',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":1',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":1}{}',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":1},"x":{"y":1}',
        b'{"seq":0,"at_ns":0,"x":{"event":"wanted.1","prefetch":1}}',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":null}',
        b'{"seq":0,"at_ns":0,"event":"terminated.1","prefetch":1,"reason":"bored","landed":{}}',
        b'{"seq":0,"at_ns":0,"event":"request_finished.1","request":"\xff"}',
        b'{"seq":0,"at_ns":0,"event":"request_finished.1","request":"\\ud800"}',
        b'{"seq":0,"at_ns":0,"event":"host_released.1","prefetch":1,"pool":"kv","pages":[[1]],"part":"tail"}',
        b'{"seq":0,"at_ns":0,"event":"x.1","a":' + b"[" * 100_000,
        b'{"seq":0,"at_ns":0,"event":"x.1","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"seq":' + b"9" * 5_000 + b',"at_ns":0,"event":"wanted.1","prefetch":1}',
    ],
    ids=lambda line: repr(line[:60]),
)
def test_what_is_no_record_is_refused(line):
    """Bytes that are not a whole record, with fields of the right types, raise `BadRecord`."""
    with pytest.raises(BadRecord, match=r"^cannot read an event record: "):
        decode(line)


@settings(deadline=None)
@given(st.binary())
def test_garbage_is_never_anything_else(line):
    """Arbitrary bytes give a bad record, and no other error."""
    with pytest.raises(BadRecord):
        decode(line)


@settings(deadline=None)
@given(st.sampled_from(RECORDED), st.data())
def test_a_damaged_line_is_never_anything_else(line, data):
    """A real line with bytes replaced or cut off gives a record, `BadRecord` or `SchemaTooNew`, and no other error."""
    start = data.draw(st.integers(0, len(line)))
    stop = data.draw(st.integers(start, min(len(line), start + 8)))
    damaged = line[:start] + data.draw(st.binary(max_size=8)) + line[stop:]
    try:
        record = decode(damaged)
    except (BadRecord, SchemaTooNew):
        return
    assert isinstance(record, Record)


def test_half_a_surrogate_pair_is_written_as_its_escape():
    """A request id that is no UTF-8, as JSON bodies can bring in, costs the log no event; two such ids stay two."""
    lines = {encode(Record(0, 0, RequestFinished(f"r{half}\n"))) for half in ("\ud800", "\ud801")}
    assert {decode(line).event.request for line in lines} == {"r\\ud800\n", "r\\ud801\n"}


def test_a_request_id_cannot_break_out_of_its_line():
    """Newlines and control characters of a request id are escaped, whatever they are."""
    request = "".join(map(chr, range(0x20))) + '"}\n{"seq":9' + "\\" * 3
    line = encode(Record(1, 2, RequestFinished(request)))
    assert min(line) >= 0x20
    assert decode(line).event.request == request


def test_an_unknown_field_is_passed_over():
    """A field that a later library added without a new version does not make the line unreadable."""
    assert decode(b'{"seq":1,"at_ns":2,"event":"wanted.1","prefetch":3,"colour":"red"}') == Record(1, 2, Wanted(3))


def test_a_big_number_is_not_rounded():
    """Checksums use all 64 bits, and none is lost."""
    line = next(line for line in RECORDED if wire_name(line) == "pages_landed.1")
    assert max(decode(line).event.checksums) == 2**64 - 1 > sys.maxsize


def test_a_block_of_lines_is_the_records_of_its_lines():
    """Decoding many lines at once gives what decoding each gives."""
    lines = [line for line in RECORDED if wire_name(line) in EVENT_TYPES]
    assert decode_lines(b"".join(line + b"\n" for line in lines)) == [decode(line) for line in lines]


@pytest.mark.parametrize(
    "block",
    [
        b'{"seq":0,"at_ns":0,\n"event":"wanted.1","prefetch":1}\n',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":1}\n\n',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":1}{"seq":1,"at_ns":0,"event":"wanted.1","prefetch":1}\n',
        b'{"seq":0,"at_ns":0,"event":"issued.0","prefetch":1}\n',
        b'{"seq":0,"at_ns":0,"event":"wanted.1","prefetch":1',
        b'{"seq":0,"at_ns":0,"event":"request_finished.1","request":"\xff"}\n',
    ],
)
def test_a_block_with_anything_else_is_left_to_the_slow_way(block):
    """A record over two lines, an empty line, two records in one, an old version: all refused, so that each is looked at."""
    with pytest.raises(BadRecord):
        decode_lines(block)


def test_a_fact_named_event_is_no_event():
    """An object among the facts may have a field of that name."""
    opened = next(decode(line) for line in RECORDED if wire_name(line).startswith("log_opened"))
    policies = {"a": 1, "event": "wanted.1", "z": {"b": 2, "event": "x"}}
    named = Record(1, 2, msgspec.structs.replace(opened.event, policies=policies))
    assert decode(encode(named)) == named


@settings(deadline=None)
@given(st.lists(st.sampled_from(RECORDED) | st.binary(max_size=12), max_size=4), st.data())
def test_lines_at_once_are_never_something_else_than_one_by_one(lines, data):
    """Whatever decodes as a block decodes the same line by line."""
    block = b"".join(line + b"\n" for line in lines)
    if block:
        at = data.draw(st.integers(0, len(block) - 1))
        block = block[:at] + data.draw(st.binary(max_size=3)) + block[at + data.draw(st.integers(0, 2)) :]
    try:
        records = decode_lines(block)
    except BadRecord:
        return
    assert records == [decode(line) for line in block.splitlines(keepends=True)]
