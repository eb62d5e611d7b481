"""Follow what starts and ends: each look reads what is new, and not what was seen before.

Ends are read from the index of the history by time, from the last one seen on. Starts are what the workers report in
their heartbeats, every 10 seconds: the claims themselves are in no index.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.models import FinishedMessage, Message
from delayedq.operations.browsing import LARGE, ended_page, listed, scan_history
from delayedq.operations.workers import live_workers, running_ids

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.operations.browsing import EndedSelection, Selection
    from delayedq.store.base import Store
    from delayedq.store.operator import Position

#: Each look begins this much before the last end it has seen: an end may be stored so long after it happened. One that
#: comes later still, as the database was away or its row locked, is not seen.
LATE = timedelta(seconds=5)
#: Ends that are read at once.
AT_ONCE = 10_000


class Following:
    """Of one database. `ended`: which ends; `live`: which starts."""

    def __init__(self, store: Store, ended: EndedSelection, live: Selection) -> None:
        self._store, self._ended, self._live = store, ended, live
        self._newest = store.now()
        self._told: set[Position] = set(self._since(self._newest - LATE))
        self._running: dict[int, int] = {}

    def last(self, number: int) -> list[FinishedMessage]:
        """Up to PAGE of those that ended before this follows, the last one last."""
        return ended_page(self._store, replace(self._ended, until=self._newest)).rows[:number][::-1]

    def ends(self) -> list[FinishedMessage]:
        """What has ended since the last look, the first end first. Raises django.db.Error."""
        positions = self._since(self._newest - LATE)
        new = sorted(position for position in positions if position not in self._told)
        rows = listed(FinishedMessage.objects.using(self._store.alias)).defer("result")
        found = rows.in_bulk([position.id for position in new])
        self._newest = max([self._newest, *(position.at for position in new)])
        self._told = {position for position in positions if position.at >= self._newest - LATE}
        return [found[position.id] for position in new if position.id in found]

    def starts(self) -> list[Message]:
        """What workers report to run since the last look, each attempt once. Raises django.db.Error."""
        now = self._store.now()
        ids = {id_ for worker in live_workers(self._store, now) for id_ in running_ids(worker)}
        chosen = self._live.messages(self._store.alias).filter(id__in=ids, leased_by__isnull=False).defer(*LARGE)
        running = {one.pk: one for one in chosen}
        new = [one for one in running.values() if self._running.get(one.pk) != one.attempt]
        self._running = {one.pk: one.attempt for one in running.values()}
        return sorted(new, key=lambda one: (one.claimed_at or now, one.pk))

    def _since(self, since: datetime) -> list[Position]:
        """The ends from this moment on, the latest first."""
        asked = replace(self._ended, since=since)
        found: list[Position] = []
        page = scan_history(self._store, asked, None, AT_ONCE)
        while page.reached is not None:
            found += page.found
            page = scan_history(self._store, asked, page.reached, AT_ONCE)
        return found + page.found
