"""Migrating twice, in two processes at once, and over messages that are there (C9), each time in a new database."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.db import connections

pytestmark = pytest.mark.slow

MIGRATE = ["-m", "django", "migrate"]
CORE = "delayedq"
PIPELINE = "delayedq_pipeline"
OFFER = "DelayedQueue('contacts').offer_or_update('a', 1)"
POLL = "assert DelayedQueue('contacts').try_poll().payload == 1"


@pytest.fixture
def new(alias, environment, tmp_path):
    """The environment of processes that work on an empty database."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        yield environment | {"DATABASE_URL": f"sqlite:///{tmp_path}/migrated.sqlite3"}
        return
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE migrated")
    name = connection.settings_dict["NAME"]
    yield environment | {"DATABASE_URL": environment["DATABASE_URL"].replace(f"/{name}?", "/migrated?")}
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE migrated")


def begin(environment, *arguments):
    command = [sys.executable, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def succeed(environment, *arguments):
    with begin(environment, *arguments) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def migrate(environment, app=CORE):
    return succeed(environment, *MIGRATE, app)


def use(environment, code):
    succeed(environment, "-c", f"import django; django.setup()\nfrom delayedq import DelayedQueue\n{code}")


def test_c9_migrating_again_changes_nothing(new):
    migrate(new)
    use(new, OFFER)

    assert "No migrations to apply" in migrate(new)
    use(new, POLL)


#: Migrates nothing, and lets nobody else do so until its input ends.
LOCK = """
import django; django.setup()
from delayedq.store import default_store
lock = default_store().database.migration_lock()
print("locked", flush=True)
input()
lock.close()
"""
RECORDED_TWICE = """
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT app, name FROM django_migrations GROUP BY app, name HAVING count(*) > 1")
    assert not cursor.fetchall()
"""


def test_c9_two_processes_that_migrate_at_once_both_succeed(new):
    """Each has planned to do all of it, also what is Django's own."""
    with begin(new, "-c", LOCK) as locking:
        assert locking.stdout.readline() == "locked\n"
        with begin(new, *MIGRATE) as one, begin(new, *MIGRATE) as other:
            before = [until_it_waits(process) for process in (one, other)]
            locking.communicate("\n")
            said = [process.communicate()[0] for process in (one, other)]

    assert all("Apply all migrations" in text for text in before), before
    assert (one.returncode, other.returncode) == (0, 0), said
    assert sum("Another process has done this meanwhile: " in text for text in said) == 1
    assert "No migrations to apply" in succeed(new, *MIGRATE)
    use(new, RECORDED_TWICE)
    use(new, OFFER)
    use(new, POLL)


def until_it_waits(process):
    said = ""
    for line in process.stdout:
        said += line
        if line == "Another process migrates this database: waiting for it.\n":
            break
    return said


def test_c9_messages_outlive_an_upgrade_of_the_schema(new):
    """The upgrade is the pipeline's, which makes its tables beside a queue in use."""
    migrate(new)
    use(new, OFFER)
    assert "Applying delayedq_pipeline.0001_initial... OK" in migrate(new, PIPELINE)
    use(new, POLL)
    assert "No migrations to apply" in migrate(new, PIPELINE)


# A database that was not migrated


#: Of a project that is served here, with each verb that stores a message; and what it says.
VERBS = """
from datetime import timedelta
from django.db import DatabaseError, connection, transaction
from delayedq import group
from tests.app import tasks

def said(verb):
    try:
        with transaction.atomic():
            verb()
    except DatabaseError as error:
        assert type(error.__cause__) is type(error) and "delayedq_" in str(error.__cause__), error
        return str(error)

def missing(table):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")

from delayedq.store import default_store
bare = default_store().database.retried
verbs = [
    lambda: tasks.nothing.enqueue(),
    lambda: tasks.nothing.schedule_in(timedelta(hours=1), key="a"),
    lambda: tasks.nothing.enqueue_many([((), {}), ((), {})]),
    lambda: tasks.nothing.enqueue_bulk([((), {}), ((), {})]),
    lambda: tasks.call.enqueue(1),  # in a channel
    lambda: group([tasks.nothing.s()]).enqueue(),
    lambda: DelayedQueue("contacts").offer_or_update("a", 1),
]
for verb in verbs:
    assert said(verb) == "The database 'default' lacks tables or columns of delayedq: run manage.py migrate", said(verb)
try:
    bare(lambda: missing("shop_order"))
except DatabaseError as error:
    assert "manage.py" not in str(error), error
"""
COLUMN = """
from django.db import DatabaseError, connection
with connection.cursor() as cursor:
    cursor.execute("ALTER TABLE delayedq_message DROP COLUMN errors")
try:
    DelayedQueue("contacts").offer_or_update("a", 1)
except DatabaseError as error:
    assert "run manage.py migrate" in str(error), error
else:
    raise AssertionError("was stored")
"""


def test_a_forgotten_migrate_is_named_where_messages_are_stored(new):
    use(new, VERBS)


def test_so_is_a_migration_of_a_newer_version(new):
    migrate(new)
    use(new, COLUMN)
