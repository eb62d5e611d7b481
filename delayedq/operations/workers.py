"""The workers: which are alive, what they serve and what they run, as of their lease keeper's last heartbeat."""

from __future__ import annotations

from datetime import timedelta
from itertools import batched, islice
from typing import TYPE_CHECKING

from delayedq.core.serialization import stored_json
from delayedq.models import FinishedMessage, Message, Outcome, Worker
from delayedq.operations.browsing import LARGE
from delayedq.operations.reading import read_once
from delayedq.store import worker_registry
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.registry import WorkerCommand

#: A worker counts as alive for this long after its last heartbeat; heartbeats come every 10 s.
ALIVE = timedelta(seconds=30)

#: At most this many running messages are listed per worker.
SHOWN = 20

#: Of what workers ran, so many messages are looked up by one statement, and so many in all: for a list, or as figures.
AT_ONCE, MOST_RUNNING = 10_000, 20_000


def live_workers(store: Store, now: datetime) -> list[Worker]:
    """The workers whose last heartbeat is at most ALIVE ago, by name."""
    return [worker for worker in all_workers(store) if is_alive(worker, now)]


def all_workers(store: Store) -> list[Worker]:
    """All registered workers by name, including silent ones: rows of workers that could not deregister stay for 1 h."""
    return read_once(store, "workers", lambda: list(Worker.objects.using(store.alias).order_by("name")))


def is_alive(worker: Worker, now: datetime) -> bool:
    return now - worker.seen_at <= ALIVE


def serves(worker: Worker, queue: str) -> bool:
    """Whether the worker claims from this queue. None does from a bare queue, or when an operator asked it to end."""
    if worker.asked or BARE in queue or queue in worker.excluded_queues.split(","):
        return False
    return not worker.queues or queue in worker.queues.split(",")


def ask(store: Store, name: str, request: WorkerCommand | None, by: str = "") -> bool:
    """Ask this of a worker process; None takes it back. It reads that with its next heartbeat, within 10 s.

    False if no process has this name. `by`: the name of a user.
    """
    return worker_registry(store.alias).ask(name, request, by)


def running_ids(worker: Worker) -> list[int]:
    """Ids of the messages that it ran at its last heartbeat; none if other code has written something else there."""
    return [id_ for id_ in stored_json(worker.running, list) if type(id_) is int and 0 <= id_ < 2**63]


def known_running(workers: Iterable[Worker]) -> tuple[list[int], bool]:
    """Ids of the messages that they ran at their last heartbeat, up to MOST_RUNNING, and whether these are all."""
    ids = list(islice((id_ for worker in workers for id_ in running_ids(worker)), MOST_RUNNING + 1))
    return ids[:MOST_RUNNING], len(ids) <= MOST_RUNNING


def who_still_runs(store: Store, ended: FinishedMessage, now: datetime) -> Worker | None:
    """The live worker whose thread runs an attempt of a message that was cancelled before its last heartbeat."""
    if ended.outcome != Outcome.CANCELLED or not ended.attempts:
        return None
    workers = [worker for worker in live_workers(store, now) if worker.seen_at > ended.finished_at]
    return next((worker for worker in workers if ended.pk in running_ids(worker)), None)


def lost_runs(store: Store, workers: Iterable[Worker]) -> dict[str, list[int]]:
    """By worker name, the messages of which it still ran an attempt after they had been cancelled."""
    running = {id_: worker for worker in workers for id_ in running_ids(worker)}
    cancelled = FinishedMessage.objects.using(store.alias).filter(outcome=Outcome.CANCELLED)
    lost: dict[str, list[int]] = {}
    for ids in batched(sorted(running), AT_ONCE):
        ended = cancelled.filter(id__in=ids).order_by("id")
        for id_, finished_at in ended.values_list("id", "finished_at"):
            if running[id_].seen_at > finished_at:
                lost.setdefault(running[id_].name, []).append(id_)
    return lost


def current_messages(store: Store, workers: Iterable[Worker]) -> dict[str, list[Message]]:
    """By worker name, the messages it ran at its last heartbeat (at most SHOWN) and still leases."""
    current: dict[str, list[Message]] = {worker.name: [] for worker in workers}
    ids = [id_ for worker in workers for id_ in running_ids(worker)[:SHOWN]]
    messages = Message.objects.using(store.alias).leased().filter(id__in=ids).defer(*LARGE)
    for message in messages.order_by("id"):
        if message.leased_by in current:
            current[message.leased_by].append(message)
    return current
