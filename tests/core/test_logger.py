"""The library's own warnings in an engine that configures logging itself: where they go, and that they say what to do."""

import ast
import io
import logging
import logging.config
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from kit.rig import Rig
from structlog.testing import CapturingLogger

from lifecycle.logger import Logger

ROOT = Path(__file__).parents[2]
RigOf = Callable[..., Rig]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Have structlog as nobody has configured it, and leave it so."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture
def engine() -> Iterator[io.StringIO]:
    """Be an engine that configures `logging` by a dictionary, with a format of its own and a stream to read."""
    stream = io.StringIO()
    logger = logging.getLogger("lifecycle")
    kept = logger.handlers[:], logger.level, logger.propagate
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"ours": {"format": "[TP0] %(levelname)s %(name)s %(filename)s %(message)s"}},
            "handlers": {"ours": {"class": "logging.StreamHandler", "formatter": "ours", "stream": stream}},
            "loggers": {"lifecycle": {"handlers": ["ours"], "level": "WARNING", "propagate": False}},
        }
    )
    yield stream
    logger.handlers, logger.level, logger.propagate = kept[0], kept[1], kept[2]
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # the level was set behind its back


def test_a_warning_of_a_running_rank_reaches_the_engines_handlers(
    engine: io.StringIO, rig_of: RigOf, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that fails is told in the engine's format, with what to do, and nothing is printed beside it."""
    rig = rig_of()
    rig.memories[0].spy.down["release"] = 1
    rig.stores[0].say("kv", "1110", rig.prompt("r", 4))
    rig.run("r", 4)
    [line] = engine.getvalue().splitlines()
    assert line.startswith(
        "[TP0] WARNING lifecycle.runtime.settle settle.py a port failed; it is tried again at the next tick "
    )
    assert "prefetch=1 obligation='tail of kv' tries=1 error=" in line
    assert "what_to_do='see the error; " in line
    assert capsys.readouterr() == ("", "")


def test_structlog_is_used_as_the_engine_configured_it(engine: io.StringIO) -> None:
    """Its processors see the facts; `logging` gets nothing. Asked at each line: an engine may configure late."""
    log = Logger("lifecycle.runtime.ticks", rank=3)
    log.warning("before", what_to_do="nothing")
    capturing = CapturingLogger()
    structlog.configure(logger_factory=lambda *_: capturing, processors=[structlog.processors.JSONRenderer(sort_keys=True)])
    error = ValueError("no")
    log.error("after", what_to_do="nothing", exc_info=error, page=7)
    [call] = capturing.calls
    assert call.method_name == "error"
    assert '"event": "after"' in call.args[0]
    assert '"page": 7, "rank": 3, "what_to_do": "nothing"' in call.args[0]
    assert engine.getvalue().splitlines() == [
        "[TP0] WARNING lifecycle.runtime.ticks test_logger.py before rank=3 what_to_do='nothing'"
    ]


def test_the_engines_level_holds(engine: io.StringIO) -> None:
    """Below its level nothing is said; an error brings its traceback."""
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    log = Logger("lifecycle.runtime.ticks")
    log.info("ordinary")
    log.warning("wrong", what_to_do="look")
    log.error("worse", what_to_do="act", exc_info=ValueError("why"))
    first, *rest = engine.getvalue().splitlines()
    assert "worse what_to_do='act'" in first
    assert rest == ["ValueError: why"]


def test_nothing_logs_past_it() -> None:
    """No room of the library asks structlog or `logging` for a logger of its own, but the observer, which is given one."""
    own = {"lifecycle/logger.py", "lifecycle/adapters/logs.py"}
    found = set()
    for path in sorted(path for top in ("lifecycle", "stores") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in {"get_logger", "getLogger"}:
                found.add(str(path.relative_to(ROOT)))
    assert found <= own
