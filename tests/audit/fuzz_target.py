"""What is fuzzed: every command of the audit on a file of arbitrary bytes, and ways to spoil real logs.

Every input must end with one of the three statuses and, if it is unreadable, one line that says why; anything else raises
`Found`. Imports no fuzzer.
"""

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from lifecycle.audit.cli import CLEAN, UNREADABLE, VIOLATED, main

RUNS: Sequence[tuple[str, ...]] = (
    ("verify",),
    ("verify", "--json"),
    ("explain", "--request", "a"),
    ("explain", "--json", "--request", "r"),
    ("blast-radius", "--prefetch", "1"),
    ("diff",),
    ("stats",),
    ("redecide", "--rule", "today"),
    ("trace", "-o", "OUT"),
    ("report", "-o", "OUT"),
    ("import-sglang", "-o", "OUT"),
)
"""The first byte of an input chooses one of these; the rest is the log."""

MOST_OUTPUT = 1 << 22
"""What is written of an input of a few kilobytes is never longer."""


class Found(AssertionError):
    """Raised when an input does not end as it must."""


def one(data: bytes, folder: Path) -> int:
    """Run the command that the first byte names on the rest; return the status. Raises `Found`, or what the command raised."""
    command, *options = RUNS[(data[0] if data else 0) % len(RUNS)]
    log, out = folder / "log", folder / "out"
    out.unlink(missing_ok=True)
    log.write_bytes(data[1:])
    (folder / "whole.jsonl").touch()
    logs = [str(log), str(folder / "whole.jsonl")] if command == "diff" else [str(log)]
    arguments = [command, *logs, *(str(out) if option == "OUT" else option for option in options)]
    status = _call(arguments)
    if command == "import-sglang" and status == CLEAN:
        for then in (["verify"], ["explain", "--request", "r1"], ["stats"], ["verify", "--json"]):
            _call([*then, str(out)])
    return status


def _call(arguments: list[str]) -> int:
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        status = main(arguments)
    text, error = said.getvalue(), errors.getvalue()
    if status not in (CLEAN, VIOLATED, UNREADABLE):
        raise Found(f"status {status} of {arguments}")
    if (status == UNREADABLE) != error.startswith("error: ") or error.count("\n") != (status == UNREADABLE):
        raise Found(f"status {status} of {arguments} says {error[:300]!r}")
    if len(text) > MOST_OUTPUT or not all(c.isprintable() or c == "\n" for c in text + error):
        raise Found(f"{arguments} prints {len(text)} characters: {text[:300]!r}")
    return status


# --- spoiling -----------------------------------------------------------------------------------------------------------------


def spoil(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """Return an input changed in one or a few ways that keep most lines whole: what bytes alone would hardly find."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        data = dice.choice(_WAYS)(data, others, dice)
    return data


def _lines(data: bytes) -> list[bytes]:
    return data[1:].splitlines(keepends=True) or [b"\n"]


def _join(data: bytes, lines: Sequence[bytes]) -> bytes:
    return data[:1] + b"".join(lines)


def _command(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    return bytes((dice.randrange(len(RUNS)),)) + data[1:]


def _move(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    lines = _lines(data)
    line = lines.pop(dice.randrange(len(lines)))
    lines.insert(dice.randint(0, len(lines)), line)
    return _join(data, lines)


def _drop(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    lines = _lines(data)
    at = dice.randrange(len(lines))
    return _join(data, lines[:at] + lines[at + dice.choice((1, 1, 3)) :])


def _double(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    lines = _lines(data)
    at = dice.randrange(len(lines))
    return _join(data, lines[: at + 1] + lines[at:])


def _splice(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    lines = _lines(data)
    at = dice.randint(0, len(lines))
    return _join(data, [*lines[:at], dice.choice(_lines(dice.choice(others))), *lines[at:]])


def _number(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    digits = [at for at in range(1, len(data)) if data[at : at + 1].isdigit() and not data[at - 1 : at].isdigit()]
    if not digits:
        return data
    at = dice.choice(digits)
    end = at
    while data[end : end + 1].isdigit():
        end += 1
    new = dice.choice((b"0", b"1", b"-1", b"2147483647", b"9223372036854775807", b"18446744073709551615", b"9" * 400, b"1e9",
                       str(dice.randrange(40)).encode()))  # fmt: skip
    return data[:at] + new + data[end:]


def _word(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    parts, from_ = data.split(b'"'), dice.choice(others).split(b'"')
    if len(parts) < 3 or len(from_) < 3:
        return data
    parts[dice.randrange(1, len(parts))] = dice.choice((from_[dice.randrange(1, len(from_))], b"", b"\\u001b[31m", b"\\ud800"))
    return b'"'.join(parts)


def _bytes(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    at = dice.randint(min(1, len(data)), len(data))
    return data[:at] + dice.randbytes(dice.randrange(4)) + data[at + dice.randrange(4) :]


def _cut(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    return data[: dice.randint(min(1, len(data)), len(data))]


_WAYS: Sequence[Callable[[bytes, Sequence[bytes], random.Random], bytes]] = (
    _command, _move, _drop, _double, _splice, _splice, _number, _number, _number, _word, _word, _bytes, _cut,
)  # fmt: skip
