"""OpenTelemetry spans: one per prefetch, at the log's own times, linked to the request's own span."""

from collections.abc import Callable

import pytest
from kit.rig import PAGE_TOKENS, Rig
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from lifecycle.adapters.observe import replay
from lifecycle.adapters.spans import SpanObserver
from lifecycle.events import EventsLost, LogOpened, Record

RigOf = Callable[..., Rig]


class Traced:
    """A tracer provider that keeps what it was given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Every span that ended."""
        return self.exporter.get_finished_spans()


@pytest.fixture
def traced() -> Traced:
    """Trace into memory."""
    return Traced()


def names(span: ReadableSpan) -> list[str]:
    """Return the names of a span's events."""
    return [event.name for event in span.events]


def test_each_prefetch_is_a_span_with_its_events(rig_of: RigOf, traced: Traced) -> None:
    """From the issue to the close, in the wall clock's time, with what happened and how it ended."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    rig.issue("r", 4)
    rig.until_held()
    rig.clock.advance(2)
    rig.stores[0].open_all()
    rig.until(lambda: not rig.ranks[0].book.local)
    replay(rig.logs[0].records(), SpanObserver(traced.provider))
    (span,) = traced.spans
    (opened,) = [record.event for record in rig.logs[0].records() if isinstance(record.event, LogOpened)]
    assert span.name == "kv prefetch"
    assert span.start_time == opened.wall_ns
    assert span.end_time == opened.wall_ns + 2_000_000_000
    assert names(span)[0] == "hit_resolved"
    assert {"plan_agreed", "pages_landed", "terminated", "committed", "settled"} <= set(names(span))
    assert "synced" not in names(span), "one rank agrees with nobody"
    assert span.attributes is not None
    assert span.attributes["prefetch.request"] == "r"
    assert (span.attributes["prefetch.outcome"], span.attributes["prefetch.loaded_tokens"]) == ("committed", 4 * PAGE_TOKENS)
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is None


def test_a_sync_of_several_ranks_is_in_the_span(rig_of: RigOf, traced: Traced) -> None:
    """Of two ranks the spans of both say so."""
    rig = rig_of(ranks=2)
    rig.run("r", 4)
    for log in rig.logs:
        replay(log.records(), SpanObserver(traced.provider))
    assert [names(span).count("synced") for span in traced.spans] == [1, 1]
    assert [span.attributes["prefetch.rank"] for span in traced.spans if span.attributes] == [0, 1]


def test_a_fault_is_an_error_and_a_miss_is_not(rig_of: RigOf, traced: Traced) -> None:
    """A query that raised marks its span; a page that is not there does not."""
    rig = rig_of()
    rig.stores[0].show("kv", "0000", rig.prompt("miss", 4))
    rig.run("miss", 4)
    rig.stores[0].query = "raise"
    rig.run("fault", 4)
    replay(rig.logs[0].records(), SpanObserver(traced.provider))
    assert [span.status.status_code for span in traced.spans] == [StatusCode.UNSET, StatusCode.ERROR]


def test_a_span_links_to_the_request_until_it_is_finished(rig_of: RigOf, traced: Traced) -> None:
    """Every attempt of the request links to its span; after `finish` the link is forgotten."""
    rig = rig_of()
    for attempt in (0, 1):
        rig.run("r", 4 + attempt, attempt=attempt)
    rig.finish("r")
    rig.run("r", 6)
    request = traced.provider.get_tracer("engine").start_span("request")
    observer = SpanObserver(traced.provider)
    observer.link("r", request.get_span_context())
    with trace.use_span(request):  # whatever this thread does meanwhile is no parent
        replay(rig.logs[0].records(), observer)
    assert [[link.context for link in span.links] for span in traced.spans] == [
        [request.get_span_context()], [request.get_span_context()], [],
    ]  # fmt: skip
    assert all(span.parent is None for span in traced.spans)
    assert not observer._links


def test_links_are_bounded(traced: Traced) -> None:
    """An engine that links requests which never come does not make it grow."""
    observer = SpanObserver(traced.provider, max_links=2)
    context = traced.provider.get_tracer("engine").start_span("request").get_span_context()
    for number in range(5):
        observer.link(f"r{number}", context)
    assert list(observer._links) == ["r3", "r4"]


@pytest.mark.parametrize("how", ["gap", "end"])
def test_what_cannot_be_followed_ends_as_incomplete(how: str, rig_of: RigOf, traced: Traced) -> None:
    """Where records are missing, or end, an open span is ended and says why."""
    rig = rig_of()
    rig.stores[0].hold("kv")
    rig.issue("r", 4)
    rig.until_held()
    records = list(rig.logs[0].records())
    lost = Record(len(records), records[-1].at_ns, EventsLost(3, len(records), "scripted"))
    observer = SpanObserver(traced.provider)
    observer.observe([*records, lost] if how == "gap" else records)
    assert bool(traced.spans) == (how == "gap")
    observer.close()
    (span,) = traced.spans
    assert span.attributes is not None
    assert span.attributes["prefetch.incomplete"]


def test_nothing_is_kept_of_closed_prefetches(rig_of: RigOf, traced: Traced) -> None:
    """After the close of every prefetch no span is held."""
    rig = rig_of("dsa", ranks=2)
    for number in range(5):
        rig.run(f"r{number}", 4)
    observer = SpanObserver(traced.provider)
    observer.observe(list(rig.logs[0].records()))
    assert not observer._spans
    assert len(traced.spans) == 5
