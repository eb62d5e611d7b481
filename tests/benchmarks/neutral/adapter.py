"""One replica: `run_workers` with its producer, which speaks the harness's protocol (its CONTRIBUTING_ADAPTERS.md).

What to enqueue comes by stdin (`ENQUEUE <n>`), samples go to stdout, logs to stderr. SIGTERM ends both within 5 s. The
workers do not outlive this process, as they would not outlive its container.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import django
from django.core.management import call_command
from django.db import DatabaseError, connection

MANIFEST = json.loads(Path(__file__).with_name("adapter.json").read_text())
WORKERS = os.environ.get("WORKER_COUNT", "32")
PADDING = "x" * int(os.environ.get("JOB_PAYLOAD_BYTES", "256"))
SAMPLE_EVERY = int(os.environ.get("SAMPLE_EVERY_S", "5"))
REPLICA = int(os.environ.get("BENCH_INSTANCE_ID", "0"))
#: Seconds whose latencies the percentiles are of.
WINDOW = 30
#: Runs a command, tells its process id, and kills it when this process has ended.
UNTIL_END_OF_INPUT = 'exec 3<&0; "$@" >&2 <&- & p=$!; echo $p; (read -r _ <&3; kill -KILL 0) & wait $p'
DEPTH = "SELECT count(*) FROM delayedq_message WHERE leased_until IS NULL AND scheduled_at <= now()"


class Figures:
    """What was enqueued and has ended, and the latencies of the last seconds, to three significant digits."""

    def __init__(self) -> None:
        self.enqueued = self.completed = 0
        self._lock = threading.Lock()
        self._seconds: deque[tuple[int, Counter[float]]] = deque(maxlen=WINDOW)

    def add(self, waits: list[float]) -> None:
        now = int(time.monotonic())
        with self._lock:
            self.completed += len(waits)
            if not self._seconds or self._seconds[-1][0] != now:
                self._seconds.append((now, Counter()))
            self._seconds[-1][1].update(float(f"{1000 * wait:.3g}") for wait in waits)

    def percentiles(self, *shares: float) -> list[float]:
        """In milliseconds; 0 if nothing began."""
        oldest = time.monotonic() - WINDOW
        with self._lock:
            counts = sum((counter for second, counter in self._seconds if second >= oldest), Counter[float]())
        return [_percentile(sorted(counts.items()), share * counts.total()) for share in shares]


def _percentile(counts: list[tuple[float, int]], rank: float) -> float:
    seen = 0
    for value, count in counts:
        seen += count
        if seen >= rank:
            return value
    return 0.0


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.neutral.settings"
    django.setup()
    call_command("migrate", verbosity=0)
    _emit(
        kind="descriptor",
        event_tables=MANIFEST["event_tables"],
        extensions=[],
        version=version("delayedq"),
        schema_version="delayedq.0001",
        db_name=MANIFEST["db_name"],
        started_at=_now(),
    )
    figures = Figures()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder, "reports")
        os.mkfifo(reports)
        source = os.open(reports, os.O_RDWR)  # also for writing, so that it has no end before workers begin
        workers, leader = _start_workers(reports)
        for target, argument in ((_read, source), (_produce, None), (_sample, None)):
            threading.Thread(target=target, args=(figures, argument), daemon=True).start()
        while workers.poll() is None and not stopped.wait(0.2):
            pass
        if workers.poll() is None:
            os.kill(leader, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # then they are killed, as this process ends
            workers.wait(4)
    sys.stdout.flush()
    os._exit(0 if stopped.is_set() else 1)  # a producer may wait for a server that does not answer


def _start_workers(reports: Path) -> tuple[subprocess.Popen[str], int]:
    command = (sys.executable, "-m", "django", "run_workers", "--threads", WORKERS)
    process = subprocess.Popen(
        ["sh", "-c", UNTIL_END_OF_INPUT, "sh", *command],
        env={**os.environ, "NEUTRAL_REPORTS": str(reports)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    return process, int(process.stdout.readline())


def _read(figures: Figures, source: int) -> None:
    from tests.benchmarks.neutral.tasks import REPORT

    while True:
        data = os.read(source, 512 * REPORT.size)  # each is written at once, so none is cut
        figures.add([wait for (wait,) in REPORT.iter_unpack(data)])


def _produce(figures: Figures, _: None) -> None:
    """One call for each token. What the database refuses is told and not offered again, as by other adapters."""
    from tests.benchmarks.neutral.tasks import job

    for token in sys.stdin:
        count = int(token.split()[1])
        offered_at = time.time()
        try:
            job.enqueue_bulk(((offered_at, PADDING), {}) for _ in range(count))
        except DatabaseError as error:
            sys.stderr.write(f"Not enqueued: {error}\n")
            connection.close()
        else:
            figures.enqueued += count


def _sample(figures: Figures, _: None) -> None:
    before, at = (0, 0), time.monotonic()
    while True:
        time.sleep(SAMPLE_EVERY - time.time() % SAMPLE_EVERY)
        now, passed = time.monotonic(), time.monotonic() - at
        counts = (figures.enqueued, figures.completed)
        p50, p95, p99 = figures.percentiles(0.5, 0.95, 0.99)
        moment = _now()
        for metric, value, window in (
            ("claim_p50_ms", p50, WINDOW),
            ("claim_p95_ms", p95, WINDOW),
            ("claim_p99_ms", p99, WINDOW),
            ("enqueue_rate", (counts[0] - before[0]) / passed, SAMPLE_EVERY),
            ("completion_rate", (counts[1] - before[1]) / passed, SAMPLE_EVERY),
            ("queue_depth", _depth(), 0),
        ):
            if value is not None:
                _emit(
                    t=moment,
                    kind="adapter",
                    subject_kind="adapter",
                    subject="",
                    metric=metric,
                    value=value,
                    window_s=window,
                )
        before, at = counts, now


def _depth() -> float | None:
    """Asked by one replica only, since it is the same for all; None if the database does not answer."""
    if REPLICA:
        return None
    try:
        with connection.cursor() as cursor:
            cursor.execute(DEPTH)
            return float(cursor.fetchone()[0])
    except DatabaseError:
        connection.close()
        return None


def _emit(**record: object) -> None:
    sys.stdout.write(json.dumps({"system": MANIFEST["system"], "instance_id": REPLICA, **record}) + "\n")
    sys.stdout.flush()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    main()
