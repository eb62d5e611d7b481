"""The audit: one file of lines to which all processes append, and which no fault takes back.

A line is JSON: nanoseconds of this host's monotonic clock, the process, what happened, and to what. One `write` of a
few hundred bytes to a file that is opened with O_APPEND is not torn by another, and is kept when its process is killed.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

#: The variable of the environment that names the folder of a run; and the file in it.
FOLDER, FILE = "DELAYEDQ_TORTURE", "audit.jsonl"
#: The variable that names the backend of TASKS; and what the paths of the tasks begin with.
BACKEND, KINDS = "DELAYEDQ_TORTURE_BACKEND", "delayedq.torture.tasks."


class Event(NamedTuple):
    """One line. `at` is in ns of the monotonic clock; `about` has what `write` was given."""

    at: int
    pid: int
    what: str
    about: tuple[Any, ...]


_opened: tuple[int, int] | None = None  # by which process, and the descriptor


def write(what: str, *about: Any, pid: int | None = None) -> None:
    """Append a line now. `pid`: of which process it tells; None: of this one. Raises KeyError outside of a run."""
    line = json.dumps([time.monotonic_ns(), pid or os.getpid(), what, *about])
    os.write(_descriptor(), line.encode() + b"\n")


def read(folder: Path) -> list[Event]:
    """All lines, in the order of their moments, without one that is just being written."""
    path = folder / FILE
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    rows = map(json.loads, whole.splitlines())
    return sorted((Event(at, pid, what, tuple(about)) for at, pid, what, *about in rows), key=lambda one: one.at)


def _descriptor() -> int:
    """Each process opens its own: a task may close what it has inherited."""
    global _opened  # noqa: PLW0603 - one for each process
    if _opened is None or _opened[0] != os.getpid():
        path = Path(os.environ[FOLDER]) / FILE
        _opened = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return _opened[1]
