"""What the loop does while a round trip to the database is under way, and what becomes of it when the loop stops."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connections
from django.utils import timezone

from delayedq import signals
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Offer
from delayedq.tasks import registered
from delayedq.worker import loop as loop_module
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode
from delayedq.worker.shared_leases import SharedLeases
from tests.app import chores, tasks
from tests.app.models import Mark
from tests.store.given import kill_others
from tests.worker.attempts import PATIENCE
from tests.worker.conftest import eventually


class Running:
    """A worker in a thread of the test's process."""

    def __init__(self, store, options):
        self.leases = SharedLeases(64)
        self.loop = Loop(store, options, "test", self.leases)
        self.exit_code = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        self.exit_code = self.loop.run()
        connections.close_all()

    def stop(self):
        self.loop.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def running(store, options):
    running = Running(store, replace(options, drain=False))
    yield running
    running.stop()


@contextmanager
def held_up(store, monkeypatch):
    """The next round trip with an end takes until the end of the block, or until `release` is set."""
    begun, release = threading.Event(), threading.Event()
    settle_and_claim = store.settle_and_claim

    def slow(transitions, request):
        if transitions and not release.is_set():
            begun.set()
            assert release.wait(PATIENCE)
        return settle_and_claim(transitions, request)

    monkeypatch.setattr(store, "settle_and_claim", slow)
    yield begun, release
    release.set()


def test_a_task_runs_out_of_time(store, running, monkeypatch):
    interrupted = threading.Event()

    def spin():
        try:
            while True:
                pass
        finally:
            interrupted.set()

    monkeypatch.setitem(tasks.bodies, "spin", spin)
    monkeypatch.setitem(registered, tasks.play.module_path, replace(tasks.play, timeout=timedelta(seconds=1)))
    with held_up(store, monkeypatch) as (begun, _):
        tasks.play.enqueue("spin")
        eventually(lambda: Message.objects.leased().exists())
        tasks.remind.enqueue(7)
        assert begun.wait(PATIENCE)
        assert interrupted.wait(PATIENCE)
    eventually(lambda: FinishedMessage.objects.filter(kind=tasks.remind.module_path).exists())


def test_the_lease_keeper_sees_that_a_round_trip_hangs(store, running, monkeypatch):
    """It gives back what such a worker has not started."""
    monkeypatch.setattr(loop_module, "HEARTBEAT", 0.05)
    with held_up(store, monkeypatch) as (begun, _):
        tasks.remind.enqueue(7)
        assert begun.wait(PATIENCE)
        eventually(lambda: running.leases.silent_for() > 0.5)
    eventually(lambda: running.leases.silent_for() < 0.5)


def test_what_a_worker_has_ended_is_stored_when_its_time_is_over(store, options, monkeypatch):
    """A task goes on for too long, and the last round trip comes back only after that."""
    monkeypatch.setattr(loop_module, "LAST_ROUND_TRIP", PATIENCE)
    release = threading.Event()
    monkeypatch.setitem(tasks.bodies, "wait", lambda: release.wait(PATIENCE) and None)
    running = Running(store, replace(options, drain=False, shutdown_timeout=timedelta(seconds=0.2)))
    tasks.play.enqueue("wait")
    eventually(lambda: Message.objects.leased().exists())
    with held_up(store, monkeypatch) as (begun, go_on):
        tasks.remind.enqueue(7)
        assert begun.wait(PATIENCE)
        running.loop.stop()
        threading.Timer(0.5, go_on.set).start()
        running.thread.join(PATIENCE)
    assert running.exit_code is ExitCode.GAVE_UP
    assert FinishedMessage.objects.get().kind == tasks.remind.module_path
    assert [entry.id for entry in running.leases.entries()] == [Message.objects.get().id]
    release.set()  # a process would have ended now
    running.loop._pool.stop()
    running.loop._store_thread.stop()


def test_who_listens_has_a_connection_again_after_it_was_lost(store, running, connection):
    def remember(sender, claimed, **_):
        Mark.objects.create(name=claimed.key)

    signals.message_failed.connect(remember)
    try:
        for key in ("first", "second"):
            tasks.fail.using(max_attempts=1).schedule_at(timezone.now(), key=key)
            eventually(lambda key=key: Mark.objects.filter(name=key).exists())
            if connection.vendor != "sqlite":
                kill_others(connection)
    finally:
        signals.message_failed.disconnect(remember)


def test_a_quarantined_message_runs_alone_whatever_is_offered_meanwhile(store, drain, options, monkeypatch):
    """A message whose worker vanished twice may take others along."""
    seen = []

    def suspicious():
        chores.note.enqueue_many(((f"{number}",), {}) for number in range(3))
        time.sleep(0.5)
        seen.append(Mark.objects.count())

    monkeypatch.setitem(tasks.bodies, "suspicious", suspicious)
    offered = store.offer(Offer(**tasks.play.offer(("suspicious",), {}, when=None)._asdict()))
    Message.objects.filter(id=offered.id).update(attempt=2)
    drain(replace(options, threads=4))
    assert seen == [0]
    assert Mark.objects.count() == 3
