"""The database of the session, from which the migrations of the next version are taken back at the end of a test."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.db import connections

from tests.worker.conftest import workers  # noqa: F401  a fixture

ROWS = "SELECT count(*) FROM django_migrations WHERE app = 'delayedq'"


@pytest.fixture
def later(environment, alias):
    """Start `migrate` with the migrations of the next version, up to one of them."""
    started = []

    def migrate(target):
        command = [sys.executable, "-m", "django", "migrate", "delayedq", target]
        settings = {"DJANGO_SETTINGS_MODULE": "tests.upgrades.later_settings"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(command, env=environment | settings, text=True, **pipes))
        return started[-1]

    yield migrate
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    with connections[alias].cursor() as cursor:
        cursor.execute(ROWS)
        number = cursor.fetchone()[0]
    if number > 1:
        succeed(migrate("0001"))


def succeed(process):
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said
