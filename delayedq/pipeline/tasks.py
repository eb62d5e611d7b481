"""The steps of the pipeline as tasks: `schedule_step` is for cron, and `run_step` does the work.

To have them, add "delayedq.pipeline" to INSTALLED_APPS.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.backend import somewhere
from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.exceptions import PipelineError, Snooze
from delayedq.pipeline import ending
from delayedq.pipeline.models import StepRun
from delayedq.pipeline.scheduled import key_of
from delayedq.store import default_store
from delayedq.tasks import current_message, task

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("delayedq")

#: Seconds between two checks of whether the lease of this run is still held.
CHECKED_EVERY = 1.0
#: After this time a step that found another archive at work is tried again. One that was killed is held for a minute.
_BUSY_FOR = timedelta(minutes=2)
#: What was recorded of a run is kept for this long: reports whose arguments are always others have a row for each.
_KEPT = timedelta(days=800)
_TOLD = 2000
#: What the archive tells of each step that begins.
_STEP = re.compile(r"\bstep (?P<number>\d{1,6}) of (?P<of>\d{1,6})\b")


@task(**somewhere())
def schedule_step(arguments: list[str]) -> str:
    """Run one step, such as `["archive"]`, unless it is waiting or running already. Tells what became of that.

    Reports with other arguments are others: a daily and a weekly one may run at the same time.
    """
    scheduled = run_step.schedule_in(timedelta(), arguments, key=key_of(arguments), on_conflict="keep")
    return str(scheduled.outcome)


@task(max_attempts=5, **somewhere())
def run_step(arguments: list[str]) -> str:
    """`manage.py run_pipeline` with these arguments, in a process of its own: Java's memory goes with it.

    Its key is the step's, so that there is one at a time. The process ends when the lease is lost, and when this one
    does, even if that is killed. Returns what it told. Raises PipelineError, with the end of what it told, if it fails;
    Snooze if another archive works. Its progress is the last line so far.
    """
    with _recorded(key_of(arguments)):
        return _run(arguments)


def _run(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "django", "run_pipeline", ending.OPTION, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    with TemporaryFile() as file:
        with subprocess.Popen(  # noqa: S603 - ours
            command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, env=environment
        ) as process:
            try:
                code = _wait(process, file.fileno())
            finally:
                _end(process)
        end = _told(file.fileno())[-_TOLD:]
    if code == ending.BUSY:
        raise Snooze(_BUSY_FOR)
    if code:
        raise PipelineError(f"run_pipeline {' '.join(arguments)} failed: {end}")
    return end


def _end(process: subprocess.Popen[bytes]) -> None:
    """Unless it has ended. It has some time to give back what it has, such as the lease of its batch."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(ending.UNWINDING)
    finally:
        process.kill()


@contextmanager
def _recorded(step: str) -> Iterator[None]:
    """What became of this run is in the books, unless another has begun meanwhile.

    A step takes hours, for which no connection is kept: one that is lost meanwhile is not the step's failure. Nor is
    it if the books can't be written at the end, which is logged.
    """
    store, message = default_store(), current_message()
    began = store.now()
    new = {"message_id": message.id, "began_at": began, "ended_at": None, "succeeded": False}
    StepRun.objects.update_or_create(step=step, defaults=new)
    StepRun.objects.filter(began_at__lt=began - _KEPT).delete()
    _disconnect()
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if not message.lease_lost:
            this = StepRun.objects.filter(step=step, message_id=message.id, began_at=began)
            try:
                this.update(ended_at=store.now(), succeeded=succeeded)
            except Error:
                became = "has succeeded" if succeeded else "has failed"
                logger.exception("The step %s %s, which could not be recorded.", step, became)


def _disconnect() -> None:
    """Close the connections of this thread that are in no transaction; the next statement opens one."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _wait(process: subprocess.Popen[bytes], file: int) -> int:
    message, reported = current_message(), 0
    while not message.lease_lost:
        try:
            return process.wait(CHECKED_EVERY)
        except subprocess.TimeoutExpired:
            lines = [line for line in _told(file).splitlines() if is_storable(line)]
            if len(lines) > reported:
                reported = len(lines)
                message.progress(*_steps_in(lines), note=lines[-1][:NAME_LENGTH])
    raise PipelineError("The lease was lost: another worker may run this step now.")


def _steps_in(lines: list[str]) -> tuple[int, int | None]:
    """How many steps are done, and of how many, by the last line that says so; else how many lines were told."""
    for line in reversed(lines):
        if found := _STEP.search(line):
            return int(found["number"]) - 1, int(found["of"])
    return len(lines), None


def _told(file: int) -> str:
    """What the process told so far. It writes at the offset that both share, which therefore stays where it is."""
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
