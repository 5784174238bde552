"""Two ranks of SGLang over Gloo, each under its own shadow: random cases, and the logs of both checked together."""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

import originals  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from cases import draw, run_original  # noqa: E402

from lifecycle.adapters.known import known_difference  # noqa: E402
from lifecycle.adapters.sglang import shadow  # noqa: E402
from lifecycle.audit import verify_logs  # noqa: E402
from lifecycle.codec import decode, encode  # noqa: E402
from stores.events import MemoryEventLog  # noqa: E402


def _rank(rank: int, meeting: str, count: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    group = dist.new_group([0, 1], backend="gloo")
    logs = []
    for number in range(count):
        case = draw(Random(number), 2)
        capacity = {name: pages + case.anchor + case.present for name, pages in case.free.items()}
        build = originals.unified if case.kind == "unified" else originals.hiradix
        world, log = build(case.layout, capacity, case.threshold, (group,)), MemoryEventLog()
        watch = shadow(world.cache, log, run=f"case-{number}")
        run_original(case, rank, (group,), world)
        watch.detach()
        if watch.failure is not None:
            raise watch.failure
        logs.append([encode(record) for record in log.records()])
    queue.put((rank, logs))
    dist.barrier()
    dist.destroy_process_group()


def run(count: int) -> tuple[list[str], Counter[str]]:
    """Return what is wrong in the logs of `count` cases, and how often a known difference showed."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        workers = [context.Process(target=_rank, args=(rank, meeting, count, queue)) for rank in range(2)]
        for worker in workers:
            worker.start()
        logs = dict(queue.get(timeout=600) for _ in workers)
        for worker in workers:
            worker.join(60)
    wrong, known = [], Counter[str]()
    for number in range(count):
        both = [[decode(line) for line in logs[rank][number]] for rank in range(2)]
        for violation in verify_logs(both):
            name = known_difference(violation)
            if name is None:
                wrong.append(f"case {number}: {violation}")
            else:
                known[name] += 1
    return wrong, known


if __name__ == "__main__":
    found = run(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    print(*found[0][:20], dict(found[1]), sep="\n")
