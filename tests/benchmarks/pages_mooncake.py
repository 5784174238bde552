"""Page reads from Mooncake: the store beside its client's own calls, in memory of this process and of another one.

With and without room for the header in front of each slot. The pages read are compared at the end.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mooncake_master
import numpy as np
from pages_measure import SIZES, Line, lines_of, measure, store_read

from lifecycle.keys import EMPTY_NAMESPACE, page_keys
from lifecycle.layout import preset
from lifecycle.policies import Policies
from stores.host import TorchHostMemory
from stores.pages import MooncakePageStore, header_room, register_host_memory
from stores.pages.header import HEADER_BYTES

BATCH_PAGES = Policies().batch_pages  # as many keys as a read has unless it is told otherwise
OWN_MEMORY, OTHER_PROCESS = MEMORIES = ("own memory", "other process")
ROOT = Path(__file__).resolve().parents[2]
LENDER = """
import sys
from stores.pages.mooncake_engine import Address, connect
engine = connect(Address.parse(sys.argv[1]), sys.argv[2], 512 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def bench_mooncake(
    folder: Path, threads: Sequence[int], repeats: int, sizes: Sequence[int], memories: Sequence[str]
) -> Iterator[Line]:
    """Yield the lines for Mooncake: pages that lie in this process, and in another one, over TCP."""
    if (reason := mooncake_master.why_not()) is not None:
        yield Line("mooncake", 0, 0, "store", note=reason)
        return
    for memory in memories:
        what, lender = f"mooncake, {memory}", memory == OTHER_PROCESS
        with ExitStack() as stack:
            master = stack.enter_context(mooncake_master.running(folder))
            if lender:
                stack.enter_context(lending(master))
            engine = master.client(0 if lender else 512 << 20)
            stack.callback(engine.close)
            for page_bytes in sizes:
                for count in threads:
                    yield from bench_engine(what, engine, page_bytes, count, repeats)


@contextmanager
def lending(master: mooncake_master.Master) -> Iterator[None]:
    """Run a process that lends its memory to the cluster."""
    command = [sys.executable, "-c", LENDER, str(master.address), master.metadata]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.stdin.close()


def bench_engine(what: str, engine: Any, page_bytes: int, threads: int, repeats: int) -> Iterator[Line]:
    """Yield the lines for one engine and page size."""
    pages = SIZES[page_bytes]
    keys = page_keys(range(pages), 1)
    stores, hosts = {}, {}
    for room in (False, True):
        for verify in (False, True):  # memory is registered with one store only
            way = "store" + ", header room" * room + ", verified" * verify
            stores[way] = MooncakePageStore(engine, {"kv": page_bytes}, EMPTY_NAMESPACE, "r0of1", verify)
            rooms = header_room(stores[way], ["kv"]) if room else None
            hosts[way] = TorchHostMemory(preset("kv_only"), {"kv": pages}, {"kv": page_bytes}, header_room_bytes=rooms)
            register_host_memory(stores[way], hosts[way].regions())
    slots = range(pages)
    memory, buffers = hosts["store"].views("kv"), hosts["store"].buffers("kv", slots)
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.shape, np.uint8)
    names = [f"bare/{page_bytes}/{key}" for key in keys]
    addresses = [memory.ctypes.data + page_bytes * number for number in range(pages)]
    for start in range(0, pages, BATCH_PAGES):
        part = slice(start, start + BATCH_PAGES)
        assert set(engine.batch_put_from(names[part], addresses[part], [page_bytes] * len(names[part]))) == {0}
    assert all(stores["store"].write("kv", keys, buffers))

    def bare(numbers: Sequence[int]) -> None:
        sizes = [page_bytes] * len(numbers)
        got = engine.batch_get_into([names[number] for number in numbers], [addresses[number] for number in numbers], sizes)
        assert got == sizes, "a page was not read"

    heads = np.zeros((BATCH_PAGES, HEADER_BYTES), np.uint8)
    assert engine.register_buffer(heads.ctypes.data, heads.nbytes) == 0
    head_at = range(heads.ctypes.data, heads.ctypes.data + heads.nbytes, HEADER_BYTES)
    objects = stores["store"]._pools["kv"].names(keys)

    def bare_with_header(numbers: Sequence[int]) -> None:
        places = [[head, addresses[number]] for head, number in zip(head_at, numbers, strict=False)]
        sizes = [[HEADER_BYTES, page_bytes]] * len(numbers)
        got = engine.batch_get_into_multi_buffers([objects[number] for number in numbers], places, sizes)
        assert got == [HEADER_BYTES + page_bytes] * len(numbers), "a page was not read"

    in_one = np.zeros((BATCH_PAGES, page_bytes + HEADER_BYTES), np.uint8)
    assert engine.register_buffer(in_one.ctypes.data, in_one.nbytes) == 0
    one_at = list(range(in_one.ctypes.data, in_one.ctypes.data + in_one.nbytes, page_bytes + HEADER_BYTES))

    def bare_in_one(numbers: Sequence[int]) -> None:
        sizes = [page_bytes + HEADER_BYTES] * len(numbers)
        got = engine.batch_get_into([objects[number] for number in numbers], one_at[: len(numbers)], sizes)
        assert got == sizes, "a page was not read"

    ways = {
        "bare batch_get_into": bare,
        "bare, in one buffer": bare_in_one,
        "bare, header beside": bare_with_header,
        **{way: store_read(store, keys, hosts[way].buffers("kv", slots)) for way, store in stores.items()},
    }
    yield from lines_of(what, page_bytes, threads, pages, measure(ways, pages, threads, repeats, BATCH_PAGES))
    stores["store"].delete("kv", keys)
    engine.batch_remove(names, True)
    engine.unregister_buffer(heads.ctypes.data)
    engine.unregister_buffer(in_one.ctypes.data)
    for way, store in stores.items():
        assert (hosts[way].views("kv") == memory).all(), f"{way}: other bytes were read"
        detours = {cause: count for cause, count in store.stats().items() if cause.endswith("detour")}
        assert not detours, f"{way}: pages took a detour: {detours}"
        store.close()
