"""The speed of the archive, in rows per second: writing, reading back and deletion separately.

    uv run --group test --extra spark python -m tests.benchmarks.archive [--millions 1 3 10] [--lake DIR]

PostgreSQL is the server of the wheel in its default configuration (fsync on), Spark is `local[2]`, and its start is not
counted. The messages ended over thirty days. Before the measurement a small batch is archived, so that Java is warm.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise

from tests.benchmarks.database import migrated

FILL = """
INSERT INTO delayedq_finishedmessage (
    id, finished_at, started_at, scheduled_at, scheduled_at_initially, created_at, priority, attempts, max_attempts,
    outcome, queue, kind, key, worker, payload, result
)
SELECT id, ended, ended - interval '1 second', ended - interval '2 seconds', ended - interval '2 seconds',
    ended - interval '1 day', 0, 1 + (id %% 20 = 0)::int, 8, CASE WHEN id %% 500 = 0 THEN 'failed' ELSE 'succeeded' END,
    'queue-' || id %% 3, 'flights.tasks.remind', 'UA' || id || '/2013-01-01', 'host-1-' || id %% 4,
    '{"args":[' || id || '],"kwargs":{"origin":"EWR","note":"' || md5(id::text) || '"}}', '"delivered"'
FROM (
    SELECT id, timestamptz '2013-03-01' + interval '30 days' * id / %(rows)s AS ended
    FROM generate_series(1, %(rows)s) AS id
) AS history
"""
STEPS = ("write", "verify", "delete")
CUTOFF = datetime(2014, 1, 1, tzinfo=UTC)


class Watch:
    """Measures the time of each state; passed as `tell` to an Archiving."""

    def __init__(self):
        self.times = {}

    def __call__(self, batch):
        self.times[batch.state] = time.perf_counter()


def archive(spark, address, path):
    """Seconds in total and per step."""
    from delayedq.pipeline.commands.archive import Archiving
    from delayedq.store import default_store

    watch, began = Watch(), time.perf_counter()
    [done] = Archiving(spark, default_store(), address, path, watch).run(CUTOFF, batch_rows=10**9)
    ended = time.perf_counter()
    times = [*watch.times.values(), ended]
    assert done.row_count == done.deleted
    return ended - began, [later - earlier for earlier, later in pairwise(times)]


def fill(rows):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayedq_finishedmessage")
        cursor.execute(FILL, {"rows": rows})
        cursor.execute("VACUUM ANALYZE delayedq_finishedmessage")
        cursor.execute("CHECKPOINT")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1])
    parser.add_argument("--lake", help="where the lakes go (a temporary directory)")
    options = parser.parse_args()
    with migrated(), tempfile.TemporaryDirectory(dir=options.lake) as directory:
        measure(options.millions, directory)


def measure(millions, directory):
    from delayedq.pipeline.address import address_of
    from delayedq.pipeline.spark.session import spark_session

    with address_of("default") as address, spark_session("local[2]", conf={"spark.driver.memory": "4g"}) as spark:
        fill(2_000)
        archive(spark, address, f"{directory}/warm")
        for million in millions:
            rows = round(million * 1_000_000)
            fill(rows)
            seconds, steps = archive(spark, address, f"{directory}/{rows}")
            parts = ", ".join(f"{name} {took:.1f} s" for name, took in zip(STEPS, steps, strict=True))
            print(f"{rows:>11,} rows: {seconds:6.1f} s, {rows / seconds:>8,.0f} rows/s ({parts})")  # noqa: T201


if __name__ == "__main__":
    main()
