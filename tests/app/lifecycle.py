"""Tasks with options that say when to try again, when to give up, and what follows."""

from __future__ import annotations

from datetime import timedelta

from delayedq import Fail, task
from tests.app.models import Mark
from tests.app.tasks import bodies

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@task
def succeeded(id_):
    Mark.objects.create(name="succeeded", value=id_)


@task
def failed(id_):
    Mark.objects.create(name="failed", value=id_)


@task
def tried(id_):
    Mark.objects.create(name="tried", value=id_)


@task(on_success=succeeded, on_failure=failed, on_retry=tried, max_attempts=2, backoff=HOUR)
def followed(body, *args):
    return bodies[body](*args)


@task(on_success=succeeded, on_failure=failed, exactly_once=True)
def followed_once(body):
    return bodies[body]()


@task(retry_on=(ConnectionError, TimeoutError), give_up_on=ConnectionRefusedError, backoff=[MINUTE, HOUR])
def picky(body):
    return bodies[body]()


@task(retry_on=lambda error: "busy" in str(error))
def choosy(body):
    return bodies[body]()


@task(expires=HOUR)
def fresh(body="nothing"):
    return bodies.get(body, list)()


@task(deadline=HOUR, backoff=[timedelta(minutes=20), HOUR])
def bounded(body="nothing"):
    return bodies.get(body, list)()


@task(deadline=HOUR)
async def abounded(body="nothing"):
    return await bodies[body]()


@task
def refuse(reason):
    raise Fail(reason)


@task(interruptible=True)
def interruptible(body):
    return bodies[body]()


@task(result_retention=HOUR)
def kept_briefly(body):
    return bodies[body]()


@task(result_retention=HOUR, exactly_once=True)
def kept_briefly_once(body):
    return bodies[body]()
