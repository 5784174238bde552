"""The round on a GPU: what can be said without one, and the prepared check where there is one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lifecycle.errors import ConfigError
from lifecycle.runtime.cuda import CudaTransport
from tests.sync.harness import World, run_ranks

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "tests.device.check_sync"]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


def no_device(world: World) -> list[str]:
    """Ask for devices that do not exist."""
    said = []
    for device in ("cuda:99", "cpu", "nonsense"):
        try:
            CudaTransport(device=device)
        except ConfigError as error:
            said.append(str(error))
    return said


def test_a_device_that_does_not_exist_is_refused() -> None:
    """ConfigError, naming the device, before any exchange."""
    for said in run_ranks(2, no_device):
        assert ["cuda:99" in said[0], "cpu" in said[1], "'nonsense': it is not a device" in said[2]] == [True] * 3


@no_gpu
def test_the_check_says_that_it_needs_a_gpu() -> None:
    """Without a GPU the prepared check exits with 2 and a sentence."""
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "this machine has none" in done.stderr


@pytest.mark.gpu
@needs_gpu
def test_the_check_holds() -> None:
    """NCCL decides as Gloo does, and never waits for the main stream."""
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
