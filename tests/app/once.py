"""Exactly-once tasks, and the moments at which the first attempt of one may be killed."""

import os
import signal
import time
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from delayedq import current_message, task
from delayedq.store import default_store
from tests.app.models import Mark
from tests.app.tasks import bodies


@task(exactly_once=True, backoff=timedelta(hours=1))
def play(body, *args):
    return bodies[body](*args)


@task(exactly_once=True)
def nothing(number=0):
    pass


@task(exactly_once=True)
def nap(name, seconds):
    Mark.objects.create(name=f"{name} began")
    time.sleep(seconds)
    Mark.objects.create(name=f"{name} ended")


@task(exactly_once=True)
def count_down(number):
    """Schedules itself by its own key, in the transaction that ends its message."""
    Mark.objects.create(name=str(number))
    if number > 0:
        count_down.schedule_at(timezone.now(), number - 1, key=current_message().key)


@task(exactly_once=True, max_attempts=3, backoff=timedelta(milliseconds=10))
def stumble(times):
    Mark.objects.create(name="tried")
    if current_message().attempt <= times:
        raise ValueError("not yet")


@task(exactly_once=True, max_attempts=1, timeout=timedelta(milliseconds=100))
def spin():
    Mark.objects.create(name="spun")
    while True:
        pass


@task(exactly_once=True)
def pay(fault):
    if current_message().attempt > 1:
        fault = None
    if fault == "before it wrote":
        kill()
    Mark.objects.create(name="paid")
    if fault == "after it wrote":
        kill()
    if fault == "before the commit":
        kill_when_settled()
    if fault == "after the commit":
        transaction.on_commit(mark_and_kill)


@task(exactly_once=True)
def return_twice(name):
    Mark.objects.create(name=name)
    os.fork()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_when_settled():
    store = default_store()
    settle = store.settle

    def settle_and_kill(*args):
        settle(*args)
        kill()

    store.settle = settle_and_kill


def mark_and_kill():
    Mark.objects.create(name="killed")
    kill()


@task(exactly_once=True, max_attempts=1_000)
def leave_mark(name):
    Mark.objects.create(name=name)
