"""The tasks that the tests run. `play` does whatever a test wants; the others stand for what projects write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq import task
from tests.app.models import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

#: What `play` and `aplay` call, by name; `tests.worker.attempts.playing` fills it.
bodies: dict[str, Callable] = {}


@task
def nothing(*args, **kwargs):
    """Does nothing."""


@task
def echo(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task
async def aecho(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task
def mark(name, value=""):
    Mark.objects.create(name=name, value=value)


@task
async def amark(name, value=""):
    await Mark.objects.acreate(name=name, value=value)


@task
def remind(flight_id, gate=None):
    return f"{flight_id} at {gate}"


@task
def depart(code: str, departure: int):
    """`departure` is a time of day such as 517, as airlines write it."""


@task(sensitive=["token"])
def pay(amount: int, token: str, note: str = "", *more, **options):
    """Its errors quote its secret, as those of clients of web services do."""
    raise ValueError(f"{amount} refused for {token!r}: Authorization: {token}")


@task(sensitive=True)
def log_in(name, password):
    return f"{name} is in"


@task(takes_context=True)
def count_attempts(context, start=0):
    return start + context.attempt


@task(takes_context=True)
def contextual(context, body):
    return bodies[body](context)


@task(max_attempts=3)
def fail(reason="no reason"):
    raise ValueError(reason)


@task(queue_name="mail", priority=10, max_attempts=3, metadata={"team": "gate"})
def send(to, subject="Hello"):
    return f"{subject} to {to}"


@task
def play(body, *args, **kwargs):
    return bodies[body](*args, **kwargs)


@task
async def aplay(body, *args, **kwargs):
    return await bodies[body](*args, **kwargs)


@task(exactly_once=True)
def play_once(body, *args, **kwargs):
    return bodies[body](*args, **kwargs)
