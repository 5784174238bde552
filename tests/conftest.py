"""What every test shares: a clock that freezes fast, walks without a time limit of their own, and the rig."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:  # tests/lifecycle and tests/stores must not hide the packages of these names
    sys.path.insert(0, ROOT)

import freezegun  # noqa: E402  # after the path is right
import freezegun.config  # noqa: E402
import hypothesis  # noqa: E402
import pytest  # noqa: E402
from kit.rig import Rig  # noqa: E402

# Reader threads must see the frozen clock: by default freezegun gives the real one to whatever `threading` called.
freezegun.configure(
    default_ignore_list=[*(name for name in freezegun.config.DEFAULT_IGNORE_LIST if name != "threading"), "torch"]
)
hypothesis.settings.register_profile("walks", deadline=None, print_blob=True)
hypothesis.settings.load_profile("walks")


@pytest.fixture
def rig_of() -> Iterator[Callable[..., Rig]]:
    """Build rigs; at the end of the test each is run dry, closed and checked for leaks."""
    rigs: list[Rig] = []

    def build(*args: object, **settings: object) -> Rig:
        rigs.append(Rig(*args, **settings))  # type: ignore[arg-type]
        return rigs[-1]

    yield build
    for rig in rigs:
        rig.tear_down()
