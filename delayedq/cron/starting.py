"""Decide whether a tick may start now. Asked by the worker that has claimed it, in the thread that would run it.

A tick carries the time at which it counts as missed, so it need not wait for a beat to be judged, and is judged by
workers that do not know its schedule. A tick whose schedule allows no overlap takes the place of the running one in
its schedule's row (`running_id`) by one conditional update. The place is free again when the message that has it ended,
so a worker that dies frees it too. For other messages it costs one search for a word in
their metadata.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Exists, OuterRef, Q

from delayedq import clock
from delayedq.cron.beat import SETTINGS
from delayedq.cron.placing import tell_missed
from delayedq.cron.ticks import Overlap
from delayedq.exceptions import Cancel, Snooze
from delayedq.models import CronSchedule, CronTick, Message
from delayedq.store import served_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed

#: What the metadata of ticks has that must be asked about.
MARKS = ('"expires_at"', '"overlap"')

#: How far back an earlier tick that waits is looked for.
RECENT = 100
#: A tick that waits for another one asks again after a quarter of the time that it has waited, within these limits.
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(seconds=30)


def must_ask(claimed: Claimed) -> bool:
    """Whether it is a tick that expires, or that may have to wait for another one."""
    return claimed.metadata is not None and any(mark in claimed.metadata for mark in MARKS)


def check_start(claimed: Claimed, cron: Mapping[str, Any]) -> None:
    """Raise Cancel for a tick that was missed or is skipped, and Snooze for one that waits for another one.

    `cron` is what the metadata of the message says of its tick. It may ask the database.
    """
    if "schedule" not in cron:
        return
    store = served_store()
    as_placed = claimed.scheduled_at == datetime.fromisoformat(cron.get("due_at", cron["nominal_at"]))
    if claimed.attempt == 1 and "expires_at" in cron and as_placed:
        _check_expired(store, cron, "expires_at")
    elif claimed.attempt == 1 and "starts_by" in cron and _waited(store, claimed, cron):
        _check_expired(store, cron, "starts_by")
    if "overlap" in cron and not _take_place(store, claimed.id, cron["schedule"]):
        _yield(store, claimed, cron)


def _check_expired(store: Store, cron: Mapping[str, Any], limit: str) -> None:
    """Raise Cancel if the tick is missed by the database's clock; that is read only if the host's clock says so too."""
    expires_at = datetime.fromisoformat(cron[limit])
    if clock.now() > expires_at and store.now() > expires_at:
        reason = f"It was missed (misfire: {cron.get('misfire')})."
        nominal_at = datetime.fromisoformat(cron["nominal_at"])
        tell_missed(store, cron["schedule"], nominal_at, nominal_at, reason)
        raise Cancel(reason)


def _waited(store: Store, claimed: Claimed, cron: Mapping[str, Any]) -> bool:
    """Whether it has waited for another tick and not begun: then it was never due after `starts_by`; see `_yield`."""
    if claimed.scheduled_at > datetime.fromisoformat(cron["starts_by"]):
        return False  # it was rescheduled by hand
    return not _rows(store, cron["schedule"]).filter(running_id=claimed.id).exists()


def _rows(store: Store, schedule: str) -> QuerySet[CronSchedule]:
    return CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=schedule)


def _take_place(store: Store, id_: int, schedule: str) -> bool:
    """True if this message runs for its schedule from now on: no other one has begun and not ended."""
    begun = Q(attempt__gt=0) | Q(lease_token__isnull=False)
    running = Message.objects.using(store.alias).filter(begun, id=OuterRef("running_id"))
    rows = _rows(store, schedule)
    free = Q(running_id=None) | Q(running_id=id_) | ~Exists(running)
    return bool(rows.filter(free).update(running_id=id_)) or not rows.exists()


def _yield(store: Store, claimed: Claimed, cron: Mapping[str, Any]) -> None:
    nominal_at = datetime.fromisoformat(cron["nominal_at"])
    if cron["overlap"] == Overlap.SKIP:
        reason = "Another tick of its schedule has not ended (overlap: skip)."
    elif _other_waits(store, claimed.id, cron["schedule"], nominal_at):
        reason = "Another tick of its schedule waits already (overlap: wait)."
    else:
        raise Snooze(_pause(store.now(), claimed, cron))
    tell_missed(store, cron["schedule"], nominal_at, nominal_at, reason)
    raise Cancel(reason)


def _pause(now: datetime, claimed: Claimed, cron: Mapping[str, Any]) -> timedelta:
    pause = min(max((now - claimed.scheduled_at_initially) / 4, SHORTEST), LONGEST)
    if "starts_by" not in cron:
        return pause
    return max(min(pause, datetime.fromisoformat(cron["starts_by"]) - now), timedelta())


def _other_waits(store: Store, id_: int, schedule: str, nominal_at: datetime) -> bool:
    """Is there a message of an earlier tick that is not the running one?"""
    earlier = CronTick.objects.using(store.alias).filter(
        schedule__owner=SETTINGS, schedule__name=schedule, nominal_at__lt=nominal_at
    )
    ids = list(earlier.order_by("-nominal_at").values_list("message_id", "schedule__running_id")[:RECENT])
    waiting = [message_id for message_id, running_id in ids if message_id and message_id not in {running_id, id_}]
    return Message.objects.using(store.alias).filter(id__in=waiting).exists()
