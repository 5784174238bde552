"""One prepared check of the round on a machine with GPUs, in under five minutes; says so and exits with 2 without one.

    python -m tests.device.check_sync [--json FILE]

NCCL with one rank by the `force_round` switch, and with one rank per GPU where there are more; correctness against numpy and
against Gloo; launch-to-result latency; proof, by a long kernel on the main stream, that the scheduler's thread is not held
up; and the main job with `--device cuda`.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lifecycle.policies import Policies, WaitComplete
from lifecycle.runtime.cuda import CudaTransport
from lifecycle.runtime.transport import TorchTransport
from tests.sync.harness import World, run_ranks
from tests.sync.part import Part, prompt

ROOT = Path(__file__).resolve().parents[2]
LONG_CYCLES = 1_000_000_000  # about half a second on today's GPUs
ROUNDS = 300
PATIENCE_S = 100.0


def cuda_transport(world: World) -> CudaTransport:
    """Return a transport over NCCL, beside the Gloo group that the process has already."""
    torch.cuda.set_device(world.rank)
    group = dist.new_group(list(range(world.ranks)), backend="nccl")
    return CudaTransport(group, device=f"cuda:{world.rank}", timeout_s=60.0)


def reduces_as_numpy(world: World, transport: CudaTransport) -> int:
    """Reduce random buffers of both kinds, several in flight at once, and compare with numpy; return how many."""
    draws = [np.random.default_rng(rank) for rank in range(world.ranks)]
    kinds = [(np.int32, 1000), (np.uint8, 32768), (np.int32, 7)] * 20
    sides = [[rng.integers(0, 200, size, dtype=kind) for rng in draws] for kind, size in kinds]
    mine = [side[world.rank].copy() for side in sides]
    waits = [transport.launch(buffer) for buffer in mine]
    for wait in waits:
        wait()
    for buffer, side in zip(mine, sides, strict=True):
        assert np.array_equal(buffer, np.minimum.reduce(side)), "NCCL's MIN is not numpy's"
    return len(mine)


def decisions(world: World, transport: Any, lag: int) -> list[Any]:
    """Run a load whose end depends on the shards alone; return the outcomes."""
    part = Part("swa", Policies(stop=WaitComplete(), lag_ticks=lag), transport=transport, force_round=True)
    rng = np.random.default_rng(100 + world.rank)
    for number in range(12):
        keys = prompt(number, 12)
        part.store.lacks.update(("kv", key) for key in keys[3:] if rng.random() < 0.05)
        part.issue(f"r{number}", keys)
    part.tick_until_quiet()
    part.close()
    ends = ("committed.1", "clamped.1", "discarded.1")
    return sorted([int(fields[0]), name, fields[1]] for name, fields in part.events() if name in ends)


def latency_us(transport: Any) -> list[float]:
    """Return median and 99th percentile from launch to result, of a round's buffer."""
    taken = []
    for _ in range(ROUNDS):
        buffer = np.zeros(600, dtype=np.int32)
        began = time.perf_counter()
        transport.launch(buffer)()
        taken.append((time.perf_counter() - began) * 1e6)
    return [statistics.median(taken), statistics.quantiles(taken, n=100)[98]]


def beside_a_long_kernel(world: World, transport: CudaTransport) -> dict[str, float]:
    """Have the main stream busy, run rounds and whole ticks beside it, and find it busy still when they are done."""
    part = Part("dsa", Policies(stop=WaitComplete(), lag_ticks=1), transport=transport, force_round=True)
    part.issue("a", prompt(0, 8))
    for _ in range(5):
        part.coordinator.tick()  # all is warm
    torch.cuda.synchronize()
    main_done = torch.cuda.Event()
    torch.cuda._sleep(LONG_CYCLES)  # type: ignore[no-untyped-call]
    main_done.record()
    began = time.perf_counter()
    transport.launch(np.zeros(600, dtype=np.int32))()
    for _ in range(10):
        part.coordinator.tick()
    beside_s = time.perf_counter() - began
    assert not main_done.query(), "the rounds waited for the main stream"
    main_done.synchronize()
    kernel_s = time.perf_counter() - began
    part.tick_until_quiet()
    part.close()
    return {"1 round and 10 ticks, ms": beside_s * 1e3, "the kernel beside them, ms": kernel_s * 1e3}


def check(world: World) -> dict[str, Any]:
    """Be one rank of the check."""
    transport, gloo = cuda_transport(world), TorchTransport(timeout_s=60.0)
    found: dict[str, Any] = {"buffers reduced as numpy does": reduces_as_numpy(world, transport)}
    expected = decisions(world, gloo, 0)
    for lag in (0, 1, 2):
        assert decisions(world, transport, lag) == expected, f"NCCL with lag {lag} decides otherwise than Gloo"
    found["outcomes as over Gloo"] = len(expected)
    found["NCCL, launch to result, us (median, p99)"] = latency_us(transport)
    found["Gloo, launch to result, us (median, p99)"] = latency_us(gloo)
    found["beside a long kernel on the main stream"] = beside_a_long_kernel(world, transport)
    assert decisions(world, gloo, 1) == expected, "Gloo is not usable any more"
    return found


def main_job() -> str:
    """Run the main job on the GPU and return the end of what it printed."""
    command = [sys.executable, "examples/scheduler_loop.py", "--device", "cuda", "--requests", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout[-2000:]


def main() -> int:
    """Run every check, print what was found, and return 0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, help="write what was found, too")
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus:
        print(
            "cannot check the round on a GPU: this machine has none that torch sees (run it on one that has)",
            file=sys.stderr,
        )
        return 2
    found: dict[str, Any] = {
        "device": f"{gpus} x {torch.cuda.get_device_name(0)}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}",  # type: ignore[no-untyped-call]
    }
    failed = 0
    for name, run in [
        ("1 rank", lambda: run_ranks(1, check, patience_s=PATIENCE_S)),
        (f"{gpus} ranks", lambda: run_ranks(gpus, check, patience_s=PATIENCE_S) if gpus > 1 else "not run: one GPU"),
        ("main job", main_job),
    ]:
        began = time.monotonic()
        try:
            found[name] = run()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            found[name] = f"FAILED: {error}"
        print(f"--- {name} ({time.monotonic() - began:.0f} s)\n{json.dumps(found[name], indent=2)}", flush=True)
    print(json.dumps({key: found[key] for key in ("device", "versions")}, indent=2))
    print("all checks held" if not failed else f"{failed} checks failed")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
