"""Traces for the examples: what is read, what is refused, what is made up."""

import json
from pathlib import Path

import numpy as np
import pytest

from loop_trace import (
    BLOCK_TOKENS,
    Request,
    TraceError,
    block_tokens,
    make_trace,
    read_trace,
    reuse_bound,
    reuse_bound_tokens,
    write_trace,
)

GOOD = {"timestamp": 7, "input_length": 600, "output_length": 20, "hash_ids": [0, 9]}


def written(tmp_path: Path, *lines: object) -> Path:
    """Write a trace: text as it is, anything else as JSON."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


def facts(requests: list[Request]) -> list[tuple[object, ...]]:
    """What two equal traces have in common."""
    return [(r.id, r.arrival_ms, r.tokens.tobytes(), r.output_tokens, r.hash_ids) for r in requests]


def test_line_becomes_a_request(tmp_path: Path) -> None:
    """Every field of a line is in the request, and the prompt is as long as it says."""
    [request] = read_trace(written(tmp_path, GOOD))
    assert (request.arrival_ms, request.output_tokens, request.hash_ids) == (7, 20, (0, 9))
    assert request.tokens.shape == (600,)
    assert request.tokens.dtype == np.uint32


def test_equal_hash_ids_give_equal_tokens_and_others_do_not(tmp_path: Path) -> None:
    """A block's tokens follow from its id alone, also where the block is cut short."""
    lines = [{**GOOD, "input_length": n, "hash_ids": ids} for n, ids in ((1024, [0, 9]), (600, [0, 9]), (1024, [0, 8]))]
    long, short, other = (r.tokens for r in read_trace(written(tmp_path, *lines)))
    assert np.array_equal(long[:600], short)
    assert np.array_equal(long[:BLOCK_TOKENS], other[:BLOCK_TOKENS])
    assert np.count_nonzero(long[BLOCK_TOKENS:] == other[BLOCK_TOKENS:]) < 5


def test_token_ids_fit_in_31_bits_and_hardly_repeat() -> None:
    """Ids are legal for every page key, and two blocks never look alike."""
    tokens = block_tokens((0, 1, 2, 513, 2**63 - 1), 5 * BLOCK_TOKENS)
    assert tokens.max() < 2**31
    assert len(np.unique(tokens)) > 5 * BLOCK_TOKENS - 5


def test_token_ids_never_change() -> None:
    """The ids are the same on every machine and in every version, so that runs can be compared."""
    assert block_tokens((0, 1), 514)[[0, 1, 2, 511, 512, 513]].tolist() == [
        1125671261,
        1496562513,
        234283640,
        1628598459,
        899915386,
        1728283172,
    ]


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    """An empty line is no request, and the lines after it keep their numbers."""
    assert len(read_trace(written(tmp_path, "", GOOD, "  ", GOOD, "\t"))) == 2
    with pytest.raises(TraceError, match=r"trace\.jsonl:4: "):
        read_trace(written(tmp_path, "", GOOD, " ", "{"))


def test_limit_reads_no_further(tmp_path: Path) -> None:
    """Only the first requests are read, and what comes after them is not looked at."""
    path = written(tmp_path, GOOD, "", GOOD, "nonsense")
    assert len(read_trace(path, 2)) == 2
    assert read_trace(path, 0) == []
    with pytest.raises(TraceError, match=r"trace\.jsonl:4"):
        read_trace(path, 3)
    with pytest.raises(TraceError, match="a limit of -1 requests"):
        read_trace(path, -1)


def test_requests_come_in_order_of_arrival(tmp_path: Path) -> None:
    """A trace that is not sorted is played in order of time, and equal times keep the order of the file."""
    lines = [{**GOOD, "timestamp": at, "output_length": n} for n, at in enumerate((5, 3, 5, 0))]
    requests = read_trace(written(tmp_path, *lines))
    assert [(r.arrival_ms, r.output_tokens) for r in requests] == [(0, 3), (3, 1), (5, 0), (5, 2)]
    assert len({r.id for r in requests}) == 4


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("not json", "JSON is malformed"),
        ("{", "truncated"),
        ("[1, 2]", "Expected `object`"),
        ("null", "Expected `object`"),
        (json.dumps(GOOD) + " x", "trailing"),
        ('{"a":' * 5000, "recursion"),
        *(({k: v for k, v in GOOD.items() if k != gone}, f"missing required field `{gone}`") for gone in GOOD),
        ({**GOOD, "timestamp": "7"}, r"got `str` - at `\$.timestamp`"),
        ({**GOOD, "timestamp": 7.5}, "got `float`"),
        ({**GOOD, "input_length": True}, "got `bool`"),
        ({**GOOD, "output_length": None}, "got `null`"),
        ({**GOOD, "hash_ids": 9}, "Expected `array`"),
        ({**GOOD, "hash_ids": [0, "9"]}, "got `str`"),
        ({**GOOD, "timestamp": -1}, ">= 0"),
        ({**GOOD, "input_length": -600}, ">= 0"),
        ({**GOOD, "output_length": -1}, ">= 0"),
        ({**GOOD, "hash_ids": [0, -9]}, ">= 0"),
        ({**GOOD, "hash_ids": [0, 2**63]}, "<= 9223372036854775807"),
        ({**GOOD, "hash_ids": [0]}, "600 prompt tokens make 2 blocks of 512, and there are 1 hash_ids"),
        ({**GOOD, "hash_ids": [0, 9, 8]}, "2 blocks of 512, and there are 3"),
        ({**GOOD, "input_length": 1024, "hash_ids": [0, 9, 8]}, "2 blocks of 512, and there are 3"),
        ({**GOOD, "input_length": 1025}, "3 blocks of 512, and there are 2"),
        ({**GOOD, "input_length": 2**62}, "and there are 2"),
        ({**GOOD, "input_length": 0}, "0 blocks of 512, and there are 2"),
    ],
)
def test_bad_line_is_refused_naming_file_and_line(tmp_path: Path, bad: object, why: str) -> None:
    """A line that is no request stops the reading, with its place and what is wrong with it."""
    path = written(tmp_path, GOOD, bad, GOOD)
    with pytest.raises(TraceError, match=why) as caught:
        read_trace(path)
    assert (caught.value.path, caught.value.line) == (path, 2)
    assert f"{path}:2: " in str(caught.value)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    """A binary file is a trace error, not a decoding traceback."""
    path = tmp_path / "trace.bin"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TraceError, match=r"trace\.bin:1: "):
        read_trace(path)


def test_file_that_cannot_be_opened_is_a_trace_error(tmp_path: Path) -> None:
    """A missing file and a folder are named, without a line."""
    for path in (tmp_path / "gone.jsonl", tmp_path):
        with pytest.raises(TraceError, match=r"cannot read trace .*: (No such file|Is a dir)") as caught:
            read_trace(path)
        assert caught.value.line is None


def test_reuse_counts_blocks_that_an_earlier_request_had(tmp_path: Path) -> None:
    """A block counts when an earlier request had it, with the tokens it has in this one; repeats inside one do not."""
    lines = [
        {**GOOD, "input_length": 1024, "hash_ids": [1, 1]},
        {**GOOD, "input_length": 1100, "hash_ids": [1, 2, 3]},
        {**GOOD, "input_length": 1030, "hash_ids": [1, 2, 3]},
    ]
    requests = read_trace(written(tmp_path, *lines))
    assert reuse_bound(requests) == (512 + 1030, 4, 1024 + 1100 + 1030, 8)
    assert reuse_bound_tokens(requests) == 512 + 1030
    assert reuse_bound_tokens([]) == 0


# --- traces made up ---------------------------------------------------------------------------------------------------


def test_made_trace_is_in_the_format_of_a_file(tmp_path: Path) -> None:
    """What is made up can be written and read back as the same requests, with exactly the four fields."""
    made = make_trace(60, seed=3)
    path = tmp_path / "made.jsonl"
    write_trace(path, made)
    assert facts(read_trace(path)) == facts(made)
    assert all(json.loads(line).keys() == GOOD.keys() for line in path.read_text().splitlines())


def test_made_trace_follows_from_its_seed() -> None:
    """The same seed gives the same requests, a longer trace begins with a shorter one, another seed differs."""
    assert facts(make_trace(40, seed=1)) == facts(make_trace(40, seed=1))
    assert facts(make_trace(50, seed=1))[:40] == facts(make_trace(40, seed=1))
    assert facts(make_trace(40, seed=2)) != facts(make_trace(40, seed=1))
    assert make_trace(0, seed=1) == []


@pytest.mark.parametrize("seed", range(5))
def test_made_trace_looks_like_conversations(seed: int) -> None:
    """About half of the blocks repeat, arrivals never go back, prompts stay near 12,000 tokens."""
    requests = make_trace(200, seed)
    reuse = reuse_bound(requests)
    assert 0.4 <= reuse.blocks / reuse.all_blocks <= 0.6
    arrivals = [r.arrival_ms for r in requests]
    assert arrivals == sorted(arrivals)
    assert max(len(r.tokens) for r in requests) <= 12_288
    assert min(len(r.tokens) for r in requests) > 2 * BLOCK_TOKENS
    assert all(r.output_tokens > 0 for r in requests)


def test_made_conversations_interleave_and_share_system_prompts() -> None:
    """A turn goes on where an earlier request ended, others came in between, and strangers begin alike."""
    requests = make_trace(200, seed=0)
    gaps = []
    for n, turn in enumerate(requests):
        # All but the last block of a prompt are kept by the next turn, which brings at least one of its own.
        earlier = [m for m in range(n) if set(requests[m].hash_ids[-2:-1]) & set(turn.hash_ids)]
        gaps += [n - max(earlier)] if earlier else []
    assert len(gaps) > 50
    assert sum(gap > 1 for gap in gaps) > 25
    heads = [r.hash_ids[0] for r in requests]
    assert max(heads.count(head) for head in heads) > 12, "more than two conversations can have"
