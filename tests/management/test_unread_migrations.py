"""`manage.py delayedq` where migrations are pending, or may not be read: what programs read stays what it is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.core.management import call_command
from django.db import connections

from tests.operations.test_doctor_postgresql import plain_user


def run(environment, *words):
    command = [sys.executable, "-m", "django", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def pending(store):
    """Of an app that is not delayedq's."""
    with connections[store.alias].cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'sessions'")
    yield
    call_command("migrate", "sessions", fake=True, database=store.alias, verbosity=0)


@pytest.mark.usefixtures("no_statistics_of_other_tests")
def test_programs_read_json_though_migrations_are_pending(pending, environment):
    done = run(environment, "delayedq", "doctor", "--json")

    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert "1 unapplied migration(s)" in done.stderr


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_user_of_our_tables_alone_gets_answers(store, environment):
    url = environment["DATABASE_URL"].replace("//postgres@", "//plain@")
    with plain_user(store, "django_migrations"):
        health, doctor = (
            run(environment | {"DATABASE_URL": url}, "delayedq", *words) for words in (["health"], ["doctor", "--json"])
        )

    assert (health.returncode, "Traceback" in health.stderr) == (0, False)
    (unchecked,) = [one for one in json.loads(doctor.stdout) if one["condition"] == "unchecked"]
    assert "migrations. The answer was: permission denied" in unchecked["sentence"]
