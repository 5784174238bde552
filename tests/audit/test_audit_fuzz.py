"""A part of the fuzzer's harness, without its fuzzer (`fuzz.py` runs that), and what it has found."""

import random
from pathlib import Path

import pytest
from fuzz_seeds import seeds
from fuzz_target import RUNS, one, spoil

from lifecycle.audit.cli import UNREADABLE

SEEDS = list(seeds())


@pytest.mark.parametrize("part", range(4))
def test_spoilt_logs_end_with_a_status_and_a_message(tmp_path: Path, part: int) -> None:
    """Whatever is done to a real log, every command ends as it must."""
    dice = random.Random(part)
    for _ in range(60):
        data = spoil(dice.choice(SEEDS), SEEDS, dice)
        try:
            one(data, tmp_path)
        except BaseException:
            (tmp_path / "input").write_bytes(data)
            print(f"the input is {tmp_path / 'input'}: python tests/audit/fuzz.py {tmp_path / 'input'}")
            raise


@pytest.mark.parametrize("command", range(len(RUNS)), ids=lambda place: "-".join(RUNS[place]))
def test_every_command_takes_every_kind_of_file(tmp_path: Path, command: int) -> None:
    """What one command reads does not undo another."""
    for seed in SEEDS[-8:]:
        one(bytes((command,)) + seed[1:], tmp_path)


@pytest.mark.parametrize("command", range(len(RUNS)), ids=lambda place: "-".join(RUNS[place]))
def test_a_packed_file_that_is_damaged_at_once(tmp_path: Path, command: int) -> None:
    """Found: bytes that cannot be unpacked, where the first look at a file is."""
    assert one(bytes((command,)) + b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + b"\xff" * 40, tmp_path) == UNREADABLE


def test_a_database_whose_message_is_no_text(tmp_path: Path) -> None:
    """Found: SQLite quotes the damaged schema in its message, and the driver trips over decoding that."""
    seed = next(seed for seed in SEEDS if seed[1:].startswith(b"SQLite format 3"))
    assert b"eventsevents" in seed  # names in the schema
    damaged = seed.replace(b"eventsevents", b"\xa1ventsevents").replace(b"CREATE TABLE", b"CREATE TABXE")
    assert one(b"\x00" + damaged[1:], tmp_path) == UNREADABLE
