"""The Spark session of the commands. Whatever works on a session takes it as an argument and never makes its own."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from delayedq.pipeline.spark.failures import SPARK_ERRORS
from delayedq.pipeline.spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What the numbers and the files of the pipeline rely on, whatever a cluster's own defaults are.
SEMANTICS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # A step that runs again replaces the days that it writes, and no other.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.ansi.enabled": "true",
}

#: For a Spark that starts in this process: no web page, which any user of the network could open, and a log of what
#: ends Spark only, since errors of a step are raised.
_LAUNCH = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # PySpark would ask Java for the place in our code of each part of an expression: most of the time of a short query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.log.level": "FATAL",
    "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties")}"',
}

#: On this machine alone Java runs for seconds. Most of them would go into compiling: what runs for a short time is
#: compiled once and fast, and only what runs for much longer than usual is compiled again. With a few cores, collecting
#: garbage beside the work takes more of them than doing it in between.
_SHORT = (
    "-XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
#: For a Spark on this machine alone.
_LOCAL = {
    "spark.driver.extraJavaOptions": f"{_LAUNCH['spark.driver.extraJavaOptions']} {_SHORT}",
    # A lake of many days is listed here, and not by a query of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Other machines are not asked for this one's name, and reach nothing.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@contextmanager
def spark_session(
    master: str | None = None, remote: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session on `master` (default: all cores of this machine) or on the Spark Connect server at `remote`.

    A session that this process already has, in any thread, is used, and stays with the settings that it has; one that
    was started here is stopped at the end. Raises JavaMissing if Spark has to start here and can't.
    """
    if before := _existing():
        with semantics(before):
            yield before
        return
    spark = start(master, remote, conf)
    try:
        yield spark
    finally:
        spark.stop()


def _existing() -> SparkSession | None:
    """That of this thread, or else of this process: to start one would give it, too, and we would stop it."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


@contextmanager
def semantics(spark: SparkSession) -> Iterator[None]:
    """Within the block the session has SEMANTICS; then it has again what it had."""
    before = {name: spark.conf.get(name, None) for name in SEMANTICS}
    for name, value in SEMANTICS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            with suppress(*SPARK_ERRORS):  # the session has ended meanwhile
                _put_back(spark, name, former)


def _put_back(spark: SparkSession, name: str, former: str | None) -> None:
    if former is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, former)


def start(master: str | None = None, remote: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or connect to it; see `spark_session`. Stopping it is the caller's business."""
    if master and remote:
        raise ValueError("A session has a master or is remote, not both.")
    starts_here = remote is None or not remote.startswith("sc://")
    place = remote or master or "local[*]"
    if starts_here:
        require_java()
    if place.startswith("local"):
        # Not a setting of Spark: the JVM starts the workers that plan a data source with this, or with PATH's python3.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("delayedq")
    builder = builder.remote(place) if remote else builder.master(place)
    if remote and starts_here:
        builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")  # else any machine may reach it
    for name, value in (_defaults(place) if starts_here else SEMANTICS).items():
        builder = builder.config(name, value)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    # PySpark imports this, and with it pandas, to tell what a literal is: as long as a query, while Java starts.
    importing = Thread(target=import_module, args=("pyspark.testing.utils",))
    importing.start()
    with warnings.catch_warnings():
        # A Connect server that starts here starts with its settings; the session warns that it can't change them.
        warnings.filterwarnings("ignore", "Failed to set spark")
        try:
            return builder.getOrCreate()
        finally:
            importing.join()


def _defaults(place: str) -> dict[str, str]:
    """For a Spark that starts here.

    Spark would cut each shuffle into 200 pieces, which is for clusters: here, that takes longer than the work itself.
    """
    if not place.startswith("local"):
        return _LAUNCH | SEMANTICS
    pieces = str(max(8, 2 * (os.cpu_count() or 1)))
    return _LAUNCH | SEMANTICS | _LOCAL | {"spark.sql.shuffle.partitions": pieces}
