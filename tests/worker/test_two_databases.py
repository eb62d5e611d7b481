"""One `run_workers` for two backends: one on SQLite, one on PostgreSQL."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connections

from delayedq.compat import task_backends
from delayedq.models import FinishedMessage, Message, Worker
from tests.app import chores
from tests.router import ChosenDatabase
from tests.worker.conftest import eventually

BACKEND = "delayedq.backend.DelayedQBackend"


@pytest.fixture
def alias(settings, django_db_setup, postgresql, django_db_blocker):
    """SQLite is the default database, as in the workers. The backend "second" has PostgreSQL."""
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": []},
        "second": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "postgresql"}},
    }
    ChosenDatabase.alias = "default"
    with django_db_blocker.unblock():
        yield "default"
        for alias in ("default", "postgresql"):
            for model in (Message, FinishedMessage, Worker):
                model.objects.using(alias).all().delete()


@pytest.fixture
def second_url(alias):
    there = connections["postgresql"].settings_dict
    return f"postgres://{there['USER']}@/{there['NAME']}?host={quote(there['HOST'])}"


@pytest.fixture
def start(workers, second_url):
    """Start `run_workers` with both databases."""
    return lambda *flags, **variables: workers(*flags, **{"SECOND_DATABASE_URL": second_url} | variables)


def there(task):
    return task.using(backend="second")


def succeeded(alias):
    ended = FinishedMessage.objects.using(alias).filter(outcome="succeeded")
    return dict(ended.values_list("id", "worker"))


def pids(alias):
    return {row.name: row.pid for row in Worker.objects.using(alias)}


def test_messages_of_both_are_done_each_by_the_workers_of_its_database(start):
    for number in range(20):
        chores.nothing.enqueue(number)
        there(chores.nothing).enqueue(number)
    one = start("--processes", "2")
    eventually(lambda: len(succeeded("default")) == len(succeeded("postgresql")) == 20)
    eventually(lambda: len(pids("default")) == len(pids("postgresql")) == 2)

    assert set(succeeded("default").values()) <= pids("default").keys()
    assert set(succeeded("postgresql").values()) <= pids("postgresql").keys()
    assert not pids("default").keys() & pids("postgresql").keys()
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert "2 process(es) of 4 thread(s) serve all queues of default in 'default'." in output
    assert "2 process(es) of 4 thread(s) serve all queues of second in 'second'." in output
    assert pids("default") == pids("postgresql") == {}


def test_a_backend_that_is_named_is_served_alone(start):
    chores.nothing.enqueue()
    result = there(chores.nothing).enqueue()
    code, output = start("--backend", "second", "--drain").finish()

    assert code == 0, output
    assert task_backends["second"].get_result(result.id).status == "SUCCESSFUL"
    assert (Message.objects.using("default").count(), len(succeeded("postgresql"))) == (1, 1)
    assert start("--backend", "second", "--backend", "default", "--drain").finish()[0] == 0
    assert len(succeeded("default")) == 1


def test_a_worker_that_dies_is_replaced_in_its_own_database(start):
    one = start()
    eventually(lambda: pids("default") and pids("postgresql"))
    ((name, pid),) = pids("postgresql").items()
    other = pids("default")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pids("postgresql") and name not in pids("postgresql"))
    there(chores.nothing).enqueue()
    eventually(lambda: len(succeeded("postgresql")) == 1)
    assert pids("default") == other
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0


@pytest.mark.parametrize("away_at_first", [False, True], ids=["goes", "away_at_first"])
def test_a_database_that_is_away_does_not_stop_the_other(start, second_url, tmp_path, away_at_first):
    """The second one is reached by a directory of its socket that the test takes away, with all its sessions."""
    sockets, socket = Path(connections["postgresql"].settings_dict["HOST"]), tmp_path / "sockets"
    url = second_url.replace(quote(str(sockets)), quote(str(socket))) + "&application_name=second"
    if not away_at_first:
        socket.symlink_to(sockets)
    one = start("--lease", "5", SECOND_DATABASE_URL=url)
    eventually(lambda: pids("default"))
    if not away_at_first:
        eventually(lambda: pids("postgresql"))
        socket.unlink()
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", ["second"]
            )
    there(chores.nothing).enqueue()
    chores.nothing.enqueue()
    eventually(lambda: len(succeeded("default")) == 1)
    assert succeeded("postgresql") == {}
    socket.symlink_to(sockets)
    eventually(lambda: len(succeeded("postgresql")) == 1)
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert "the database has not answered" in output
