"""Whether a process of this host lives, and is the one it was: its id may be that of another by now."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

#: As /proc/<pid>/stat has them: killed, and its parent has not been told yet; stopped by a signal or a debugger.
_DEAD, _STOPPED = "ZXx", "Tt"


class Process(NamedTuple):
    """A process that is not dead. `started_at`: in ticks since the start of the host; 0 if the system does not tell."""

    started_at: int
    stopped: bool


def find(pid: int) -> Process | None:
    """The process of this id; None if there is none, or a zombie.

    Where there is no /proc, all that is known is that the id exists.

        find(os.getpid()).started_at
    """
    try:
        # The name of the process comes second, in brackets, and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _signalled(pid)
    state, started_at = fields[0], int(fields[19])
    return None if state in _DEAD else Process(started_at, state in _STOPPED)


def lives(worker: str | None) -> bool:
    """True if the worker of this name is a process that runs on this host, and is not stopped.

    Names are "host:pid" or "name@host:pid". The process may be another one that was given the id.
    """
    host, _, pid = (worker or "").rpartition("@")[2].rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    process = find(int(pid))
    return process is not None and not process.stopped


def _signalled(pid: int) -> Process | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # of another user
        pass
    return Process(0, stopped=False)
