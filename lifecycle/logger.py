"""Where this library's own warnings go: to structlog where the engine configured it, else to `logging`.

Configures neither. Which of them it is is asked at each line, since engines configure logging when they please. The rules log
nothing; this is for the rooms around them.
"""

import logging
from typing import Any

import structlog


def rendered(event: str, facts: dict[str, Any]) -> str:
    """Return `event name=value ...`, strings quoted as Python would: no request id breaks a line or forges a fact."""
    text = " ".join(f"{name}={value!r}" for name, value in facts.items())
    return f"{event} {text}" if text else event


class Logger:
    """Says what an operator should look at, and always what to do about it. Safe from any thread."""

    __slots__ = ("_facts", "_name")

    def __init__(self, name: str, **facts: object) -> None:
        self._name, self._facts = name, facts

    def info(self, event: str, **facts: object) -> None:
        """Say what is ordinary and yet worth a line."""
        self._say(logging.INFO, event, {**self._facts, **facts}, None)

    def warning(self, event: str, *, what_to_do: str, **facts: object) -> None:
        """Say that something is wrong and the library goes on."""
        self._say(logging.WARNING, event, {**self._facts, **facts, "what_to_do": what_to_do}, None)

    def error(self, event: str, *, what_to_do: str, exc_info: BaseException | None = None, **facts: object) -> None:
        """Say that something does not go on."""
        self._say(logging.ERROR, event, {**self._facts, **facts, "what_to_do": what_to_do}, exc_info)

    def _say(self, level: int, event: str, facts: dict[str, Any], exc_info: BaseException | None) -> None:
        if structlog.is_configured():
            raised = {} if exc_info is None else {"exc_info": exc_info}
            say = getattr(structlog.get_logger(self._name), logging.getLevelName(level).lower())  # not every wrapper has `log`
            say(event, **facts, **raised)
        else:
            logging.getLogger(self._name).log(level, "%s", rendered(event, facts), exc_info=exc_info, stacklevel=3)
