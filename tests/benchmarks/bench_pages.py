"""Page reads into host memory: the file and Mooncake stores beside the bare calls under them. One run, one table.

    python tests/benchmarks/bench_pages.py [--repeats 15] [--threads 1,2,4,8] [--only files|mooncake] [--json FILE]
    python tests/benchmarks/bench_pages.py --only mooncake --page-kib 64 --mooncake "other process"

All files are in the page cache. The ways to read the same pages take turns, the first one changing; what is shown is the
median over the repeats of the rate, and of the ratio to the bare call of the same turn. Run it on a quiet machine; where
there is none, the CPU time still says what a page costs. SGLang's file backend is read beside the store where the
interpreter has SGLang (`tests/sglang/setup.sh` builds such an environment), else the table says that it is missing.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "stores"), str(ROOT / "tests" / "benchmarks")]

from pages_files import bench_files  # noqa: E402  # after the path is right
from pages_measure import SIZES, Line, show  # noqa: E402
from pages_mooncake import MEMORIES, bench_mooncake  # noqa: E402


def main() -> int:
    """Run every part, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", default="1,2,4,8")
    parser.add_argument("--only", choices=("files", "mooncake"))
    parser.add_argument("--page-kib", choices=[size >> 10 for size in SIZES], type=int, help="pages of this size alone")
    parser.add_argument("--mooncake", choices=MEMORIES, metavar="MEMORY", help=f"that of {' or '.join(MEMORIES)} alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads = [int(part) for part in options.threads.split(",")]
    sizes = [size for size in SIZES if options.page_kib in (None, size >> 10)]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="bench-pages-") as folder:
        for page_bytes in sizes if options.only != "mooncake" else ():
            lines += bench_files(Path(folder), page_bytes, threads, options.repeats)
        if options.only != "files":
            memories = [memory for memory in MEMORIES if options.mooncake in (None, memory)]
            lines += bench_mooncake(Path(folder), threads[:1], options.repeats, sizes, memories)
    show(lines, options.repeats)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
