"""The tasks of a torture run: each writes down when it begins and ends. They are registered only while one runs."""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager
from datetime import timedelta
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from django.db import transaction

from delayedq import Limit, current_message, task
from delayedq.store import served_store
from delayedq.torture.audit import BACKEND, KINDS, write
from delayedq.torture.poisons import DEADLY, RUDE, RUDE_ASYNC

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "torture"
#: Attempts of what fails always, and of what is killed on the way: more than there will be faults.
FEW, MANY = 3, 1_000
#: The limits that the judge holds against what ran: of all `limited` together, and of each channel of `lined_up`.
CONCURRENCY, CHANNEL = 3, 1
#: After it, who waits for a database that does not answer is interrupted.
SILENT = timedelta(seconds=10)

_options: dict[str, Any] = {
    "backend": os.environ.get(BACKEND, "default"),
    "queue_name": QUEUE,
    "max_attempts": MANY,
    "backoff": timedelta(milliseconds=50),
}


@contextmanager
def written(uid: str) -> Iterator[None]:
    """Write down that an attempt of this message runs, and how it ends."""
    message = current_message()
    who = (message.id, message.claimed.token, message.attempt)
    write("began", *who, message.kind.removeprefix(KINDS), uid, message.channel, get_native_id())
    try:
        yield
    except BaseException:
        write("ended", *who, "raised")
        raise
    write("ended", *who, "returned")


def _result(uid: str) -> list[Any]:
    """What the history keeps, so that the judge knows which attempt has ended the message."""
    return [uid, current_message().attempt]


def _fails(uid: str, of: float) -> bool:
    """Whether this attempt fails: the same in each run with the same seed."""
    return random.Random(f"{uid}/{current_message().attempt}").random() < of  # noqa: S311 - no secret


@task(**_options)
def plain(uid: str, nap: float = 0.0) -> list[Any]:
    """Most of the load."""
    with written(uid):
        time.sleep(nap)
    return _result(uid)


@task(**_options)
async def plain_async(uid: str) -> list[Any]:
    """The same in the event loop."""
    with written(uid):
        return _result(uid)


@task(**_options)
def flaky(uid: str) -> list[Any]:
    """Fails in every second attempt."""
    with written(uid):
        if _fails(uid, 0.5):
            raise RuntimeError("as intended")
    return _result(uid)


@task(**(_options | {"max_attempts": FEW}))
def doomed(uid: str) -> None:
    """Fails in every attempt, and so becomes a dead letter."""
    with written(uid):
        raise RuntimeError("as intended")


@task(**_options)
def keyed(uid: str, version: int) -> list[Any]:
    """One version of what a producer replaces again and again."""
    with written(uid):
        time.sleep(0.001 * (version % 5))
    return _result(uid)


@task(exactly_once=True, timeout=SILENT, **_options)
def exact(uid: str) -> list[Any]:
    """Its effect, a message of `effect`, commits with its own end."""
    with written(uid):
        effect.enqueue(f"effect/{uid}")
        if _fails(uid, 0.2):
            raise RuntimeError("as intended")
    return _result(uid)


@task(**_options)
def effect(uid: str) -> list[Any]:
    """What `exact` does to the database."""
    with written(uid):
        return _result(uid)


@task(timeout=SILENT, **_options)
def stepped(uid: str) -> list[Any]:
    """Three steps, none of which is done again once the next has begun."""
    with written(uid):
        for number in range(3):
            current_message().step(f"step {number}", _step, uid, number)
            if _fails(f"{uid}/{number}", 0.2):
                raise RuntimeError("as intended")
    return _result(uid)


def _step(uid: str, number: int) -> int:
    message = current_message()
    write("step", message.id, uid, number, message.claimed.token)
    return number


@task(limit=Limit(concurrency=CONCURRENCY), **_options)
def limited(uid: str) -> list[Any]:
    """At most CONCURRENCY of these run at a time."""
    with written(uid):
        time.sleep(0.005)
    return _result(uid)


@task(channel="tenant", limit=Limit(concurrency=CHANNEL), **_options)
def lined_up(uid: str, tenant: str) -> list[Any]:  # noqa: ARG001 - its channel
    """At most CHANNEL of these run at a time for each tenant."""
    with written(uid):
        time.sleep(0.002)
    return _result(uid)


@task(**_options)
def member(uid: str) -> str:
    """One of a group."""
    with written(uid):
        if _fails(uid, 0.2):
            raise RuntimeError("as intended")
    return uid


@task(**_options)
def collect(uids: list[str], uid: str) -> list[Any]:
    """Comes after a group, with the results of all."""
    message = current_message()
    write("collected", uid, sorted(uids), message.id, message.claimed.token)
    with written(uid):
        return _result(uid)


@task(**_options)
def tick() -> None:
    """Of the schedule of each second."""
    message = current_message()
    instant = "" if message.nominal_at is None else message.nominal_at.isoformat()
    write("tick", message.id, instant, message.claimed.token)
    with written(f"tick/{message.id}"):
        pass


@task(**(_options | {"max_attempts": FEW}))
def poison(uid: str, how: str) -> None:
    """Ruins its process in each attempt: `how` is one of `poisons.DEADLY`."""
    message = current_message()
    write("began", message.id, message.claimed.token, message.attempt, "poison", uid, None, get_native_id())
    write("killed", "by a message")
    DEADLY[how]()


@task(timeout=SILENT, **_options)
def rude(uid: str, how: str) -> list[Any]:
    """Leaves behind what is none of its business: `how` is one of `poisons.RUDE`. It fails once by itself."""
    with written(uid):
        RUDE[how]()
    return _result(uid)


@task(**_options)
async def rude_async(uid: str, how: str) -> list[Any]:
    """The same in the event loop: `how` is one of `poisons.RUDE_ASYNC`."""
    with written(uid):
        await RUDE_ASYNC[how]()
    return _result(uid)


@task(timeout=SILENT, **_options)
def uncommitted(uid: str) -> list[Any]:
    """Stores a message in a transaction that it leaves open: that message must not run."""
    with written(uid):
        transaction.set_autocommit(False, using=served_store().alias)
        write("undone", f"plain/{uid}")
        plain.enqueue(f"plain/{uid}")
    return _result(uid)
