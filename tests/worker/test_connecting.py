"""No connection and no pool crosses a fork; workers under Django's pool have connections of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest
from django.db import connections, transaction
from django.db.utils import InterfaceError, ProgrammingError

from delayedq import DelayedQueue
from delayedq.models import FinishedMessage, Message
from delayedq.store import store_for
from delayedq.store.connecting import close_for_fork, pool_size
from tests.app import chores, once, tasks
from tests.app.models import Mark
from tests.worker.conftest import ROOT, eventually

on_postgresql = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
with_pools = pytest.mark.parametrize(
    "pool", [True, {"min_size": 1, "max_size": 1, "timeout": 5}], ids=["pool", "small"]
)

SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()", "sqlite": "SELECT 1"}


def session_of(alias):
    with connections[alias].cursor() as cursor:
        cursor.execute(SESSION[connections[alias].vendor])
        return cursor.fetchone()[0]


def forked(body):
    """Run it in a child that is forked from this thread; returns whether it returned a true value."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if body() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def pooled(alias, monkeypatch):
    """The test's own process uses Django's pool."""
    settings = connections[alias].settings_dict
    connections[alias].close()
    with monkeypatch.context() as patch:
        patch.setitem(settings, "OPTIONS", {**settings.get("OPTIONS", {}), "pool": {"min_size": 1, "max_size": 2}})
        yield alias
        close_for_fork()


# Forks


def test_a_child_has_a_session_of_its_own_and_the_parent_keeps_its_own(alias):
    before = session_of(alias)
    vendor = connections[alias].vendor
    assert forked(lambda: (session_of(alias) != before or vendor == "sqlite") and Mark.objects.create(name="child"))
    assert session_of(alias) == before
    assert Mark.objects.filter(name="child").exists()


def test_the_connections_of_other_threads_outlive_a_fork(alias):
    """A child has none of the parent's other threads: that they end there must not end their sessions."""
    with ThreadPoolExecutor(1) as other:
        before = other.submit(session_of, alias).result()
        assert forked(lambda: True)
        assert other.submit(session_of, alias).result() == before
        other.submit(connections.close_all).result()


def test_a_transaction_of_the_parent_is_not_that_of_the_child(alias):
    with transaction.atomic(using=alias):
        Mark.objects.create(name="parent")

        def refused():
            with pytest.raises((ProgrammingError, InterfaceError, transaction.TransactionManagementError)):
                Mark.objects.create(name="child")
            return True

        assert forked(refused)
    assert set(Mark.objects.values_list("name", flat=True)) == {"parent"}


@on_postgresql
def test_a_child_has_a_pool_of_its_own(pooled):
    before = session_of(pooled)
    assert forked(lambda: session_of(pooled) != before and Mark.objects.create(name="child"))
    assert session_of(pooled) == before


SITE = """
import os
import django
django.setup()
from django.db import connection
from tests.app.models import Mark
from tests.app.tasks import mark

Mark.objects.count()  # in the process that gunicorn forks
opened = os.getpid()

def application(environ, start_response):
    mark.enqueue("from the site")
    connection.close()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid() != opened).encode()]
"""


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("pool", [None, True], ids=["no pool", "pool"])
def test_a_preloaded_site_enqueues(alias, environment, tmp_path, pool):
    (tmp_path / "preloaded_site.py").write_text(SITE)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    gunicorn = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--threads", "2"]
    site = subprocess.Popen(
        [*gunicorn, "--bind", "127.0.0.1:0", "preloaded_site:application"],
        env={**environment, "PYTHONPATH": path, "POOL": json.dumps(pool)},
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        told = []
        while "Listening at" not in (line := site.stderr.readline()):
            told.append(line)
            assert line, "".join(told)
        address = line.split()[-2]
        with ThreadPoolExecutor(8) as visitors:
            answers = list(visitors.map(lambda _: urlopen(address, timeout=20).read(), range(40)))
        assert answers == [b"True"] * 40
        assert Message.objects.count() == 40
    finally:
        site.send_signal(signal.SIGTERM)
        site.communicate(timeout=20)


# Workers under a pool


@on_postgresql
@with_pools
def test_workers_under_a_pool_run_all_kinds_of_tasks(workers, pool):
    tasks.mark.enqueue_many(((f"plain {number}",), {}) for number in range(50))
    once.nap.enqueue("once", 0)
    chores.mark_in_threads.enqueue("in threads", 3)
    for number in range(10):
        tasks.amark.enqueue(f"async {number}")
    one = workers("--threads", "4", "--processes", "2", POOL=json.dumps(pool))
    eventually(lambda: FinishedMessage.objects.count() == 62)
    tasks.mark.enqueue("heard")
    eventually(lambda: Mark.objects.filter(name="heard").exists())
    assert set(FinishedMessage.objects.values_list("outcome", flat=True)) == {"succeeded"}
    assert Mark.objects.count() == 50 + 2 + 3 + 10 + 1
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0
    assert "WARNING" not in output and "Traceback" not in output  # noqa: PT018


@on_postgresql
def test_a_listener_takes_no_connection_of_the_pool(pooled):
    """It would be lent on with all that it listens to."""
    session_of(pooled)  # one of two
    listeners = [store_for(pooled).listener() for _ in range(3)]
    assert session_of(pooled)
    for listener in listeners:
        listener.close()


@on_postgresql
def test_consumers_are_told_of_a_pool_that_is_smaller_than_their_number(pooled, caplog):
    queue = DelayedQueue("contacts")
    threading.Timer(0.2, queue.close).start()
    queue.consume(lambda envelope: None, threads=3)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "up to 3 threads" in told
    assert "max_size in DATABASES['postgresql']['OPTIONS']['pool'] to at least 4" in told


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, None),
        ({"pool": False}, None),
        ({"pool": True}, 4),
        ({"pool": {"min_size": 2}}, 2),
        ({"pool": {"max_size": 9}}, 9),
    ],
)
def test_the_size_of_a_pool(monkeypatch, options, size):
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)
    assert pool_size("default") == size
