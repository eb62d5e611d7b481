"""A producer of a torture run: a process that stores messages at a steady rate until it is told to stop, or is killed.

It writes down what it is about to store, and after the commit what was stored: in between, nobody knows.
"""

from __future__ import annotations

import random
import signal
import time
from datetime import timedelta
from itertools import batched
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction

from delayedq import Call, group
from delayedq.store import store_for
from delayedq.torture import tasks
from delayedq.torture.audit import write
from delayedq.torture.poisons import DEADLY, RUDE, RUDE_ASYNC
from delayedq.worker.silence import Silence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from delayedq.tasks import Task

#: Rounds in a second, and how many keys each producer has, so that no other one replaces what it stored.
ROUNDS, KEYS = 20, 40
#: Where the single ones are made in one of so many rounds.
FLOW_EVERY, RUDE_EVERY, POISON_EVERY = 10, 20, 400
#: Seconds for which it waits for an answer, unless ANSWER_WITHIN says how long workers do.
SILENT = 10.0
TENANTS = ("ann", "bob", "cem", "dia")


class Producer:
    """Makes messages with ids of its own: `name` is unique in the run, also among those that were killed."""

    def __init__(self, alias: str, name: str, seed: str, rate: int) -> None:
        self._alias, self._name, self._rate = alias, name, rate
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._made, self._stopped = 0, False
        self._versions: dict[str, int] = {}
        silence = Silence(f"Producer {name}", alias, SILENT)
        self._wait = silence.wait("an offer", times=4)
        silence.start()

    def run(self) -> None:
        """Until SIGTERM; then the round ends first."""
        signal.signal(signal.SIGTERM, self._stop)
        due, number = time.monotonic(), 0
        while not self._stopped:
            number += 1
            self._round(number)
            due = max(due + 1 / ROUNDS, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _round(self, number: int) -> None:
        """Share the rate out among the ways to store a message."""
        share = max(1, self._rate // ROUNDS)
        work: list[Callable[[], None]] = [
            lambda: self._many(tasks.plain, share * 6 // 10),
            lambda: self._many(tasks.plain_async, share // 10),
            lambda: self._many(tasks.flaky, max(1, share // 20)),
            lambda: self._replace(max(1, share // 10)),
            lambda: self._undo(1),
            lambda: self._one(self._random.choice([tasks.exact, tasks.stepped, tasks.limited, tasks.doomed])),
            self._line_up,
        ]
        if number % FLOW_EVERY == 0:
            work.append(self._flow)
        if number % POISON_EVERY == POISON_EVERY // 4:
            work.append(lambda: self._one(tasks.poison, self._random.choice([*DEADLY])))
        if number % RUDE_EVERY == 0:
            work.append(self._rude)
        for one in work:
            self._try(one)

    def _try(self, work: Callable[[], None]) -> None:
        """A database that is away is part of the test."""
        try:
            with self._wait:
                work()
        except Error as error:
            write("refused", type(error).__name__)
            connections[self._alias].close()
            time.sleep(0.1)

    def _uids(self, task: Task[..., Any], number: int) -> list[str]:
        first = self._made
        self._made += number
        return [f"{task.func.__name__}/{self._name}/{one}" for one in range(first, first + number)]

    def _many(self, task: Task[..., Any], number: int) -> None:
        uids = self._uids(task, number)
        write("asked", *uids)
        priority = self._random.choice([0, 0, 0, 10, -10])
        stored = task.using(priority=priority).enqueue_many([((uid,), {}) for uid in uids])
        self._stored(uids, [int(one.id or 0) for one in stored])

    def _one(self, task: Task[..., Any], *more: str) -> None:
        [uid] = self._uids(task, 1)
        write("asked", uid)
        self._stored([uid], [int(task.enqueue(uid, *more).id)])

    def _rude(self) -> None:
        ways: list[tuple[Task[..., Any], list[str]]] = [(tasks.uncommitted, [])]
        ways += [(tasks.rude, [how]) for how in RUDE]
        ways += [(tasks.rude_async, [how]) for how in RUDE_ASYNC]
        task, how = self._random.choice(ways)
        self._one(task, *how)

    def _line_up(self) -> None:
        [uid] = self._uids(tasks.lined_up, 1)
        write("asked", uid)
        self._stored([uid], [int(tasks.lined_up.enqueue(uid, self._random.choice(TENANTS)).id)])

    def _stored(self, uids: Sequence[str], ids: Sequence[int]) -> None:
        """After the commit. Lines stay short, so that none is torn."""
        for some in batched(zip(uids, ids, strict=True), 50):
            write("stored", *some)

    def _replace(self, number: int) -> None:
        """The next version of some keys, due at once or a little later: also while one of them runs."""
        keys = self._random.sample([f"{self._name}/{one}" for one in range(KEYS)], min(number, KEYS))
        versions = {key: self._versions.get(key, 0) + 1 for key in keys}
        self._versions.update(versions)
        write("offering", versions)
        after = timedelta(milliseconds=self._random.choice([0, 0, 20, 200]))
        now = store_for(self._alias).now()
        calls = [Call((f"{key}#{version}", version), at=now + after, key=key) for key, version in versions.items()]
        tasks.keyed.enqueue_many(calls)
        write("offered", versions)

    def _undo(self, number: int) -> None:
        """What is rolled back never was."""
        uids = self._uids(tasks.plain, number)
        write("undone", *uids)
        with transaction.atomic(using=self._alias):
            tasks.plain.enqueue_many([((uid,), {}) for uid in uids])
            transaction.set_rollback(True, using=self._alias)

    def _flow(self) -> None:
        [uid] = self._uids(tasks.collect, 1)
        members = [f"member/{uid}/{one}" for one in range(4)]
        write("asked", uid, *members)
        group([tasks.member.s(one) for one in members]).then(tasks.collect.s(uid)).enqueue()
        write("flowing", uid, members)
