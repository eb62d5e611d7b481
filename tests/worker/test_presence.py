"""The roll of workers: who lives is seen, who ended is not."""

from __future__ import annotations

import json
import os
import signal
import socket
from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq.conf import Settings
from delayedq.models import Message, Worker
from delayedq.worker import lease_keeper, presence
from delayedq.worker.ledger import Ledger
from delayedq.worker.presence import RollCall, worker_name
from tests.app import chores
from tests.worker.conftest import eventually


def names():
    return set(Worker.objects.values_list("name", flat=True))


@pytest.fixture
def ledgers():
    return [Ledger(8), Ledger(8)]


@pytest.fixture
def roll(store, ledgers, options):
    return RollCall(store, ledgers, options)


def statements(store, act):
    with CaptureQueriesContext(connections[store.alias]) as captured:
        act()
    return len(captured)


# The call of the roll


def test_a_process_is_on_the_roll_once_it_has_started(ledgers, roll):
    roll.call()
    assert names() == set()
    ledgers[0].enlist(7)
    roll.call()
    row = Worker.objects.get()
    assert (row.name, row.host, row.pid) == (worker_name(7), socket.gethostname(), 7)
    assert (row.threads, row.queues, row.lease, row.held) == (2, "", 30.0, 0)
    assert row.seen_at - timedelta(seconds=5) < row.started_at <= row.seen_at


def test_the_roll_tells_what_a_process_holds_and_what_of_it_runs(store, ledgers, roll):
    ledgers[0].enlist(7)
    ledgers[0].hold(11, 1)
    ledgers[0].start(ledgers[0].hold(12, 2))
    roll.call()
    row = Worker.objects.get()
    assert (row.held, json.loads(row.running)) == (2, [12])


def test_between_two_calls_that_are_due_nothing_is_asked_of_the_database(store, ledgers, roll):
    for number, ledger in enumerate(ledgers):
        ledger.enlist(number + 1)
    roll.call()
    assert statements(store, roll.call) == 0
    assert 0 < roll.due_in() <= presence.EVERY


def test_when_it_is_due_the_roll_is_one_statement_for_all_processes(store, ledgers, roll, monkeypatch):
    for number, ledger in enumerate(ledgers):
        ledger.enlist(number + 1)
    monkeypatch.setattr(presence, "EVERY", 0.0)
    roll.call()
    before = set(Worker.objects.values_list("seen_at", flat=True))
    assert statements(store, roll.call) == 1
    assert min(Worker.objects.values_list("seen_at", flat=True)) >= max(before)


def test_a_new_process_is_seen_before_the_next_call_is_due(ledgers, roll):
    ledgers[0].enlist(1)
    roll.call()
    assert roll.due_in() < presence.EVERY / 2, "it waits for the other one"
    ledgers[1].enlist(2)
    roll.call()
    assert names() == {worker_name(1), worker_name(2)}


def test_a_process_that_ended_is_off_the_roll(ledgers, roll):
    for number, ledger in enumerate(ledgers):
        ledger.enlist(number + 1)
    roll.call()
    roll.dismiss(ledgers[0])
    ledgers[0].clear()
    roll.call()
    assert names() == {worker_name(2)}


def test_who_has_long_been_silent_is_forgotten(store, roll, ledgers):
    ledgers[0].enlist(1)
    roll.call()
    Worker.objects.update(seen_at=store.now() - presence.FORGET_AFTER - timedelta(minutes=1))
    RollCall(store, [], roll._options).call()
    assert names() == set()


def test_the_routine_of_an_idle_process_is_one_statement_in_two_seconds_at_most(store):
    """A look, the roll, and the pruning, which is a transaction of two statements."""
    looks = 1 / Settings().POLL_INTERVAL.total_seconds()
    assert looks + 1 / presence.EVERY + 4 / lease_keeper.PRUNE_EVERY <= 0.5


# Real workers


def test_workers_are_on_the_roll_while_they_run(workers):
    running = workers("--processes", "2", "--threads", "3", "--queues", "a,b", "--lease", "50")
    eventually(lambda: Worker.objects.count() == 2)
    assert set(Worker.objects.values_list("threads", "queues", "lease")) == {(3, "a,b", 50.0)}
    running.send(signal.SIGTERM)
    assert running.finish()[0] == 0
    assert names() == set()


def test_their_messages_are_leased_by_the_names_on_the_roll(workers):
    workers()
    chores.nap.enqueue("napping", 1.0)
    eventually(lambda: Message.objects.leased().exists() and Worker.objects.exists())
    assert set(Message.objects.values_list("leased_by", flat=True)) <= names()


def test_a_process_that_was_killed_is_replaced_on_the_roll(workers):
    workers()
    (before,) = eventually(names)
    os.kill(Worker.objects.get().pid, signal.SIGKILL)
    eventually(lambda: names() and before not in names())


def test_a_supervisor_that_was_killed_leaves_no_worker_on_the_roll(workers):
    running = workers("--processes", "2")
    eventually(lambda: Worker.objects.count() == 2)
    running.send(signal.SIGKILL)
    eventually(lambda: not names())
