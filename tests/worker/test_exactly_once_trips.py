"""Exactly-once tasks on PostgreSQL whose end and commit are one round trip."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Permission
from django.db import IntegrityError, OperationalError, connections, transaction
from django.utils import timezone

from delayedq.core.lifecycle import Raised, Returned
from delayedq.exceptions import LeaseLost
from delayedq.models import FinishedMessage, Message
from delayedq.store.postgresql import database
from delayedq.store.protocol import Settled
from delayedq.worker.loop import Loop
from delayedq.worker.silence import Silence
from tests.app import once, tasks
from tests.proxy import Proxy
from tests.store.given import at, together
from tests.worker.exactly_once_tasks import (
    SPOILING,
    claim_first,
    claim_playing,
    is_untouched,
    marks,
    run,
    write,
    write_and,
)

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

SUCCEEDED = (Returned(), None, Settled())


@pytest.fixture
def claimed(store, connection, monkeypatch):
    """Claims a message without a key, after others on the same connection: the statement of its end is prepared."""
    connection.close()
    monkeypatch.setattr(database, "PLANS_LAST", inf)
    claim = partial(claim_playing, store, key=None)
    for _ in range(2):
        run(claim(lambda: None))
    FinishedMessage.objects.all().delete()
    yield claim
    connection.close()


@pytest.fixture
def trips(connection, tmp_path):
    """Counts how often the server was waited for in a block."""

    @contextmanager
    def count():
        counted, path = SimpleNamespace(), tmp_path / "trace"
        with path.open("w") as file:
            connection.connection.pgconn.trace(file.fileno())
            yield counted
            connection.connection.pgconn.untrace()
        counted.trips = path.read_text().count("ReadyForQuery")

    return count


# How many round trips


def test_an_attempt_that_asks_nothing_of_the_database_is_one_round_trip(claimed, trips):
    message = claimed(lambda: 7)
    with trips() as counted:
        ended = run(message)
    assert (ended.outcome, ended.settled, counted.trips) == (Returned("7"), Settled(), 1)
    assert (FinishedMessage.objects.get().result, Message.objects.exists()) == ("7", False)


def test_one_that_writes_has_its_begin_its_statement_and_one_round_trip_for_end_and_commit(claimed, trips):
    message = claimed(write)
    with trips() as counted:
        ended = run(message)
    assert ((ended.outcome, ended.error, ended.settled), counted.trips) == (SUCCEEDED, 3)
    assert (FinishedMessage.objects.get().outcome, marks()) == ("succeeded", ["written"])


def test_a_message_with_a_key_may_be_replaced_so_its_end_is_answered_before_its_commit(store, claimed, trips):
    message = claim_playing(store, write)
    with trips() as counted:
        run(message)
    assert counted.trips > 3
    assert marks() == ["written"]


def test_within_a_transaction_of_the_caller_nothing_is_committed(claimed, connection):
    message = claimed(write)
    with transaction.atomic(using=connection.alias):
        assert run(message).settled == Settled()
        transaction.set_rollback(True, using=connection.alias)
    assert is_untouched(message)


def test_callbacks_of_the_transaction_run_after_the_commit(claimed, connection):
    seen = []

    def callback():
        seen.append((connection.in_atomic_block, connection.get_autocommit(), FinishedMessage.objects.count()))

    run(claimed(write_and(lambda: transaction.on_commit(callback, using=connection.alias))))
    run(claimed(lambda: transaction.on_commit(callback, using=connection.alias)))
    assert seen == [(False, True, 1), (False, True, 2)]


def test_the_thread_of_a_worker_keeps_its_connection(store, options, alias):
    def body():
        seen.append(connections[alias].connection.info.backend_pid)

    seen, tasks.bodies["seen"] = [], body
    once.play.enqueue_many((("seen",), {}) for _ in range(10))
    Loop(store, replace(options, threads=1), "test").run()
    assert (len(seen), len({*seen})) == (10, 1)


# It did not end


@pytest.mark.parametrize("body", [write, lambda: None], ids=["writes", "asks nothing"])
def test_without_its_lease_what_it_wrote_is_gone(store, claimed, body):
    message = claimed(body)
    second = claim_first(store, at(61))
    ended = run(message)

    assert (ended.outcome, ended.settled, marks()) == (Raised(), None, [])
    assert isinstance(ended.error, LeaseLost)
    assert run(second).settled == Settled()


def test_a_lock_of_another_is_waited_for_and_what_it_wrote_commits_then(claimed, connection, monkeypatch, store):
    def unlock(_):
        other.rollback()

    monkeypatch.setattr("delayedq.store.base.time.sleep", unlock)
    message = claimed(write, timezone.now())
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT id FROM delayedq_message FOR UPDATE")
        ended = run(message)
    finally:
        other.close()
    assert (ended.outcome, ended.error, ended.settled) == SUCCEEDED
    assert (FinishedMessage.objects.get().outcome, marks()) == ("succeeded", ["written"])


@pytest.mark.parametrize("spoil", SPOILING.values(), ids=SPOILING)
def test_a_transaction_that_can_not_commit_is_a_failure(claimed, alias, spoil):
    message = claimed(write_and(partial(spoil, alias)))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert is_untouched(message)


def test_after_a_rollback_its_statement_is_prepared_anew(claimed, trips):
    """psycopg deallocates all prepared statements then."""
    for _ in range(2):
        run(claimed(write_and(lambda: 1 / 0)))
        Message.objects.all().delete()
        message = claimed(write)
        with trips() as counted:
            assert run(message).settled == Settled()
        assert counted.trips == 3


def test_the_first_may_fail_of_those_whose_statement_is_prepared(claimed, connection, trips):
    connection.close()
    run(claimed(lambda: None))
    late = claimed(write)
    Message.objects.all().delete()
    assert isinstance(run(late).error, LeaseLost)

    message = claimed(write)
    with trips() as counted:
        assert run(message).settled == Settled()
    assert counted.trips == 3


def test_a_constraint_that_fails_in_the_commit_is_a_failure(claimed):
    message = claimed(write_and(lambda: Permission.objects.create(content_type_id=-1, codename="none", name="none").pk))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, IntegrityError)
    assert is_untouched(message)


def test_a_statement_that_its_session_has_lost_undoes_nothing(claimed, connection):
    def forget():
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")  # psycopg does not learn of it

    ended = run(claimed(write_and(forget)))
    assert (ended.outcome, ended.error, ended.settled) == SUCCEEDED
    assert marks() == ["written"]


# An answer that was lost


def test_a_connection_that_is_lost_before_its_end_arrives_is_a_failure(claimed, connection):
    pid = connection.connection.info.backend_pid

    def terminate():
        with connections["postgresql"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    message = claimed(write_and(lambda: together(terminate)))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, OperationalError)
    assert is_untouched(message)


@pytest.mark.parametrize("what", [write, lambda: None], ids=["writes", "asks nothing"])
def test_a_commit_whose_answer_never_comes_is_asked_for_on_another_connection(
    store, claimed, connection, monkeypatch, caplog, what
):
    here = {name: connection.settings_dict[name] for name in ("HOST", "PORT")}
    proxy = Proxy(f"{here['HOST']}/.s.PGSQL.5432")
    silence = Silence("The test", connection.alias, lease=4.0)
    silence.start()

    def lose():
        what()
        connection.settings_dict.update(here)
        proxy.hold("down")

    try:
        connection.close()
        host, port = proxy.address.split(":")
        connection.settings_dict.update(HOST=host, PORT=port)
        for _ in range(2):
            run(claimed(lambda: None))
        message = claimed(lose)
        ended = run(message, asking=silence.wait("the end"))
    finally:
        connection.settings_dict.update(here)
        silence.stop()
        silence.join()
        proxy.close()

    assert (ended.outcome, ended.error, ended.settled) == SUCCEEDED
    assert (silence.abandoned, FinishedMessage.objects.filter(id=message.id).count()) == (1, 1)
    assert marks() == (["written"] if what is write else [])
    assert "what followed its commit failed" in caplog.text
