"""The main job with metrics on, scraped over HTTP: every hit token ends in one place, and the counts are the job's own."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lifecycle.errors import ConfigError
from loop_options import check_places, parse_options

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "scheduler_loop.py"
RANKS = 2


@pytest.fixture
def port() -> int:
    """Return a port that is free, and the one after it, below those that a client's own end may get."""
    dice = Random(os.getpid())
    for _ in range(100):
        number = dice.randrange(20_000, 32_000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", number))
                second.bind(("127.0.0.1", number + 1))
            except OSError:
                continue
            return number
    raise AssertionError("no two ports in a row are free")


def scrape(port: int) -> str | None:
    """Return what a rank serves; None where nobody does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except (urllib.error.URLError, ConnectionError):
        return None


def ended_within(job: subprocess.Popen[bytes], seconds: float) -> bool:
    """Say whether a process ends within so long."""
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def totals(text: str) -> tuple[Counter[str], Counter[str]]:
    """Return the sum of each sample's name, and the outcomes."""
    names, outcomes = Counter[str](), Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("lifecycle:")
            names[name] += sample.value  # type: ignore[assignment]  # whole numbers, where they are looked at
            if name == "prefetch_outcomes_total":
                outcomes[sample.labels["outcome"]] += int(sample.value)
    return names, outcomes


def test_a_run_that_is_scraped_adds_up(tmp_path: Path, port: int) -> None:
    """Hit = used + unfulfilled on each rank, and the outcomes are those that the job itself counted."""
    path = tmp_path / "out.json"
    options = ["--requests", "60", "--faults", "0.1", "--metrics", str(port), "--metrics-hold", "60", "--json", str(path)]
    last: dict[int, str] = {}
    scrapes = 0
    with subprocess.Popen([sys.executable, str(SCRIPT), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        while not ended_within(job, 0.1):
            for rank in range(RANKS):
                text = scrape(port + rank)
                if text is not None:
                    last[rank] = text
                    scrapes += 1
        said = job.stdout.read().decode() if job.stdout else ""
    assert job.returncode == 0, said
    assert scrapes > RANKS
    values: dict[str, Any] = json.loads(path.read_text())
    for rank in range(RANKS):
        names, outcomes = totals(last[rank])
        hit, used = names["storage_prefetch_hit_tokens_total"], names["prefetched_tokens_total"]
        assert hit == used + names["storage_prefetch_unfulfilled_tokens_total"] > used > 0
        assert outcomes["committed"] == values["committed"]
        assert outcomes["clamped"] == values["clamped"]
        assert outcomes["discarded"] == sum(values["discarded"].values())
        assert names["prefetches_in_flight"] == names["prefetch_occupied_tokens"] == 0
        assert names["prefetch_violations_total"] == names["prefetch_lost_events_total"] == 0
        assert f'rank="{rank}"' in last[rank]


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--metrics", "65535"], "need 1 to 65534"), (["--metrics-hold", "-1"], "need 0 to 3600")],
)
def test_options_that_make_no_sense_are_refused(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, status 2, before any process is started."""
    with pytest.raises(SystemExit) as ended:
        parse_options(options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_port_that_is_taken_is_refused() -> None:
    """The run does not start half: the port of any rank that is taken ends it, with the way out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot serve metrics at port {number}: .*use another --metrics"):
            check_places(parse_options(["--metrics", str(number - 1)]))
