"""What a task changes in its database session does not meet the next task of its thread."""

from __future__ import annotations

import pytest
from django.db import connections, transaction
from psycopg.sql import SQL, Identifier

from delayedq.worker import sessions
from delayedq.worker.silence import Silence
from tests.app import tasks
from tests.router import ChosenDatabase
from tests.worker.attempts import attempt_of, playing
from tests.worker.pools import values, working

POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
OWN_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
SERVERS = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture(autouse=True)
def kept(alias, monkeypatch):
    """Connections that Django never closes by itself."""
    monkeypatch.setitem(connections.settings[alias], "CONN_MAX_AGE", None)


def ask(statement):
    with connections[ChosenDatabase.alias].cursor() as cursor:
        cursor.execute(statement)
        return str(cursor.fetchone()[0]) if cursor.description else None


def after(change, question):
    """The answers before and after a task that makes this change, each in a task of the same thread."""
    with working(1) as worker:
        ended = worker.run(playing(ask, question), playing(change), playing(ask, question))
    assert [one.error for one in ended] == [None] * 3
    return ended[0].outcome.result, ended[2].outcome.result


def raw(statement):
    """Sent where no wrapper of Django sees it."""
    connections[ChosenDatabase.alias].ensure_connection()
    ask("SELECT 1")
    connections[ChosenDatabase.alias].connection.execute(statement)


@POSTGRESQL
@pytest.mark.parametrize(
    ("statement", "question"),
    [
        ("SET ROLE pg_monitor", "SELECT current_user"),
        ("set session time zone 'Asia/Tokyo'", "SHOW TimeZone"),
        ("SET default_transaction_read_only = on", "SHOW default_transaction_read_only"),
        ("SELECT set_config('search_path', 'nowhere', false)", "SHOW search_path"),
        (
            "SELECT pg_advisory_lock(7)",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        ),
        ("CREATE TEMP TABLE left_behind (x int)", "SELECT to_regclass('left_behind')"),
        ("SET work_mem = '77MB'", "SHOW work_mem"),
        (SQL("SET ROLE {}").format(Identifier("pg_monitor")), "SELECT current_user"),
        (b"SET work_mem = '77MB'", "SHOW work_mem"),
        ("/* mine */ SET work_mem = '77MB'", "SHOW work_mem"),
        ("-- mine\nSET work_mem = '77MB'", "SHOW work_mem"),
        ("SELECT 1; SET work_mem = '77MB'", "SHOW work_mem"),
        ("DO $$ BEGIN PERFORM set_config('work_mem', '77MB', false); END $$", "SHOW work_mem"),
        ("SELECT 7 AS x INTO TEMP left_behind", "SELECT to_regclass('left_behind')"),
    ],
    ids=str,
)
def test_a_changed_session_is_not_met_by_the_next_task(alias, statement, question):
    before, now = after(lambda: ask(statement), question)
    assert now == before


@POSTGRESQL
def test_a_session_that_others_use_is_restored_when_they_are_done(connection):
    """As the one that all async tasks share."""
    connection.close()
    sessions.observe()
    try:
        ask("SELECT pg_advisory_lock(7)")
        session = connection.connection
        sessions.restore(shared=True)
        assert (ask(OWN_LOCKS), connections[connection.alias].connection is session) == ("1", True)
        sessions.restore()
        assert ask(OWN_LOCKS) == "0"
    finally:
        connections[connection.alias].close()
        sessions._opened.sessions = None


def is_watched():
    """Whether its sockets will be known before its session is set up, which may get no answer."""
    return "get_new_connection" in vars(connections[ChosenDatabase.alias])


@POSTGRESQL
def test_the_connection_that_a_task_opens_is_watched_also_after_another_has_lost_its_session(alias):
    watched = Silence("a worker", alias, 60.0).wait
    with working(1, wait=watched) as worker:
        ended = worker.run(playing(is_watched), playing(ask, "SET work_mem = '77MB'"), playing(is_watched))
    assert values([ended[0], ended[2]]) == ["true", "true"]


@POSTGRESQL
def test_what_postgresql_reports_is_noticed_whatever_sent_it(alias):
    before, now = after(lambda: raw("SET TimeZone = 'Asia/Tokyo'"), "SHOW TimeZone")
    assert now == before


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "question"),
    [("SET SESSION sql_mode = ''", "SELECT @@sql_mode"), ("SET @mine = 7", "SELECT coalesce(@mine, 'none')")],
)
def test_a_changed_session_of_mariadb_is_not_met_by_the_next_task(alias, statement, question):
    before, now = after(lambda: ask(statement), question)
    assert now == before


def session():
    return ask("SELECT pg_backend_pid()" if ChosenDatabase.alias == "postgresql" else "SELECT CONNECTION_ID()")


def in_transaction():
    with transaction.atomic(using=ChosenDatabase.alias):
        ask("SET LOCAL work_mem = '77MB'" if ChosenDatabase.alias == "postgresql" else "SELECT 1")


@SERVERS
@pytest.mark.parametrize("ordinary", [in_transaction, lambda: tasks.nothing.enqueue() and None])
def test_a_session_that_is_as_it_was_is_kept(alias, ordinary):
    with working(1) as worker:
        ended = worker.run(playing(session), playing(ordinary), attempt_of(tasks.mark, "a"), playing(session))
    assert ended[0].outcome.result == ended[3].outcome.result


@SERVERS
def test_nothing_is_asked_after_a_task_that_succeeded(alias):
    """A connection on which a task failed is checked, by one statement; others are not."""
    statements = []

    def record(execute, sql, params, many, context):
        statements.append(sql)
        return execute(sql, params, many, context)

    def fail():
        ask("SELECT 2")
        raise ValueError

    def begin():
        ask("SELECT 0")
        connections[ChosenDatabase.alias].execute_wrappers.append(record)

    checks = []

    def usable():
        checks.append(1)
        return True

    def count_checks():
        connections[ChosenDatabase.alias].is_usable = usable

    with working(1) as worker:
        worker.run(playing(begin), playing(count_checks), playing(ask, "SELECT 1"), playing(lambda: None))
        assert (statements, checks) == (["SELECT 1"], [])
        worker.run(playing(fail))
        worker.run(playing(lambda: None))
        assert (statements, checks) == (["SELECT 1", "SELECT 2"], [1])
