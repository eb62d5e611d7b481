"""`manage.py delayedq health`: each thing that fails is made to fail."""

from __future__ import annotations

import socket
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections

from delayedq.models import Message
from delayedq.operations.doctor import health
from delayedq.store import worker_registry
from tests.admin.given import offer
from tests.store.test_worker_registry import worker

MINUTE = timedelta(minutes=1)
#: What forbids the session to write, and what allows it again.
READ_ONLY = {
    "postgresql": [f"SET default_transaction_read_only = {switch}" for switch in ("on", "off")],
    "mysql": [f"SET SESSION TRANSACTION READ {access}" for access in ("ONLY", "WRITE")],
    "sqlite": [f"PRAGMA query_only = {switch}" for switch in ("on", "off")],
}


def failed(store, **asked):
    return [check.sentence for check in health(store, **asked) if not check.passed]


def test_a_claim_is_tried_and_rolled_back(store):
    offer(store, "due", seconds=-5)
    (check,) = health(store)

    assert check.passed
    assert (Message.objects.get().attempt, Message.objects.get().leased_by) == (0, None)


def test_an_empty_queue_is_healthy(store):
    assert failed(store, oldest_due=MINUTE) == []


def test_a_message_that_has_been_due_for_long(store):
    offer(store, "due", seconds=-300, queue="mail")

    assert failed(store, oldest_due=MINUTE) == ["The first message of mail has been due for 5 min."]
    assert failed(store, oldest_due=10 * MINUTE) == []


def test_workers_of_this_host(store):
    registry, host = worker_registry(store.alias), socket.gethostname()
    registry.heartbeat([worker("elsewhere", host="other")])
    assert "No worker of this host" in failed(store, workers_here=True)[0]

    registry.at(store.now() - MINUTE).heartbeat([worker("silent", host=host)])
    assert failed(store, workers_here=True)

    registry.heartbeat([worker("w1", host=host)])
    assert failed(store, workers_here=True) == []


def test_a_table_that_is_missing(store):
    with connections[store.alias].cursor() as cursor:
        cursor.execute("ALTER TABLE delayedq_message RENAME TO elsewhere")
    try:
        (sentence,) = failed(store)
        assert "does not let a worker claim" in sentence
    finally:
        with connections[store.alias].cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO delayedq_message")


def test_a_table_that_no_claim_needs_is_missing(store):
    """As after a deploy without its migrations: workers could claim, and not end what they run."""
    with connections[store.alias].cursor() as cursor:
        cursor.execute("ALTER TABLE delayedq_finishedmessage RENAME TO elsewhere")
    try:
        (sentence,) = failed(store)
    finally:
        with connections[store.alias].cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO delayedq_finishedmessage")
    assert "it has no table delayedq_finishedmessage; run manage.py migrate" in sentence


def test_a_read_only_database_in_which_nothing_is_due(store):
    """As after a failover to a replica, or where an administrator has stopped all writes."""
    forbid, allow = READ_ONLY[connections[store.alias].vendor]
    with connections[store.alias].cursor() as cursor:
        cursor.execute(forbid)
        try:
            (sentence,) = failed(store)
        finally:
            cursor.execute(allow)
    assert "does not let a worker claim" in sentence
    assert failed(store) == []


def test_the_command_says_what_it_checked_and_its_exit_code_says_whether_it_passed(store):
    out = StringIO()
    call_command("delayedq", "health", stdout=out)
    assert out.getvalue() == f"ok: A worker could claim from the database {store.alias!r}.\n"
    offer(store, "due", seconds=-300)

    with pytest.raises(SystemExit) as ended:
        call_command("delayedq", "health", "--oldest-due", "1m", "--workers-here", stdout=out)
    assert ended.value.code == 1
    assert out.getvalue().count("FAILED") == 2
