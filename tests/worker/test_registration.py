"""The worker registry: a process that lives is listed, one that ended is not."""

from __future__ import annotations

import json
import os
import signal
import socket
from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.conf import Settings
from delayedq.models import LockedRenewal, Message, Worker
from delayedq.store import worker_registry
from delayedq.store.registry import WorkerCommand
from delayedq.worker import keeper
from delayedq.worker import keeper as registration_module
from delayedq.worker.keeper import Registration, worker_name
from delayedq.worker.shared_leases import SharedLeases
from tests.app import chores
from tests.worker.conftest import eventually


def names():
    return set(Worker.objects.values_list("name", flat=True))


@pytest.fixture
def all_leases():
    return [SharedLeases(8), SharedLeases(8)]


@pytest.fixture
def registration(store, all_leases, options):
    return Registration(store, all_leases, options, len(all_leases))


def statements(store, act):
    with CaptureQueriesContext(connections[store.alias]) as captured:
        act()
    return len(captured)


# Heartbeats


def test_a_process_is_registered_once_it_has_started(all_leases, registration):
    registration.update()
    assert names() == set()
    all_leases[0].register(7)
    registration.update()
    row = Worker.objects.get()
    assert (row.name, row.host, row.pid) == (worker_name(7), socket.gethostname(), 7)
    assert (row.threads, row.queues, row.lease, row.held) == (2, "", 30.0, 0)
    assert row.seen_at - timedelta(seconds=5) < row.started_at <= row.seen_at


def test_the_registry_tells_what_a_process_holds_and_what_of_it_runs(store, all_leases, registration):
    all_leases[0].register(7)
    all_leases[0].hold(11, 1)
    all_leases[0].start(all_leases[0].hold(12, 2))
    registration.update()
    row = Worker.objects.get()
    assert (row.held, json.loads(row.running)) == (2, [12])


def test_between_two_heartbeats_that_are_due_nothing_is_asked_of_the_database(store, all_leases, registration):
    for number, leases in enumerate(all_leases):
        leases.register(number + 1)
    registration.update()
    assert statements(store, registration.update) == 0
    assert 0 < registration.due_in() <= registration_module.EVERY


def test_when_it_is_due_the_registry_is_one_statement_for_all_processes(store, all_leases, registration, monkeypatch):
    for number, leases in enumerate(all_leases):
        leases.register(number + 1)
    monkeypatch.setattr(registration_module, "EVERY", 0.0)
    registration.update()
    before = set(Worker.objects.values_list("seen_at", flat=True))
    assert statements(store, registration.update) == 1
    assert min(Worker.objects.values_list("seen_at", flat=True)) >= max(before)


def test_a_new_process_is_seen_before_the_next_heartbeat_is_due(all_leases, registration):
    all_leases[0].register(1)
    registration.update()
    assert registration.due_in() < registration_module.EVERY / 2, "it waits for the other one"
    all_leases[1].register(2)
    registration.update()
    assert names() == {worker_name(1), worker_name(2)}


def test_what_was_asked_of_a_process_is_told_however_late_its_next_heartbeat_is_written(
    store, all_leases, registration, monkeypatch
):
    """And also while another process comes; that of an earlier process of its name is not."""
    monkeypatch.setattr(registration_module, "EVERY", 0.0)
    all_leases[0].register(1)
    registration.update()
    worker_registry(store.alias).ask(worker_name(1), WorkerCommand.STOP)
    Worker.objects.update(seen_at=timezone.now() - timedelta(hours=1))  # before what the next one says of its start
    all_leases[1].register(2)
    registration.update()
    assert [leases.asked for leases in all_leases] == [WorkerCommand.STOP, None]


def test_a_process_that_ended_is_deregistered(all_leases, registration):
    for number, leases in enumerate(all_leases):
        leases.register(number + 1)
    registration.update()
    registration.deregister(all_leases[0])
    all_leases[0].clear()
    registration.update()
    assert names() == {worker_name(2)}


def test_a_worker_that_was_silent_for_an_hour_expires(store, registration, all_leases):
    all_leases[0].register(1)
    registration.update()
    Worker.objects.update(seen_at=store.now() - registration_module.EXPIRE_AFTER - timedelta(minutes=1))
    Registration(store, [], registration._options, 0).update()
    assert names() == set()


def test_the_routine_of_an_idle_process_is_one_statement_in_two_seconds_at_most(store):
    """A scan, the heartbeat, and the pruning, which is a transaction of two statements."""
    scans = 1 / Settings().POLL_INTERVAL.total_seconds()
    assert scans + 1 / registration_module.EVERY + 4 / keeper.PRUNE_EVERY <= 0.5


# Real workers


def test_workers_are_registered_while_they_run(workers):
    running = workers("--processes", "2", "--threads", "3", "--queues", "a,b", "--lease", "50")
    eventually(lambda: Worker.objects.count() == 2)
    assert set(Worker.objects.values_list("threads", "queues", "lease")) == {(3, "a,b", 50.0)}
    running.send(signal.SIGTERM)
    assert running.finish()[0] == 0
    assert names() == set()


def test_their_messages_are_leased_by_the_names_registered(workers):
    workers()
    chores.nap.enqueue("napping", 1.0)
    eventually(lambda: Message.objects.leased().exists() and Worker.objects.exists())
    assert set(Message.objects.values_list("leased_by", flat=True)) <= names()


def test_a_process_that_was_killed_is_replaced_registered(workers):
    workers()
    (before,) = eventually(names)
    os.kill(Worker.objects.get().pid, signal.SIGKILL)
    eventually(lambda: names() and before not in names())


@pytest.mark.slow
def test_a_supervisor_that_was_killed_leaves_no_worker_registered(workers):
    running = workers("--processes", "2")
    eventually(lambda: Worker.objects.count() == 2)
    running.send(signal.SIGKILL)
    eventually(lambda: not names())


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_renewals_that_a_killed_process_left_beside_locked_rows_are_deleted(registration):
    LockedRenewal.objects.create(message_id=1, lease_token=1, leased_until=timezone.now() - timedelta(seconds=1))
    LockedRenewal.objects.create(message_id=2, lease_token=1, leased_until=timezone.now() + timedelta(hours=1))
    registration.update()
    assert list(LockedRenewal.objects.values_list("message_id", flat=True)) == [2]
