"""Ends processes of Spark by SIGKILL: executors, and their Python workers, which are below the process of a command."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

#: By what they are: a part of the command line.
EXECUTOR, PYTHON_WORKER, JAVA = "CoarseGrainedExecutorBackend", "pyspark.daemon", "org.apache.spark.deploy.SparkSubmit"


def below(pid):
    """The processes that it has started, and those that these have."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found, further = set(), {pid}
    while further:
        further = {child for child, parent in parents.items() if parent in further}
        found |= further
    return found


def kill(pid, what):
    """End one of them, the one that started last: whether there was one."""
    victims = sorted(process for process in below(pid) if what in command_of(process))
    for victim in reversed(victims):
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return True
    return False


def killed(process, what, meanwhile):
    """End one as soon as it is there, while `meanwhile()` holds: whether one was ended."""
    while process.poll() is None and meanwhile():
        if kill(process.pid, what):
            return True
        time.sleep(0.02)
    return False


def command_of(pid):
    """Its command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
