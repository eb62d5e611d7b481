"""Tasks and the database: connections are those of their threads, and one task's trouble is not the next one's."""

from __future__ import annotations

import pytest
from django.db import Error, connections, transaction

from delayedq.core.lifecycle import Raised, Returned
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.attempts import attempt_of, playing
from tests.worker.test_pool import working


@pytest.fixture
def opened(alias, monkeypatch):
    """The connections that anybody but the test opens from now on."""
    found = []
    wrapper, mine = type(connections[alias]), connections[alias]
    connect = wrapper.connect

    def remember(self):
        connect(self)
        if self is not mine:
            found.append(self)

    monkeypatch.setattr(wrapper, "connect", remember)
    return found


@pytest.fixture(params=["closed after each use", "kept open"])
def age(request, alias, monkeypatch):
    """CONN_MAX_AGE, as a site may have it."""
    monkeypatch.setitem(connections[alias].settings_dict, "CONN_MAX_AGE", 0 if request.param != "kept open" else None)
    monkeypatch.setitem(connections.settings[alias], "CONN_MAX_AGE", 0 if request.param != "kept open" else None)


def marks():
    return set(Mark.objects.values_list("name", flat=True))


def test_effects_of_tasks_are_committed_and_their_connections_closed_at_the_end(opened, age):
    with working(2) as worker:
        ended = worker.run(*(attempt_of(tasks.mark, str(number)) for number in range(5)))
        assert [one.outcome for one in ended] == [Returned()] * 5
    assert marks() == set("01234")
    assert opened
    assert [one for one in opened if one.connection is not None] == []


def test_async_tasks_write_and_their_connection_is_closed_at_the_end(opened, age):
    with working(1) as worker:
        ended = worker.run(*(attempt_of(tasks.amark, str(number)) for number in range(5)))
        assert [one.outcome for one in ended] == [Returned()] * 5
    assert marks() == set("01234")
    assert opened
    assert [one for one in opened if one.connection is not None] == []


def test_a_kept_connection_serves_many_tasks(alias, opened, monkeypatch):
    monkeypatch.setitem(connections.settings[alias], "CONN_MAX_AGE", None)
    with working(1) as worker:
        worker.run(*(attempt_of(tasks.mark, str(number)) for number in range(5)))
    # Django first asks MySQL for its version, on a connection of its own.
    assert len(opened) == (2 if connections[alias].vendor == "mysql" else 1)


# Tasks that leave their connection in a bad state


def raise_in_a_transaction(alias):
    with transaction.atomic(using=alias):
        Mark.objects.create(name="undone")
        raise ValueError


def fail_in_sql(alias):
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT nonsense FROM nowhere")


def swallow_an_error_in_a_transaction(alias):
    with transaction.atomic(using=alias):
        Mark.objects.create(name="undone")
        try:
            fail_in_sql(alias)
        except Error:
            transaction.set_rollback(True, using=alias)


def leave_a_transaction_open(alias):
    transaction.atomic(using=alias).__enter__()
    Mark.objects.create(name="undone")


def leave_a_failed_transaction_open(alias):
    transaction.atomic(using=alias).__enter__()
    fail_in_sql(alias)


def turn_autocommit_off(alias):
    transaction.set_autocommit(False, using=alias)
    Mark.objects.create(name="undone")


def close_the_connection(alias):
    Mark.objects.exists()
    connections[alias].close()


BREAK = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}


def break_the_connection(alias):
    """As a server does that goes away."""
    with connections[alias].cursor() as cursor:
        cursor.execute(BREAK[connections[alias].vendor])
    Mark.objects.exists()


TROUBLE = [
    raise_in_a_transaction,
    fail_in_sql,
    swallow_an_error_in_a_transaction,
    leave_a_transaction_open,
    leave_a_failed_transaction_open,
    turn_autocommit_off,
    close_the_connection,
]


@pytest.mark.parametrize("trouble", TROUBLE)
def test_trouble_of_one_task_is_not_that_of_the_next_one_in_its_thread(alias, age, trouble):
    assert_harmless(trouble, alias)


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_connection_that_the_server_closed_is_not_met_by_the_next_task_of_its_thread(alias, age):
    assert_harmless(break_the_connection, alias)


def assert_harmless(trouble, alias):
    with working(1) as worker:
        first, second, third = worker.run(
            playing(trouble, alias), attempt_of(tasks.mark, "second"), attempt_of(tasks.mark, "third")
        )
    assert first.error is None or first.outcome == Raised()
    assert (second.error, third.error) == (None, None)
    assert marks() == {"second", "third"}
