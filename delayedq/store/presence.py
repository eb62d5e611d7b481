"""Who works, and which queues are paused: the verbs of `protocol.Store` about these, for all databases."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from delayedq.store.presence_sql import ATTEND

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta

    from django.db.backends.base.base import BaseDatabaseWrapper


class Presence(NamedTuple):
    """A worker process that lives. `lease` and `age` are in seconds, `queues` has commas between, and "" means all.

    `held` is how many messages it has claimed, and `running` a JSON list of the ids of those that have started.
    """

    name: str
    host: str
    pid: int
    threads: int
    queues: str
    lease: float
    age: float
    held: int = 0
    running: str = "[]"


class Roll(ABC):
    """The part of a store that calls the roll. See `protocol.Store` for what each verb promises."""

    alias: str

    @property
    @abstractmethod
    def connection(self) -> BaseDatabaseWrapper: ...

    @abstractmethod
    def now(self) -> datetime: ...

    def paused(self) -> set[str]:
        from delayedq.models import PausedQueue  # stores are imported before the models are loaded

        return set(PausedQueue.objects.using(self.alias).values_list("queue", flat=True))

    def attend(self, workers: Sequence[Presence], now: datetime | None = None) -> None:
        given = json.dumps([worker._asdict() for worker in workers])
        moment = self.connection.ops.adapt_datetimefield_value(now)
        with self.connection.cursor() as cursor:
            cursor.execute(ATTEND[self.connection.vendor], {"workers": given, "now": moment})

    def leave(self, names: Collection[str]) -> None:
        from delayedq.models import Worker

        Worker.objects.using(self.alias).filter(name__in=names).delete()

    def forget(self, silent_for: timedelta, now: datetime | None = None) -> None:
        from delayedq.models import Worker

        Worker.objects.using(self.alias).filter(seen_at__lt=(now or self.now()) - silent_for).delete()
