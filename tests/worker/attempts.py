"""What the tests of the worker are made of: attempts of whatever function a test writes, and a worker in miniature."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from itertools import count

from asgiref.sync import sync_to_async
from django.db import connections

from delayedq.core.serialization import dump_call
from delayedq.models import FinishedMessage
from delayedq.store.protocol import Claimed, ClaimRequest, Lane
from delayedq.tasks import task_at
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import aexecute, execute
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode, Options
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.transitions import decision, transition
from tests.app import tasks

NOW = datetime(2026, 3, 8, 6, 59, 30, tzinfo=UTC)
LEASE = timedelta(seconds=60)
WORKER = "host:1"
#: Longer than anything here takes, shorter than a hanging test is worth.
PATIENCE = 20

_ids = count(1)


def claimed(task, *args, **fields):
    """The message of a call, as a worker claims it."""
    values = {
        "id": next(_ids),
        "token": 4711,
        "generation": 0,
        "queue": task.queue_name,
        "kind": task.module_path,
        "key": None,
        "priority": task.priority,
        "attempt": 1,
        "max_attempts": task.max_attempts,
        "scheduled_at": NOW,
        "scheduled_at_initially": NOW,
        "created_at": NOW,
        "payload": dump_call(args, {}),
        "metadata": None,
        "errors": None,
    }
    return Claimed(**values | fields)


def attempt_of(task, *args, leases=None, **fields):
    message, leases = claimed(task, *args, **fields), leases or SharedLeases(64)
    return Attempt(message, task, WORKER, leases, leases.hold(message.id, message.token))


def playing(body, *args, task=None, **fields):
    """An attempt that calls `body`; `task` may be another version of `play`."""
    name = f"{body.__qualname__} {next(_ids)}"
    tasks.bodies[name] = body
    return attempt_of(task or (tasks.aplay if iscoroutinefunction(body) else tasks.play), name, *args, **fields)


def run(attempt):
    return execute(attempt) if attempt.threaded else asyncio.run(_arun(attempt))


async def _arun(attempt):
    try:
        return await aexecute(attempt)
    finally:
        await sync_to_async(connections.close_all)()  # in the thread that outlives this event loop


def work(store, limit=100):
    """Run what is due, one after the other in this thread; returns how each attempt ended."""
    leases = SharedLeases(limit)
    lanes = [Lane(head.queue, head.priority) for head in store.scan()]
    return [_work(store, message, leases) for message in store.claim(ClaimRequest(lanes, limit, LEASE, WORKER))]


def _work(store, message, leases):
    slot = leases.hold(message.id, message.token)
    ended = run(Attempt(message, task_at(message.kind), WORKER, leases, slot))
    settled = store.settle([transition(ended, decision(ended), time.monotonic())], WORKER)
    assert not settled.lost
    return ended


def drained(store):
    """Run what is due with the loop of a worker, its threads and its store thread."""
    options = Options(
        lease=LEASE, poll_interval=timedelta(seconds=1), shutdown_timeout=timedelta(seconds=5), drain=True, cron=False
    )
    assert Loop(store, options, WORKER).run() is ExitCode.DONE


def outcome_of(id_):
    return FinishedMessage.objects.get(id=id_).outcome
