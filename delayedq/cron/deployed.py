"""Which workers define which schedules: one row (`CronSettings`) for each set of settings that some worker has.

Two versions of the code run side by side during a deploy, and workers of one database may have different settings for
good. A worker writes once per beat that its set is in use, whatever its size. Of the sets that are in use the newest
that has a schedule decides how it is defined; a schedule is retired only when no set has had it for a grace period in
which a worker was there to see. So no worker takes away what another one defines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.conf import get_settings
from delayedq.core.ticks import config_hash
from delayedq.models import CronSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store

#: Stands for a definition with `enabled` False.
DISABLED = ""


class Deployed:
    """The sets that are in use, as one process sees them."""

    def __init__(self, store: Store, definitions: Mapping[str, Definition]) -> None:
        self._rows = CronSettings.objects.using(store.alias)
        self._store = store
        self._own = {name: one.config_hash if one.enabled else DISABLED for name, one in definitions.items()}
        self._content = json.dumps(self._own, sort_keys=True)
        self.digest = config_hash(self._content)
        self._contents: dict[int, dict[str, str]] = {}
        self._watching_since: datetime | None = None
        self._unused: list[int] = []
        #: Ids of the sets that may still be in use, the newest first.
        self.known: tuple[int, ...] = ()
        #: Of these, the ones that are surely in use.
        self.live: tuple[int, ...] = ()

    def attend(self, now: datetime) -> bool:
        """Say that the own set is in use, and read which others are. True if that has changed."""
        grace = get_settings().CRON_GRACE
        self._watching_since = min(self._watching_since or now, now)
        if self._own:
            self._heartbeat(now - grace, now)
        seen = dict(self._rows.order_by("-id").values_list("id", "seen_at"))
        live = tuple(id_ for id_, at in seen.items() if at > now - grace)
        known = tuple(id_ for id_, at in seen.items() if max(at, self._watching_since) > now - grace)
        self._unused = [id_ for id_ in seen if id_ not in known]
        changed = (live, known) != (self.live, self.known)
        self.live, self.known = live, known
        return changed

    def _heartbeat(self, unused_since: datetime, now: datetime) -> None:
        """A set that was out of use returns as the newest: a version that is deployed again decides again."""
        own = self._rows.filter(digest=self.digest)
        if own.filter(seen_at__gt=unused_since).update(seen_at=now):
            return
        with transaction.atomic(using=self._store.alias):
            own.filter(seen_at__lte=unused_since).delete()
            self._rows.bulk_create(
                [CronSettings(digest=self.digest, content=self._content, seen_at=now)], ignore_conflicts=True
            )

    def decided(self) -> dict[str, str]:
        """The hash that decides, by the name of each schedule that a live set has; DISABLED for one that is disabled.

        Call `attend` before.
        """
        decided: dict[str, str] = {}
        for id_ in reversed(self.live):
            decided |= self._content_of(id_)
        return decided

    def defined(self) -> set[str]:
        """The names of all schedules that a set has that may still be in use."""
        return {name for id_ in self.known for name in self._content_of(id_)}

    def forget(self) -> None:
        """Delete the sets that are not in use any more."""
        if self._unused:
            self._rows.filter(id__in=self._unused).delete()
            self._unused = []
        self._contents = {id_: content for id_, content in self._contents.items() if id_ in self.known}

    def _content_of(self, id_: int) -> dict[str, str]:
        if id_ not in self._contents:
            missing = [one for one in {*self.known, *self.live} if one not in self._contents]
            for found, content in self._rows.filter(id__in=missing).values_list("id", "content"):
                self._contents[found] = json.loads(content)
        return self._contents.get(id_, {})
