"""How fast a load is, against what PostgreSQL itself needs for the same rows.

    uv run --group test --extra spark python -m tests.benchmarks.load [--messages 1000000] [--rounds 3]

The bare way is one COPY of ready text into an unlogged table, and one INSERT ... SELECT from it into the messages with
their three indexes. The load reads the same rows from Parquet, and does all that a load does. Both run in turn on the
same server (that of the wheel, default configuration, fsync on), into an emptied table. Spark's start is not counted.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import django
import psycopg

from tests.server import USER, postgresql_socket

EMPTY = "TRUNCATE delayedq_message, delayedq_loadstaging, delayedq_load; CHECKPOINT"
COPY = """
COPY delayedq_loadstaging (
    queue, kind, key, priority, max_attempts, payload, load_id, partition_id, attempt, scheduled_at
) FROM STDIN
"""
INSERT = """
INSERT INTO delayedq_message (queue, kind, key, priority, max_attempts, payload, metadata, scheduled_at,
    scheduled_at_initially, created_at, attempt, generation)
SELECT queue, kind, key, priority, max_attempts, payload, metadata, scheduled_at, scheduled_at, now(), 0, 0
FROM delayedq_loadstaging
"""


def rows(spark, count):
    """Reminders over a year, in the order of a file that knows nothing of due times."""
    return spark.range(0, count, numPartitions=2).selectExpr(
        "'default' AS queue",
        "'example.flights.tasks.remind' AS kind",
        "'UA' || (id * 7919 % 10000019) || '/2013-01-01' AS key",
        "CAST(0 AS SHORT) AS priority",
        "CAST(3 AS SHORT) AS max_attempts",
        '\'{"args":[],"kwargs":{"flight":"UA\' || id || \'","origin":"EWR","dest":"IAH","gate":null}}\' AS payload',
        "timestamp_seconds(1800000000 + id * 7919 % 31536000) AS scheduled_at",
    )


def as_text(path):
    """What COPY reads, made ready beforehand."""
    import pyarrow.parquet as pq

    text = io.StringIO()
    for row in pq.read_table(path).to_pylist():
        values = [row["queue"], row["kind"], row["key"], 0, 3, row["payload"], "bare", 0, 0, row["scheduled_at"]]
        text.write("\t".join(map(str, values)) + "\n")
    return text.getvalue().encode()


def bare(connection, text):
    began = time.perf_counter()
    with connection.cursor() as cursor, connection.transaction():
        with cursor.copy(COPY) as copy:
            for start in range(0, len(text), 2**18):
                copy.write(text[start : start + 2**18])
        cursor.execute(INSERT)
    return time.perf_counter() - began


def load(spark, path, address, number):
    began = time.perf_counter()
    frame = spark.read.parquet(str(path))
    options = {"address": address.reference, "load_id": f"load-{number}"}
    frame.write.format("delayedq").mode("append").options(**options).save()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, postgresql_socket() as socket:
        os.environ["DATABASE_URL"] = f"postgres://{USER}@/postgres?host={quote(socket, safe='')}"
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.worker_settings"
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        compare(Path(directory), options.messages, options.rounds)
        from django.db import connection

        connection.close()


def compare(directory, messages, rounds):
    from delayedq.spark.connecting import Address
    from delayedq.spark.datasource import register
    from delayedq.spark.session import spark_session

    with spark_session("local[2]") as spark, psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        register(spark)
        rows(spark, messages).write.parquet(str(directory / "rows"))
        text, address, times = as_text(directory / "rows"), Address("env:DATABASE_URL"), []
        for number in range(rounds + 1):
            pair = []
            for run in (lambda: bare(connection, text), lambda n=number: load(spark, directory / "rows", address, n)):
                connection.execute(EMPTY)
                pair.append(run())
                (found,) = connection.execute("SELECT count(*) FROM delayedq_message").fetchone()
                assert found == messages, found
            if number:  # the first warms up
                times.append(pair)
                print("  ".join(f"{messages / seconds:>9,.0f}/s" for seconds in pair))  # noqa: T201
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    print(f"median: bare {messages / medians[0]:,.0f}/s, load {messages / medians[1]:,.0f}/s")  # noqa: T201
    print(f"the load runs at {medians[0] / medians[1]:.2f} of the bare speed")  # noqa: T201


if __name__ == "__main__":
    main()
