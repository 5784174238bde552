"""Printing: tables and lines that read the same on a terminal and in a file. Nothing from a log is taken for markup."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lifecycle.errors import LogError

Line = str | Table | Text

FILE_WIDTH = 200
"""Columns where the output is no terminal: lines are not broken for a screen that is not there."""


class _Console(Console):
    """A console that leaves a closed pipe to the command, which has an exit status for it."""

    def on_broken_pipe(self) -> None:
        raise  # called where the error is handled


def console(file: IO[str] | None = None) -> Console:
    """Return a console that prints text as it is."""
    out = file or sys.stdout
    width = None if out.isatty() else FILE_WIDTH
    return _Console(file=out, width=width, markup=False, emoji=False, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 0, numbers: Sequence[str] = ()) -> Table:
    """Return a plain table: no box, columns named in `numbers` to the right."""
    built = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    if indent:
        built.pad_edge = True
        built.padding = (0, 2, 0, 0)
    for place, column in enumerate(columns):
        head = " " * indent + column if place == 0 else column
        built.add_column(head, justify="right" if column in numbers else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        built.add_row(*[" " * indent + cell if place == 0 else cell for place, cell in enumerate(row)])
    return built


def say(out: Console, lines: Iterable[Line]) -> None:
    """Print lines and tables."""
    for line in lines:
        out.print(line)


@contextmanager
def private_file(path: str, inputs: Sequence[str]) -> Iterator[IO[bytes]]:
    """Write a file for this user alone: it is there once it is whole. Raises `LogError`; an input is never written over."""
    target = Path(path)
    part = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        if any(Path(each).exists() and target.exists() and os.path.samefile(each, target) for each in inputs):
            raise LogError(f"cannot write {path}: it is one of the files that are read (name another)")
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except OSError as error:
        raise LogError(f"cannot write {path}: {error.strerror}") from error
    try:
        with file:
            yield file
        part.replace(target)
    except OSError as error:
        raise LogError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
