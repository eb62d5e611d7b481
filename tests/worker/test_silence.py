"""A database that stops answering while its sockets stay open."""

from __future__ import annotations

import os
import signal
import socket
import time
from asyncio import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from django.db import Error, connections

from delayedq import metrics
from delayedq.limits.channels import Channels
from delayedq.limits.postgresql import LOCK
from delayedq.management import backends
from delayedq.models import FinishedMessage, Message, MessageProgress
from delayedq.store import store_for
from delayedq.store.connecting import know_socket, opened_by, separate
from delayedq.store.postgresql.database import Given
from delayedq.worker import executor, pool
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.silence import Silence, end_lost_sessions
from tests.app import chores, tasks
from tests.app.models import Mark
from tests.proxy import Proxy
from tests.worker.attempts import attempt_of
from tests.worker.conftest import eventually, marked

pytestmark = pytest.mark.slow

on_servers = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
on_postgresql = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
SLEEP = {"postgresql": "SELECT pg_sleep(30)", "mysql": "SELECT SLEEP(30)"}
QUICK = {"ANSWER_WITHIN": "0.5"}


@pytest.fixture
def proxy(alias, tmp_path_factory):
    """In front of PostgreSQL at a port; of MariaDB, whose user comes from this host alone, at a socket."""
    host = connections[alias].settings_dict["HOST"]
    if alias == "postgresql":
        one = Proxy(f"{host}/.s.PGSQL.5432")
    else:
        one = Proxy(host, str(tmp_path_factory.mktemp("proxy") / "socket"))
    yield one
    one.close()


@pytest.fixture
def through(proxy, workers):
    """Start workers whose way to the database is the proxy."""
    return lambda *flags, **more: workers(*flags, PROXY=proxy.address, **QUICK | more)


@on_servers
@pytest.mark.parametrize("directions", [(), ("up",), ("down",)], ids=["both", "to the server", "to the client"])
def test_workers_give_up_connections_that_are_silent_and_open_new_ones(through, proxy, directions):
    one = through("--processes", "2", "--lease", "4", poll=0.3)
    one.ready()
    chores.note.enqueue("before")
    eventually(lambda: marked("before"))
    proxy.hold(*directions)
    for number in range(20):
        chores.note.enqueue(f"meanwhile {number}")
    time.sleep(4)  # the keeper renews three times in it
    proxy.go_on()
    eventually(lambda: Mark.objects.filter(name__startswith="meanwhile").count() == 20)
    eventually(lambda: not Message.objects.exists())
    assert set(FinishedMessage.objects.values_list("outcome", flat=True)) == {"succeeded"}
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0
    assert "the connection is given up, and a new one is opened" in output
    assert "Traceback" not in output


@on_servers
def test_sockets_that_are_never_answered_again_keep_nobody_from_new_ones(through, proxy):
    """As where a failover leaves the old addresses in the tables of a router. MariaDB's listener asks, too."""
    one = through("--lease", "4", poll=0.3)
    one.ready()
    proxy.forget()
    for number in range(20):
        chores.note.enqueue(f"after it {number}")
    eventually(lambda: Mark.objects.filter(name__startswith="after it").count() == 20)
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0


@on_postgresql
def test_what_a_lost_session_has_locked_keeps_no_worker_from_channels(through, proxy):
    """Of one that has got the lock of claims from channels, and is told nothing more: its server waits for ever."""
    one = through("--lease", "8", poll=0.3)
    one.ready()
    proxy.forget_after(b"pg_try_advisory_xact_lock")
    for number in range(5):
        tasks.ring.enqueue(f"customer {number}")
    eventually(lambda: FinishedMessage.objects.count() == 5)
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0


@pytest.fixture
def lost_in_a_pipeline(alias, proxy):
    """A session has the lock of claims from channels. The rest of what was sent with it never comes: it is not idle."""

    def is_locked(connection):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted")
            return bool(cursor.fetchall())

    def forget_it():
        beside = separate(alias)
        eventually(lambda: is_locked(beside))
        beside.close()
        proxy.forget()

    def claim():
        connections[alias] = separate(alias)
        host, port = proxy.address.split(":")
        connections[alias].settings_dict |= {"HOST": host, "PORT": port}
        database = store_for(alias).database
        first, lock = Given("SELECT 1", {}, may_prepare=False), Given(LOCK, {}, may_prepare=False)
        with suppress(Error), wait, database.atomic():
            database.batches(first, lock, forget_it)
        connections.close_all()

    silence = Silence("The test", alias, lease=2.0)
    wait = silence.wait("a claim")
    silence.start()
    running = Thread(target=claim)
    running.start()
    running.join()
    silence.stop()
    silence.join()
    assert silence.abandoned == 1


@on_postgresql
def test_a_session_that_is_lost_in_a_pipeline_is_ended(alias, store, lost_in_a_pipeline):
    def lock():
        with store.database.atomic():
            return Channels.of(store).lock()

    assert lock() is None
    end_lost_sessions(store.database)
    eventually(lock)


@on_postgresql
def test_no_other_session_is_ended_that_has_its_number(alias, store):
    """As that of another server after a failover."""
    other = separate(alias)
    other.ensure_connection()
    number = other.connection.info.backend_pid
    store.database.end_lost_session(number, age=600.0)
    assert other.is_usable()
    store.database.end_lost_session(number, age=0.0)
    eventually(lambda: not other.is_usable())
    other.close()


@on_servers
def test_a_rollback_that_is_not_answered_ends(through, proxy, tmp_path):
    """Of an exactly-once task that has no timeout."""
    one = through("--lease", "8", "--threads", "1")
    chores.write_and_fail.enqueue(str(tmp_path / "go"))
    eventually((tmp_path / "go.began").exists)
    proxy.forget()
    (tmp_path / "go").touch()
    eventually(FinishedMessage.objects.exists)
    chores.note.enqueue("after it")  # in the same thread
    eventually(lambda: marked("after it"))
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
    ended = FinishedMessage.objects.get(kind=chores.write_and_fail.module_path)
    assert (ended.outcome, "so what it wrote is rolled back" in ended.errors) == ("failed", True)
    assert not marked("never there")


@on_servers
@pytest.mark.parametrize("asked", ["its connections", "its arguments"])
def test_what_is_asked_before_an_async_task_is_not_waited_for_without_end(alias, monkeypatch, asked):
    """In the one thread of all async tasks, and before the timeout of this one begins."""

    def ask(*_):
        with connections[alias].cursor() as cursor:
            cursor.execute(SLEEP[connections[alias].vendor])

    silence, ended = Silence("The test", alias, lease=2.0), SimpleQueue()
    attempt = attempt_of(tasks.aecho, Mark.objects.create(name="of"))
    place, name = (pool, "_check_connections") if asked == "its connections" else (executor, "load_call")
    monkeypatch.setattr(place, name, ask)
    coroutines = pool.Coroutines(ended.put, wait=silence.wait("what is asked beside async tasks"))
    silence.start()
    try:
        coroutines.submit(attempt)
        assert isinstance(ended.get(timeout=20).error, Error)
    finally:
        silence.stop()
        silence.join()
        coroutines.stop()
    assert silence.abandoned == 1


@pytest.fixture
def never_set_up(alias, monkeypatch):
    """A connection that gets no answer while Django sets up its session, and the descriptor of the one before."""
    connection = connections[alias]
    connection.close()
    connection.ensure_connection()
    before = os.dup(connection.connection.fileno())
    closed = connection.connection.fileno()
    connection.close()
    os.dup2(before, closed)  # somebody else's by now
    statement = SLEEP[connection.vendor]
    with monkeypatch.context() as patch:
        patch.setattr(type(connection), "init_connection_state", lambda one: one.connection.cursor().execute(statement))
        yield SimpleNamespace(connection=connection, number=closed)
    connection.close()
    for each in (before, closed):
        with suppress(OSError):
            os.close(each)


@on_servers
def test_a_session_that_is_never_set_up_is_given_up_and_nothing_else(alias, never_set_up):
    mine, other = socket.socketpair()
    os.dup2(mine.fileno(), never_set_up.number)
    silence = Silence("The test", alias, lease=2.0)
    wait = silence.wait("a claim")
    silence.start()
    try:
        with pytest.raises(Error), wait:
            never_set_up.connection.ensure_connection()
    finally:
        silence.stop()
        silence.join()
    mine.send(b"x")
    assert (silence.abandoned, other.recv(1)) == (1, b"x")
    mine.close()
    other.close()


@on_servers
def test_so_is_that_of_the_connection_which_takes_the_place_of_a_session_that_was_dropped(alias, monkeypatch):
    """A task that leaves a transaction open loses its session."""
    silence = Silence("The test", alias, lease=2.0)
    wait = silence.wait("what is asked beside a task")
    with wait:
        connections[alias].ensure_connection()
    connections[alias].close()
    del connections[alias]
    statement = SLEEP[connections[alias].vendor]
    with monkeypatch.context() as patch:
        kind = type(connections[alias])
        patch.setattr(kind, "init_connection_state", lambda one: one.connection.cursor().execute(statement))
        silence.start()
        try:
            with pytest.raises(Error), wait:
                connections[alias].ensure_connection()
        finally:
            silence.stop()
            silence.join()
    assert silence.abandoned == 1
    connections[alias].close()


@on_servers
def test_a_command_and_the_metrics_give_up_a_database_that_is_silent(alias, never_set_up, store, monkeypatch):
    monkeypatch.setattr(metrics, "ANSWERED", 0.5)
    monkeypatch.setattr(backends, "ANSWERED", 0.5)
    assert metrics._read(alias) is None
    with pytest.raises(Error):
        backends.ask(store)
    backends.check_tables(store)  # it is not judged


@on_servers
@pytest.mark.parametrize("task", [chores.ask, chores.ask_exactly_once, chores.ask_async], ids=lambda task: task.name)
def test_the_timeout_of_a_task_ends_its_wait_for_the_database(workers, task):
    task.enqueue()
    one = workers("--lease", "8", "--threads", "1", **QUICK)
    eventually(FinishedMessage.objects.exists)
    follower = chores.note_async if task is chores.ask_async else chores.note
    follower.enqueue("after it")  # in the same thread
    eventually(lambda: marked("after it"))
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert (code, "its connections to databases are closed" in output) == (0, True)
    ended = FinishedMessage.objects.get(kind=task.module_path)
    assert (ended.outcome, "TaskTimeout" in ended.errors) == ("failed", True)


@on_servers
def test_an_async_task_that_is_cancelled_does_not_keep_the_thread_of_all_others(alias, monkeypatch):
    """It has lost its lease, and waits for its database."""
    leases, ended, asked = SharedLeases(8), SimpleQueue(), Event()

    def ask():
        statement = "SELECT 1" if asked.is_set() else SLEEP[connections[alias].vendor]
        with connections[alias].cursor() as cursor:
            asked.set()
            cursor.execute(statement)

    monkeypatch.setattr(chores, "_wait_for_database", ask)
    monkeypatch.setattr(pool, "CHECK_LEASES", 0.1)
    coroutines = pool.Coroutines(ended.put, patience=0.5)
    try:
        coroutines.submit(attempt_of(chores.wait_async, leases=leases))
        assert asked.wait(20)
        leases.report_lost(leases.entries()[0])
        assert isinstance(ended.get(timeout=20).error, CancelledError)
        coroutines.submit(after := attempt_of(chores.wait_async))
        assert ended.get(timeout=20).attempt is after
    finally:
        coroutines.stop()


@on_postgresql
def test_a_report_of_progress_that_is_not_answered_stops_nobody(through, proxy):
    one = through("--lease", "8", "--threads", "1")
    one.ready()
    chores.report.enqueue("reported", 40)
    eventually(MessageProgress.objects.exists)
    proxy.hold()
    time.sleep(3)
    proxy.go_on()
    eventually(lambda: not Message.objects.exists())
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert (code, "has not answered a report of progress" in output) == (0, True)
    assert FinishedMessage.objects.get().outcome == "succeeded"


@on_servers
def test_a_database_that_is_slow_and_alive_is_no_silence(through, proxy):
    proxy.delay = 0.02
    one = through(ANSWER_WITHIN="10")
    one.ready()
    chores.note.enqueue_many(((str(number),), {}) for number in range(20))
    eventually(lambda: FinishedMessage.objects.count() == 20)
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert (code, "given up" in output) == (0, False)


@on_postgresql
def test_a_frozen_backend_is_given_up_and_what_it_did_not_answer_runs_once(workers):
    """Stopped for longer than three leases, and thawed: what it does then is fenced."""
    one = workers("--lease", "2", **QUICK)
    one.ready()
    chores.nap.enqueue("long", 8)
    eventually(lambda: marked("long began"))
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        frozen = [pid for (pid,) in cursor.fetchall()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        chores.note.enqueue("meanwhile")
        eventually(lambda: marked("meanwhile"))  # over new connections, while the old ones are frozen
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: not Message.objects.exists())
    assert Mark.objects.filter(name="long began").count() == 1
    assert Mark.objects.filter(name="meanwhile").count() == 1
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0


@on_servers
def test_only_who_waits_too_long_is_interrupted(alias, caplog):
    vendor = connections[alias].vendor
    silence = Silence("The test", alias, lease=2.0)
    short, long = silence.wait("a nap"), silence.wait("a sleep", times=200)
    silence.start()
    try:
        with connections[alias].cursor() as cursor:
            with long:
                cursor.execute(SLEEP[vendor].replace("30", "1"))
            assert silence.abandoned == 0
            with pytest.raises(Exception, match=r"(?i)lost|closed|terminat|gone"), short:
                cursor.execute(SLEEP[vendor])
    finally:
        silence.stop()
        silence.join()
        connections[alias].close()
    assert silence.abandoned == 1
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("The test: the database has not answered a nap for ")


def test_the_connections_of_another_thread_are_not_found(alias, connection):
    connection.ensure_connection()
    assert connection in [one for one, *_ in opened_by(connection._thread_ident)]
    assert connection not in [one for one, *_ in opened_by(connection._thread_ident + 1)]


def test_one_that_is_opened_beside_a_connection_does_not_take_its_place(alias, connection):
    know_socket(connection)
    connection.ensure_connection()
    raw = connection.connection
    beside = connection.get_new_connection(connection.get_connection_params())
    beside.close()
    assert connection.connection is raw
    assert raw in [opened.raw for opened in opened_by(connection._thread_ident) if opened.wrapper is connection]
    assert connection.is_usable()
