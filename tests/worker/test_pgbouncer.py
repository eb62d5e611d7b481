"""Workers behind a real PgBouncer in transaction mode: all works, but nothing is heard without a direct address."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psycopg
import pytest
from django.db import connections
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from delayedq.models import FinishedMessage, Worker
from tests.app import chores, tasks
from tests.app.models import Mark
from tests.missing import missing
from tests.server import NoServer, pgbouncer_socket
from tests.worker.conftest import eventually

#: Of the pooler with the server.
SESSIONS = 5

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["postgresql"], indirect=True)]


@pytest.fixture
def pooler(connection):
    """The directory of the socket of a PgBouncer as docs/deploy has it, with 5 server connections."""
    try:
        with pgbouncer_socket(connection.settings_dict["HOST"]) as directory:
            yield directory
    except NoServer as reason:
        missing("pgbouncer", reason)


def test_a_deaf_listener_is_reported_and_messages_do_not_wait_for_long(workers, pooler):
    one = workers(poll=60, POOLER=pooler)
    eventually(lambda: Worker.objects.filter(problems="deaf listener").exists())
    began = time.monotonic()
    for number in range(5):
        chores.note.enqueue(f"{number}")
        eventually(lambda number=number: Mark.objects.filter(name=f"{number}").exists())
    assert time.monotonic() - began < 30, "a scan every 0.5 s, not every minute"
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert output.count("The listener is deaf") == 1
    assert "LISTENER_DSN" in output
    assert FinishedMessage.objects.succeeded().count() == 5


def doctor(environment, **more):
    command = [sys.executable, "-m", "django", "delayedq", "doctor", "--json"]
    told = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, check=False)
    return told.returncode, {one["condition"]: one["cure"] for one in json.loads(told.stdout)}


@pytest.mark.usefixtures("no_statistics_of_other_tests")
def test_the_doctor_says_so_with_the_cure(environment, pooler, connection):
    code, cures = doctor(environment, POOLER=pooler, CURSORS="of the server")
    assert (code, {*cures}) == (1, {"pooler", "deaf listener"})
    assert "LISTENER_DSN" in cures["deaf listener"]
    assert cures["pooler"] == "DATABASES['default']['DISABLE_SERVER_SIDE_CURSORS'] = True"

    settings = connection.settings_dict
    dsn = f"host={settings['HOST']} user={settings['USER']} dbname={settings['NAME']}"
    assert doctor(environment, POOLER=pooler, LISTENER_DSN=dsn) == (0, {})


def test_with_a_direct_address_it_hears(workers, pooler):
    settings = connections["postgresql"].settings_dict
    dsn = f"host={settings['HOST']} user={settings['USER']} dbname={settings['NAME']}"
    one = workers(poll=60, POOLER=pooler, LISTENER_DSN=dsn)
    one.ready()
    for number in range(5):
        chores.note.enqueue(f"{number}")
        eventually(lambda number=number: Mark.objects.filter(name=f"{number}").exists(), 30)
    time.sleep(6)  # longer than a listener has to prove itself
    assert not Worker.objects.exclude(problems="").exists()
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert "deaf" not in output


def test_channels_are_served_and_no_lock_of_their_claims_is_left(workers, pooler, connection):
    """What ends and the lock of the next claim are sent together; that lock is of the transaction, not the session."""
    tasks.call.enqueue_many([((number % 5,), {}) for number in range(60)])
    one = workers("--drain", POOLER=pooler)
    code, output = one.finish()
    assert code == 0, output
    assert FinishedMessage.objects.succeeded().count() == 60
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone() == (0,)
    assert prepared_in_its_sessions(connection, pooler) == [0] * SESSIONS


def prepared_in_its_sessions(connection, pooler):
    """How many statements are prepared in each session of the pooler."""
    opened = [separate_at(connection, pooler) for _ in range(SESSIONS)]
    try:
        return [one.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0] for one in opened]
    finally:
        for one in opened:
            one.close()


def separate_at(connection, pooler):
    """In a transaction, so the pooler gives its session to nobody else."""
    settings = connection.settings_dict
    return psycopg.connect(
        host=pooler, port=6432, user=settings["USER"], dbname=settings["NAME"], prepare_threshold=None
    )


def test_a_session_setting_gets_through_at_the_direct_address_only(pooler, connection):
    """As docs/deploy/databases.md says of `options`, and upgrades.md of PGOPTIONS."""

    def seen(**places):
        settings = connection.settings_dict | places
        options = settings["OPTIONS"] | {
            "options": "-c lock_timeout=5s",
            "isolation_level": IsolationLevel.SERIALIZABLE,
        }
        one = type(connection)(settings | {"OPTIONS": options}, "pooled")
        try:
            one.set_autocommit(False)
            with one.cursor() as cursor:
                return [
                    cursor.execute(f"SHOW {name}").fetchone()[0] for name in ("lock_timeout", "transaction_isolation")
                ]
        finally:
            one.close()

    assert seen() == ["5s", "serializable"]
    assert seen(HOST=pooler, PORT="6432") == ["0", "serializable"]
