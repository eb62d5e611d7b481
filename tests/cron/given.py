"""For the cron tests: definitions, beats at any moment, and what they left in the queue."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction
from django.test import override_settings

from delayedq.cron import placing
from delayedq.cron.beat import SETTINGS, Beats, beat
from delayedq.cron.definitions import read
from delayedq.cron.placing import lock
from delayedq.cron.service import CronMessage
from delayedq.cron.ticks import config_hash
from delayedq.models import CronTick, FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Lane, Offer
from tests.store.given import LEASE, settle, succeed

#: Just before an hour begins, and no change of any clock is near.
NOW = datetime(2026, 5, 20, 9, 59, 30, tzinfo=UTC)
HOURLY = {"task": "tests.app.tasks.mark", "cron": "0 * * * *", "timezone": "UTC", "args": ["tick"]}
MINUTELY = {**HOURLY, "cron": "* * * * *"}
DAILY = {**HOURLY, "cron": "0 12 * * *"}
#: Of a service: the kind of its messages, two configurations, and a zone whose clocks are changed.
KIND = "contacts|text"
HASH, OTHER = config_hash("one"), config_hash("two")
NEW_YORK = ZoneInfo("America/New_York")


def at(hours=0, minutes=0, seconds=0):
    """A moment of that day, counted from ten o'clock."""
    return datetime(2026, 5, 20, 10, tzinfo=UTC) + timedelta(hours=hours, minutes=minutes, seconds=seconds)


def beat_at(store, now=NOW, /, **schedules):
    """One beat of a worker that has these schedules in its settings and has just started."""
    definitions = {name: read(name, given) for name, given in schedules.items()}
    beat(store, definitions, now=now)


def beat_after_removal(store, now, **schedules):
    """A beat of a worker with these schedules, which has seen for a while that nobody has any others."""
    beats = Beats(store, {name: read(name, given) for name, given in schedules.items()})
    with override_settings(DELAYEDQ={"CRON_GRACE": timedelta(seconds=1)}):
        for seconds in (-1, -0.6, -0.3, 0):
            beats.beat(now + timedelta(seconds=seconds))


def disable(store, name, now):
    """By hand, at any moment."""
    with transaction.atomic(using=store.alias):
        placing.disable(store, lock(store, SETTINGS, name, now), now)


def enable(store, definition, now):
    with transaction.atomic(using=store.alias):
        placing.enable(store, lock(store, SETTINGS, definition.name, now), definition, now)


def metadata_of(message):
    return json.loads(message.metadata)


def nominal(message):
    return datetime.fromisoformat(metadata_of(message)["cron"]["nominal_at"])


def placed(name=None):
    """The nominal times of all live ticks (of one schedule), in order."""
    ticks = [message for message in Message.objects.all() if name is None or message.key.startswith(f"{name}/")]
    return sorted(map(nominal, ticks))


def tombstones():
    return list(CronTick.objects.order_by("nominal_at").values_list("nominal_at", flat=True))


def claim_due(store, now, limit=10_000):
    return store.at(now).claim(ClaimRequest([Lane("default", 0)], limit, LEASE, "first"))


def run_due(store, now):
    """Run all that is due, as a worker would; the nominal times in the order in which they started."""
    claims = claim_due(store, now)
    settle(store, *map(succeed, claims), now=now)
    return [nominal(claimed) for claimed in claims]


def ran():
    """The nominal times of all that succeeded."""
    return sorted(map(nominal, FinishedMessage.objects.succeeded()))


def cancelled():
    """The nominal times of what was cancelled, and why."""
    ended = FinishedMessage.objects.cancelled()
    return {nominal(message): json.loads(message.errors)[0]["message"] for message in ended}


class Clock:
    """Stands still until it is advanced."""

    def __init__(self):
        self.now = datetime(2026, 1, 1, 10, tzinfo=UTC)

    def __call__(self):
        return self.now

    def after(self, seconds):
        return self.now + timedelta(seconds=seconds)

    def advance(self, seconds):
        self.now += timedelta(seconds=seconds)


def make_offer(key, payload, due_at):
    return Offer(queue=KIND, kind=KIND, key=key, payload=payload, scheduled_at=due_at)


def messages(clock, *seconds, payload="tick"):
    return [CronMessage(payload, clock.after(second)) for second in seconds]


def live():
    """Prefix, which hash, and payload of what is in the queue, in due order."""
    names = {HASH: "one", OTHER: "two"}
    rows = Message.objects.order_by("scheduled_at", "id").values_list("key", "payload")
    ticks = [(*key.rsplit("/", 2)[:2], payload) for key, payload in rows]
    return [(prefix, names.get(hash_, hash_), payload) for prefix, hash_, payload in ticks]
