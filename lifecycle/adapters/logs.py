"""Every event as a structured log line, bound to rank, prefetch and request; never configures logging itself.

info: one line per prefetch, its outcome. debug: everything else. warning: what an operator should look at, with what to do.
"""

import logging
from collections.abc import Sequence
from typing import Any

import structlog

from lifecycle.adapters.advice import MAY_BE_WRONG, Advice, advice
from lifecycle.adapters.plain import BOUND, fields_of, name_of
from lifecycle.adapters.stories import OUTCOMES, Outcome, Stories, Story, account
from lifecycle.events import (
    Committed,
    CoordinatorStopped,
    Declined,
    Discarded,
    Event,
    LogOpened,
    Record,
    Synced,
    WaitEnded,
)  # fmt: skip
from lifecycle.logger import rendered
from lifecycle.reasons import Reason

LOGGER = "lifecycle.prefetch"

_TOLD = MAY_BE_WRONG | {LogOpened, WaitEnded, *OUTCOMES}  # what there may be a line of at info or above


class StructlogObserver:
    """Logs the events of one rank.

    `logger` is a structlog logger (used as the engine configured it) or a `logging.Logger` (structlog's own configuration
    is then neither read nor changed). Default: structlog where the engine configured it, else `logging`, as
    `lifecycle.prefetch`.
    """

    def __init__(self, logger: Any = None) -> None:
        if logger is None:
            logger = structlog.get_logger(LOGGER) if structlog.is_configured() else logging.getLogger(LOGGER)
        self._base = _wrapped(logger) if isinstance(logger, logging.Logger) else logger.bind()
        self._log = self._base
        self._stories = Stories()
        self._said: set[str] = set()  # in this run

    def observe(self, records: Sequence[Record]) -> None:
        """Log the next records of the rank."""
        detailed = _is_enabled(self._base, logging.DEBUG)
        for record in records:
            story = self._stories.feed(record)
            if detailed or type(record.event) in _TOLD:
                self._say(record, story, detailed)

    def close(self) -> None:
        """Do nothing: every line was written at its event."""

    def _say(self, record: Record, story: Story | None, detailed: bool) -> None:
        event = record.event
        if isinstance(event, LogOpened):
            self._open(event)
            return
        found = advice(event) if type(event) in MAY_BE_WRONG else None
        if found is not None and self._is_new(found, story):
            self._warn(found, story, event)
        elif isinstance(event, OUTCOMES):
            self._log_outcome(story, event)
        elif isinstance(event, CoordinatorStopped):
            self._log.info("coordinator stopped", **fields_of(event))
        elif isinstance(event, Declined) and event.reason is Reason.RATE_LIMITED:
            self._of(story, event).info("prefetch declined", **fields_of(event))
        elif isinstance(event, WaitEnded) and event.reason is Reason.RATE_LIMITED:
            self._of(story, event).info("prefetch given up: no room came in time", **fields_of(event))
        elif detailed and not (isinstance(event, Synced) and event.participants < 2):  # one rank agrees with nobody
            self._of(story, event).debug(name_of(event), at_ns=record.at_ns, **fields_of(event))

    def _open(self, event: LogOpened) -> None:
        self._said.clear()
        self._log = self._base.bind(rank=event.rank)
        self._log.info("coordinator started", layout_name=event.layout.get("name"), **fields_of(event))

    def _is_new(self, found: Advice, story: Story | None) -> bool:
        said = {"event": set(), "run": self._said, "prefetch": self._said if story is None else story.said}[found.once_per]
        new = found.what not in said
        said.add(found.what)
        return new

    def _warn(self, found: Advice, story: Story | None, event: Event) -> None:
        fields = fields_of(event)
        if isinstance(event, OUTCOMES):
            fields |= self._numbers(story, event)
        self._of(story, event).warning(found.what, **fields, what_to_do=found.to_do)

    def _log_outcome(self, story: Story | None, event: Outcome) -> None:
        self._of(story, event).info(f"prefetch {name_of(event)}", **self._numbers(story, event))

    def _numbers(self, story: Story | None, event: Outcome) -> dict[str, object]:
        """Return the one line of a prefetch: why, how much, how long."""
        reason = Reason.COMPLETED if isinstance(event, Committed) else event.reason
        opened = self._stories.opened
        numbers: dict[str, object] = {"reason": reason.value}
        if isinstance(event, Discarded):
            numbers |= {"pool": event.pool} if event.pool else {}
        elif event.dropped:
            numbers["dropped"] = ",".join(event.dropped)
        if story is None or opened is None:
            return numbers  # its beginning is lost
        tokens = account(story, event, opened.page_size_tokens)
        numbers |= {"pages": tokens.used // opened.page_size_tokens, "tokens": tokens.used, "hit_tokens": tokens.hit}
        if opened.ranks > 1 and story.participants > 1:
            numbers["synced_ranks"] = story.participants
        for name, seconds in (("queue_wait_ms", story.queue_wait_s), ("read_ms", story.read_s), ("sync_ms", story.sync_s)):
            if seconds is not None:
                numbers[name] = round(seconds * 1e3, 3)
        return numbers

    def _of(self, story: Story | None, event: Event) -> Any:
        if story is not None:
            return self._log.bind(prefetch=story.id, request=story.request, attempt=story.attempt)
        bound = {name: value for name in BOUND if (value := getattr(event, name, None)) is not None}
        return self._log.bind(**bound) if bound else self._log


def _is_enabled(log: Any, level: int) -> bool:
    """Say whether a logger takes a level; True for one that does not say."""
    kind = type(log)  # a wrapper passes on whatever it does not have itself as a line to log
    ask = getattr(kind, "is_enabled_for", None) or getattr(kind, "isEnabledFor", None)
    return True if ask is None else bool(ask(log, level))


def _wrapped(logger: logging.Logger) -> Any:
    """Return a structlog logger that writes `event key=value ...` to a `logging.Logger`, beside structlog's configuration."""
    processors: list[structlog.typing.Processor] = [
        structlog.stdlib.filter_by_level,
        structlog.processors.format_exc_info,
        _render,
    ]
    return structlog.wrap_logger(
        logger, processors=processors, wrapper_class=structlog.stdlib.BoundLogger, cache_logger_on_first_use=False
    ).bind()


def _render(logger: Any, method: str, fields: Any) -> str:
    return rendered(str(fields.pop("event")), fields)
