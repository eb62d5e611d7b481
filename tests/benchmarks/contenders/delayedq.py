from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import time
from datetime import timedelta
from pathlib import Path

from django.core.management import call_command
from django.tasks import task
from django.utils import timezone

from tests.benchmarks.contenders import project, stopwatch

#: OPTIONS of Django's PostgreSQL backend; BENCHMARK_DEFAULTS: none.
DATABASE = {} if "BENCHMARK_DEFAULTS" in os.environ else {"server_side_binding": True, "prepare_threshold": 5}
SETTINGS = (
    "run_workers --drain, one process, 4 threads, history kept; on PostgreSQL server_side_binding, prepare_threshold"
)

project.configure("delayedq", backend="delayedq.backend.DelayedQBackend", database=DATABASE)
prepare = project.migrate

import delayedq.tasks  # noqa: E402 - it needs the settings


@task
def nothing(number: int) -> None:
    stopwatch.lap(number)


@task
async def coroutine(number: int) -> None:
    stopwatch.lap(number)


@delayedq.tasks.task(exactly_once=True)
def once(number: int) -> None:
    stopwatch.lap(number)


@task
def busy(milliseconds: float) -> None:
    """A CPU-bound task that holds the GIL."""
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass


@task
def sleepy(milliseconds: float) -> None:
    time.sleep(milliseconds / 1000)


@task
async def dozing(milliseconds: float) -> None:
    await asyncio.sleep(milliseconds / 1000)


@task
def stamp(instant: float) -> None:
    """Records by how many milliseconds it started after the instant."""
    with Path(os.environ["BENCHMARK_RESULT"]).open("a") as file:
        file.write(f"{(time.time() - instant) * 1000}\n")


TASKS = {"nothing": nothing, "coroutine": coroutine, "once": once, "busy": busy, "sleepy": sleepy, "dozing": dozing}


def fill(count: int) -> None:
    """BENCHMARK_TASK names the task, BENCHMARK_ARGUMENT its argument (default: a number), BENCHMARK_KEYED sets keys;
    BENCHMARK_QUEUES is the number of queues that take turns.
    """
    chosen = TASKS[os.environ.get("BENCHMARK_TASK", "nothing")]
    argument, queues = os.environ.get("BENCHMARK_ARGUMENT"), int(os.environ.get("BENCHMARK_QUEUES", "0"))
    given = itertools.repeat(json.loads(argument), count) if argument else range(count)
    if "BENCHMARK_KEYED" not in os.environ and not queues:
        for calls in itertools.batched(given, 10_000):  # a transaction each
            chosen.enqueue_bulk(((one,), {}) for one in calls)
        return
    from delayedq.store import default_store

    key = "key-{}".format if "BENCHMARK_KEYED" in os.environ else lambda _: None
    offers = (chosen.offer((one,), {}, when=None, key=key(number)) for number, one in enumerate(given))
    if queues:
        offers = (offer._replace(queue=f"queue-{number % queues}") for number, offer in enumerate(offers))
    default_store().offer_many(offers)


def drain(_count: int) -> None:
    call_command("run_workers", "--drain", *os.environ.get("BENCHMARK_FLAGS", "").split())


def enqueue(count: int) -> None:
    for number in range(count):
        nothing.enqueue(number)


# Measured for delayedq only


def work() -> None:
    """Run an ordinary worker until SIGTERM."""
    call_command("run_workers", *os.environ.get("BENCHMARK_FLAGS", "").split())


def ping(count: int) -> None:
    """Enqueue messages with pauses, so that each finds an idle worker."""
    for _ in range(count):
        time.sleep(random.uniform(0.03, 0.07))
        stamp.enqueue(time.time())


def ping_later(count: int) -> None:
    """The same, each scheduled for 2 s ahead."""
    for _ in range(count):
        time.sleep(random.uniform(0.03, 0.07))
        when = timezone.now() + timedelta(seconds=2)
        stamp.schedule_at(when, when.timestamp())


@delayedq.tasks.task(max_attempts=2, backoff=timedelta(seconds=1))
def once_more(number: int) -> None:
    if delayedq.tasks.current_message().attempt == 1:
        raise ValueError(number)


def trickle(rate: int, seconds: int) -> None:
    """Offer `rate` messages a second: due now, due within ten seconds, failing once, and offered again by a key."""
    for number in range(4 * seconds):
        ends_at = time.monotonic() + 0.25
        each = range(rate // 16)
        nothing.enqueue_bulk(((one,), {}) for one in each)
        once_more.enqueue_bulk(((one,), {}) for one in each)
        for one in each:
            nothing.schedule_in(timedelta(seconds=random.uniform(0, 10)), one)
            nothing.schedule_in(timedelta(seconds=1), one, key=f"{one}-{number // 2}")
        time.sleep(max(0.0, ends_at - time.monotonic()))


def fill_flat(count: int) -> None:
    """Enqueue all in one transaction; prints by how many megabytes the process has grown."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    nothing.enqueue_bulk(((number,), {}) for number in range(count))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)  # noqa: T201


def fill_tomorrow() -> None:
    nothing.schedule_in(timedelta(days=1), 1)
