"""The options of the scheduler loop: parsed, checked, and what follows from them alone. Starts nothing."""

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch

from lifecycle.errors import ConfigError, LifecycleError
from lifecycle.keys import KeyChain, Namespace, page_keys
from lifecycle.layout import PRESETS, Layout, TrailingPages, preset
from lifecycle.policies import STOP_POLICIES, Policies, Retry, Timeout, stop_policy
from loop_trace import Request, TraceError, make_trace, read_trace
from stores.events import open_event_log
from stores.pages import open_page_store

MAX_WAITING = 6  # requests whose prefetch is in flight, or done and not yet admitted
MAX_RUNNING = 6  # requests in the batch
RETRY = Retry(every_ticks=16, max_queries=4, give_up_ticks=512)
_MOST_PAGE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked to do; the same on all ranks."""

    ranks: int
    trace: Path | None
    requests: int
    page_size: int
    page_bytes: int
    host_pages: int | None
    layout: Layout
    store: str
    verify: bool  # whether what is read is hashed and compared with its checksum
    events: str
    stop_policy: str
    faults: float
    seed: int
    json: Path | None
    slow_rank: tuple[int, float] | None  # a rank and how long each answer of its store takes, in seconds
    lag: int  # ticks between the launch of a round and its use
    device: str  # where served pages are compared: cpu or cuda
    metrics: int | None  # the port of rank 0; rank r serves at this + r
    metrics_hold: float  # how long each rank waits for a last scrape, in seconds

    def policies(self) -> Policies:
        """Return the policies of the run: the defaults, or with faults limits short enough to be reached."""
        stop = stop_policy(self.stop_policy)
        lag = self.lag
        limit_tokens = max(Policies().limit_tokens, self.page_size)
        if not self.faults:
            return Policies(stop=stop, retry=RETRY, limit_tokens=limit_tokens, lag_ticks=lag)
        if isinstance(stop, Timeout):
            stop = Timeout(base_s=0.25, per_ki_token_s=0.01, max_s=2.0)
        return Policies(
            stop=stop, retry=RETRY, limit_tokens=limit_tokens, lost_read_s=0.6, max_lost_reads=1000, lag_ticks=lag
        )

    def device_of(self, rank: int) -> str | None:
        """Return the device that a rank's served pages are copied to, or None to compare them where they lie."""
        return f"cuda:{rank % torch.cuda.device_count()}" if self.device == "cuda" else None

    def namespace(self) -> Namespace:
        """Return what the pages of this run share with those of no other model, page size or layout."""
        return Namespace(model="scheduler-loop", dtype=f"u8x{self.page_bytes}", layout=self.layout.name)

    def keys(self, request: Request) -> KeyChain:
        """Return the page keys of a prompt."""
        return page_keys(request.tokens, self.page_size, namespace=self.namespace())

    def pool_bytes(self) -> dict[str, int]:
        """Return the bytes of one page of each pool: a sidecar's page is a quarter of a kv page."""
        return {p.name: self.page_bytes if p.name == "kv" else max(1, self.page_bytes // 4) for p in self.layout.pools}

    def capacity_pages(self, requests: Sequence[Request]) -> dict[str, int]:
        """Return the slots of each own pool in host memory.

        By default kv has room for the largest prompt and for a full batch of mean prompts, far less than the pages of the
        whole trace. A trailing pool has room for two windows in each request's hands, and one more every 16 pages.
        """
        pages = [len(request.tokens) // self.page_size for request in requests] or [1]
        kv = self.host_pages or max(1, max(pages) + MAX_RUNNING * -(-sum(pages) // len(pages)))
        capacity = {}
        for pool in self.layout.own:
            if isinstance(pool.coverage, TrailingPages):
                window = pool.coverage.window_pages
                capacity[pool.name] = window * (2 * (MAX_WAITING + MAX_RUNNING) + kv // 16)
            else:
                capacity[pool.name] = kv
        return capacity

    def read_requests(self) -> list[Request]:
        """Return the requests of the trace, or those of a trace made up from the seed."""
        return make_trace(self.requests, self.seed) if self.trace is None else read_trace(self.trace, self.requests)


def parse_options(argv: Sequence[str]) -> Options:
    """Return the options, or end the process with status 2 and one line on stderr."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        options = Options(
            ranks=joined_place()[1] if "RANK" in os.environ else given.ranks,
            trace=given.trace,
            requests=given.requests,
            page_size=given.page_size,
            page_bytes=given.page_bytes,
            host_pages=given.host_pages,
            layout=preset(given.layout),
            store=given.store,
            verify=given.verify,
            events=given.events,
            stop_policy=given.stop_policy,
            faults=given.faults,
            seed=given.seed,
            json=given.json,
            slow_rank=_slow_rank(given.slow_rank),
            lag=given.lag,
            device=given.device,
            metrics=given.metrics,
            metrics_hold=given.metrics_hold,
        )
        _check(options)
    except LifecycleError as error:
        parser.error(str(error))
    return options


def joined_place() -> tuple[int, int]:
    """Return this process's rank and how many there are, as the environment says; raises `ConfigError`."""
    found = []
    for name in ("RANK", "WORLD_SIZE"):
        text = os.environ.get(name, "")
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(
                f"cannot join the ranks of torchrun: {name} is {text!r}, no number (unset RANK to have the ranks started here)"
            )
        found.append(int(text))
    rank, ranks = found
    if rank >= ranks:
        raise ConfigError(
            f"cannot join the ranks of torchrun: there is no rank {rank} of {ranks} (unset RANK to have the ranks started here)"
        )
    return rank, ranks


def check_places(options: Options) -> list[Request]:
    """Read the trace and open every place that the run will use, once; raises what says that one is of no use."""
    requests = options.read_requests()
    place = shard(0, options.ranks)
    open_page_store(options.store, options.pool_bytes(), options.namespace(), place, verify=options.verify).close()
    for rank in range(options.ranks):
        open_event_log(options.events, rank).close()
    if options.metrics is not None:
        _check_ports(range(options.metrics, options.metrics + options.ranks))
    if options.json is not None:
        folder = options.json.absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or options.json.is_dir():
            raise ConfigError(f"cannot write {options.json}: need a file in a folder that can be written")
    return requests


def _check_ports(ports: range) -> None:
    if find_spec("prometheus_client") is None:
        raise ConfigError("cannot serve metrics: prometheus-client is missing (pip install 'prefetch-lifecycle[metrics]')")
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise ConfigError(f"cannot serve metrics at port {port}: {error.strerror} (use another --metrics)") from error


def refuse(error: LifecycleError | TraceError) -> NoReturn:
    """End the process with status 2 and one line on stderr."""
    _parser().error(str(error))


def shard(rank: int, ranks: int) -> str:
    """Return the name of a rank's shard of L3."""
    return f"r{rank}of{ranks}"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="scheduler_loop.py",
        description="Run a request trace through a small scheduler on N ranks, with the prefetch lifecycle embedded.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ranks", type=int, default=2, metavar="N", help="processes to run (default %(default)s; under torchrun its own)")
    add("--trace", type=Path, metavar="FILE", help="JSON lines like those of the Mooncake traces (default: one made up)")
    add("--requests", type=int, default=200, metavar="N", help="requests to take of the trace (default %(default)s)")
    add("--page-size", type=int, default=64, metavar="TOKENS", help="tokens in a page (default %(default)s)")
    add("--page-bytes", type=int, default=4096, metavar="N", help="bytes of a kv page (default %(default)s)")
    add("--host-pages", type=int, metavar="N", help="kv pages of host memory (default: so few that eviction never stops)")
    add("--layout", default="dsa", help=f"{', '.join(PRESETS)} (default %(default)s)")
    add("--store", default="memory", help="L3: memory, file:DIR or mooncake:HOST:PORT (default %(default)s)")
    add("--no-verify", dest="verify", action="store_false", help="don't hash pages read: faster, damaged ones are served")
    add("--events", default="memory", help="event logs: memory, jsonl:DIR or sqlite:DIR (default %(default)s)")
    add("--stop-policy", default="timeout", help=f"{', '.join(STOP_POLICIES)} (default %(default)s)")
    add("--faults", type=float, default=0.0, metavar="RATE", help="how often the store fails, 0 to 1 (default %(default)s)")
    add("--seed", type=int, default=0, metavar="S", help="of the trace made up and of the faults (default %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write what was counted as one JSON object")
    add("--lag", type=int, default=0, metavar="TICKS", help="a round is used so many ticks after its launch (default 0)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: pin host memory, compare served pages on the GPU")
    add("--metrics", type=int, metavar="PORT", help="serve Prometheus metrics on 127.0.0.1: rank R at PORT + R")
    add(
        "--metrics-hold", type=float, default=0.0, metavar="SECONDS",
        help="at the end, let each rank wait up to so long for one last scrape (default %(default)s)",
    )  # fmt: skip
    add("--slow-rank", metavar="R:SECONDS", help="let every answer of the store of rank R take so long")
    return parser


def _slow_rank(text: str | None) -> tuple[int, float] | None:
    if text is None:
        return None
    rank, _, seconds = text.partition(":")
    try:
        slow = int(rank), float(seconds)
    except ValueError as error:
        raise ConfigError(f"cannot use --slow-rank {text!r}: need R:SECONDS, for example 1:0.01") from error
    if not 0 <= slow[1] <= 10:
        raise ConfigError(f"cannot use --slow-rank {text!r}: need 0 to 10 seconds")
    return slow


def _check(options: Options) -> None:
    for name, value, least, most in (
        ("--ranks", options.ranks, 1, 64),
        ("--requests", options.requests, 0, 1_000_000),
        ("--page-size", options.page_size, 1, 1 << 20),
        ("--page-bytes", options.page_bytes, 1, _MOST_PAGE_BYTES),
        ("--host-pages", options.host_pages, 1, 1 << 30),
        ("--faults", options.faults, 0, 1),
        ("--metrics", options.metrics, 1, 65_536 - options.ranks),
        ("--metrics-hold", options.metrics_hold, 0, 3600),
    ):
        if value is not None and not least <= value <= most:
            raise ConfigError(f"cannot use {name} {value}: need {least} to {most}")
    if options.slow_rank is not None and not 0 <= options.slow_rank[0] < options.ranks:
        raise ConfigError(f"cannot slow rank {options.slow_rank[0]} down: there are ranks 0 to {options.ranks - 1}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("cannot use --device cuda: this machine has no CUDA device (leave the option out)")
    options.policies()
