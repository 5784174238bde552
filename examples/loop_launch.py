"""Where the ranks come from: processes that this one starts and watches, or those of `torchrun`.

Ranks leave a report in one folder; whoever collects them finds every one there, or the run has failed.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

import msgspec

from lifecycle.errors import ConfigError
from loop_options import Options, joined_place
from loop_report import RankReport
from loop_trace import Request

_FOLDER = "SCHEDULER_LOOP_FOLDER"  # set for the processes that `spawn` starts
_RUN = "SCHEDULER_LOOP_RUN"
_SCRIPT = Path(__file__).with_name("scheduler_loop.py")
_COLLECTIVE_S = 120.0  # a peer that hangs for so long fails the round
_GRACE_S = 2.0  # between asking a process to end and killing it
_FOLDER_BYTES = 4096


class RankDied(Exception):
    """Raised when a rank ended before its report was written; says what it left on stderr."""

    def __init__(self, ranks: Sequence[int], said: str) -> None:
        self.ranks = tuple(ranks)
        which = ", ".join(map(str, ranks))
        super().__init__(f"rank {which} ended before the run did (the others were stopped):\n{said.rstrip()}")


def is_spawned() -> bool:
    """Say whether `spawn` started this process."""
    return _FOLDER in os.environ


def is_joined() -> bool:
    """Say whether this process is one of torchrun's."""
    return "RANK" in os.environ and not is_spawned()


# --- processes of our own ---------------------------------------------------------------------------------------------


def spawn(argv: Sequence[str], ranks: int, folder: Path) -> list[RankReport]:
    """Run every rank in a process of its own; return their reports. Raises `RankDied`, with no process left."""
    run = f"{os.getpid():x}-{time.time_ns():x}"
    signal.signal(signal.SIGTERM, _exit)
    with ExitStack() as stack:
        said = [stack.enter_context((folder / f"rank{rank}.stderr").open("w+b")) for rank in range(ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, processes)
        processes += (_start(argv, rank, ranks, folder, run, said[rank]) for rank in range(ranks))
        died = _watch(processes)
        _end(processes)
        words = [_read(file) for file in said]
        if died:
            raise RankDied(died, "\n".join(words[rank] for rank in died) or "it was killed, and said nothing")
        sys.stderr.write("".join(words))
        return [_load(folder, rank) for rank in range(ranks)]


def run_spawned(options: Options, requests: Sequence[Request]) -> None:
    """Be one of the processes that `spawn` started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    folder = Path(os.environ[_FOLDER])
    _run(options, requests, folder, os.environ[_RUN], f"file://{folder / 'rendezvous'}")


def _start(argv: Sequence[str], rank: int, ranks: int, folder: Path, run: str, said: IO[bytes]) -> subprocess.Popen[bytes]:
    env = {**os.environ, _FOLDER: str(folder), _RUN: run, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", loopback)  # whatever the host's name resolves to
    return subprocess.Popen([sys.executable, str(_SCRIPT), *argv], env=env, stdin=subprocess.PIPE, stderr=said)


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait until all have ended well or one has not; return those that have not."""
    while True:
        codes = [process.poll() for process in processes]
        died = [rank for rank, code in enumerate(codes) if code]
        if died or None not in codes:
            return died
        time.sleep(0.02)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs; nothing is left afterwards."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however that went."""
    while os.read(0, 1):  # nothing is ever written: this returns at the end of the pipe
        pass
    os._exit(1)


def _exit(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signal_number)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


# --- processes of torchrun --------------------------------------------------------------------------------------------


def run_joined(options: Options, requests: Sequence[Request], stack: ExitStack) -> list[RankReport] | None:
    """Be one of torchrun's ranks, all on one machine; return the reports on rank 0, None elsewhere."""
    import torch
    import torch.distributed as dist

    rank, ranks = joined_place()
    name = torch.zeros(_FOLDER_BYTES, dtype=torch.uint8)
    if rank == 0:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="scheduler-loop-"))
        name[: len(os.fsencode(folder))] = torch.frombuffer(bytearray(os.fsencode(folder)), dtype=torch.uint8)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=_COLLECTIVE_S))
    except (ValueError, RuntimeError) as error:  # an address that is missing or makes no sense; ranks that don't come
        raise ConfigError(f"cannot join the ranks of torchrun: {error} (unset RANK to have the ranks started here)") from error
    stack.callback(dist.destroy_process_group)
    dist.broadcast(name, 0)
    folder_path = Path(os.fsdecode(bytes(name.numpy()).rstrip(b"\0")))
    _run(options, requests, folder_path, folder_path.name, None)
    dist.barrier()
    return [_load(folder_path, rank) for rank in range(ranks)] if rank == 0 else None


# --- both -------------------------------------------------------------------------------------------------------------


def _run(options: Options, requests: Sequence[Request], folder: Path, run: str, rendezvous: str | None) -> None:
    import torch.distributed as dist

    from loop_rank import run_rank

    rank = int(os.environ["RANK"])
    with ExitStack() as stack:
        if rendezvous is not None and options.ranks > 1:
            dist.init_process_group(
                "gloo", rendezvous, timedelta(seconds=_COLLECTIVE_S), world_size=options.ranks, rank=rank
            )  # fmt: skip
            stack.callback(dist.destroy_process_group)
        report = run_rank(options, requests, rank, folder, run)
        (folder / f"rank{rank}.report.json").write_bytes(msgspec.json.encode(report))


def _load(folder: Path, rank: int) -> RankReport:
    return msgspec.json.decode((folder / f"rank{rank}.report.json").read_bytes(), type=RankReport)
