"""What one task leaves behind is not there for the next one in its thread; a lost connection is not charged to it."""

from __future__ import annotations

import asyncio
import decimal
from contextvars import ContextVar

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils import timezone, translation

from delayedq.core.lifecycle import Returned
from delayedq.worker import pool as pool_module
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.attempts import attempt_of, playing
from tests.worker.test_pool import working

VARIABLE = ContextVar("variable", default="unset")
LEAKS = {
    "language": (lambda: translation.activate("he"), translation.get_language),
    "no translation": (translation.deactivate_all, translation.get_language),
    "time zone": (lambda: timezone.activate("Asia/Tokyo"), timezone.get_current_timezone_name),
    "context variable": (lambda: VARIABLE.set("set"), VARIABLE.get),
    "decimals": (lambda: setattr(decimal.getcontext(), "prec", 3), lambda: decimal.getcontext().prec),
}
each_leak = pytest.mark.parametrize(("leave", "look"), LEAKS.values(), ids=LEAKS)
on_sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
on_servers = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)


@on_sqlite
@each_leak
def test_the_next_task_of_the_thread_begins_as_the_first(alias, leave, look):
    seen = []
    with working(1) as worker:
        worker.run(*(playing(body) for body in (lambda: seen.append(look()), leave, lambda: seen.append(look()))))
    assert seen[0] == seen[1]


@on_sqlite
@each_leak
def test_an_async_task_begins_as_the_first(alias, leave, look):
    seen = []

    async def leave_it():
        leave()

    async def see():
        seen.append(look())

    with working(1) as worker:
        for body in (see, leave_it, see):
            worker.run(playing(body))
    assert seen[0] == seen[1]


def close_below_django(alias):
    Mark.objects.exists()
    connections[alias].connection.close()


def test_a_connection_that_a_task_closed_by_hand_is_not_met_by_the_next(alias, monkeypatch):
    monkeypatch.setitem(connections.settings[alias], "CONN_MAX_AGE", None)
    with working(1) as worker:
        ended = worker.run(playing(close_below_django, alias), attempt_of(tasks.mark, "next"))
    assert [one.outcome for one in ended] == [Returned()] * 2


END_OTHERS = {
    "postgresql": "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}


def end_other_sessions(alias):
    """As a failover, a restart, or a time-out for idle sessions does."""
    vendor = connections[alias].vendor
    with connections[alias].cursor() as cursor:
        cursor.execute(END_OTHERS[vendor])
        for (id_,) in cursor.fetchall() if vendor == "mysql" else ():
            cursor.execute("KILL %s", [id_])


@on_servers
@pytest.mark.parametrize("health_checks", [False, True], ids=["", "health checks"])
@pytest.mark.parametrize("task", [tasks.mark, tasks.amark], ids=["sync", "async"])
def test_a_session_that_ended_while_nothing_ran_fails_no_task(alias, task, health_checks, monkeypatch):
    for name, value in (("CONN_MAX_AGE", None), ("CONN_HEALTH_CHECKS", health_checks)):
        monkeypatch.setitem(connections.settings[alias], name, value)
    with working(2) as worker:
        for number in range(3):
            ended = worker.run(*(attempt_of(task, f"{number} {each}") for each in range(4)))
            assert [one.outcome for one in ended] == [Returned()] * 4
            end_other_sessions(alias)
    assert Mark.objects.count() == 12


def leave_autocommit_off(alias):
    connections[alias].set_autocommit(False)
    Mark.objects.create(name="lost")


def leave_a_transaction_open(alias):
    transaction.atomic(using=alias).__enter__()
    Mark.objects.create(name="lost")


@pytest.mark.parametrize("leave", [leave_autocommit_off, leave_a_transaction_open])
def test_a_transaction_that_a_task_leaves_open_is_told(alias, leave, caplog):
    with working(1) as worker:
        worker.run(playing(leave, alias), playing(lambda: Mark.objects.create(name="kept")))
    (told,) = (one.message for one in caplog.records)
    assert told.startswith(f"{tasks.play.module_path} has left a transaction open on {alias!r}: ")
    assert list(Mark.objects.values_list("name", flat=True)) == ["kept"]


def write_in_a_transaction(alias):
    with transaction.atomic(using=alias):
        Mark.objects.create(name="second")


GOING_ON = {
    "write": lambda _: Mark.objects.create(name="lost"),
    "commit": lambda alias: connections[alias].commit(),
    "autocommit": lambda alias: connections[alias].set_autocommit(True),
}


@pytest.mark.parametrize("go_on", GOING_ON.values(), ids=GOING_ON)
def test_an_async_task_that_turns_autocommit_off_takes_no_write_of_another_and_is_named(alias, go_on, caplog):
    """All async tasks share one connection."""
    off, written = asyncio.Event(), asyncio.Event()

    async def turn_it_off():
        await sync_to_async(leave_autocommit_off)(alias)
        off.set()
        await written.wait()
        await sync_to_async(go_on)(alias)

    async def write():
        await off.wait()
        await Mark.objects.acreate(name="first")
        await sync_to_async(write_in_a_transaction)(alias)
        written.set()

    with working(1) as worker:
        culprit, neighbour = worker.run(playing(turn_it_off), playing(write))
        (last,) = worker.run(attempt_of(tasks.amark, "third"))
    assert isinstance(culprit.error, transaction.TransactionManagementError)
    assert (neighbour.outcome, last.outcome) == (Returned(), Returned())
    (told,) = (one.message for one in caplog.records)
    assert told.startswith(f"{tasks.aplay.module_path} has turned autocommit off on {alias!r}, ")
    assert set(Mark.objects.values_list("name", flat=True)) == {"first", "second", "third"}


def test_an_async_task_may_turn_autocommit_off_within_one_function(alias, caplog):
    def by_hand():
        connections[alias].set_autocommit(False)
        Mark.objects.create(name="undone")
        connections[alias].rollback()
        Mark.objects.create(name="kept")
        connections[alias].commit()
        connections[alias].set_autocommit(True)

    async def body():
        await sync_to_async(by_hand)()

    with working(1) as worker:
        ended = worker.run(*(playing(body) for _ in range(3)), attempt_of(tasks.amark, "last"))
    assert [one.outcome for one in ended] == [Returned()] * 4
    assert sorted(Mark.objects.values_list("name", flat=True)) == ["kept"] * 3 + ["last"]
    assert caplog.records == []


def test_an_async_task_that_leaves_a_transaction_open_is_named(alias, caplog, monkeypatch):
    monkeypatch.setattr(pool_module, "CHECK_CONNECTIONS", 0.0)

    async def body():
        await sync_to_async(leave_a_transaction_open)(alias)

    with working(1) as worker:
        worker.run(playing(body))
        worker.run(attempt_of(tasks.amark, "kept"))
    (told,) = (one.message for one in caplog.records)
    assert told.startswith(f"{tasks.aplay.module_path} has left a transaction open on {alias!r}: ")
    assert list(Mark.objects.values_list("name", flat=True)) == ["kept"]
