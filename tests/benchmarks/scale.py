"""Archive, report and restore of N million ended messages: time, processor time, memory and files of each step.

    uv run --group test --extra spark python -m tests.benchmarks.scale [--millions 2 10 50] [--directory DIR]

The messages are made by SQL, for each size in a table that was emptied, with a lake of their own. Each step is
`run_pipeline` in a process of its own, with the defaults of Spark (`local[*]`, 1 GB of heap). The tables are Markdown.

Processor time is in seconds. Memory is the largest sum of one moment, in MB, with what processes share counted once;
that of the server is without its shared buffers. What a process did after its last sample is missing. `load` is the
mean number of processes that wanted to run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

from tests.benchmarks.database import migrated
from tests.benchmarks.volume import children

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {
    "shared_buffers": "1GB",
    "effective_cache_size": "4GB",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
}
SINCE, DAYS = datetime(2013, 3, 1, tzinfo=UTC), 30
#: One in fifty has failed at least once, with one of 40 exceptions; 80 tasks in 5 queues.
FILL = """
INSERT INTO delayedq_finishedmessage (
    id, finished_at, started_at, scheduled_at, scheduled_at_initially, created_at, priority, attempts, max_attempts,
    outcome, queue, kind, worker, payload, errors
)
SELECT id, ended, ended - interval '1 second' * (1 + id %% 7) / 4, due, due, due, 0, 1 + (id %% 50 = 0)::int, 8,
    CASE WHEN id %% 500 = 0 THEN 'failed' ELSE 'succeeded' END, 'queue-' || id %% 5, 'shop.tasks.task_' || id %% 80,
    'host-1-' || id %% 4, '{"args":[],"kwargs":{"order":' || id + 100000000 || ',"country":"DE","n":1}}',
    CASE WHEN id %% 50 = 0 THEN '[{"attempt":1,"failed_at":"' || to_char(ended - interval '3 seconds',
        'YYYY-MM-DD"T"HH24:MI:SS.US+00:00') || '","seconds":0.5,"worker":"host-1-1","exception":"shop.errors.Error'
        || id %% 2000 / 50 || '","message":"it did not work","traceback":""}]' END
FROM (
    SELECT id, ended, ended - interval '1 second' * (3 + id %% 11) AS due FROM (
        SELECT id, %(since)s + interval '30 days' * id / %(rows)s AS ended
        FROM generate_series(%(first)s::bigint, %(last)s) AS id
    ) AS drawn
) AS history
"""
#: Rows that one statement inserts.
PIECE = 1_000_000
#: Bytes that a message needs on the disk, with its indexes, its copy in the lake and what waits for vacuum.
BYTES = 450
#: Seconds between two samples.
PAUSE = 0.5
GROUPS = ("JVM", "driver", "workers", "server")
RESTORED = (100_000, 900_000)


class Process(NamedTuple):
    """A line of /proc. Times are in seconds; `reaped` is of children that have ended."""

    name: str
    parent: int
    began: str
    time: float
    reaped: float

    @classmethod
    def of(cls, pid: int) -> Process:
        """Raises OSError if it has ended."""
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        fields, tick = rest.split(), os.sysconf("SC_CLK_TCK")
        user, system, reaped_user, reaped_system = (int(field) / tick for field in fields[11:15])
        return cls(name, int(fields[1]), fields[19], user + system, reaped_user + reaped_system)


class Meter(Thread):
    """Samples a step and the server until `stop`."""

    def __init__(self, step: int, server: int, scratch: Path) -> None:
        super().__init__()
        self._step, self._server, self._scratch, self._over = step, server, scratch, Event()
        self._times: dict[tuple[int, str], tuple[str, float]] = {}
        self._server_before = server_time(server)
        self.peaks: dict[str, float] = dict.fromkeys((*GROUPS, "scratch"), 0.0)
        self.loads: list[float] = []

    def run(self) -> None:
        while not self._over.wait(PAUSE):
            self._sample()

    def stop(self) -> dict[str, float]:
        """Seconds of processor time by group."""
        self._over.set()
        self.join()
        spent: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
        for group, seconds in self._times.values():
            spent[group] += seconds
        return spent | {"server": server_time(self._server) - self._server_before}

    def _sample(self) -> None:
        sizes: dict[str, float] = defaultdict(float)
        for pid in below(self._step):
            with suppress(OSError):
                process = Process.of(pid)
                group = "driver" if pid == self._step else "JVM" if process.name == "java" else "workers"
                self._times[pid, process.began] = (group, process.time)
                sizes[group] += megabytes(pid, "Pss")
        for pid in below(self._server):
            with suppress(OSError):
                sizes["server"] += megabytes(pid, "Pss_Anon")
        sizes["scratch"] = size_of(self._scratch)
        self.peaks = {name: max(peak, sizes[name]) for name, peak in self.peaks.items()}
        self.loads.append(os.getloadavg()[0])


def below(pid: int) -> Iterator[int]:
    """It and all its descendants."""
    yield pid
    with suppress(OSError):
        for child in children(pid):
            yield from below(child)


def megabytes(pid: int, what: str) -> float:
    found = re.search(rf"^{what}: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1000 if found else 0.0


def size_of(directory: Path) -> float:
    """Megabytes of its files."""
    size = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return size / 1e6


def server_time(server: int) -> float:
    """Seconds of processor time of the server and its processes, also of those that have ended."""
    total = Process.of(server).time + Process.of(server).reaped
    for pid in children(server):
        with suppress(OSError):
            total += Process.of(pid).time
    return total


def fill(rows: int) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayedq_finishedmessage, delayedq_pipeline_archivebatch")
        for first in range(1, rows + 1, PIECE):
            span = {"first": first, "last": min(first + PIECE - 1, rows)}
            cursor.execute(FILL, {"rows": rows, "since": SINCE, **span})
        cursor.execute("VACUUM ANALYZE delayedq_finishedmessage")
        cursor.execute("CHECKPOINT")


def measured(name: str, rows: int, server: int, directory: Path, *arguments: str) -> str:
    """Run a step; a line of the table. rows: that it moves or reads."""
    scratch = directory / "spark"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "django", "run_pipeline", *arguments, "--lake", str(directory / "lake")]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "SPARK_LOCAL_DIRS": str(scratch)}, stdout=sys.stderr)
    meter = Meter(process.pid, server, scratch)
    meter.start()
    code = process.wait()
    elapsed, spent = time.perf_counter() - began, meter.stop()
    if code:
        raise SystemExit(f"{name} of {rows:,} has failed.")
    load = sum(meter.loads) / len(meter.loads)
    times = [f"{spent[group]:,.0f}" for group in GROUPS] + [f"{1e6 * sum(spent.values()) / rows:,.1f}"]
    sizes = [f"{meter.peaks[group]:,.0f}" for group in (*GROUPS, "scratch")]
    return f"| {name} | {rows:,} | {elapsed:,.0f} | {load:.1f} | {' | '.join(times)} | {' | '.join(sizes)} |"


COLUMNS = ("messages", "s", "load", *(f"{group} s" for group in GROUPS), "µs a message",
           *(f"{group} MB" for group in (*GROUPS, "scratch")))  # fmt: skip
HEAD = f"| step | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}"


def measure(rows: int, directory: Path) -> None:
    from django.db import connection

    need = BYTES * rows + 5e9
    if shutil.disk_usage(directory).free < need:
        raise SystemExit(f"{rows:,} messages need {need / 1e9:.0f} GB of disk at {directory}.")
    began = time.perf_counter()
    fill(rows)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), pg_total_relation_size('delayedq_finishedmessage') / 1000000")
        backend, table = cursor.fetchone()
    tell(f"{rows:,} messages: made in {time.perf_counter() - began:,.0f} s, {table:,} MB with indexes")
    connection.close()
    server = Process.of(backend).parent
    tell(f"\n{HEAD}")
    tell(measured("archive", rows, server, directory, "archive", "--older-than", "0s"))
    tell(measured("report", rows, server, directory, "report", "--output", str(directory / "report")))
    since = SINCE
    for count in RESTORED:
        until = since + timedelta(days=DAYS) * count / rows
        window = ("--since", since.isoformat(), "--until", until.isoformat())
        tell(measured("restore", count, server, directory, "restore", *window))
        since = until
    files = sum(1 for _ in (directory / "lake").rglob("*.parquet"))
    tell(f"\nLake: {files:,} Parquet files, {size_of(directory / 'lake'):,.0f} MB\n")


def tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[2], help="1 or more.")
    parser.add_argument("--directory", help="Where lakes and Spark's files go (a temporary directory).")
    options = parser.parse_args()
    with migrated(SETTINGS):
        for millions in options.millions:
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                measure(round(millions * 1_000_000), Path(directory))


if __name__ == "__main__":
    main()
