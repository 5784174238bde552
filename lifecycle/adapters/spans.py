"""One OpenTelemetry span per prefetch, with its events, linked to the request's own span. Needs the extra `metrics`.

Off unless an engine builds a `SpanObserver`; nothing of OpenTelemetry is imported before this module is.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from lifecycle.adapters.plain import fields_of, name_of
from lifecycle.adapters.stories import OUTCOMES, Outcome, Stories, Story, account
from lifecycle.events import Closed, Committed, Event, Issued, LogOpened, Record, RequestFinished, Synced
from lifecycle.reasons import Reason

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError(
        "cannot trace prefetches: opentelemetry-api is not installed (pip install 'prefetch-lifecycle[metrics]')"
    ) from error

_FAULTS = frozenset(
    {Reason.LOST_READ, Reason.READ_FAILED, Reason.QUERY_FAILED, Reason.SYNC_FAILED, Reason.ANCHOR_LOST, Reason.INSERT_DROPPED}
)


class SpanObserver:
    """Traces the prefetches of one rank: a span from `Issued` to `Closed`, its other events in it, at the log's own times.

    `link` ties the prefetches of a request to the span that the engine serves it under. At most `max_links` requests are
    remembered, until they are finished; beyond it the oldest go.
    """

    def __init__(self, tracer_provider: TracerProvider, *, max_links: int = 65_536) -> None:
        self._tracer = tracer_provider.get_tracer("prefetch-lifecycle")
        self._stories = Stories()
        self._spans: dict[int, Span] = {}
        self._era = 0
        self._wall_ns = 0  # added to a time of the log, it makes a wall clock's
        self._max_links = max_links
        self._lock = threading.Lock()
        self._links: OrderedDict[str, SpanContext] = OrderedDict()

    def link(self, request: str, context: SpanContext) -> None:
        """Link the prefetches of a request that begin from now on to this span. Call it before `issue`, on any thread."""
        with self._lock:
            self._links[request] = context
            self._links.move_to_end(request)
            if len(self._links) > self._max_links:
                self._links.popitem(last=False)

    def observe(self, records: Sequence[Record]) -> None:
        """Take the next records of the rank."""
        for record in records:
            story = self._stories.feed(record)
            if self._stories.era != self._era:
                self._era = self._stories.era
                self._abandon("records are missing, or a fresh log began")
            self._take(record.event, story, record.at_ns)

    def close(self) -> None:
        """End the spans of what is still open, as incomplete."""
        self._abandon("no event came any more")

    def _take(self, event: Event, story: Story | None, at_ns: int) -> None:
        if isinstance(event, LogOpened):
            self._wall_ns = event.wall_ns - event.monotonic_ns
        elif isinstance(event, RequestFinished):
            with self._lock:
                self._links.pop(event.request, None)
        elif story is None:
            return
        elif isinstance(event, Issued):
            self._spans[story.id] = self._begin(story, event, at_ns)
        elif (span := self._spans.get(story.id)) is not None:
            self._note(span, story, event, at_ns)

    def _begin(self, story: Story, event: Issued, at_ns: int) -> Span:
        with self._lock:
            context = self._links.get(story.request)
        attributes: dict[str, str | int] = {
            "prefetch.id": story.id,
            "prefetch.request": story.request,
            "prefetch.attempt": story.attempt,
            "prefetch.rank": self._stories.rank or 0,
            "prefetch.start_page": story.start_page,
            "prefetch.end_page": story.end_page,
            "prefetch.reserved_tokens": event.reserved_tokens,
        }
        links = () if context is None else (Link(context),)
        # An empty context: whatever span this thread may be in is no parent of a prefetch.
        return self._tracer.start_span(
            "kv prefetch", Context(), attributes=attributes, links=links, start_time=self._wall_ns + at_ns
        )

    def _note(self, span: Span, story: Story, event: Event, at_ns: int) -> None:
        wall_ns = self._wall_ns + at_ns
        if isinstance(event, Closed):
            del self._spans[story.id]
            span.end(wall_ns)
            return
        if isinstance(event, Synced) and event.participants < 2:
            return  # one rank agrees with nobody
        facts = {name: _attribute(value) for name, value in fields_of(event).items()}
        span.add_event(name_of(event), facts, wall_ns)
        if isinstance(event, OUTCOMES):
            self._conclude(span, story, event)

    def _conclude(self, span: Span, story: Story, event: Outcome) -> None:
        opened = self._stories.opened
        assert opened is not None, "there is no story without a header"
        reason = Reason.COMPLETED if isinstance(event, Committed) else event.reason
        tokens = account(story, event, opened.page_size_tokens)
        span.set_attributes(
            {
                "prefetch.outcome": name_of(event),
                "prefetch.reason": reason.value,
                "prefetch.hit_tokens": tokens.hit,
                "prefetch.loaded_tokens": tokens.used,
            }
        )
        if reason in _FAULTS:
            span.set_status(Status(StatusCode.ERROR, reason.value))

    def _abandon(self, why: str) -> None:
        for span in self._spans.values():
            span.set_attribute("prefetch.incomplete", why)
            span.end()
        self._spans.clear()


def _attribute(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)
