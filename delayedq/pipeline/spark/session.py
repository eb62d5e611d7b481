"""The Spark session of the commands. Whatever works on a session takes it as an argument and never makes its own."""

from __future__ import annotations

import os
import re
import sys
import warnings
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from delayedq.exceptions import PipelineError
from delayedq.pipeline.spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Errors of Spark and of files, in one line that says what went wrong, with what and what to do.


#: What Spark raises, in this process or over Spark Connect.
SPARK_ERRORS = (PySparkException, Py4JError)

#: What a file that can't be read is, whoever reads it.
READ_ERRORS = (*SPARK_ERRORS, OSError)

#: What an error may say, in any of its lines, and what helps.
_CURES = {
    r"No space left on device|Disk quota exceeded": "The disk is full: make room",
    r"Permission denied|AccessControlException|Read-only file system|Mkdirs failed": "Let the user of this process and "
    "of the executors write it",
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException|No such file or directory": "Make it reachable from here and "
    "from all executors",
    r"FAILED_READ_FILE|CANNOT_READ_FILE|not a Parquet file|Could not read footer": "The file is spoiled: restore it",
    r"No FileSystem for scheme|S3AFileSystem not found": "Give Spark the driver of it (hadoop-aws for S3, or set "
    "DELAYEDQ['LAKE_STAGING'])",
    r"OutOfMemoryError|Java heap space": "Give Spark more memory (spark.driver.memory)",
}

_PLACE = re.compile(r"(?:[a-z0-9]+://?|/)[^\s'\"`,;()\[\]]*[^\s'\"`,;.:()\[\]]")

_TEXT = 300


def explained(error: BaseException, step: str, safe: str) -> PipelineError:
    """The error of a step as one of ours. safe: what has become of the messages, a sentence."""
    if _java_has_ended(error):
        return PipelineError(
            f"The {step} failed: Java, in which Spark runs, has ended. It was killed, or ran out of memory: look at "
            f"the log of the system, and run it again. {safe}"
        )
    text = _whole(error)
    cure = next((cure for sign, cure in _CURES.items() if re.search(sign, text)), "Mend what it says")
    return PipelineError(f"The {step} failed: {_reason(text)}{_file(text)}. {cure}, and run it again. {safe}")


def _java_has_ended(error: BaseException) -> bool:
    """Did the connection to Java break? If it breaks while an answer comes, Py4J tells of a call, and of no error."""
    if isinstance(error, Py4JJavaError):  # Java itself has answered
        return False
    text = str(error)
    broke = isinstance(error, Py4JError) and text.startswith("An error occurred while calling") and "Trace:" not in text
    cut = isinstance(error, EOFError) and not text
    return broke or cut or isinstance(error, Py4JNetworkError | ConnectionError) or "CANNOT_OPEN_SOCKET" in text


def first_line(error: BaseException) -> str:
    """What it says, without Java's stack."""
    return _reason(_whole(error))


def _whole(error: BaseException) -> str:
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()) + "\n" + str(error)
    return str(error) or type(error).__name__


def _reason(text: str) -> str:
    """The innermost cause, if Java tells several, or else the first line."""
    causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
    line = (causes[-1] if causes else text.strip().partition("\n")[0]).strip()
    line = re.sub(r"^(?:[\w$]+\.)+(\w+(?:Exception|Error)): ", r"\1: ", line)
    return line[:_TEXT].rstrip(".")


def _file(text: str) -> str:
    """The place that it speaks of, unless its reason names it."""
    found = next((place for place in _PLACE.findall(text) if place.count("/") > 1), None)
    return f" ({found})" if found and found not in _reason(text) else ""


# Session


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
