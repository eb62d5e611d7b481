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
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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


def test_c9_two_processes_that_migrate_at_once_leave_a_whole_schema(new):
    """The database may refuse the second process, which then succeeds at its next try."""
    with begin(new, *MIGRATE, CORE) as one, begin(new, *MIGRATE, CORE) as other:
        said = [process.communicate()[0] for process in (one, other)]

    assert 0 in {one.returncode, other.returncode}, said
    assert "No migrations to apply" in migrate(new)
    use(new, OFFER)
    use(new, POLL)


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
