"""Which workers define which schedules: one row (`CronSettings`) for each set of settings that some worker has.

Two versions of the code run side by side during a deploy, and workers of one database may have different settings for
good. A worker writes once per beat that its set is in use, whatever its size. Of the sets that are in use the newest
that has a schedule decides how it is defined; a schedule is retired only when no set has had it for a grace period in
which workers were running. So no worker takes away what another one defines. After a time in which no worker had a
beat (all were stopped, or the database was away) the grace period starts again: until it is over, all stored sets count
as in use, so the order in which workers come back does not matter.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Case, When

from delayedq.conf import get_settings
from delayedq.core.ticks import config_hash
from delayedq.models import CronSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store

#: Stands for a definition with `enabled` False.
DISABLED = ""
#: The digest of one row that all workers update, also those without schedules. Its content is the time since which
#: workers have had beats without a break of half a grace period.
PRESENCE = ""


class Seen(NamedTuple):
    id: int
    digest: str
    seen_at: datetime
    #: Of the row of PRESENCE; None for others.
    since: str | None


class Deployed:
    """The sets that are in use, as one process sees them."""

    def __init__(self, store: Store, definitions: Mapping[str, Definition]) -> None:
        self._rows = CronSettings.objects.using(store.alias)
        self._own = {name: one.config_hash if one.enabled else DISABLED for name, one in definitions.items()}
        self._content = json.dumps(self._own, sort_keys=True)
        self.digest = config_hash(self._content)
        self._contents: dict[int, dict[str, str]] = {}
        self._unused: list[int] = []
        #: Ids of the sets that are in use, the newest first.
        self.known: tuple[int, ...] = ()

    def heartbeat(self, now: datetime) -> bool:
        """Write that the own set is in use, and read which others are. Returns whether that has changed."""
        before = self.known
        seen = self.read(now)
        if self._own and not self._rows.filter(digest=self.digest).update(seen_at=now):
            # One that had expired returns as the newest: a version that is deployed again decides again.
            self._rows.bulk_create([self._row(self.digest, self._content, now)], ignore_conflicts=True)
            seen = self.read(now)
        self._say_present(seen, now)
        return self.known != before

    def read(self, now: datetime) -> dict[str, Seen]:
        """Read which sets are in use; returns all rows by digest."""
        since = Case(When(digest=PRESENCE, then="content"))
        seen = {row[1]: Seen._make(row) for row in self._rows.order_by("-id").values_list(*Seen._fields[:3], since)}
        unused_since = now - get_settings().CRON_GRACE
        sets = [row for row in seen.values() if row.digest != PRESENCE]
        is_watched = _present_since(seen, now) <= unused_since
        self.known = tuple(row.id for row in sets if row.seen_at > unused_since or not is_watched)
        self._unused = [row.id for row in sets if row.id not in self.known]
        return seen

    def _say_present(self, seen: Mapping[str, Seen], now: datetime) -> None:
        """Write the row of PRESENCE if that is older than a twentieth of the grace period: one write is enough."""
        row = seen.get(PRESENCE)
        if row is None:
            self._rows.bulk_create([self._row(PRESENCE, now.isoformat(), now)], ignore_conflicts=True)
        elif now - row.seen_at > get_settings().CRON_GRACE / 20:
            since = _present_since(seen, now).isoformat()
            self._rows.filter(id=row.id, seen_at__lt=now).update(seen_at=now, content=since)

    @staticmethod
    def _row(digest: str, content: str, now: datetime) -> CronSettings:
        return CronSettings(digest=digest, content=content, seen_at=now)

    def decided(self) -> dict[str, str]:
        """The hash that decides, by the name of each schedule that a set in use has; DISABLED for one that is disabled.

        Call `heartbeat` before.
        """
        decided: dict[str, str] = {}
        for id_ in reversed(self.known):
            decided |= self._content_of(id_)
        return decided

    def expire(self) -> None:
        """Delete the sets that are not in use any more."""
        if self._unused:
            self._rows.filter(id__in=self._unused).delete()
            self._unused = []
        self._contents = {id_: content for id_, content in self._contents.items() if id_ in self.known}

    def _content_of(self, id_: int) -> dict[str, str]:
        if id_ not in self._contents:
            missing = [one for one in self.known if one not in self._contents]
            for found, content in self._rows.filter(id__in=missing).values_list("id", "content"):
                self._contents[found] = json.loads(content)
        return self._contents.get(id_, {})


def _present_since(seen: Mapping[str, Seen], now: datetime) -> datetime:
    """Since when workers have had their beats, without a break of half a grace period."""
    row = seen.get(PRESENCE)
    if row is None or row.since is None or now - row.seen_at > get_settings().CRON_GRACE / 2:
        return now
    return min(datetime.fromisoformat(row.since), now)
