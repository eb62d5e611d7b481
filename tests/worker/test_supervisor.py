"""The parent of the worker processes, when things happen to it and its children."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import OperationalError, connections, transaction
from django.utils import timezone

from delayedq.models import FinishedMessage, Message, Worker
from delayedq.store import default_store
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.worker import supervisor
from tests.app import chores
from tests.app.models import Mark
from tests.worker.conftest import eventually, marked

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def children(pid):
    """The lease keeper first: it is started before any worker."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_connection_that_was_open_before_is_not_shared_by_the_children(workers):
    chores.note.enqueue_many((("many", str(number)), {}) for number in range(200))
    code, output = workers("--drain", "--processes", "2", QUERY_AT_START="yes").finish()
    assert code == 0, output
    assert "lost" not in output
    assert FinishedMessage.objects.succeeded().count() == 200


def test_a_lease_keeper_that_was_killed_is_replaced_and_leases_go_on(workers):
    chores.wait_for.enqueue("renewal")
    one = workers("--lease", "10")
    eventually(lambda: marked("began to wait for renewal"))
    os.kill(children(one.process.pid)[0], signal.SIGKILL)
    before = Message.objects.get().leased_until
    eventually(lambda: Message.objects.get().leased_until > before)
    Mark.objects.create(name="renewal")
    eventually(FinishedMessage.objects.exists)
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert "died (signal SIGKILL); another starts in" in output
    assert FinishedMessage.objects.get().attempts == 1


def test_a_worker_that_was_killed_is_replaced_and_its_batch_mates_run_at_once(workers):
    chores.nap.enqueue("long", 60)
    chores.nothing.enqueue_many(((number,), {}) for number in range(3))
    one = workers("--threads", "1", "--lease", "60")
    eventually(lambda: marked("long began"))
    os.kill(children(one.process.pid)[1], signal.SIGKILL)
    eventually(lambda: FinishedMessage.objects.succeeded().count() == 3)
    assert Message.objects.get().leased_until > timezone.now() + timedelta(seconds=1)
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0
    assert "died (signal SIGKILL)" in output


def test_a_stop_while_a_worker_starts_is_not_forgotten(workers):
    for _ in range(5):
        one = workers("--shutdown-timeout", "60")
        eventually(lambda one=one: len(children(one.process.pid)) == 2)
        one.send(signal.SIGTERM)
        assert one.finish(timeout=20)[0] == 0


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_silent_database_keeps_an_idle_worker_from_ending_for_a_few_seconds_only(workers, alias):
    one = workers("--shutdown-timeout", "2", poll=0.2)
    one.ready()
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("LOCK TABLE delayedq_message IN ACCESS EXCLUSIVE MODE")
        eventually(lambda: waiting_for_locks(cursor))
        began = time.monotonic()
        one.send(signal.SIGTERM)
        code, output = one.finish()
        took = time.monotonic() - began
    assert code == 0, output
    assert took < supervisor.KEEPER_TIMEOUT, output


def waiting_for_locks(cursor):
    cursor.execute("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return cursor.fetchone()[0]


def test_a_stopped_lease_keeper_has_what_is_left_of_the_shutdown_timeout(workers):
    one = workers("--shutdown-timeout", "2")
    one.ready()
    os.kill(children(one.process.pid)[0], signal.SIGSTOP)
    began = time.monotonic()
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert "The lease keeper waits for the database" in output
    assert time.monotonic() - began < supervisor.KEEPER_TIMEOUT


def stop_between_writes(pid):
    """On SQLite, a process that is stopped while it writes keeps all others from writing."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        try:
            with transaction.atomic(using=default_store().alias):
                return
        except OperationalError:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1)  # else it is stopped again before it has written


def test_what_was_claimed_before_a_freeze_of_more_than_a_lease_does_not_begin_after_it(workers, store, alias):
    """Not even if its lease keeper is frozen still, and tells it of nothing."""
    one = workers("--threads", "1", "--lease", "2", "--no-cron")
    one.ready()
    keeper, worker = children(one.process.pid)
    stop_between_writes(keeper)
    with transaction.atomic(using=alias):  # both are claimed at once
        chores.freeze_its_process.enqueue()
        chores.note.enqueue("second")
    eventually(lambda: " T " in Path(f"/proc/{worker}/stat").read_text())
    assert Message.objects.exclude(lease_token=None).count() == 2

    taken = []
    request = ClaimRequest([Lane("default", 0)], 2, timedelta(hours=1), "another")
    eventually(lambda: taken.extend(store.claim(request)) or len(taken) == 2)
    chores.note.enqueue("after")
    for pid in (worker, keeper):
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: marked("after"))
    assert not marked("second")
    assert {one.id for one in taken} == {*Message.objects.filter(leased_by="another").values_list("id", flat=True)}


def test_a_lease_keeper_that_was_killed_at_the_end_is_replaced_for_what_is_left(workers):
    """Its next one would start after a pause: all workers have ended by then."""
    one = workers("--shutdown-timeout", "60")
    chores.nap.enqueue("long", 60)
    eventually(lambda: marked("long began"))
    keeper, worker = children(one.process.pid)
    stop_between_writes(keeper)
    os.kill(worker, signal.SIGKILL)
    chores.note.enqueue("after")
    eventually(lambda: marked("after"))
    one.send(signal.SIGTERM)
    eventually(lambda: len(children(one.process.pid)) == 1)
    os.kill(keeper, signal.SIGKILL)
    code, output = one.finish()
    assert code == 0, output
    assert "another starts" in output
    assert not Worker.objects.exists(), "the killed one was released"


BROKEN_HANDLER = """
import logging

from tests.worker_settings import *


class Broken(logging.Handler):
    def emit(self, record):
        raise RuntimeError("This handler is broken.")


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"broken": {"class": "settings_of_a_broken_handler.Broken"}},
    "root": {"level": "INFO", "handlers": ["broken"]},
}
"""


def test_an_error_in_the_supervisor_ends_it_and_its_workers(workers, tmp_path):
    (tmp_path / "settings_of_a_broken_handler.py").write_text(BROKEN_HANDLER)
    chores.nothing.enqueue(1)

    one = workers(PYTHONPATH=f"{tmp_path}:{Path.cwd()}", DJANGO_SETTINGS_MODULE="settings_of_a_broken_handler")
    eventually(lambda: one.process.poll() is not None)

    code, output = one.finish()
    assert code == 1
    assert "This handler is broken." in output
    assert Message.objects.count() == 1


def test_a_process_that_others_end_is_replaced_and_that_is_said(workers):
    """As a task does that signals its own process, or a hand that kills what it does not know."""
    one = workers("--processes", "2", "--no-cron")
    before = eventually(lambda: len(found := {*Worker.objects.values_list("pid", flat=True)}) == 2 and found)
    os.kill(min(before), signal.SIGTERM)
    eventually(lambda: len({*Worker.objects.values_list("pid", flat=True)} - before) == 1)
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert (code, output.count("was ended by a SIGTERM that did not come from its supervisor")) == (0, 1)
