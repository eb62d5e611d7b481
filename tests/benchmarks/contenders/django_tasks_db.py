from __future__ import annotations

from django.core.management import call_command
from django.tasks import task

from tests.benchmarks.contenders import project, stopwatch

SETTINGS = "db_worker --batch --interval 0, persistent connections"

project.configure("django_tasks_db", backend="django_tasks_db.DatabaseBackend")
prepare = project.migrate


@task
def nothing(number: int) -> None:
    stopwatch.lap(number)


def fill(count: int) -> None:
    """One by one: it has no call that enqueues many."""
    from django.db import transaction

    with transaction.atomic():
        enqueue(count)


def drain(_count: int) -> None:
    call_command("db_worker", "--batch", "--interval", "0", "--no-startup-delay", verbosity=0)


def enqueue(count: int) -> None:
    for number in range(count):
        nothing.enqueue(number)
