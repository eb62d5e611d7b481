"""The speed of a pipeline load, compared with what PostgreSQL itself needs for the same rows.

    uv run --group test --extra spark python -m tests.benchmarks.load [--millions 1 3 10] [--rounds 3]

The floor is one COPY of prepared text into an unlogged table, and one INSERT ... SELECT from it into the messages with
their three indexes. The load reads the same rows from Parquet and does everything a load does. Both run in turn on the
same server (that of the wheel, default configuration, fsync on), into an emptied table. Spark's start is not counted,
and a small load runs first to warm up Java.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import psycopg

from tests.benchmarks.database import migrated

EMPTY = "TRUNCATE delayedq_message, delayedq_pipeline_loadstaging, delayedq_pipeline_load"
COPY = """
COPY delayedq_pipeline_loadstaging (
    queue, kind, key, priority, max_attempts, payload, load_id, partition_id, attempt, scheduled_at
) FROM STDIN
"""
INSERT = """
INSERT INTO delayedq_message (queue, kind, key, priority, max_attempts, payload, metadata, scheduled_at,
    scheduled_at_initially, created_at, attempt, generation)
SELECT queue, kind, key, priority, max_attempts, payload, metadata, scheduled_at, scheduled_at, now(), 0, 0
FROM delayedq_pipeline_loadstaging
"""


def rows(spark, count):
    """Reminders over a year, not ordered by due time."""
    return spark.range(0, count, numPartitions=2).selectExpr(
        "'default' AS queue",
        "'example.flights.tasks.remind' AS kind",
        "'UA' || (id * 7919 % 10000019) || '/2013-01-01' AS key",
        "CAST(0 AS SHORT) AS priority",
        "CAST(3 AS SHORT) AS max_attempts",
        '\'{"args":[],"kwargs":{"flight":"UA\' || id || \'","origin":"EWR","dest":"IAH","gate":null}}\' AS payload',
        "timestamp_seconds(1800000000 + id * 7919 % 31536000) AS scheduled_at",
    )


def write_text(rows, path):
    """The input of COPY, prepared before the measurement."""
    from pyarrow.dataset import dataset

    with path.open("w") as text:
        for batch in dataset(str(rows), format="parquet").to_batches():
            for row in batch.to_pylist():
                values = [
                    row["queue"],
                    row["kind"],
                    row["key"],
                    0,
                    3,
                    row["payload"],
                    "bare",
                    0,
                    0,
                    row["scheduled_at"],
                ]
                text.write("\t".join(map(str, values)) + "\n")


def bare(connection, path):
    with connection.transaction(), connection.cursor() as cursor, path.open("rb") as text:
        with cursor.copy(COPY) as copy:
            while part := text.read(2**18):
                copy.write(part)
        cursor.execute(INSERT)


def load(spark, path, number):
    frame = spark.read.parquet(str(path))
    options = {"address": "env:DATABASE_URL", "load_id": f"load-{number}"}
    frame.write.format("delayedq").mode("append").options(**options).save()


def seconds(connection, messages, run):
    """Seconds that the run takes to load the messages into the emptied table."""
    connection.execute(EMPTY)
    connection.execute("CHECKPOINT")
    began = time.perf_counter()
    run()
    took = time.perf_counter() - began
    [(found,)] = connection.execute("SELECT count(*) FROM delayedq_message").fetchall()
    assert found == messages, found
    return took


def compare(spark, connection, directory, messages, rounds):
    """Median seconds of the floor and of the load."""
    path, text = directory / str(messages), directory / f"{messages}.txt"
    rows(spark, messages).write.parquet(str(path))
    write_text(path, text)
    pairs = [
        (
            seconds(connection, messages, lambda: bare(connection, text)),
            seconds(connection, messages, lambda n=number: load(spark, path, n)),
        )
        for number in range(rounds)
    ]
    return [statistics.median(column) for column in zip(*pairs, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, migrated() as url:
        measure(options.millions, options.rounds, Path(directory), url)


def measure(millions, rounds, directory, url):
    import delayedq.pipeline.spark
    from delayedq.pipeline.spark.session import spark_session

    with spark_session("local[2]") as spark, psycopg.connect(url, autocommit=True) as connection:
        delayedq.pipeline.spark.register(spark)
        compare(spark, connection, directory, 20_000, 1)
        for million in millions:
            messages = round(million * 1_000_000)
            least, took = compare(spark, connection, directory, messages, rounds)
            print(  # noqa: T201
                f"{messages:>11,} messages: bare {messages / least:>7,.0f}/s, load {messages / took:>7,.0f}/s, "
                f"{least / took:.2f} of it",
                flush=True,
            )


if __name__ == "__main__":
    main()
