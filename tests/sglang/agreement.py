"""Runs random cases through SGLang's own classes and through our coordinator, and counts where they differ.

    .venv-sglang/bin/python tests/sglang/agreement.py --cases 100000          one rank
    .venv-sglang/bin/python tests/sglang/agreement.py --cases 1000 --ranks 2  over Gloo

Compared are the pages that the tree holds at the end, the pages that are neither free nor were taken before, the locks, the
occupancy, and the tokens that the request is credited with. Not compared is how they come about: which reads are made
(sidecars count as read here only where the original read them), reasons to stop, collectives, when slots are free, who is
served.

The cases are of one prefetch. Left out of what is drawn is what is known to differ, by the rows of the table in
lifecycle/docs/sglang.md:
- a hit that is shorter than the window, and a span that is (`window_left_out`);
- host pressure, with a window that is not in L3 at the shorter length;
- the limit on tokens in flight (`limit_overshot`): there is none here;
- a prefetch aborted, or its limit running out, while a sidecar is read: cuts come between and in reads of kv only;
- the same request again while in flight;
- what takes a second prefetch, or a tree with something to evict: evictions under host pressure, `no_budget`,
  `unlocked_early`, `freed_apart`.
Pages that arrive meanwhile come only where no other pool has slots of its own. With two ranks nothing is cut in the middle of a
read (point "reading"): a rank with fewer reads never comes there, and the other would wait for it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sglang")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from cases import Case, Result, draw, run_original, run_ours  # noqa: E402

from lifecycle.runtime import TorchTransport, Transport  # noqa: E402

Tally = Counter[tuple[str, ...]]


def outcome_of(ours: Any) -> tuple[str, ...]:
    """Return how our prefetch ended, in words."""
    for record in ours.events.records():
        name = type(record.event).__name__
        if name in ("Declined", "Discarded"):
            return name.lower(), str(record.event.reason)
        if name in ("Committed", "Clamped"):
            return (name.lower(),)
    raise AssertionError("a prefetch without an end")


def compare(
    case: Case, groups: tuple[Any, ...] = (), rank: int = 0, transport: Transport | None = None
) -> tuple[Result, Result, tuple[str, ...]]:
    """Run one case through both; return what is left of each, and how ours ended."""
    theirs, reads = run_original(case, rank, groups)
    ours_left, ours = run_ours(case, reads, rank, transport)
    ours.coordinator.check_integrity()
    return theirs, ours_left, outcome_of(ours)


def run_cases(first: int, count: int, ranks: int = 1, groups: tuple[Any, ...] = (), rank: int = 0) -> tuple[Tally, list[str]]:
    """Run the cases with the numbers [first, first + count); return how they ended, and what differs."""
    ends: Tally = Counter()
    differences: list[str] = []
    transport = TorchTransport(*groups) if groups else None
    for number in range(first, first + count):
        case = draw(Random(number), ranks)
        theirs, ours, end = compare(case, groups, rank, transport)
        ends[(case.kind, case.layout, *end)] += 1
        if theirs != ours:
            differences.append(f"case {number} rank {rank}: {case}\n  SGLang {theirs}\n  ours   {ours}")
    return ends, differences


def _rank(rank: int, ranks: int, meeting: str, first: int, count: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    group = dist.new_group(list(range(ranks)), backend="gloo")
    queue.put((rank, *run_cases(first, count, ranks, (group,), rank)))
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(first: int, count: int, ranks: int) -> tuple[Tally, list[str]]:
    """Run cases over several ranks, a process each."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        workers = [context.Process(target=_rank, args=(r, ranks, meeting, first, count, queue)) for r in range(ranks)]
        for worker in workers:
            worker.start()
        found = [queue.get(timeout=3600) for _ in workers]
        for worker in workers:
            worker.join(60)
    ends = next(each[1] for each in found if each[0] == 0)
    return ends, [line for each in sorted(found, key=lambda each: each[0]) for line in each[2]]


def main() -> int:
    """Run, print the counts, and return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    since = time.monotonic()
    run = run_cases if args.ranks == 1 else lambda first, count: run_ranks(first, count, args.ranks)
    ends, differences = run(args.first, args.cases)
    for words, count in sorted(ends.items()):
        print(f"{count:7d}  {' '.join(words)}")
    for line in differences[:10]:
        print(line)
    print(f"{args.cases} cases over {args.ranks} ranks, {len(differences)} differ, {time.monotonic() - since:.0f} s")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
