"""Eight kinds of tasks, and one that fails. Each leaves its effect in a table of the project."""

import asyncio
import time
from datetime import timedelta

from asgiref.sync import sync_to_async
from journey.expectations import expect
from journey.models import Effect

from delayedq import Limit, current_message, task

SOON = timedelta(milliseconds=50)
#: How many of the limited task may run at once for each of these towns, which take turns.
PLACES, TOWNS = 2, 3


def leave(number, pause=0.0):
    began = time.time()
    time.sleep(pause)
    Effect.objects.create(number=number, began=began, ended=time.time())
    return number


@task
def plain(number):
    return leave(number)


@task(queue_name="moved")
def moved(number, place):
    expect(place, "where it was moved to", of=number)
    return leave(number)


@task(backoff=SOON, max_attempts=3)
def retried(number):
    if current_message().attempt < 3:
        raise RuntimeError(f"{number} is not there yet: Ærø")
    return leave(number)


@task(exactly_once=True, backoff=SOON)
def once(number):
    """Its first attempt fails after its effect, which goes with it."""
    leave(number)
    if current_message().attempt == 1:
        raise RuntimeError("after the effect")


@task(channel="town", limit=Limit(concurrency=PLACES))
def limited(number, town):
    return leave(number, 0.02)


@task
async def waiting(number):
    await asyncio.sleep(0.01)
    await sync_to_async(leave)(number)
    began = time.time()
    await Effect.objects.acreate(number=number, began=began, ended=time.time())


@task
def step(number, *before):
    return leave(number)


@task
def tick():
    leave(0)


@task(max_attempts=1)
def failing(number):
    raise RuntimeError(f"{number} never arrives")
