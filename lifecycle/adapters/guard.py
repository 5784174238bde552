"""The shadow that also checks: the laws of the lifecycle, on a live SGLang cache, as things happen.

What SGLang does otherwise by design (see lifecycle/docs/sglang.md) is counted apart, under its name, and never raised.
"""

from collections import Counter, deque
from typing import Any

from lifecycle.adapters.hooks import Passed
from lifecycle.adapters.known import known_difference
from lifecycle.adapters.sglang import Shadow
from lifecycle.audit.laws import Violation
from lifecycle.audit.rank import RankAudit
from lifecycle.errors import LifecycleError
from lifecycle.events import Record
from lifecycle.logger import Logger
from lifecycle.runtime.ports import EventLog
from stores.events import MemoryEventLog

log = Logger(__name__)

STORY = 200
"""Events of one prefetch that are kept for its story."""


class GuardViolation(Passed, LifecycleError):
    """Raised out of the engine's own call when a law was broken in it and the guard was told to raise."""

    def __init__(self, violation: Violation, story: tuple[str, ...]) -> None:
        self.violation, self.story = violation, story
        super().__init__(f"a law of the prefetch lifecycle is broken: {violation} (the engine's call itself went through)")


class Guard(Shadow):
    """A shadow with a second set of books. `counts` has violations by law, `known` those that SGLang is known for, by name."""

    def __init__(self, tree_cache: Any, events: EventLog, run: str | None, raises: bool) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self._raises = raises
        self._found: list[Violation] = []
        self._stories: dict[int, deque[str]] = {}
        self._audit = RankAudit(0, self._found.append)
        super().__init__(tree_cache, events, run, self._check)

    def _check(self, record: Record) -> None:
        id_ = getattr(record.event, "prefetch", None)
        if id_ is not None:
            self._stories.setdefault(id_, deque(maxlen=STORY)).append(f"{record.seq} {record.event}")
        self._audit.feed(record)
        found, self._found[:] = list(self._found), []
        for violation in found:
            self._tell(violation)
        if type(record.event).__name__ == "Closed" and id_ is not None:
            self._stories.pop(id_, None)

    def _tell(self, violation: Violation) -> None:
        name = known_difference(violation)
        if name is not None:
            self.known[name] += 1
            return
        self.violations.append(violation)
        self.counts[violation.law.value] += 1
        story = tuple(self._stories.get(violation.prefetch or 0, ()))
        log.error(
            "a law of the prefetch lifecycle is broken",
            law=violation.law.value,
            what=str(violation),
            story=list(story),
            what_to_do="run prefetch-audit explain on the event log for the requests of this prefetch",
        )
        if self._raises:
            raise GuardViolation(violation, story)


def guard(tree_cache: Any, events: EventLog | None = None, run: str | None = None, raises: bool = False) -> Guard:
    """Record a live cache like `shadow` and check the laws as things happen, until `detach()`.

    A violation is logged with the story of its prefetch and counted; with `raises` it is raised as `GuardViolation` out of the
    engine's call in which it was found, after that call has done its work. Without `events` the last million are kept in
    memory. Raises `ConfigError` for a cache that it can't look at.
    """
    return Guard(tree_cache, events if events is not None else MemoryEventLog(), run, raises)
