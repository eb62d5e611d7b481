from __future__ import annotations

import asyncio
import json
import os
import time

from django.core.management import call_command
from django.tasks import task

from tests.benchmarks.contenders import project, stopwatch

SETTINGS = "run_workers --drain, as it comes: one worker process, 4 threads, history kept"

project.configure("delayedq", backend="delayedq.backend.DelayedQBackend")
prepare = project.migrate


@task
def nothing(number: int) -> None:
    stopwatch.lap(number)


@task
def busy(milliseconds: float) -> None:
    """Python that holds the interpreter."""
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass


@task
def sleepy(milliseconds: float) -> None:
    time.sleep(milliseconds / 1000)


@task
async def dozing(milliseconds: float) -> None:
    await asyncio.sleep(milliseconds / 1000)


TASKS = {"nothing": nothing, "busy": busy, "sleepy": sleepy, "dozing": dozing}


def fill(count: int) -> None:
    """BENCHMARK_TASK says of what, BENCHMARK_ARGUMENT with which argument (else a number), BENCHMARK_KEYED if keyed."""
    from delayedq.store import default_store

    chosen = TASKS[os.environ.get("BENCHMARK_TASK", "nothing")]
    argument = os.environ.get("BENCHMARK_ARGUMENT")
    keyed = "BENCHMARK_KEYED" in os.environ
    default_store().offer_many(
        chosen.offer(
            (json.loads(argument) if argument else number,), {}, when=None, key=f"key-{number}" if keyed else None
        )
        for number in range(count)
    )


def drain(_count: int) -> None:
    call_command("run_workers", "--drain", *os.environ.get("BENCHMARK_FLAGS", "").split())


def enqueue(count: int) -> None:
    for number in range(count):
        nothing.enqueue(number)
