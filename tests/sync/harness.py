"""Real processes over Gloo, bounded in time: a hang fails fast, and says where every rank stood.

A scenario is a function of a module, `scenario(world, *args)`, which every rank runs and whose result is JSON.
"""

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

KILLED = -signal.SIGKILL
_PATIENCE_S = 20.0

_FORKS = multiprocessing.get_context("forkserver")  # its server is one clean process without threads, torch loaded once
_FORKS.set_forkserver_preload(["torch.distributed", "lifecycle.runtime", "stores.host", "stores.prefix", "tests.sync.part"])


@dataclass(frozen=True)
class World:
    """What a rank knows of the others: its place, how many they are, and a folder that they share."""

    rank: int
    ranks: int
    folder: Path

    def tell(self, what: str) -> None:
        """Say something to every rank, beside the collectives."""
        (self.folder / what).touch()

    def hear(self, what: str) -> None:
        """Wait until any rank has said it; the harness bounds the wait."""
        while not (self.folder / what).exists():
            time.sleep(0.002)

    def pipe(self, name: str) -> Path:
        """Return a named pipe that all ranks can open."""
        path = self.folder / name
        with suppress(FileExistsError):  # another rank made it
            os.mkfifo(path)
        return path


class Hang(AssertionError):
    """Raised when a rank did not come to its end in time."""


def run_ranks(
    ranks: int, scenario: Callable[..., Any], *args: Any, patience_s: float = _PATIENCE_S, killed: tuple[int, ...] = ()
) -> list[Any]:
    """Run a scenario on every rank and return what each returned; None for those that must be `killed` in it.

    Raises `Hang` with the stacks of those that did not end, and `AssertionError` with the traceback of one that raised.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
        _children(ranks, scenario, args, folder, patience_s) as children,
    ):
        answers = _gather(children, Path(folder), patience_s)
        wants = [KILLED if rank in killed else 0 for rank in range(ranks)]
        troubles = [
            f"rank {rank} ended with {process.exitcode}, not {want}: {(answers[rank] or {}).get('error')}"
            for rank, (want, (process, _)) in enumerate(zip(wants, children, strict=True))
            if process.exitcode != want
        ]
        assert not troubles, "\n".join(troubles)
    return [answer and answer["result"] for answer in answers]


@contextmanager
def _children(
    ranks: int, scenario: Callable[..., Any], args: tuple[Any, ...], folder: str, patience_s: float
) -> Iterator[list[tuple[Any, Connection]]]:
    children: list[tuple[Any, Connection]] = []
    try:
        for rank in range(ranks):
            here, there = _FORKS.Pipe(duplex=False)
            process = _FORKS.Process(target=_enter, args=(World(rank, ranks, Path(folder)), there, scenario, args, patience_s))
            process.start()
            there.close()
            children.append((process, here))
        yield children
    finally:
        for process, pipe in children:
            process.kill()
            process.join()
            process.close()
            pipe.close()


def _gather(children: list[tuple[Any, Connection]], folder: Path, patience_s: float) -> list[dict[str, Any] | None]:
    answers: list[dict[str, Any] | None] = [None] * len(children)
    open_pipes = {pipe: rank for rank, (_, pipe) in enumerate(children)}
    deadline = time.monotonic() + patience_s + 2  # they dump their stacks before
    while open_pipes and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(open_pipes), left):
            assert isinstance(pipe, Connection)
            try:
                answers[open_pipes[pipe]] = json.loads(pipe.recv_bytes())
            except EOFError:
                del open_pipes[pipe]
    for process, _ in children:
        process.join(max(0.0, deadline - time.monotonic()))
    hung = [rank for rank, (process, _) in enumerate(children) if process.is_alive()]
    if hung:
        stacks = "\n".join(f"--- rank {rank}\n{(folder / f'stacks{rank}').read_text()}" for rank in hung)
        raise Hang(f"ranks {hung} of {len(children)} did not end within {patience_s} s:\n{stacks}")
    return answers


def _enter(world: World, pipe: Connection, scenario: Callable[..., Any], args: tuple[Any, ...], patience_s: float) -> None:
    """Be one rank."""
    with open(world.folder / f"stacks{world.rank}", "w") as stacks:
        faulthandler.dump_traceback_later(patience_s, file=stacks)
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        answer: dict[str, Any] = {}
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{world.folder / 'rendezvous'}",
                rank=world.rank,
                world_size=world.ranks,
                timeout=timedelta(seconds=patience_s),
            )
            dist.barrier()  # one that ends at once would break the others' way in
            answer["result"] = scenario(world, *args)
            dist.destroy_process_group()
        except BaseException:
            answer["error"] = traceback.format_exc()
        pipe.send_bytes(json.dumps(answer).encode())
        pipe.close()
        faulthandler.cancel_dump_traceback_later()
    sys.exit("error" in answer)  # by the front door: a thread that holds up the exit is a hang
