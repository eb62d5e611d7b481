"""The processes of a torture run: fleets of `run_workers` and producers, and how they are stopped, frozen and killed.

Whoever is killed is stopped first: so all that it ever began is in the audit before the line that says that it is dead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from delayedq.torture.audit import write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import IO


#: Seconds.
PATIENCE = 30.0


class Process:
    """One that this run has started, in a group of its own; `name` stands in the names of its log and of workers."""

    def __init__(self, command: Sequence[str], log: IO[bytes]) -> None:
        self._command, self._log = command, log
        self.start()

    def start(self) -> None:
        """Start it, or another one in its place."""
        self.running = subprocess.Popen(  # noqa: S603 - our own command
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self.running.pid

    @property
    def is_alive(self) -> bool:
        return self.running.poll() is None

    def children(self) -> list[int]:
        """Of a fleet: its workers and its lease keeper."""
        return children(self.pid)

    def signal(self, number: int) -> None:
        """To the first process alone, as a process manager sends it."""
        if self.is_alive:
            self.running.send_signal(number)

    def kill_all(self) -> None:
        """The whole group, as if its machine had lost power."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGSTOP)  # so that it starts no other
            kill([*self.children(), self.pid])
            self.running.wait()

    def end(self, *, twice: bool = False) -> None:
        """SIGTERM, once or twice. One that does not end by it is told of, and killed."""
        self.signal(signal.SIGTERM)
        if twice:
            time.sleep(0.02)  # two that come at once may be one
            self.signal(signal.SIGTERM)
        try:
            self.running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            write("stuck", self.pid)
            self.kill_all()


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError):
        if listed.exists():
            return [int(one) for one in listed.read_text().split()]
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, check=False)  # noqa: S603, S607 - not Linux
    return [int(one) for one in found.stdout.split()]


def kill(pids: Iterable[int]) -> None:
    """SIGKILL, in this order."""
    chosen = [pid for pid in pids if freeze(pid)]
    for pid in chosen:
        write("killed", "by a signal", pid=pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> bool:
    """SIGSTOP, and wait until it has stopped; False if there is no such process any more."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 5
        while (state := _state(pid)) not in "Tt" and time.monotonic() < until:
            if state in "XZ":
                return False
            time.sleep(0.002)
        return True
    return False


def thaw(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    """Its letter in `ps`; "X" if it is gone, "T" where nobody can say."""
    if not Path("/proc/self/stat").exists():
        time.sleep(0.05)
        return "T"
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
