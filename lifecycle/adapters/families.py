"""The metric families and their names, once per registry. Label sets are bounded; no request id is ever a label.

Names follow SGLang's where it has one (`prefetched_tokens_total`, `storage_prefetch_hit_tokens_total`, ...); with
`prefix="sglang:"` they are its names. Needs the extra `metrics`.
"""

import threading
from collections.abc import Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

from lifecycle.errors import ConfigError

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics import MetricWrapperBase
except ImportError as error:
    raise ImportError(
        "cannot export metrics: prometheus-client is not installed (pip install 'prefetch-lifecycle[metrics]')"
    ) from error

__all__ = ["REGISTRY", "CollectorRegistry", "Families", "families_of"]

Family = TypeVar("Family", bound=MetricWrapperBase)

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ROUND_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0, 10.0)
PAGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
GB_PER_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
OWN_LABELS = frozenset({"reason", "outcome", "state", "pool", "result", "use", "law", "rank", "le"})


class Families:
    """Every family of one prefix and one set of common labels in one registry. Registers all of them, or none."""

    def __init__(self, registry: CollectorRegistry, prefix: str, common: tuple[str, ...]) -> None:
        self._registry, self._prefix, self._common = registry, prefix, common
        self._made: list[MetricWrapperBase] = []
        try:
            self._make()
        except ValueError as error:
            for family in self._made:
                registry.unregister(family)
            raise ConfigError(f"cannot register metrics under the prefix {prefix!r}: {error} (use another prefix)") from error

    def _make(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        # Tokens: hit = prefetched + the sum of unfulfilled.
        self.hit = counter("storage_prefetch_hit_tokens_total", "Tokens that storage held for prefetches that have ended.")
        self.used = counter("prefetched_tokens_total", "Of the hit tokens, those that the prefix index took.")
        self.unfulfilled = counter(
            "storage_prefetch_unfulfilled_tokens_total", "Of the hit tokens, those that were not used, by reason.", "reason"
        )
        # Prefetches.
        self.outcomes = counter("prefetch_outcomes_total", "Prefetches by outcome and reason.", "outcome", "reason")
        self.retries = counter("prefetch_retries_total", "Requests tried again, by the reason they waited for.", "reason")
        self.in_flight = gauge("prefetches_in_flight", "Prefetches that are not closed, by state.", "state")
        self.waiting = gauge("prefetch_waiting_requests", "Requests that wait to be tried again, by reason.", "reason")
        self.occupied = gauge("prefetch_occupied_tokens", "Tokens reserved by prefetches in flight.")
        self.limit = gauge("prefetch_limit_tokens", "The most tokens that prefetches in flight may reserve.")
        self.queue_wait = histogram("prefetch_queue_wait_seconds", "From the issue to the first claimed read.", SECONDS)
        self.read = histogram("prefetch_read_seconds", "From the first claimed read to the end of reading.", SECONDS)
        self.sync = histogram("prefetch_sync_seconds", "From the end of reading until all ranks had one result.", SECONDS)
        self.pages = histogram("prefetch_pgs", "Pages of the plans that were made.", PAGES)
        self.bandwidth = histogram("prefetch_bandwidth", "GB/s at which a prefetch read, all pools together.", GB_PER_S)
        # Reads and host memory, by pool.
        self.read_pages = counter("prefetch_read_pages_total", "Pages read, by pool and result.", "pool", "result")
        self.read_bytes = counter("prefetch_read_bytes_total", "Bytes in place and verified, by pool.", "pool")
        self.lost_reads = counter("prefetch_lost_reads_total", "Claimed reads that were never answered, by pool.", "pool")
        self.host = gauge("prefetch_host_pages", "Pages of host memory by pool and use.", "pool", "use")
        self.capacity = gauge("prefetch_host_capacity_pages", "Pages of host memory by pool.", "pool")
        self.quarantined = gauge("prefetch_quarantined_pages", "Pages that all ranks took off a pool's budget.", "pool")
        self.scrubbed = counter("prefetch_scrubbed_pages_total", "Resident pages that scrubs hashed again.")
        self.overwritten = counter("prefetch_overwritten_pages_total", "Resident pages that a scrub found changed.", "pool")
        # Rounds.
        self.rounds = counter("prefetch_rounds_total", "Rounds with at least one prefetch in them.")
        self.round = histogram("prefetch_round_seconds", "From the launch of a round to its result.", ROUND_SECONDS)
        # What should not happen.
        self.stuck = gauge("prefetch_stuck_obligations", "Obligations that a port has failed too often to discharge.")
        self.stuck_total = counter("prefetch_stuck_reports_total", "Obligations reported as stuck.")
        self.lost_events = counter("prefetch_lost_events_total", "Events that the log or the observers did not get.")
        self.violations = counter("prefetch_violations_total", "Violations that the audit found, by law.", "law")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._keep(Counter(self._prefix + name, text, (*self._common, *labels), registry=self._registry))

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        names = (*self._common, *labels)
        return self._keep(Gauge(self._prefix + name, text, names, registry=self._registry, multiprocess_mode="mostrecent"))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return self._keep(Histogram(self._prefix + name, text, self._common, buckets=buckets, registry=self._registry))

    def _keep(self, family: Family) -> Family:
        self._made.append(family)
        return family

    def __iter__(self) -> Iterator[MetricWrapperBase]:
        return iter(self._made)


_lock = threading.Lock()
_families: WeakKeyDictionary[CollectorRegistry, dict[tuple[str, tuple[str, ...]], Families]] = WeakKeyDictionary()


def families_of(registry: CollectorRegistry, prefix: str, common: tuple[str, ...]) -> Families:
    """Return the families of a registry, made at the first call: several ranks in one process share them.

    Raises `ConfigError` when a name is taken, or a label is one of the families' own.
    """
    taken = sorted((OWN_LABELS - {"rank"}) & set(common))
    if taken:
        raise ConfigError(f"cannot label metrics with {', '.join(taken)}: the families have labels of that name (rename yours)")
    with _lock:
        known = _families.setdefault(registry, {})
        key = prefix, common
        if key not in known:
            known[key] = Families(registry, prefix, common)
        return known[key]
