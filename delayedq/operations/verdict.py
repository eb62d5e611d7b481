"""The verdict: what is wrong now, since when, and what can be done about it; or that nothing is.

    for finding in verdict(default_store()):
        print(finding.sentence)

Reads a bounded number of rows, however many messages there are: heads of lanes, ends of error groups, the worker
registry, and the messages that silent workers held.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from django.db import Error, connections, transaction
from django.utils.translation import gettext as _

from delayedq.cron.beat import SETTINGS
from delayedq.limits.lateness import waits
from delayedq.models import CronSchedule, Message, PausedQueue, PausedTask, has_run_out
from delayedq.operations.archived import Trouble, archive_troubles
from delayedq.operations.browsing import Selection, scan_live
from delayedq.operations.error_groups import KNOWN
from delayedq.operations.explain import due_in
from delayedq.operations.rules import LATE, SPIKE_WINDOW, Finding, Lost, Overdue, Rule, Spike, Symptoms, judged
from delayedq.operations.workers import all_workers, is_alive, running_ids
from delayedq.sql.states import MessageState
from delayedq.store import operator_store
from delayedq.store.figures import Grid
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from delayedq.models import Worker
    from delayedq.store.base import Store
    from delayedq.store.figures import Extent, Newest

#: Of each kind, at most this many are looked at.
MOST = 20
#: Of paused tasks, at most this many; no index has the messages of a task, so they are sought among so many due ones.
MOST_TASKS, LOOK = 5, 2_000
#: Of an error group, at most this many of the latest are counted, and of the day before.
MOST_RECENT, MOST_BEFORE = 1_000, 5_000
#: A gap of this many minutes without a dead letter ends a spike.
GAP = 5
#: What a dead letter says that failed since its task is not known.
UNKNOWN_TASK = "delayedq.exceptions.UnknownTask"


def verdict(store: Store, now: datetime | None = None) -> list[Finding]:
    """All that is wrong, the worst first; nothing: nothing is. A database that does not answer is a finding too."""
    try:
        return judged(symptoms(store, now or store.now()))
    except Error as error:
        sentence = _("The database %(alias)s does not answer.") % {"alias": store.alias}
        return [Finding(Rule.DATABASE, sentence, None, store.alias, [str(error).strip()])]


def late_queues(store: Store, now: datetime) -> set[str]:
    """The queues that are late by the rule of the verdict, whether workers serve them or not."""
    found = waits(store, store.at(now).scan(), now, LATE.total_seconds())
    return {queue for queue, wait in found.items() if BARE not in queue and wait.late >= LATE.total_seconds()}


def symptoms(store: Store, now: datetime) -> Symptoms:
    """What the rules look at. Raises django.db.Error."""
    workers = all_workers(store)
    paused = list(PausedQueue.objects.using(store.alias).order_by("paused_at")[:MOST])
    paused_tasks = list(PausedTask.objects.using(store.alias).order_by("paused_at")[:MOST_TASKS])
    spikes = _spikes(store, now)
    heads = store.at(now).scan()
    return Symptoms(
        now=now,
        workers=workers,
        heads=heads,
        waits=waits(store, heads, now, LATE.total_seconds()),
        paused=paused,
        backlogs=_backlogs(store, paused, now),
        paused_tasks=paused_tasks,
        task_backlogs=_task_backlogs(store, paused_tasks, now),
        spikes=[spike for spike in spikes if not spike.newest.error.startswith(UNKNOWN_TASK)],
        unknown=[spike for spike in spikes if spike.newest.error.startswith(UNKNOWN_TASK)],
        overdue=_overdue(store, now),
        lost=_lost(store, workers, now),
        archive=_archive(store),
    )


def _archive(store: Store) -> list[Trouble]:
    """What is wrong with archives; of books that this user may not read, that alone: queues are judged all the same."""
    connection = connections[store.alias]
    try:
        with transaction.atomic(using=store.alias) if connection.in_atomic_block else nullcontext():
            return archive_troubles(store)
    except Error as error:
        if not connection.is_usable():
            raise
        said = _("The books of the archive can't be read: %(error)s") % {"error": str(error).strip()}
        cure = _("Look at the rights of the user that DATABASES names; then ask again.")
        return [Trouble("unread archive", said, None, cure)]


def _backlogs(store: Store, paused: Sequence[PausedQueue], now: datetime) -> dict[str, datetime]:
    """By paused queue, when its first due message became due: one probe of the due index per lane."""
    names = {row.queue for row in paused}
    lanes = [lane for lane in store.lanes() if lane.queue in names] if names else []
    found: dict[str, datetime] = {}
    for lane in lanes[: 2 * MOST]:
        due = due_in(store, lane, now).order_by("scheduled_at")
        for since in due.values_list("scheduled_at", flat=True)[:1]:
            found[lane.queue] = min(since, found.get(lane.queue, since))
    return found


def _task_backlogs(store: Store, paused: Sequence[PausedTask], now: datetime) -> dict[str, datetime]:
    """By paused task, when its first due message became due, if that is among the first LOOK due ones."""
    found: dict[str, datetime] = {}
    for row in paused:
        due = Selection(as_of=now, state=MessageState.DUE, kind=row.kind)
        page = scan_live(store, due, None, 1, LOOK)
        if first := [*page.found, *page.beyond]:
            found[row.kind] = first[0].at
    return found


def _overdue(store: Store, now: datetime) -> list[Overdue]:
    rows = CronSchedule.objects.using(store.alias).filter(
        owner=SETTINGS, next_at__lt=now - LATE, disabled_at=None, retired_at=None
    )
    return [Overdue(row.name, row.next_at) for row in rows.order_by("next_at")[:MOST] if row.next_at is not None]


def _lost(store: Store, workers: Sequence[Worker], now: datetime) -> list[Lost]:
    """Of the messages that silent workers ran at their last heartbeat, those that nobody holds."""
    silent = (worker for worker in workers if not is_alive(worker, now))
    ids = list(islice((id_ for worker in silent for id_ in running_ids(worker)), KNOWN))
    rows = Message.objects.using(store.alias).filter(has_run_out(now), id__in=ids)
    return [
        Lost(row.pk, row.queue, row.leased_by or "", row.leased_until)
        for row in rows.only("queue", "leased_by", "leased_until")
        if row.leased_until is not None
    ]


# Errors


def _spikes(store: Store, now: datetime) -> list[Spike]:
    """The error groups that grew within SPIKE_WINDOW."""
    stored = operator_store(store.alias).error_groups
    extents = sorted(stored.extents(KNOWN), key=lambda extent: extent.last_at, reverse=True)
    active = [extent for extent in extents if extent.last_at > now - SPIKE_WINDOW][:MOST]
    fingerprints = [extent.fingerprint for extent in active]
    minutes = Grid(now - timedelta(hours=1), now + timedelta(minutes=1), 60)
    lately = stored.lately(fingerprints, minutes, MOST_RECENT)
    day = Grid(now - timedelta(days=1), now - SPIKE_WINDOW, 86_400)
    before, newest = stored.lately(fingerprints, day, MOST_BEFORE), stored.newest(fingerprints)
    return [
        _spike(extent, newest[extent.fingerprint], lately[extent.fingerprint], before[extent.fingerprint], minutes)
        for extent in active
        if extent.fingerprint in newest
    ]


def _spike(extent: Extent, newest: Newest, minutes: Mapping[int, int], day: Mapping[int, int], grid: Grid) -> Spike:
    first = int((grid.end - timedelta(minutes=1) - SPIKE_WINDOW - grid.start).total_seconds()) // grid.width
    recent = sum(number for bucket, number in minutes.items() if bucket >= first)
    began = grid.start + timedelta(seconds=_beginning(minutes) * grid.width)
    return Spike(extent, newest, recent, sum(day.values()), max(began, extent.first_at))


def _beginning(minutes: Mapping[int, int]) -> int:
    """The bucket in which the latest run of buckets began that have a dead letter, with gaps of at most GAP."""
    buckets = sorted(minutes, reverse=True)
    ends = (later for later, earlier in pairwise([*buckets, -GAP - 1]) if later - earlier > GAP)
    return next(ends, 0)
