"""One replica: workers of a system with a producer, which speaks the harness's protocol (its CONTRIBUTING_ADAPTERS.md).

`python -m tests.benchmarks.neutral.adapter NAME`; see `systems`.

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

from tests.benchmarks.neutral.systems import SYSTEMS, System
from tests.benchmarks.neutral.work import REPORT

MANIFESTS = Path(__file__).with_name("manifests")
SAMPLE_EVERY = int(os.environ.get("SAMPLE_EVERY_S", "5"))
REPLICA = int(os.environ.get("BENCH_INSTANCE_ID", "0"))
#: Seconds whose latencies the percentiles are of.
WINDOW = 30
#: Runs a command, tells its process id, and kills it when this process has ended.
UNTIL_END_OF_INPUT = 'exec 3<&0; "$@" >&2 </dev/null & p=$!; echo $p; (read -r _ <&3; kill -KILL 0) & wait $p'


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


class Adapter:
    def __init__(self, name: str) -> None:
        self._system: System = SYSTEMS[name]()
        self._manifest = json.loads((MANIFESTS / name / "adapter.json").read_text())
        self._figures = Figures()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until SIGTERM, or until the workers end."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopped.set())
        self._system.prepare()
        self._describe()
        with tempfile.TemporaryDirectory() as folder:
            reports = Path(folder, "reports")
            os.mkfifo(reports)
            source = os.open(reports, os.O_RDWR)  # also for writing, so that it has no end before workers begin
            workers, leader = self._start_workers(reports)
            for target, arguments in ((self._read, (source,)), (self._produce, ()), (self._sample, ())):
                threading.Thread(target=target, args=arguments, daemon=True).start()
            while workers.poll() is None and not self._stopped.wait(0.2):
                pass
            if workers.poll() is None:
                os.kill(leader, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):  # then they are killed, as this process ends
                workers.wait(4)
        sys.stdout.flush()
        os._exit(0 if self._stopped.is_set() else 1)  # a producer may wait for a server that does not answer

    def _describe(self) -> None:
        self._emit(
            kind="descriptor",
            event_tables=self._manifest["event_tables"],
            extensions=[],
            version=version(self._system.package),
            schema_version=version(self._system.package),
            db_name=self._manifest["db_name"],
            started_at=_now(),
        )

    def _start_workers(self, reports: Path) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            ["sh", "-c", UNTIL_END_OF_INPUT, "sh", *self._system.command()],
            env={**os.environ, "NEUTRAL_REPORTS": str(reports)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout
        return process, int(process.stdout.readline())

    def _read(self, source: int) -> None:
        while True:
            data = os.read(source, 512 * REPORT.size)  # each is written at once, so none is cut
            self._figures.add([wait for (wait,) in REPORT.iter_unpack(data)])

    def _produce(self) -> None:
        """One call for each token. What can't be enqueued is told and not offered again, as by other adapters."""
        for token in sys.stdin:
            count = int(token.split()[1])
            try:
                self._system.enqueue(count)
            except Exception as error:  # noqa: BLE001 - each system has its own for a database that is away
                sys.stderr.write(f"Not enqueued: {error!r}\n")
            else:
                self._figures.enqueued += count

    def _sample(self) -> None:
        figures, before, at = self._figures, (0, 0), time.monotonic()
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
                ("queue_depth", None if REPLICA else self._system.depth(), 0),  # the same for all replicas
            ):
                if value is not None:
                    self._emit(
                        t=moment,
                        kind="adapter",
                        subject_kind="adapter",
                        subject="",
                        metric=metric,
                        value=value,
                        window_s=window,
                    )
            before, at = counts, now

    def _emit(self, **record: object) -> None:
        sys.stdout.write(json.dumps({"system": self._manifest["system"], "instance_id": REPLICA, **record}) + "\n")
        sys.stdout.flush()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    Adapter(sys.argv[1]).run()
