"""With DEBUG, Django keeps the statements of each connection. Threads that live as long as a worker keep none."""

from __future__ import annotations

import threading

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from delayedq import current_message
from delayedq.worker.cron_beat import CronBeat
from delayedq.worker.outage import Outage
from tests.router import ChosenDatabase
from tests.worker.attempts import playing
from tests.worker.conftest import eventually
from tests.worker.keepers import keeping
from tests.worker.test_pool import working


@pytest.fixture(autouse=True)
def longest(settings, monkeypatch):
    """By thread, the longest log that a connection of it had when it was closed."""
    settings.DEBUG = True
    found, close = {}, BaseDatabaseWrapper.close

    def observed(connection):
        name = threading.current_thread().name
        found[name] = max(found.get(name, 0), len(connection.queries_log))
        close(connection)

    monkeypatch.setattr(BaseDatabaseWrapper, "close", observed)
    return found


def test_the_lease_keeper_and_the_beat_keep_none_and_others_do(store, longest):
    def plain():
        store.lanes()
        connections.close_all()

    thread = threading.Thread(target=plain, name="plain")
    thread.start()
    thread.join()
    beat = CronBeat(store, {}, Outage("test"))
    beat._pause = 0.01
    beat.start()
    eventually(lambda: "delayedq-beat" in longest)
    beat.stop()
    with keeping(store):
        pass

    assert longest["plain"] > 0
    assert (longest["keeper"], longest["delayedq-beat"]) == (0, 0)


def asked():
    """How many statements of this thread Django has kept, with this one."""
    connection = connections[ChosenDatabase.alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return len(connection.queries)


def progressing():
    current_message().progress(1, 2, "half")


def test_the_thread_that_writes_progress_keeps_none(alias, longest):
    with working(1) as worker:
        (ended,) = worker.run(playing(progressing))

    assert ended.error is None
    assert longest["delayedq-progress"] == 0


def test_a_task_sees_its_own_statements_and_those_of_no_other(alias):
    with working(1) as worker:
        ended = worker.run(playing(asked), playing(asked), playing(asked))

    assert [one.outcome.result for one in ended][1:] == ["1", "1"]  # the first one connects
