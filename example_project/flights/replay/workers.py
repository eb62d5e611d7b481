"""`manage.py run_workers` as a subprocess that is stopped when the replay ends, also if it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from django.conf import settings

from example_project.flights.tasks import ping

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 30
PAUSE = 0.02


class WorkersStopped(Exception):  # noqa: N818
    """The workers exited or did not answer; the message has the end of their log."""


class Workers:
    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.process = process
        self.log = log

    def wait_until_ready(self) -> None:
        """Wait until a worker has run a task. Raises WorkersStopped if none does within PATIENCE seconds."""
        answer = ping.enqueue()
        deadline = time.monotonic() + PATIENCE
        while not answer.is_finished:
            self.check()
            if time.monotonic() > deadline:
                raise WorkersStopped(f"No worker answered within {PATIENCE} seconds.\n{self.log_tail()}")
            time.sleep(PAUSE)
            answer.refresh()

    def check(self) -> None:
        """Raises WorkersStopped."""
        if self.process.poll() is not None:
            raise WorkersStopped(f"The workers ended with {self.process.returncode}.\n{self.log_tail()}")

    def log_tail(self) -> str:
        self.log.seek(0)
        return b"".join(self.log.readlines()[-20:]).decode(errors="replace")

    def stop(self) -> None:
        """Stop the workers after their running tasks; kill the process group if they don't exit."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(*flags: str) -> Iterator[Workers]:
    """Run workers in their own process group: Ctrl-C reaches only the demo, which then stops them."""
    manage = str(settings.BASE_DIR / "manage.py")
    command = [sys.executable, manage, "run_workers", *flags]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603
        workers = Workers(process, log)
        try:
            yield workers
        finally:
            workers.stop()
