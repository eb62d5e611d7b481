"""Time (with Spark's start) and memory of the report over a lake of N messages.

    uv run --group test --extra spark python -m tests.benchmarks.report [--millions 1 3 10] [--driver-memory 4g]

The lake has a month of eight kinds of tasks, more by day than by night; one message in twenty failed at least once and
has a traceback. Each size runs in a separate process, on `local[2]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

SINCE = datetime(2013, 3, 1, tzinfo=UTC)
DAYS = 30
TRACEBACK = "\\n".join(f'  File \\"/srv/app/layer_{n}.py\\", line {n}, in call_{n}\\n    call()' for n in range(20))


def fill(spark, lake, rows):
    """Write a lake, one partition a day, as the archive does."""
    from pyspark.sql import functions as F

    from delayedq.pipeline.spark.schema import LAKE

    messages = _drawn(spark, rows).withColumns(_columns())
    wanted = [
        (F.col(f.name) if f.name in messages.columns else F.lit(None)).cast(f.dataType).alias(f.name) for f in LAKE
    ]
    messages.select(wanted).write.partitionBy("day").mode("overwrite").parquet(lake)


def _drawn(spark, rows):
    """For each message: when it arrives, how long it waits and runs (seconds), and whether its first attempt fails."""
    from pyspark.sql import functions as F

    day = F.floor(F.col("id") * DAYS / rows) + F.col("u") + 0.1 * F.sin(6.283 * F.col("u"))
    run = F.exp(F.randn(4)) * (0.05 + F.col("id") % 8 / 10)
    failed = F.col("arrival") + F.col("wait") + F.col("run")
    return (
        spark.range(rows)
        .withColumns({"u": F.rand(1), "failing": F.rand(2) < 0.05, "wait": -F.log(F.rand(3)) * 0.3, "run": run})
        .withColumn("arrival", F.lit(SINCE.timestamp()) + 86_400 * day)
        .withColumn("failed", failed)
        .withColumn("due", F.when(F.col("failing"), F.col("failed") + 5).otherwise(F.col("arrival")))
    )


def _columns():
    """A partition of the lake, from the drawn messages."""
    from pyspark.sql import functions as F

    started, kind = F.col("due") + F.col("wait"), F.col("id") % 8
    finished, key = F.timestamp_seconds(started + F.col("run")), F.concat(F.lit("key-"), "id")
    arguments = F.concat(F.lit('{"args":[],"kwargs":{"flight":'), "id", F.lit(',"note":"'), F.md5(key), F.lit('"}}'))
    return {
        "queue": F.concat(F.lit("queue-"), kind % 3),
        "kind": F.concat(F.lit("app.tasks.task_"), kind),
        "key": key,
        "state": F.when(F.rand(5) < 0.002, "failed").otherwise("succeeded"),
        "priority": F.lit(0),
        "attempts": F.when(F.col("failing"), 2).otherwise(1),
        "max_attempts": F.lit(8),
        "created_at": F.timestamp_seconds(F.col("arrival") - 3_600),
        "scheduled_at_initially": F.timestamp_seconds("arrival"),
        "scheduled_at": F.timestamp_seconds("due"),
        "started_at": F.timestamp_seconds(started),
        "finished_at": finished,
        "worker": F.concat(F.lit("host-1-"), F.col("id") % 4),
        "payload": arguments,
        "errors": F.when(F.col("failing"), F.concat(F.lit("["), _failure(), F.lit("]"))),
        "schema_version": F.lit(1),
        "day": F.to_date(finished),
    }


def _failure():
    from pyspark.sql import functions as F

    failed_at = F.date_format(F.timestamp_seconds("failed"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'+00:00'")
    values = {
        "attempt": F.lit(1),
        "failed_at": failed_at,
        "seconds": F.col("run"),
        "worker": F.lit("host-1-17"),
        "exception": F.concat(F.lit("app.Error"), F.col("id") % 5),
        "message": F.lit("it did not work"),
        "traceback": F.lit(TRACEBACK),
    }
    return F.to_json(F.struct(*[value.alias(name) for name, value in values.items()]))


def report(lake, directory, memory):
    """Seconds of wall time for a report, including the start of Spark in this process."""
    began = time.perf_counter()
    from delayedq.pipeline.report.page import write
    from delayedq.pipeline.report.tables import measure, span
    from delayedq.pipeline.spark.schema import LAKE
    from delayedq.pipeline.spark.session import spark_session

    with spark_session("local[2]", conf={"spark.driver.memory": memory}) as spark:
        started = time.perf_counter()
        messages = spark.read.schema(LAKE).parquet(str(lake))
        figures = measure(messages, *span(messages))
        measured = time.perf_counter()
        write(figures, directory, datetime.now(UTC))
        written = time.perf_counter()
        busy = _cpu_seconds()
    print(  # noqa: T201
        f"{sum(figures.ended().values()):>12,} messages  {written - began:6.1f} s, of it start {started - began:.1f}, "
        f"figures {measured - started:.1f}, page {written - measured:.1f}; {busy:.1f} s of processor time",
        flush=True,
    )


def _cpu_seconds():
    """CPU seconds of this process and its running children, which other load on the machine does not distort."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for process in ["self", *children]:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 3, 10])
    parser.add_argument("--driver-memory", default="4g")
    parser.add_argument("--fill", action="store_true", help="Only make the lakes that are missing in --lakes.")
    parser.add_argument("--lakes", type=Path, help="Directory that keeps lakes between runs; default: none.")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        report(options.lakes, options.report, options.driver_memory)
        return
    with tempfile.TemporaryDirectory() as directory:
        lakes = options.lakes or Path(directory)
        for millions in options.millions:
            lake = lakes / f"{millions:g}-million"
            if not lake.exists():
                _fill_apart(lake, round(millions * 1_000_000), options.driver_memory)
            if options.fill:
                continue
            again = ["--report", f"{directory}/report", "--lakes", str(lake), "--driver-memory", options.driver_memory]
            subprocess.run([sys.executable, "-m", __spec__.name, *again], check=True, stderr=subprocess.DEVNULL)


def _fill_apart(lake, rows, memory):
    from delayedq.pipeline.spark.session import spark_session

    unfinished = lake.with_name(f"{lake.name}.unfinished")
    with spark_session("local[2]", conf={"spark.driver.memory": memory}) as spark:
        fill(spark, str(unfinished), rows)
    unfinished.rename(lake)


if __name__ == "__main__":
    main()
