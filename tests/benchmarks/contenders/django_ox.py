from __future__ import annotations

from django.core.management import call_command
from django.tasks import task

from tests.benchmarks.contenders import project, stopwatch

CONCURRENCY = 4
SETTINGS = f"ox_worker --batch --concurrency {CONCURRENCY}, persistent connections"

project.configure("django_ox", backend="django_ox.backend.OxBackend")
prepare = project.migrate


@task
def nothing(number: int) -> None:
    stopwatch.lap(number)


def fill(count: int) -> None:
    from django_ox.bulk import enqueue_many

    enqueue_many(nothing, [((number,), {}) for number in range(count)])


def drain(_count: int) -> None:
    call_command("ox_worker", "--batch", "--concurrency", str(CONCURRENCY), verbosity=0)


def enqueue(count: int) -> None:
    for number in range(count):
        nothing.enqueue(number)
