"""Metrics for Prometheus: what waits in the databases, and in workers what they have done. Extra `prometheus`.

    path("metrics", delayedq.metrics.view)

Anyone who can open that address sees the names of queues and tasks. To add them to what the project exports anyway:
`prometheus_client.REGISTRY.register(delayedq.metrics.Collector())`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from django.db import Error, connections
from django.http import HttpResponse

from delayedq.conf import ExtraMissing, note_missing
from delayedq.extras import told
from delayedq.operations.backlogs import Backlog, backlog
from delayedq.operations.queues import all_databases
from delayedq.store import store_for
from delayedq.worker.silence import answered
from delayedq.worker.tally import BOUNDS, Counts, Tallies

try:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
except ImportError as error:  # the URLs import this module: a system check tells it (E009), without a traceback
    _missing = f"Metrics need prometheus-client. {told(error, 'prometheus')}"
    note_missing(_missing)
else:
    _missing = ""

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.http import HttpRequest

#: A process reads each database at most once in this many seconds, however often it is asked.
CACHED = 10.0

#: Seconds that a database may take to answer; Prometheus waits for 10 s.
ANSWERED = 8.0

_QUEUE, _TASK = ("database", "queue"), ("database", "queue", "task")
#: Of the database: name, what it says, labels.
STATES = (
    ("due", "Messages that wait to be claimed.", _TASK),
    ("scheduled", "Messages that are not due yet.", _TASK),
    ("running", "Messages whose lease holds.", _TASK),
    ("dead_letters", "Messages that failed for good, in the history.", _TASK),
    ("limited_due", "Messages that are due and have a channel or a limit, for which they may wait.", _QUEUE),
    ("channels", "Channels that have messages, by state: in turn, resting, blocked.", ("database", "queue", "state")),
    ("oldest_due_seconds", "For how long the first message of a queue has been due that waits for no limit.", _QUEUE),
    ("task_oldest_due_seconds", "The same by task, with at most 1,000 live messages.", _TASK),
    ("oldest_limited_seconds", "For how long the first message has been due that waits for a limit.", _QUEUE),
    ("workers", "Worker processes whose heartbeat is fresh.", ("database",)),
    ("threads_needed", "Threads with which messages start within DELAYEDQ['TARGET_LATENCY'].", ("database",)),
    ("cron_late_seconds", "For how long a schedule has been due that no worker has visited.", ("database",)),
    ("history_oldest_seconds", "Age of the oldest row of the history: archives and prunes lag by it.", ("database",)),
    ("archive_open_seconds", "For how long a batch of the archive has been open.", ("database",)),
    ("up", "1 if the database answered.", ("database",)),
)
#: Of the worker processes of one supervisor: what they count.
COUNTERS = (
    ("started", "attempts_started", "Attempts that were started.", _TASK),
    ("ended", "messages_ended", "Messages that ended, by outcome.", (*_TASK, "outcome")),
    ("retries", "retries", "Attempts after which the message waits for another one.", _TASK),
    ("lease_losses", "lease_losses", "Attempts whose result was refused, as their lease was lost.", _TASK),
    ("claims", "claims", "Claims.", ("database",)),
    ("empty_claims", "empty_claims", "Claims that found nothing.", ("database",)),
    ("claimed_messages", "claimed_messages", "Messages that were claimed.", ("database",)),
    ("connections_given_up", "connections_given_up", "Connections on which nothing was answered.", ("database",)),
)
HISTOGRAMS = (
    ("latency_seconds", "From when a message was due until it was first claimed; without those in channels.", _QUEUE),
    ("limited_latency_seconds", "The same of messages with a channel or a limit, for which they may wait.", _QUEUE),
    ("run_seconds", "How long attempts ran.", _TASK),
    ("round_trip_seconds", "How long round trips to the database took.", ("database",)),
)
GAUGES = (
    ("threads", "worker_threads", "Threads that run tasks."),
    ("threads_lost", "worker_threads_lost", "Threads that are lost to tasks that can't be interrupted."),
    ("running", "worker_running", "Attempts that have a thread or run in the event loop."),
    ("held", "worker_held", "Messages that are claimed and not settled; without the running ones: prefetched."),
)


def require_library() -> None:
    """Raises ExtraMissing without prometheus-client."""
    if _missing:
        raise ExtraMissing(_missing)


class Collector:
    """Of all databases of the project; with `tallies`, of these worker processes too."""

    def __init__(self, tallies: Tallies | None = None) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        """Raises ExtraMissing without prometheus-client."""
        require_library()
        yield from _of_databases({store.alias: _cache.read(store.alias) for store in all_databases()})
        if self._tallies is not None:
            yield from of_workers(self._tallies.total())


def exposed(accept: str = "", tallies: Tallies | None = None) -> tuple[bytes, str]:
    """The text of the metrics, and its content type, which `accept` (an HTTP header) may choose.

    Raises ExtraMissing without prometheus-client.
    """
    require_library()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(tallies))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def view(request: HttpRequest) -> HttpResponse:
    """What waits in the databases. What workers do is told by `run_workers --metrics-port`."""
    text, content_type = exposed(request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)


def of_workers(counts: Counts) -> Iterator[Metric]:
    for name, exported, said, of in COUNTERS:
        family = CounterMetricFamily(f"delayedq_{exported}", said, labels=of)
        for key, value in counts.counters.items():
            if key[0] == name:
                family.add_metric(key[1:], value)
        yield family
    for name, said, labels in HISTOGRAMS:
        histogram = HistogramMetricFamily(f"delayedq_{name}", said, labels=labels)
        for key, buckets in counts.histograms.items():
            if key[0] == name:
                histogram.add_metric(key[1:], _cumulated(buckets), buckets[-1])
        yield histogram
    for name, exported, said in GAUGES:
        gauge = GaugeMetricFamily(f"delayedq_{exported}", said, labels=("database",))
        for key, value in counts.gauges.items():
            if key[0] == name:
                gauge.add_metric(key[1:], value)
        yield gauge


def _cumulated(buckets: Sequence[float]) -> list[tuple[str, float]]:
    bounds, total, found = (*map(str, BOUNDS), "+Inf"), 0.0, []
    for bound, count in zip(bounds, buckets, strict=False):
        total += count
        found.append((bound, total))
    return found


def _of_databases(found: dict[str, Backlog | None]) -> Iterator[Metric]:
    families = {name: GaugeMetricFamily(f"delayedq_{name}", said, labels=labels) for name, said, labels in STATES}
    offered = CounterMetricFamily("delayedq_offers", "The highest id: about how many came.", labels=("database",))
    for alias, backlog_ in found.items():
        families["up"].add_metric((alias,), backlog_ is not None)
        if backlog_ is not None:
            offered.add_metric((alias,), backlog_.offered)
            for name, labels, value in _values(backlog_):
                families[name].add_metric((alias, *labels), value)
    yield from families.values()
    yield offered


def _values(found: Backlog) -> Iterator[tuple[str, Iterable[str], float]]:
    counts = {"due": found.due, "scheduled": found.scheduled, "running": found.running, "dead_letters": found.dead}
    for name, counted in counts.items():
        yield from ((name, names, number) for names, number in counted.items())
    yield from (("oldest_due_seconds", (queue,), seconds) for queue, seconds in found.oldest.items())
    yield from (("task_oldest_due_seconds", names, seconds) for names, seconds in found.oldest_of_task.items())
    yield from (("oldest_limited_seconds", (queue,), seconds) for queue, seconds in found.oldest_limited.items())
    yield from (("limited_due", (queue,), number) for queue, number in found.limited.items())
    yield from (("channels", names, number) for names, number in found.channels.items())
    yield "workers", (), found.workers
    yield "threads_needed", (), found.threads_needed
    yield "cron_late_seconds", (), found.cron_late
    yield "history_oldest_seconds", (), found.history
    yield "archive_open_seconds", (), found.archive


class _Cache:
    """What was read of each database lately; None: it did not answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, tuple[float, Backlog | None]] = {}
        self._offered: Counter[str] = Counter()

    def read(self, alias: str) -> Backlog | None:
        with self._lock:  # who asks meanwhile gets the same answer
            at, found = self._found.get(alias, (float("-inf"), None))
            if time.monotonic() - at > CACHED:
                found = _read(alias)
                self._found[alias] = time.monotonic(), found
                if found is not None:  # a counter does not go back when the rows with the highest ids are deleted
                    found.offered = self._offered[alias] = max(found.offered, self._offered[alias])
            return found

    def expire(self) -> None:
        """Read anew when asked next."""
        self._found.clear()

    def clear(self) -> None:
        """Know nothing."""
        self.expire()
        self._offered.clear()


def _read(alias: str) -> Backlog | None:
    try:
        with answered("the metrics", alias, ANSWERED):
            return backlog(store_for(alias))
    except Error:
        return None
    finally:
        connections[alias].close_if_unusable_or_obsolete()  # who serves metrics may use a thread for each request


_cache = _Cache()
