"""A task that only the new version of the code knows: see `tests.worker_settings`."""

from delayedq import task
from tests.app.models import Mark


@task
def arrive(number):
    Mark.objects.create(name="arrived", value=str(number))
