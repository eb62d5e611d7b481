"""Tasks for the tests of whole workers: what they did is in the table of marks."""

import os
import time
from datetime import timedelta

from delayedq import Cancel, Retry, Snooze, current_message, task
from tests.app.models import Mark

QUICK = timedelta(milliseconds=10)
#: Seconds for which a task waits, if nobody does what it waits for.
PATIENCE = 20


@task
def note(name, value=""):
    Mark.objects.create(name=name, value=value)


@task
def nothing(number=0):
    pass


@task
def nap(name, seconds):
    Mark.objects.create(name=f"{name} began", value=str(os.getpid()))
    time.sleep(seconds)
    Mark.objects.create(name=f"{name} ended", value=str(os.getpid()))


@task
def wait_for(name):
    """Runs until somebody makes that mark."""
    Mark.objects.create(name=f"began to wait for {name}")
    _wait(lambda: Mark.objects.filter(name=name).exists())


@task(max_attempts=3)
def die(code=9):
    Mark.objects.create(name="died")
    os._exit(code)


@task(max_attempts=3, backoff=QUICK)
def stumble(times):
    """Fails so often, then succeeds."""
    if current_message().attempt <= times:
        raise ValueError("not yet")
    return current_message().attempt


@task(backoff=timedelta(hours=1))
def fail_and_wait():
    raise ValueError("not now")


@task(max_attempts=3, backoff=timedelta(hours=1))
def ask_again():
    if current_message().attempt < 3:
        raise Retry("later", delay=QUICK)


@task(max_attempts=1)
def snooze_thrice():
    Mark.objects.create(name="snoozed")
    if Mark.objects.filter(name="snoozed").count() < 4:
        raise Snooze(QUICK)


@task
def cancel_itself():
    raise Cancel("no longer needed")


@task
async def note_async(name):
    await Mark.objects.acreate(name=name, value=str(current_message().attempt))


@task(timeout=timedelta(milliseconds=100), max_attempts=1)
def spin():
    while True:
        pass


@task(max_attempts=2, backoff=QUICK)
def watch_lease(name):
    """Runs until it is told that its lease was lost."""
    Mark.objects.create(name=f"{name} began")
    _wait(lambda: current_message().lease_lost)
    Mark.objects.create(name=f"{name} lost" if current_message().lease_lost else f"{name} kept")


@task
def note_tick():
    message = current_message()
    Mark.objects.create(name=message.nominal_at.isoformat(), value=message.schedule)


def _wait(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
