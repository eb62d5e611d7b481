"""What a worker process does when an operator asks it to be quiet, to stop, or to be replaced; and a stopped task."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from django.db import connections

from delayedq.core.lifecycle import Raised
from delayedq.models import FinishedMessage, Message, Worker
from delayedq.operations.workers import ask
from delayedq.store.registry import WorkerCommand
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode
from delayedq.worker.shared_leases import SharedLeases
from tests.app import chores, tasks
from tests.worker.attempts import PATIENCE, playing
from tests.worker.conftest import eventually
from tests.worker.pools import working

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("asked", "code"), [(WorkerCommand.STOP, ExitCode.DONE), (WorkerCommand.RESTART, ExitCode.RECYCLE)]
)
def test_a_worker_that_is_asked_to_end_ends_and_says_whether_it_is_replaced(store, options, asked, code):
    leases = SharedLeases(64)
    leases.ask(asked)
    assert Loop(store, replace(options, drain=False), "w", leases).run() == code


def test_a_quiet_worker_claims_nothing_until_it_may_go_on(store, options):
    chores.note.enqueue("a")
    leases = SharedLeases(64)
    leases.ask(WorkerCommand.QUIET)

    def work():
        Loop(store, options, "w", leases).run()
        connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(5):
        before = leases.turned
        eventually(lambda before=before: leases.turned != before)
    assert Message.objects.get().attempt == 0
    leases.ask(None)
    worker.join(PATIENCE)
    assert FinishedMessage.objects.get().outcome == "succeeded"


def test_what_was_asked_is_gone_with_the_process():
    leases = SharedLeases(64)
    leases.ask(WorkerCommand.STOP)
    leases.clear()
    assert leases.asked is None


def only_worker():
    return eventually(Worker.objects.first)


def test_a_process_that_was_asked_to_restart_is_replaced_and_one_asked_to_stop_is_not(store, workers):
    command = workers()
    first = only_worker()
    assert ask(store, first.name, WorkerCommand.RESTART, "ann")
    second = eventually(lambda: Worker.objects.exclude(name=first.name).first())
    chores.note.enqueue("a")
    eventually(FinishedMessage.objects.succeeded().exists)

    assert ask(store, second.name, WorkerCommand.STOP, "ann")

    code, output = command.finish(timeout=60)
    assert code == 0, output
    assert output.count("an operator asked to") == 2
    assert not Worker.objects.exists()


# A task that is stopped


def test_an_async_task_that_lost_its_lease_is_cancelled():
    leases, started, cancelled = SharedLeases(8), threading.Event(), threading.Event()

    async def body():
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    attempt = playing(body, task=tasks.aplay, leases=leases)
    with working(1) as worker:
        worker.pool.submit(attempt)
        assert started.wait(PATIENCE)
        leases.report_lost(leases.entries()[0])
        (ended,) = worker.ended(1)
    assert cancelled.is_set()
    assert (ended.outcome, type(ended.error)) == (Raised(), asyncio.CancelledError)


def test_a_task_that_swallows_its_cancellation_is_cancelled_once():
    leases, started, swallowed = SharedLeases(8), threading.Event(), []

    async def body():
        started.set()
        for _ in range(4):
            try:
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                swallowed.append(1)

    attempt = playing(body, task=tasks.aplay, leases=leases)
    with working(1) as worker:
        worker.pool.submit(attempt)
        assert started.wait(PATIENCE)
        leases.report_lost(leases.entries()[0])
        worker.ended(1)
    assert swallowed == [1]
