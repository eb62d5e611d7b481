"""One conformance test: `run_due`, in the transaction of a test, ends each message as the loop of a worker does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from delayedq import Cancel, Fail, Retry, Snooze, current_message
from delayedq.core.errors import known_errors
from delayedq.models import FinishedMessage, Message
from delayedq.testing import run_due
from tests.app import lifecycle, tasks
from tests.app.models import Mark
from tests.worker.attempts import drained

HOUR = timedelta(hours=1)
PAST = datetime(2026, 1, 1, tzinfo=UTC)


def play(body, *, task=tasks.play, **options):
    tasks.bodies["as a worker"] = body
    return task.using(**options).enqueue("as a worker")


def raising(error):
    def body():
        raise error

    return body


def araising(error):
    async def body():
        raise error

    return body


def changed(task, *args, **fields):
    """A message with these fields, as another version of the code, or workers that died, have left it."""
    task.enqueue(*args)
    Message.objects.update(**fields)


def replaced():
    """While it runs, it is replaced: the replacement runs once more, at its time."""
    tasks.bodies["replaced"] = lambda: tasks.play.schedule_in(HOUR, "replaced", "again", key="a")
    tasks.play.schedule_at(PAST, "replaced", key="a")


def unscheduled():
    tasks.bodies["unscheduled"] = lambda: tasks.play.unschedule(key="a")
    tasks.play.schedule_at(PAST, "unscheduled", key="a")


def with_a_gone_instance():
    crew = Group.objects.create(name="crew")
    tasks.echo.enqueue(crew)
    crew.delete()


def on_commit(body):
    return lambda: transaction.on_commit(body, using=Message.objects.db)


async def too_long():
    await asyncio.sleep(60)


LIFECYCLE = {
    "succeeds": lambda: play(lambda: 7),
    "writes": lambda: play(lambda: Mark.objects.create(name="written") and None),
    "returns rich values": lambda: play(lambda: {"at": PAST, "for": HOUR, "to": ("a", {"b"})}),
    "fails": lambda: play(raising(ValueError("no fuel")), max_attempts=1),
    "retries": lambda: play(raising(ValueError("no fuel"))),
    "asks for a retry": lambda: play(raising(Retry("busy", delay=HOUR))),
    "asks for a retry at the end": lambda: play(raising(Retry("busy", delay=HOUR)), max_attempts=1),
    "snoozes": lambda: play(raising(Snooze(HOUR))),
    "snoozes at the end": lambda: play(raising(Snooze(HOUR)), max_attempts=1),
    "cancels": lambda: play(raising(Cancel("gone"))),
    "exits": lambda: play(raising(SystemExit(3)), max_attempts=1),
    "returns what can't be stored": lambda: play(object),
    "has a statement that fails": lambda: play(lambda: Message.objects.create(scheduled_at=None)),
    "raises what its database did": lambda: play(raising(IntegrityError("of another one"))),
    "does not fit": lambda: changed(tasks.depart, "a", 1, payload='{"args":[1,2,3]}'),
    "can't be read": lambda: changed(tasks.remind, 7, payload="["),
    "has an instance that is gone": with_a_gone_instance,
    "killed all its workers": lambda: changed(tasks.remind, 7, attempt=8),
    "is replaced while it runs": replaced,
    "is cancelled while it runs": unscheduled,
    "exactly once": lambda: play(lambda: 7, task=tasks.play_once),
    "exactly once, fails": lambda: play(raising(ValueError("no fuel")), task=tasks.play_once),
    "exactly once, snoozes": lambda: play(raising(Snooze(HOUR)), task=tasks.play_once),
    "fails in a callback": lambda: play(on_commit(raising(ValueError("no")))),
    "exactly once, fails after its commit": lambda: play(on_commit(raising(ValueError("no"))), task=tasks.play_once),
    "async": lambda: tasks.aecho.enqueue(7),
    "async, fails": lambda: play(araising(ValueError("no fuel")), task=tasks.aplay),
    "async, snoozes": lambda: play(araising(Snooze(HOUR)), task=tasks.aplay),
    "gives up": lambda: play(raising(ConnectionRefusedError("no")), task=lifecycle.picky),
    "tries again": lambda: play(raising(ConnectionResetError("busy")), task=lifecycle.picky),
    "fails for good": lambda: lifecycle.refuse.enqueue("the card was declined"),
    "expired": lambda: lifecycle.fresh.schedule_at(PAST),
    "expired, as this call says": lambda: tasks.echo.using(expires=HOUR).schedule_at(PAST),
    "over its deadline": lambda: lifecycle.bounded.schedule_at(PAST),
    "too near to its deadline": lambda: play(raising(ValueError("no")), task=lifecycle.bounded, deadline=HOUR / 6),
    "has followers": lambda: play(lambda: 7, task=lifecycle.followed),
    "has followers, fails": lambda: play(raising(ValueError("no")), task=lifecycle.followed, max_attempts=1),
    "has followers, retries": lambda: play(raising(ValueError("no")), task=lifecycle.followed),
    "has followers, exactly once": lambda: play(lambda: 7, task=lifecycle.followed_once),
    "has followers, exactly once, fails": lambda: play(raising(Fail("no")), task=lifecycle.followed_once),
    "sees its message": lambda: play(lambda: current_message().attempt),
    "has a context": lambda: tasks.count_attempts.enqueue(10),
}


def left():
    """What is left of the one message, but for the worker; times to the hour."""
    rows = [
        (
            row.attempt,
            row.lease_token,
            round((row.scheduled_at - row.created_at) / HOUR) if row.scheduled_at > row.created_at else "due",
            row.payload,
            [error["exception"] for error in known_errors(row.errors)],
        )
        for row in Message.objects.all()
    ]
    ended = [
        (row.kind, row.outcome, row.attempts, row.result, [one["exception"] for one in known_errors(row.errors)])
        for row in FinishedMessage.objects.order_by("kind")
    ]
    return rows, ended, Mark.objects.count()


@pytest.mark.parametrize("case", LIFECYCLE.values(), ids=LIFECYCLE)
def test_a_message_ends_as_it_does_in_a_worker(store, alias, settings, case):
    settings.DELAYEDQ = {"DEPLOY_GRACE": timedelta(0)}  # for which workers wait for another version of the code
    case()
    drained(store)
    by_worker = left()
    for model in (Message, FinishedMessage, Mark):
        model.objects.all().delete()
    with transaction.atomic(using=alias):
        case()
        run_due(raise_failures=False)
        by_test = left()
        transaction.set_rollback(True, using=alias)
    assert by_test == by_worker
    assert by_worker != ([], [], 0)


def test_an_async_task_that_takes_too_long_ends_as_it_does_in_a_worker(store, alias, settings):
    object.__setattr__(tasks.aplay, "timeout", timedelta(milliseconds=1))
    try:
        test_a_message_ends_as_it_does_in_a_worker(store, alias, settings, lambda: play(too_long, task=tasks.aplay))
    finally:
        object.__setattr__(tasks.aplay, "timeout", None)
