"""The shadow that also checks: the laws of the lifecycle, on a live SGLang cache, as things happen.

What SGLang does otherwise by design (see lifecycle/docs/sglang.md) is counted apart, under its name, and never raised.
"""

import sys
from collections import Counter, OrderedDict, deque
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

OVER = 64
"""Prefetches that are over whose stories are kept: a second release comes after the end."""

KEPT = 1000
"""Violations that are kept; all are counted."""


class GuardViolation(Passed, LifecycleError):
    """Raised out of the engine's own call when a law was broken in it and the guard was told to raise.

    `violation` is the first that was found in the call, with the `story` of its prefetch; `more` is how many there were beside.
    """

    def __init__(self, violation: Violation, story: tuple[str, ...], more: int = 0) -> None:
        self.violation, self.story, self.more = violation, story, more
        others = f", and {more} more" if more else ""
        super().__init__(
            f"a law of the prefetch lifecycle is broken: {violation}{others} (the engine's call itself went through)"
        )


class Guard(Shadow):
    """A shadow with a second set of books. `counts` has violations by law, `known` those that SGLang is known for, by name.

    `violations` are the last thousand.
    """

    def __init__(self, tree_cache: Any, events: EventLog, run: str | None, raises: bool) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self._raises = raises
        self._found: list[Violation] = []
        self._pending: list[tuple[Violation, tuple[str, ...]]] = []  # logged and counted, and not raised yet
        self._stories = _Stories()
        self._audit = RankAudit(0, self._found.append)
        super().__init__(tree_cache, events, run, self._check)

    def _check(self, record: Record) -> None:
        id_ = getattr(record.event, "prefetch", None)
        if id_ is not None:
            self._stories.add(id_, record)
        self._audit.feed(record)
        if self._found:
            for violation in self._found:
                self._tell(violation)
            self._found.clear()
        if id_ is not None and (self._audit.ledger is None or id_ not in self._audit.ledger.accounts):
            self._stories.close(id_)

    def _tell(self, violation: Violation) -> None:
        name = known_difference(violation)
        if name is not None:
            self.known[name] += 1
            return
        self.violations.append(violation)
        del self.violations[:-KEPT]
        self.counts[violation.law.value] += 1
        story = self._stories.text(violation.prefetch)
        log.error(
            "a law of the prefetch lifecycle is broken",
            law=violation.law.value,
            what=str(violation),
            story=list(story),
            what_to_do="run prefetch-audit explain on the event log for the requests of this prefetch",
        )
        if self._raises:
            self._pending.append((violation, story))

    def _over(self) -> None:
        super()._over()
        if self._pending:
            self._pen.flush()
            self._raise()

    def _raise(self) -> None:
        """Raise what was found, once everything that was seen is told and the books stand."""
        if self._pending:
            (violation, story), more = self._pending[0], len(self._pending) - 1
            self._pending.clear()
            raise GuardViolation(violation, story, more)

    def catch_up(self) -> None:
        """Wait until all that was seen is told; a guard that raises raises what was found in it."""
        super().catch_up()
        self._raise()

    def detach(self) -> None:
        """Take everything off; what is found only now is raised behind it, unless another exception is on its way."""
        super().detach()
        if sys.exception() is None:
            self._raise()
        self._pending.clear()


class _Stories:
    """What happened to each prefetch in flight, and to the last that are over."""

    def __init__(self) -> None:
        self._of: dict[int, deque[Record]] = {}
        self._over: OrderedDict[int, deque[Record]] = OrderedDict()

    @property
    def kept(self) -> int:
        """How many stories are kept."""
        return len(self._of) + len(self._over)

    def add(self, id_: int, record: Record) -> None:
        story = self._of.get(id_)
        if story is None:
            story = self._over.pop(id_) if id_ in self._over else deque(maxlen=STORY)
            self._of[id_] = story
        story.append(record)

    def close(self, id_: int) -> None:
        self._over[id_] = self._of.pop(id_)
        if len(self._over) > OVER:
            self._over.popitem(last=False)

    def text(self, id_: int | None) -> tuple[str, ...]:
        """Return a story, a line for each event."""
        story = () if id_ is None else self._of.get(id_) or self._over.get(id_) or ()
        return tuple(f"{record.seq} {record.event}" for record in story)


def guard(tree_cache: Any, events: EventLog | None = None, run: str | None = None, raises: bool = False) -> Guard:
    """Record a live cache like `shadow` and check the laws as things happen, until `detach()`.

    A violation is logged with the story of its prefetch and counted; with `raises` it is raised as `GuardViolation` out of the
    engine's call in which it was found, once that call has done its work and all of it is told: log and books are the same
    either way. What the engine itself raises is never replaced; the violation is a note on it then. Without `events` the last
    million are kept in memory. Raises `ConfigError` for a cache that it can't look at.
    """
    return Guard(tree_cache, events if events is not None else MemoryEventLog(), run, raises)
