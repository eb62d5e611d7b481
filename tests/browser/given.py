"""Test data of the pages: a site with history and scheduled messages."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from django.utils import timezone

from delayedq.core.errors import fingerprint
from delayedq.models import FinishedMessage, Message

TASKS = ("shop.tasks.charge", "shop.tasks.send_receipt", "reports.tasks.rebuild")


def a_busy_site(now=None):
    """60 minutes of history with a varying rate and a period of failures, and a next day with a stampede."""
    now = now or timezone.now()
    random = Random(7)
    ended, id_ = [], 1_000_000
    for minute in range(60):
        for _ in range(30 + round(20 * random.random()) + (40 if 35 <= minute < 45 else 0)):
            id_ += 1
            due = now - timedelta(minutes=60 - minute) + timedelta(seconds=60 * random.random())
            late = random.expovariate(1 / (0.4 if 35 <= minute < 45 else 0.03))
            bad = random.random() < (0.2 if 38 <= minute < 44 else 0.005)
            ended.append(finished(id_, due, late, failed=bad, random=random))
    FinishedMessage.objects.bulk_create(one for one in ended if one.finished_at <= now)
    tomorrow = now + timedelta(days=1)
    stampede = timezone.localtime(now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=9))
    waiting = [now + (tomorrow - now) * random.random() ** 1.4 for _ in range(1500)]
    waiting += [stampede] * 600
    Message.objects.bulk_create(live(2_000_000 + number, due, now, random) for number, due in enumerate(waiting))
    return stampede


def finished(id_, due, late, *, failed, random):
    started = due + timedelta(seconds=late)
    return FinishedMessage(
        id=id_,
        created_at=due - timedelta(seconds=20),
        scheduled_at=due,
        scheduled_at_initially=due,
        started_at=started,
        finished_at=started + timedelta(milliseconds=40),
        priority=0,
        attempts=8 if failed else 1,
        max_attempts=8,
        outcome="failed" if failed else "succeeded",
        queue="default",
        kind=random.choice(TASKS),
        key=f"order-{id_}",
        worker="web-1:4711",
        payload='{"args": [1545], "kwargs": {}}',
        error="TimeoutError: no answer" if failed else None,
        fingerprint=fingerprint("TimeoutError: no answer") if failed else None,
        errors='[{"attempt": 8, "exception": "TimeoutError", "message": "no answer", "traceback": ""}]'
        if failed
        else None,
    )


def live(id_, due, now, random):
    return Message(
        id=id_,
        scheduled_at=due,
        scheduled_at_initially=due,
        created_at=now - timedelta(seconds=3600 * random.random()),
        max_attempts=8,
        priority=random.choice([0, 0, 10]),
        queue=random.choice(["default", "mail"]),
        kind=random.choice(TASKS),
        key=f"order-{id_}",
        payload='{"args": [1545], "kwargs": {}}',
    )
