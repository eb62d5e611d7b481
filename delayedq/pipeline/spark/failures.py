"""Errors of Spark and of files, in one line that says what went wrong, with what and what to do."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from delayedq.exceptions import PipelineError

#: What Spark raises, in this process or over Spark Connect.
SPARK_ERRORS = (PySparkException, Py4JError)
#: What a file that can't be read is, whoever reads it.
READ_ERRORS = (*SPARK_ERRORS, OSError)

#: What an error may say, in any of its lines, and what helps.
_CURES = {
    r"No space left on device|Disk quota exceeded": "The disk is full: make room",
    r"Permission denied|AccessControlException": "Let the user of this process and of the executors write it",
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
