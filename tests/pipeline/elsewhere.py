"""Writes messages with tasks that die, reads them, and streams history, on the Spark that is named; prints what it saw.

python -m tests.pipeline.elsewhere master local-cluster[2,1,1024] file:ADDRESS DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.connecting import Address
from delayedq.pipeline.spark.reading import snapshot
from delayedq.pipeline.spark.session import spark_session
from tests.pipeline.dying import DyingDataSource
from tests.pipeline.streams import run_to_the_end

CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
}


def run(spark, address, directory):
    register(spark)
    spark.dataSource.register(DyingDataSource)
    offers = spark.range(0, 1000, numPartitions=2).selectExpr("'app.tasks.send' AS kind", "'[' || id || ']' AS payload")
    options = {"address": address.reference, "load_id": "first", "remember": str(directory), "dies": sys.argv[5]}
    offers.write.format("dying").mode("append").options(**options).save()
    with snapshot(address) as held:
        messages = spark.read.format("delayedq").options(**held, states="waiting", partitions=2).load()
        payloads = sorted(int(row.payload.strip("[]")) for row in messages.select("payload").collect())
    return {"payloads": payloads, "streamed": streamed(spark, address, directory)}


def streamed(spark, address, directory):
    stream = spark.readStream.format("delayedq").options(address=address.reference, columns="id").load()
    sink = stream.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    run_to_the_end(sink, directory / "lake")
    return sorted(row.id for row in spark.read.parquet(str(directory / "lake")).collect())


if __name__ == "__main__":
    kind, place, reference, directory = sys.argv[1:5]
    os.environ["PYTHONPATH"] = str(Path.cwd())
    with spark_session(**{kind: place}, conf=CONF) as spark:
        seen = run(spark, Address(reference), Path(directory))
        print(json.dumps(seen | {"connect": "connect" in str(type(spark))}))  # noqa: T201
