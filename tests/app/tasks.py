"""The tasks that the tests run. `play` does whatever a test wants; the others stand for what projects write."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq import Limit, Rate, current_message, task
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
def any_name(number, **others):
    return {"number": number, **others}


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


# With channels and limits


@task(queue_name="webhooks", channel="customer", limit=Limit(concurrency=1))
def deliver(customer, body="nothing"):
    return bodies.get(body, list)()


@task(
    queue_name="webhooks", limit=[Limit(rate=Rate(2, per=timedelta(hours=1))), Limit(name="the-press", concurrency=3)]
)
def report(number):
    return number


@task(queue_name="webhooks", channel="customer", limit=Limit(concurrency=2), max_attempts=50)
def write_down(customer, path, seconds=0.05):
    """Appends when it begins and when it ends, in one write each."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    number = current_message().id
    os.write(file, f"{time.monotonic_ns()} began {os.getpid()} {customer} {number}\n".encode())
    time.sleep(seconds)
    os.write(file, f"{time.monotonic_ns()} ended {os.getpid()} {customer} {number}\n".encode())
    os.close(file)


@task(queue_name="webhooks", channel="customer", limit=Limit(order="strict"))
def notify(customer, number):
    """Does nothing, one after the other for each customer."""


@task(channel="customer", limit=Limit(concurrency=2))
def call(customer):
    """Does nothing, at most twice at once for each customer."""


@task(channel="customer", limit=Limit(concurrency=1))
def ring(customer):
    """Does nothing, once at a time for each customer."""


@task(channel="customer", limit=Limit(concurrency=2))
def print_label(customer):
    """Takes 2 ms, at most twice at once for each customer."""
    time.sleep(0.002)


@task(queue_name="webhooks", channel="customer", limit=Limit(rate=Rate(4, per=timedelta(seconds=1), burst=2)))
def write_down_at_a_rate(customer, path):
    """As `write_down`, and takes no time."""
    write_down.func(customer, path, 0.0)


@task(channel="customer")
def forward(customer):
    """Does nothing."""


@task(queue_name="webhooks", channel="customer", limit=Limit(size=2))
def post(customer):
    """Does nothing; of each customer, two may wait or run."""


@task(queue_name="webhooks", limit=Limit(size=1, on_full="raise"))
def collect():
    """Does nothing; one may wait or run, else it is an error."""
