"""The words of the conformance suite: messages, moments, claims and endings, and threads that start together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Barrier

from django.db import OperationalError, connections, transaction

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Finish, GiveBack, Lane, Offer, Settled
from tests.router import ChosenDatabase

#: Half a minute before the clocks of the tests' time zone skip an hour: a time that loses its zone shows.
NOW = datetime(2026, 3, 8, 6, 59, 30, tzinfo=UTC)
LEASE = timedelta(seconds=60)
LANE = Lane("mail", 0)
KIND = "tests.remind"
NOTHING_AMISS = Settled()


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def message(key=None, payload="{}", **fields):
    return Offer(**{"queue": "mail", "kind": KIND, "key": key, "payload": payload, "scheduled_at": NOW} | fields)


def claim(store, limit=1, *, now=NOW, lanes=(LANE,), lease=LEASE, worker="first"):
    return store.at(now).claim(ClaimRequest(lanes, limit, lease, worker))


def claim_one(store, **options):
    """The next message, which must be there."""
    (claimed,) = claim(store, **options)
    return claimed


def keys(claims):
    return [claimed.key for claimed in claims]


def succeed(claimed, **fields):
    return Finish(claimed, FinalOutcome.SUCCEEDED, **{"started": 2.0, "finished": 1.0} | fields)


def fail(claimed, **fields):
    return Finish(claimed, FinalOutcome.FAILED, **{"started": 2.0, "finished": 1.0} | fields)


def retry(claimed, delay=None, **fields):
    return GiveBack(claimed, charged=True, delay=delay, **{"started": 2.0, "finished": 1.0} | fields)


def put_back(claimed, **fields):
    """A release of what never started."""
    return GiveBack(claimed, charged=False, **fields)


def settle(store, *transitions, now=NOW, worker="first"):
    return store.at(now).settle(transitions, worker)


def settle_at_last(store, *transitions, **options):
    """Settle, and what was busy again and again; the ids that were lost, and those that were superseded."""
    settled = settle(store, *transitions, **options)
    lost, superseded = set(settled.lost), set(settled.superseded)
    while busy := [transition for transition in transitions if transition.claimed.id in settled.busy]:
        settled = settle(store, *busy, **options)
        lost, superseded = lost | settled.lost, superseded | settled.superseded
    return lost, superseded


def live(key):
    return Message.objects.get(key=key)


def live_keys():
    return set(Message.objects.values_list("key", flat=True))


def history(**filters):
    return FinishedMessage.objects.get(**filters)


def outcomes():
    """How every ended message ended, in the order of its end."""
    return list(FinishedMessage.objects.order_by("finished_at", "id").values_list("outcome", flat=True))


def together(*calls):
    """Call each in a thread with a connection of its own, all at once; the results in the order of the calls."""
    start = Barrier(len(calls))

    def run(call):
        try:
            connections[ChosenDatabase.alias].ensure_connection()  # connecting takes longer than most races
            start.wait(timeout=30)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]


def kill_others(connection):
    """End all other connections to this database from the server's side; returns how many there were."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return cursor.fetchone()[0]
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
        others = [row[0] for row in cursor.fetchall()]
        for number in others:
            with suppress(OperationalError):  # it has ended by itself meanwhile
                cursor.execute(f"KILL {number:d}")
        return len(others)


class _Undo(Exception):  # noqa: N818
    pass


@contextmanager
def undone(alias):
    """A transaction that rolls back."""
    with suppress(_Undo), transaction.atomic(using=alias):
        yield
        raise _Undo


def elsewhere(call, *args, **kwargs):
    """The result of a call on another connection, which must not wait for this one's transaction."""
    (result,) = together(partial(call, *args, **kwargs))
    return result
