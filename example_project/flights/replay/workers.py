"""`manage.py run_workers` as a subprocess, which ends when the replay does, however that ends."""

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

from example_project.flights.tasks import roll_call

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 30
PAUSE = 0.02


class WorkersStopped(Exception):  # noqa: N818
    """The workers ended, or never answered; carries their last words."""


class Workers:
    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.process = process
        self.log = log

    def wait_until_ready(self) -> None:
        """Until one of them has run a task. Raises WorkersStopped."""
        answer = roll_call.enqueue()
        deadline = time.monotonic() + PATIENCE
        while not answer.is_finished:
            self.check()
            if time.monotonic() > deadline:
                raise WorkersStopped(f"No worker answered within {PATIENCE} seconds.\n{self.last_words()}")
            time.sleep(PAUSE)
            answer.refresh()

    def check(self) -> None:
        """Raises WorkersStopped."""
        if self.process.poll() is not None:
            raise WorkersStopped(f"The workers ended with {self.process.returncode}.\n{self.last_words()}")

    def last_words(self) -> str:
        self.log.seek(0)
        return b"".join(self.log.readlines()[-20:]).decode(errors="replace")

    def stop(self) -> None:
        """Let them finish what they run; end those that don't, by the process group that is theirs alone."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(*flags: str) -> Iterator[Workers]:
    """In a process group of their own: Ctrl-C reaches the demo alone, which then stops them in order."""
    manage = str(settings.BASE_DIR / "manage.py")
    command = [sys.executable, manage, "run_workers", *flags]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603
        workers = Workers(process, log)
        try:
            yield workers
        finally:
            workers.stop()
