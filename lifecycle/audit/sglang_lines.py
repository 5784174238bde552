"""The lines that SGLang prints about prefetches, in all the shapes that versions gave them, and what each one says.

All counts are tokens unless the name says pages. A line is known by what follows its prefix `[time rank]`, so that a prompt
that quotes such a line is not one. Field by field, by version:

    0.5.15  success           completed_local completed_synced matched loaded tail_release occupied
    0.5.17  success, dropped  completed_local completed_synced matched loaded released     occupied
    0.5.23  success, dropped  completed (agreed by all ranks)  matched loaded              occupied

`occupied` is what is reserved after this one has ended.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from lifecycle.audit.seen import Fact

Line = tuple[int | None, str, str, str | None, str, dict[str, Fact]]
"""Time (ns since 1970, as printed), rank, kind, request, shape, facts."""

MAX_CHARS = 1 << 16

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BRACKET = re.compile(r"\[(?:(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?|\d\d:\d\d:\d\d)((?: [A-Z_]+\d+)*)\] *")
_LABEL = re.compile(r"(?:^|\s)((?:(?:DP|TP|PP|EP|CP)\d+ ?)+) *$")
_LOGGER = re.compile(r"(?:(?:DEBUG|INFO|WARNING|ERROR)[: ] *)?(?:[\w./]+\.py:\d+[: ] *)?")
_FIELD = re.compile(r" ([a-z_]+)=(-?\d{1,18}|None)(?=\s|$)")
_POOLS = re.compile(r"'(\w{1,64})': (\d{1,18})")
_CUT = re.compile(r"(?: [^\s=]*=|(?<= request )|(?<= page ))[^\s.]*$")
_KNOWN = re.compile(r"HiCache prefetch |HiCache hybrid prefetch |Revoking prefetch |Prefetch(?:ing)? ")

Match = re.Match[str]


def _fields(text: str) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name, None if value == "None" else int(value))
    return found


def _outcome(m: Match) -> tuple[str, str | None, str, dict[str, Fact]]:
    facts = _fields(m[3])
    if "tail_release" in facts:
        shape = "0.5.15"
    elif "released" in facts:
        shape = "0.5.17"
    else:
        shape = "0.5.23" if "completed" in facts else ""
    return m[1], m[2], shape, facts


def _discarded(m: Match) -> tuple[str, str | None, str, dict[str, Fact]]:
    facts = _fields(m[2])
    if reason := re.search(r" reason=(\w{1,64})", m[2]):
        facts["reason"] = reason[1]
    if pools := re.search(r" aux_pool_hit_pages=\{([^}]*)\}", m[2]):
        facts["aux_pool_hit_pages"] = {name: int(count) for name, count in _POOLS.findall(pools[1])}
    return "discarded", m[1], "0.5.23" if "reason" in facts else "0.5.17", facts


def _declined(m: Match) -> tuple[str, str | None, str, dict[str, Fact]]:
    return "declined", m[1], "0.5.23", {"reason": m[2], **_fields(m[3])}


def _revoked(m: Match) -> tuple[str, str | None, str, dict[str, Fact]]:
    facts: dict[str, Fact] = {"reason": "host_memory"}
    if m[2] is not None:
        facts = {"reason": "insufficient_hits", "hit_pages_or_tokens": int(m[2])}
    return "revoked", m[1], "", facts


def _io(m: Match) -> tuple[str, str | None, str, dict[str, Fact]]:
    return "io", m[1], "", {"megabytes": float(m[2]), "alloc_s": float(m[3]), "io_s": float(m[4])}


_NUMBER = r"(\d{1,12}(?:\.\d{1,12})?)"
PATTERNS: tuple[tuple[re.Pattern[str], Callable[[Match], tuple[str, str | None, str, dict[str, Fact]]]], ...] = (
    (re.compile(r"HiCache prefetch (success|dropped) req=(.*?)((?: [a-z_]+=-?\d{1,18})+)(?=\s|$)"), _outcome),
    (re.compile(r"HiCache hybrid prefetch discarded req=(.*?)((?: reason=\w+)? completed=.*)"), _discarded),
    (re.compile(r"HiCache prefetch declined req=(.*?) reason=(\w{1,64})(.*)"), _declined),
    (re.compile(r"HiCache prefetch fill committed req=(.*?)((?: [a-z_]+=-?\d{1,18})+)(?=\s|$)"),
     lambda m: ("filled", m[1], "0.5.23", _fields(m[2]))),
    (re.compile(r"HiCache prefetch transfer failed for request (\S+)"), lambda m: ("transfer_failed", m[1], "0.5.23", {})),
    (re.compile(r"Revoking prefetch for request (.+?) due to (?:insufficient hits \((\d{1,18})\)|host memory allocation fail)"),
     _revoked),
    (re.compile(r"Prefetching (\d{1,18}) pages for request (.+)"),
     lambda m: ("started", m[2].rstrip().removesuffix("."), "", {"pages": int(m[1])})),
    (re.compile(r"Prefetch operation (.+?) failed to retrieve page (\S+?)\.?\s*$"),
     lambda m: ("page_missed", m[1], "", {"key": m[2][:256]})),
    (re.compile(rf"Prefetch operation (.+?) bytes: {_NUMBER}MB, alloc time: {_NUMBER}s, io time: {_NUMBER}s"), _io),
    (re.compile(r"Prefetch (.+?) completed with (\d{1,18}) tokens"),
     lambda m: ("finished", m[1], "", {"completed": int(m[2])})),
    (re.compile(r"Write page to storage: (\d{1,18}) pages failed"),
     lambda m: ("write_failed", None, "", {"pages": int(m[1])})),
    (re.compile(r"Failed to fetch (\S{1,256}) from (\w+) storage"),
     lambda m: ("fetch_failed", None, "", {"key": m[1], "store": m[2]})),
    (re.compile(r"HiCache\w+: hybrid pool (\w{1,64}) batch size (\d{1,18}) exceeds bounce buffer capacity (\d{1,18})"),
     lambda m: ("batch_refused", None, "", {"pool": m[1], "pages": int(m[2]), "capacity_pages": int(m[3])})),
    (re.compile(r"HiCache storage prefetch reissue cap reached"), lambda m: ("reissue_cap", None, "", {})),
)  # fmt: skip
"""A pattern, and what its match says: kind, request, shape, facts."""


def read_line(text: str, ends: bool = True) -> tuple[list[Line], bool]:
    """Return what one line says about prefetches (two writes may share it), and whether some of it was cut off.

    Of a line that does not end, as of a write that another one breaks into, the last value may be a part of one: it is absent.
    """
    text = _ANSI.sub("", text[:MAX_CHARS])
    found: list[Line] = []
    broken = False
    for at_ns, rank, message in _messages(text, ends):
        for pattern, says in PATTERNS:
            if (match := pattern.match(message)) is not None:
                kind, request, shape, facts = says(match)
                found.append((at_ns, rank, kind, request, shape, facts))
                break
        else:
            broken |= _KNOWN.match(message) is not None
    return found, broken


def _messages(text: str, ends: bool) -> Iterator[tuple[int | None, str, str]]:
    """Yield time, rank and message of everything in a line that begins with a prefix, or the whole line without one."""
    brackets = list(_BRACKET.finditer(text))
    if not brackets:
        known = _KNOWN.search(text)
        if known is not None:
            label = _LABEL.search(text[: known.start()])
            before = text[: known.start()].strip()
            if not before or label is not None:
                yield None, label[1].strip() if label else "", _whole(text[known.start() :], ends)
            return
        yield None, "", _whole(text.lstrip(), ends)
        return
    for place, bracket in enumerate(brackets):
        end = brackets[place + 1].start() if place + 1 < len(brackets) else len(text)
        message = text[bracket.end() : end]
        whole = ends if end == len(text) else message[-1:].isspace()
        yield _time(bracket), bracket[3].strip(), _whole(message[_skip(message) :], whole)


def _whole(message: str, ends: bool) -> str:
    return message.rstrip() if ends else _CUT.sub("", message)


def time_of(text: str) -> int | None:
    """Return the first time that a line prints with its day."""
    bracket = _BRACKET.search(text[:4096])
    return None if bracket is None else _time(bracket)


def _skip(message: str) -> int:
    match = _LOGGER.match(message)
    return 0 if match is None else match.end()


def _time(bracket: Match) -> int | None:
    if bracket[1] is None:
        return None  # a time without its day says nothing about order
    try:
        seconds = int(datetime.fromisoformat(bracket[1]).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None
    return seconds * 1_000_000_000 + int((bracket[2] or "0").ljust(9, "0"))
