"""Exactly-once tasks: what follows their commit, a commit whose answer was lost, and one at the time limit."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, transaction

from delayedq import current_message
from delayedq.compat import task_finished
from delayedq.core.lifecycle import Raised, Returned
from delayedq.models import FinishedMessage
from delayedq.store.protocol import Settled
from delayedq.worker import exactly_once
from delayedq.worker.deadlines import Deadlines
from tests.app import once
from tests.store.given import at
from tests.worker.exactly_once_tasks import is_untouched, marks, run, write, write_and

# After the commit


def test_callbacks_of_the_transaction_run_after_the_commit_and_only_then(claimed, connection):
    seen = []

    def callback():
        seen.append((connection.in_atomic_block, FinishedMessage.objects.count(), current_message().key))

    run(claimed(lambda: transaction.on_commit(callback, using=connection.alias)))
    assert seen == [(False, 1, "a")]

    message = claimed(lambda: (transaction.on_commit(callback, using=connection.alias), 1 / 0))
    assert run(message).outcome == Raised()
    assert len(seen) == 1


def test_a_callback_that_fails_does_not_undo_the_success(claimed, connection, caplog):
    message = claimed(write_and(lambda: transaction.on_commit(lambda: 1 / 0, using=connection.alias)))
    ended = run(message)

    assert (ended.outcome, ended.error, ended.settled) == (Returned(), None, Settled())
    assert (FinishedMessage.objects.get().outcome, marks()) == ("succeeded", ["written"])
    assert "what followed its commit failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_that_fails_does_not_undo_a_replacement(claimed, connection, caplog):
    def body():
        once.play.schedule_at(at(5), "next", key="a")
        transaction.on_commit(lambda: 1 / 0, using=connection.alias)

    message = claimed(body)
    assert run(message).settled == Settled(superseded=frozenset({message.id}))


@pytest.fixture
def told(connection):
    """What the receivers of task_finished saw: in a transaction?, how many ended?, and the status."""
    seen = []

    def receive(task_result, **_):
        seen.append((connection.in_atomic_block, FinishedMessage.objects.count(), task_result.status))
        write("told")

    task_finished.connect(receive)
    yield seen
    task_finished.disconnect(receive)


def test_a_success_is_announced_after_the_commit(claimed, told):
    run(claimed(lambda: 7))
    assert told == [(False, 1, "SUCCESSFUL")]


def test_a_failure_is_announced_after_the_rollback(claimed, told):
    run(claimed(write_and(lambda: 1 / 0))._replace(max_attempts=1))
    assert told == [(False, 0, "FAILED")]
    assert marks() == ["told"]


# A commit whose answer was lost


@pytest.fixture
def unplug(connection, monkeypatch):
    """What a task does to lose the connection in its commit, after or before that reached the database.

    `answered`: the commit itself is told to have succeeded, and what follows it fails.
    """

    def prepare(after, *, answered=False):
        commit = connection.commit

        def lose():
            monkeypatch.undo()
            if after:
                commit()
            cut(connection)
            if not answered:
                raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(connection, "commit", lose)

    return prepare


def cut(connection):
    if connection.vendor == "mysql":  # its driver does not bear closing a connection twice
        with suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("KILL CONNECTION_ID()")
    else:
        connection.connection.close()


@pytest.mark.parametrize("answered", [False, True])
def test_a_commit_that_arrived_has_succeeded_though_the_connection_was_lost(claimed, unplug, caplog, answered):
    ended = run(claimed(write_and(lambda: unplug(after=True, answered=answered))))

    assert (ended.outcome, ended.error, ended.settled) == (Returned(), None, Settled())
    assert (FinishedMessage.objects.get().outcome, marks()) == ("succeeded", ["written"])
    assert "what followed its commit failed" in caplog.text


@pytest.mark.parametrize("after", [True, False])
def test_also_of_a_message_that_was_replaced_it_is_known_whether_the_commit_arrived(claimed, unplug, after):
    def body():
        write()
        once.play.schedule_at(at(5), "next", key="a")
        unplug(after=after)

    message = claimed(body)
    ended = run(message)

    if after:
        assert (ended.outcome, ended.settled) == (Returned(), Settled(superseded=frozenset({message.id})))
        assert marks() == ["written"]
    else:
        assert (ended.outcome, ended.settled) == (Raised(), None)
        assert is_untouched(message)


def test_a_commit_that_never_arrived_has_failed(claimed, unplug):
    message = claimed(write_and(lambda: unplug(after=False)))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, OperationalError)
    assert is_untouched(message)


@pytest.mark.parametrize("after", [True, False])
def test_while_the_database_is_away_it_asks_again(claimed, store, unplug, monkeypatch, after):
    def stay_away(ids):
        if len(pauses) < 3:
            raise OperationalError("could not connect")
        return finished(ids)

    pauses, finished = [], store.in_history
    message = claimed(write_and(lambda: unplug(after)))
    with pytest.MonkeyPatch.context() as outage:  # `unplug` undoes its own changes alone
        outage.setattr(store, "in_history", stay_away)
        outage.setattr(exactly_once, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
        ended = run(message)

    assert (ended.settled is not None) is after
    assert len(pauses) == 3
    assert marks() == (["written"] if after else [])


# Timeouts


def test_its_timeout_never_interrupts_its_commit(claimed, connection, monkeypatch):
    message, commit = claimed(write), connection.commit
    with closing(Deadlines(lambda: None)) as deadlines:
        monkeypatch.setattr(connection, "commit", lambda: (deadlines.enforce(), commit()))
        ended = run(message, deadlines, timeout=timedelta(microseconds=1))

    assert (ended.outcome, ended.error, ended.settled) == (Returned(), None, Settled())
