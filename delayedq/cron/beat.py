"""One beat: each worker maintains the ticks of the schedules about once a minute.

There is no leader. A beat reads which schedules have a tick that is due, or must be judged, or that is the last one
placed (`CronSchedule.next_at`), and visits these (`placing`), some hundred in one transaction. What another worker has
locked is left to it. So a beat costs what is due, not what exists. Ticks are placed before they are due, so the queue
starts them on time, independent of the beat. Time is the database's.

Schedules of the settings are compared with the database when a worker starts, and when another version of the settings
comes or goes (`deployed`). Schedules of the database are read from there.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, NamedTuple

from django.db import InterfaceError, InternalError, OperationalError
from django.db.models import BooleanField, Case, ExpressionWrapper, Q, When

from delayedq.conf import get_settings
from delayedq.core.serialization import loads
from delayedq.cron.definitions import read_stored
from delayedq.cron.placing import stop, visit
from delayedq.cron.ticks import config_hash
from delayedq.exceptions import DelayedQError
from delayedq.models import CronSchedule, CronSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store

# Which workers define which schedules: one row (`CronSettings`) for each set of settings that some worker has.
#
# Two versions of the code run side by side during a deploy, and workers of one database may have different settings
# for good. A worker writes once per beat that its set is in use, whatever its size. Of the sets that are in use the
# newest that has a schedule decides how it is defined; a schedule is retired only when no set has had it for a grace
# period in which workers were running. So no worker takes away what another one defines. After a time in which no
# worker had a beat (all were stopped, or the database was away) the grace period starts again: until it is over, all
# stored sets count as in use, so the order in which workers come back does not matter.


#: Stands for a definition with `enabled` False.
DISABLED = ""

#: The digest of one row that all workers update, also those without schedules. Its content is the time since which
#: workers have had beats without a break of half a grace period.
PRESENCE = ""


class SeenSchedule(NamedTuple):
    id: int
    digest: str
    seen_at: datetime
    #: Of the row of PRESENCE; None for others.
    since: str | None


class Deployed:
    """The sets that are in use, as one process sees them."""

    def __init__(self, store: Store, definitions: Mapping[str, Definition]) -> None:
        self._database = store.database
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
        self._database.retried(partial(self._say_used, now))
        return self.known != before

    def _say_used(self, now: datetime) -> None:
        seen = self.read(now)
        if self._own and not self._rows.filter(digest=self.digest).update(seen_at=now):
            # One that had expired returns as the newest: a version that is deployed again decides again.
            self._rows.bulk_create([self._row(self.digest, self._content, now)], ignore_conflicts=True)
            seen = self.read(now)
        self._say_present(seen, now)

    def read(self, now: datetime) -> dict[str, SeenSchedule]:
        """Read which sets are in use; returns all rows by digest."""
        since = Case(When(digest=PRESENCE, then="content"))
        seen = {
            row[1]: SeenSchedule._make(row)
            for row in self._rows.order_by("-id").values_list(*SeenSchedule._fields[:3], since)
        }
        unused_since = now - get_settings().CRON_GRACE
        sets = [row for row in seen.values() if row.digest != PRESENCE]
        is_watched = _present_since(seen, now) <= unused_since
        self.known = tuple(row.id for row in sets if row.seen_at > unused_since or not is_watched)
        self._unused = [row.id for row in sets if row.id not in self.known]
        return seen

    def _say_present(self, seen: Mapping[str, SeenSchedule], now: datetime) -> None:
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
            self._database.retried(self._rows.filter(id__in=self._unused).delete)
            self._unused = []
        self._contents = {id_: content for id_, content in self._contents.items() if id_ in self.known}

    def _content_of(self, id_: int) -> dict[str, str]:
        if id_ not in self._contents:
            missing = [one for one in self.known if one not in self._contents]
            for found, content in self._rows.filter(id__in=missing).values_list("id", "content"):
                self._contents[found] = json.loads(content)
        return self._contents.get(id_, {})


def _present_since(seen: Mapping[str, SeenSchedule], now: datetime) -> datetime:
    """Since when workers have had their beats, without a break of half a grace period."""
    row = seen.get(PRESENCE)
    if row is None or row.since is None or now - row.seen_at > get_settings().CRON_GRACE / 2:
        return now
    return min(datetime.fromisoformat(row.since), now)


# Beat


logger = logging.getLogger("delayedq")

#: Schedules visited in one transaction.
CHUNK = 500

#: Names read in one statement.
NAMES = 5_000

#: What a lost database raises, and one that is read-only for a while, as after a failover (PostgreSQL: InternalError).
LOST = (OperationalError, InterfaceError, InternalError)

#: Schedules of the settings and of the database have no owner.
SETTINGS = ""

GONE = "Its schedule is not defined any more."

SWITCHED_OFF = "Its schedule was disabled in the settings."


class ComparedSchedule(NamedTuple):
    """What a comparison with the settings reads of a schedule."""

    id: int
    name: str
    config_hash: str
    disabled_at: datetime | None
    retired_at: datetime | None


class Beats:
    """The beats of one process, which has these definitions in its settings."""

    def __init__(self, store: Store, definitions: Mapping[str, Definition]) -> None:
        self._store = store
        self._definitions = definitions
        self._deployed = Deployed(store, definitions)
        #: Names of the settings' schedules that this process maintains.
        self._own: set[str] = set()
        #: In how many more beats the settings are compared with the database. Two after each change: another process
        #: may have retired a schedule at the moment of the first.
        self._compare = 2
        self._logged: set[tuple[str, str]] = set()

    def beat(self, now: datetime | None = None, going: Callable[[], bool] = lambda: True) -> None:
        """Visit all that needs it; ends early when `going` is False.

        What fails for one schedule is logged and tried again at the next beat; only the loss of the database ends this
        one (LOST).
        """
        moment = now or self._store.now()
        if self._deployed.heartbeat(moment):
            self._compare = 2
        visited: set[int] = set()
        if self._compare:
            self._compare -= 1
            visited = self._compare_settings(moment, going)
        for ids in self._due(moment, visited):
            if not going():
                return
            self._visit(ids, moment)

    # What is due

    def _due(self, now: datetime, visited: set[int]) -> Iterator[list[int]]:
        """The ids of the schedules that are due and that this process knows, in chunks, without those `visited`."""
        rows = CronSchedule.objects.using(self._store.alias).filter(next_at__lte=now).order_by("next_at", "id")
        due = rows.annotate(in_settings=ExpressionWrapper(Q(definition=None), output_field=BooleanField()))
        after = Q()
        while True:
            found = list(due.filter(after).values_list("id", "name", "next_at", "in_settings", "config_hash")[:CHUNK])
            known = [id_ for id_, name, _, in_settings, _ in found if not in_settings or name in self._own]
            if any(
                in_settings and name in self._own and config_hash != self._definitions[name].config_hash
                for _, name, _, in_settings, config_hash in found
            ):
                self._compare = max(self._compare, 1)  # a worker with other settings has enabled it
            if left := [id_ for id_ in known if id_ not in visited]:
                yield left
            if len(found) < CHUNK:
                return
            last_id, _, last_at, *_ = found[-1]
            after = Q(next_at__gt=last_at) | Q(next_at=last_at, id__gt=last_id)

    def _visit(self, ids: Collection[int], now: datetime, *, install: bool = False) -> set[int]:
        try:
            return visit(self._store, ids, self._find, now, install=install)
        except LOST:
            raise
        except Exception:  # noqa: BLE001  `_visit_each` finds which schedule failed
            return self._visit_each(ids, now, install=install)

    def _visit_each(self, ids: Collection[int], now: datetime, *, install: bool) -> set[int]:
        """One of them fails: the others are visited one by one."""
        done: set[int] = set()
        for id_ in ids:
            try:
                done |= visit(self._store, [id_], self._find, now, install=install)
            except LOST:
                raise
            except Exception:
                names = CronSchedule.objects.using(self._store.alias).filter(id=id_).values_list("name", flat=True)
                logger.exception("The ticks of schedule %r could not be placed.", names.first())
        return done

    def _find(self, row: CronSchedule) -> Definition | None:
        if row.definition is None:
            return self._definitions[row.name] if row.name in self._own else None
        try:
            found = read_stored(row.name, loads(row.definition))
        except DelayedQError as error:
            self._log_once(row.name, str(error), "Its ticks are placed by workers that can read it.")
            return None
        # Workers whose tasks have other defaults would take each other's ticks back: only update() changes the hash.
        return replace(found, config_hash=row.config_hash) if row.config_hash else found

    def _log_once(self, name: str, problem: str, consequence: str) -> None:
        if (name, problem) not in self._logged:
            self._logged.add((name, problem))
            logger.error("%s %s", problem, consequence)

    # The settings

    def _compare_settings(self, now: datetime, going: Callable[[], bool]) -> set[int]:
        """Install what differs, and stop what is gone; returns the ids of the schedules that were visited."""
        decided = self._deployed.decided()
        self._own = {
            name
            for name, definition in self._definitions.items()
            if definition.enabled and decided.get(name, definition.config_hash) == definition.config_hash
        }
        self._tell_older(decided)
        known = {one.name: one for one in self._rows(definition=None)}
        self._add(self._own - known.keys(), known, now)
        install = [one.id for one in known.values() if one.name in self._own and self._differs(one)]
        visited: set[int] = set()
        for ids in batched(install, CHUNK):
            if going():
                visited |= self._visit(ids, now, install=True)
        if len(visited) < len(install):
            self._compare = max(self._compare, 1)  # another worker had locked some
        self._retire(known, decided, now)
        return visited

    def _differs(self, known: ComparedSchedule) -> bool:
        own = self._definitions[known.name].config_hash
        return known.disabled_at is None and (known.config_hash != own or known.retired_at is not None)

    def _rows(self, **conditions: object) -> Iterator[ComparedSchedule]:
        rows = CronSchedule.objects.using(self._store.alias).filter(owner=SETTINGS, **conditions)
        return map(ComparedSchedule._make, rows.values_list(*ComparedSchedule._fields).iterator(NAMES))

    def _add(self, names: set[str], known: dict[str, ComparedSchedule], now: datetime) -> None:
        """Make rows for these schedules, which have none; those of the database may have the name already."""
        for some in batched(sorted(names), NAMES):
            rows = [CronSchedule(owner=SETTINGS, name=name, covered_until=now) for name in some]
            insert = CronSchedule.objects.using(self._store.alias).bulk_create
            self._store.database.retried(partial(insert, rows, ignore_conflicts=True))
            known.update((one.name, one) for one in self._rows(definition=None, name__in=some))
            for name in some:
                if name not in known:
                    problem = f"DELAYEDQ['CRON'][{name!r}]: The database has a schedule of this name."
                    self._log_once(name, problem, "That one is in effect; rename or delete one of them.")

    def _tell_older(self, decided: Mapping[str, str]) -> None:
        for name, definition in self._definitions.items():
            if name in decided and decided[name] != (definition.config_hash if definition.enabled else DISABLED):
                problem = f"Schedule {name!r}: workers with newer settings define it otherwise."
                self._log_once(name, problem, "Theirs is in effect while they live, and for DELAYEDQ['CRON_GRACE'].")

    def _retire(self, known: Mapping[str, ComparedSchedule], decided: Mapping[str, str], now: datetime) -> None:
        installed = [one for one in known.values() if one.config_hash and one.retired_at is None]
        off = [one.id for one in installed if decided.get(one.name) == DISABLED]
        gone = [one.id for one in installed if one.name not in decided]
        self._stop(off, SWITCHED_OFF, now)
        self._stop(gone, GONE, now)
        self._deployed.expire()

    def _stop(self, ids: Sequence[int], reason: str, now: datetime) -> None:
        for some in batched(ids, CHUNK):
            still = partial(self._still_stopped, now)
            stop(self._store, some, reason, now, retire=reason is GONE, still=still)

    def _still_stopped(self, now: datetime, rows: Sequence[CronSchedule]) -> list[CronSchedule]:
        """Asked again under the lock of the rows: their definition may have come back."""
        self._deployed.read(now)
        decided = self._deployed.decided()
        return [row for row in rows if decided.get(row.name, DISABLED) == DISABLED]


def beat(store: Store, definitions: Mapping[str, Definition], *, now: datetime | None = None) -> None:
    """One beat of a process that has just started with these definitions."""
    Beats(store, definitions).beat(now)
