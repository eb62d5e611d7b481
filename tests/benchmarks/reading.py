"""How long Spark takes to read the history of PostgreSQL, beside a bare Arrow read (ADBC) on one connection.

    uv run --group test --extra spark python -m tests.benchmarks.reading [--rows 1000000] [--rounds 3]

Both read every column of the same rows, in turn, on one server in its default configuration. Spark is `local[2]`; its
start is not counted, and a first read that makes Java warm is not either. Its rows go to the sink `noop`.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

from tests.benchmarks.archive import fill
from tests.benchmarks.database import migrated


def bare(address):
    """Seconds of a COPY into Arrow on one connection."""
    from delayedq.pipeline.spark import reading
    from delayedq.pipeline.spark.connecting import arrow
    from delayedq.pipeline.spark.schema import MESSAGES

    columns = ", ".join(reading.COLUMNS["postgresql"][reading.ENDED][name] for name in MESSAGES.names)
    began = time.perf_counter()
    with arrow(address) as connection:
        rows = sum(batch.num_rows for batch in connection.batches(f"SELECT {columns} FROM {reading.ENDED}"))
    return time.perf_counter() - began, rows


def on_spark(spark, address, partitions):
    """Seconds of a read of one snapshot in ranges of ids."""
    from delayedq.pipeline.spark.reading import snapshot

    began = time.perf_counter()
    with snapshot(address) as options:
        frame = spark.read.format("delayedq").options(**options, partitions=partitions).load()
        frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    with migrated():
        from delayedq.pipeline.spark import register
        from delayedq.pipeline.spark.connecting import Address
        from delayedq.pipeline.spark.session import spark_session

        fill(options.rows)
        address = Address("env:DATABASE_URL")
        with spark_session("local[2]") as spark:
            register(spark)
            on_spark(spark, address, 2)
            for partitions in options.partitions:
                rounds = [(bare(address)[0], on_spark(spark, address, partitions)) for _ in range(options.rounds)]
                alone, spread = (median(times) for times in zip(*rounds, strict=True))
                print(  # noqa: T201
                    f"{options.rows:,} rows: bare {alone:.1f} s, Spark in {partitions} ranges {spread:.1f} s,"
                    f" {median(there / here for here, there in rounds):.2f} times; load {os.getloadavg()[0]:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
