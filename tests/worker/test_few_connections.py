"""A role that may open few connections: something runs, and the start says what is needed and what may be had."""

from __future__ import annotations

import re
import signal
from contextlib import contextmanager

import pytest
from django.db import connections

from delayedq.models import FinishedMessage
from delayedq.store.connecting import separate
from tests.app import chores, tasks
from tests.worker.conftest import eventually, marked

pytestmark = pytest.mark.slow

on_postgresql = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


@contextmanager
def limited(connection, environment, most):
    """Workers connect as a role that may open so many connections."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE limited LOGIN CONNECTION LIMIT {most:d}")
        cursor.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO limited")
        cursor.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO limited")
    try:
        yield {"DATABASE_URL": re.sub("//.*?@", "//limited@", environment["DATABASE_URL"])}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited'")
            cursor.execute("DROP OWNED BY limited")
            cursor.execute("DROP ROLE limited")


def sessions(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'limited'")
        return cursor.fetchone()[0]


@on_postgresql
@pytest.mark.parametrize("most", [5, 6])
def test_two_fleets_run_messages_where_neither_has_all_connections_that_it_wants(
    workers, connection, environment, most
):
    with limited(connection, environment, most) as variables:
        fleets = [workers("--no-cron", **variables) for _ in range(2)]
        eventually(lambda: sessions(connection) == most)
        tasks.echo.enqueue_many(([number], {}) for number in range(120))
        eventually(lambda: FinishedMessage.objects.succeeded().count() == 120)
        tasks.echo.enqueue(1)  # also when all have settled down
        eventually(lambda: FinishedMessage.objects.succeeded().count() == 121)
        for one in fleets:
            one.send(signal.SIGTERM)
        said = [one.finish() for one in fleets]
    assert [code for code, _ in said] == [0, 0]
    assert all("These workers need 5 to work without delay, and open up to 11" in output for _, output in said)


def test_the_room_for_connections_is_known(store, alias):
    before = store.database.connections_left()
    if connections[alias].vendor == "sqlite":
        assert before is None
        return
    other = separate(alias)
    other.ensure_connection()
    try:
        assert store.database.connections_left() < before  # others, of tests before, may end meanwhile
    finally:
        other.close()


@on_postgresql
def test_listen_gives_way_to_tasks_that_get_no_connection(workers, connection, environment):
    """The keeper, claims, scans and LISTEN take all four; then a task has that of LISTEN."""
    with limited(connection, environment, 4) as variables:
        one = workers("--no-cron", "--threads", "1", **variables)
        eventually(lambda: sessions(connection) == 3)  # the loop opens its own with its first claim
        chores.note.using(max_attempts=20).enqueue("written")
        eventually(lambda: marked("written"))
        one.send(signal.SIGTERM)
        code, output = one.finish()
    assert (code, output.count("other parts of this worker have no connection")) == (0, 1)
