"""The metrics of one rank, served over HTTP while it runs. Needs prometheus-client (the extra `metrics`)."""

import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from lifecycle.adapters.metrics import PrometheusObserver
from lifecycle.adapters.observe import ObservedEventLog
from lifecycle.runtime.ports import EventLog

ADDRESS = "127.0.0.1"


class RankMetrics:
    """Serves what one rank counts at http://127.0.0.1:PORT/metrics until it is closed."""

    def __init__(self, port: int) -> None:
        self._registry = CollectorRegistry()
        self._app = make_wsgi_app(self._registry)
        self._scraped = threading.Event()
        self._log: ObservedEventLog | None = None
        self._server = make_server(ADDRESS, port, self._serve, _Server, _Quiet)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def observe(self, events: EventLog) -> EventLog:
        """Return an event log that counts what goes through it."""
        self._log = ObservedEventLog(events, PrometheusObserver(self._registry, verify=True))
        return self._log

    def hold(self, seconds: float) -> None:
        """Wait until everything is counted, and then up to `seconds` for one more scrape, which sees it all."""
        if self._log is not None:
            self._log.wait_observed(60.0)
        self._scraped.clear()
        self._scraped.wait(seconds)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        scraped = environ["PATH_INFO"] == "/metrics"
        return _Answer(self._app(environ, start_response), self._scraped if scraped else threading.Event())


class _Answer:
    """A response that says when it has been sent."""

    def __init__(self, body: Iterable[bytes], sent: threading.Event) -> None:
        self._body, self._sent = body, sent

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Called by the server after the last byte."""
        self._sent.set()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each scrape."""
