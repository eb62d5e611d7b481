"""Which workers live, what they serve and what they run, as their lease keepers told last."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.models import Message, Worker
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.store.protocol import Store

#: The roll is called every ten seconds: who missed three calls is taken for dead.
ALIVE = timedelta(seconds=30)

#: So many running messages are shown for each worker.
SHOWN = 20


def live_workers(store: Store, now: datetime) -> list[Worker]:
    return [worker for worker in all_workers(store) if is_alive(worker, now)]


def all_workers(store: Store) -> list[Worker]:
    """Also those that have been silent for long: whoever died with its machine stays for an hour."""
    return list(Worker.objects.using(store.alias).order_by("name"))


def is_alive(worker: Worker, now: datetime) -> bool:
    return now - worker.seen_at <= ALIVE


def serves(worker: Worker, queue: str) -> bool:
    return BARE not in queue and (not worker.queues or queue in worker.queues.split(","))


def running_ids(worker: Worker) -> list[int]:
    """The messages that it ran when it was last seen."""
    ids: list[int] = json.loads(worker.running)
    return ids


def current_messages(store: Store, workers: Iterable[Worker]) -> dict[str, list[Message]]:
    """Of what each of them ran when it was last seen, the messages that it still leases."""
    current: dict[str, list[Message]] = {worker.name: [] for worker in workers}
    ids = [id_ for worker in workers for id_ in running_ids(worker)[:SHOWN]]
    messages = Message.objects.using(store.alias).leased().filter(id__in=ids).defer("payload", "metadata", "errors")
    for message in messages.order_by("id"):
        if message.leased_by in current:
            current[message.leased_by].append(message)
    return current
