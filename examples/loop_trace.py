"""Request traces for the examples: JSON lines in the format of the Mooncake traces, read or made up.

One object a line: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (one id for each block of 512
prompt tokens; the last block may be shorter). Token ids are a function of hash id and place, so that equal ids give
equal tokens and so equal page keys. Knows nothing of pages or prefetches.
"""

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 512

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TraceError(ValueError):
    """Raised when a trace cannot be read; names the file and, where there is one, the line."""

    def __init__(self, path: Path, line: int | None, why: str) -> None:
        self.path, self.line, self.why = path, line, why
        where = f"{path}" if line is None else f"{path}:{line}"
        super().__init__(f"cannot read trace {where}: {why}")


class TraceLine(msgspec.Struct, frozen=True):
    """One line of a trace, as it stands in the file."""

    timestamp: _Count
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_Count, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request: when it arrives, its prompt (token ids, shape [N]) and how many tokens it will generate."""

    id: str
    arrival_ms: int
    tokens: NDArray[np.uint32] = field(repr=False)
    output_tokens: int
    hash_ids: tuple[int, ...] = field(repr=False)  # one for each block of 512 tokens


class Reuse(NamedTuple):
    """What a cache that never forgets would reuse of a trace."""

    tokens: int
    blocks: int
    all_tokens: int
    all_blocks: int


def read_trace(path: str | Path, limit: int | None = None) -> list[Request]:
    """Return the first `limit` requests of the file, sorted by arrival; raises `TraceError` for what is no trace."""
    path = Path(path)
    if limit is not None and limit < 0:
        raise TraceError(path, None, f"a limit of {limit} requests makes no sense (use 0 or more)")
    try:
        with path.open("rb") as file:
            lines = ((number, text) for number, text in enumerate(file, start=1) if text.strip())
            found = [_parse(path, number, text) for number, text in islice(lines, limit)]
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from error
    return _requests(found)


def make_trace(n: int, seed: int) -> list[Request]:
    """Return `n` requests of conversations that share system prompts, the same for the same seed."""
    return _requests(list(islice(_conversations(random.Random(seed)), n)))


def write_trace(path: str | Path, requests: Iterable[Request]) -> None:
    """Write requests as a trace that `read_trace` gives back."""
    encoder = msgspec.json.Encoder()
    with Path(path).open("wb") as file:
        for r in requests:
            file.write(encoder.encode(TraceLine(r.arrival_ms, len(r.tokens), r.output_tokens, r.hash_ids)) + b"\n")


def reuse_bound(requests: Iterable[Request]) -> Reuse:
    """Count the blocks that an earlier request had too, and their tokens."""
    seen: set[int] = set()
    tokens = blocks = all_tokens = all_blocks = 0
    for request in requests:
        for place, block in enumerate(request.hash_ids):
            length = min(BLOCK_TOKENS, len(request.tokens) - place * BLOCK_TOKENS)
            all_tokens, all_blocks = all_tokens + length, all_blocks + 1
            if block in seen:
                tokens, blocks = tokens + length, blocks + 1
        seen.update(request.hash_ids)
    return Reuse(tokens, blocks, all_tokens, all_blocks)


def reuse_bound_tokens(requests: Iterable[Request]) -> int:
    """Return the prompt tokens that a cache that never forgets would reuse."""
    return reuse_bound(requests).tokens


def block_tokens(hash_ids: tuple[int, ...], count: int) -> NDArray[np.uint32]:
    """Return the first `count` tokens of the blocks, ids in [0, 2**31): splitmix64 of hash id and place."""
    starts = _mix(np.array(hash_ids, dtype=np.uint64))
    places = np.arange(BLOCK_TOKENS, dtype=np.uint64)
    mixed = _mix(starts[:, None] + places).reshape(-1)[:count]
    return (mixed >> np.uint64(33)).astype(np.uint32)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _parse(path: Path, number: int, text: bytes) -> TraceLine:
    try:
        line = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(path, number, str(error)) from error
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != blocks:
        need = f"{line.input_length} prompt tokens make {blocks} blocks of {BLOCK_TOKENS}"
        raise TraceError(path, number, f"{need}, and there are {len(line.hash_ids)} hash_ids")
    return line


_DECODER = msgspec.json.Decoder(TraceLine)


def _requests(lines: list[TraceLine]) -> list[Request]:
    arrivals = sorted(enumerate(lines), key=lambda numbered: numbered[1].timestamp)
    return [
        Request(f"req-{n:05}", a.timestamp, block_tokens(a.hash_ids, a.input_length), a.output_length, a.hash_ids)
        for n, a in arrivals
    ]


# --- traces made up ---------------------------------------------------------------------------------------------------

_SYSTEM_PROMPTS, _SHARED = 4, 0.5  # the other conversations bring a system prompt of their own
_MOST_BLOCKS = 24  # about 12,000 tokens
_TURNS, _TURN_WEIGHTS = range(1, 7), (46, 26, 12, 8, 5, 3)  # most conversations are short


def _conversations(rng: random.Random) -> Iterable[TraceLine]:
    """Yield the turns of ever new conversations in order of arrival."""
    ids = iter(range(2**62))
    prompts = [tuple(islice(ids, rng.randint(2, 6))) for _ in range(_SYSTEM_PROMPTS)]
    order = iter(range(2**62))
    # (arrival, tie-break, blocks so far, turns left); the first entry that is due is taken, so arrivals never go back
    due: list[tuple[float, int, tuple[int, ...], int]] = []
    next_start = 0.0
    while True:
        while not due or next_start <= due[0][0]:
            [turns] = rng.choices(_TURNS, _TURN_WEIGHTS)
            own = tuple(islice(ids, rng.randint(2, 6)))
            system = rng.choice(prompts) if rng.random() < _SHARED else own
            heapq.heappush(due, (next_start, next(order), system, turns))
            next_start += rng.expovariate(1 / 400)
        now, _, history, turns_left = heapq.heappop(due)
        blocks = (*history, *islice(ids, rng.randint(1, 4)))
        last = rng.randint(1, BLOCK_TOKENS)
        output = rng.randint(16, 768)
        yield TraceLine(int(now), (len(blocks) - 1) * BLOCK_TOKENS + last, output, blocks)
        # A last block that is not full gets a new id with the next turn: its content goes on.
        kept = blocks if last == BLOCK_TOKENS else blocks[:-1]
        if turns_left > 1 and len(kept) + 4 <= _MOST_BLOCKS:
            heapq.heappush(due, (now + rng.expovariate(1 / 8000), next(order), kept, turns_left - 1))
