"""What the doctor knows of schedules and archives: see `doctor`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from django.apps import apps

from delayedq.conf import get_settings
from delayedq.cron.deployed import PRESENCE
from delayedq.models import CronSettings
from delayedq.operations.diagnosis import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.store.base import Store

#: An archive batch that was planned so long ago, and that nobody works on, is left over.
LEFT_OVER = timedelta(hours=6)
#: Workers write that they have their settings at least this many times in a grace period.
BEATS = 10


def schedules(store: Store) -> Iterator[Diagnosis]:
    """`CRON` that differs between workers which live: in a deploy for minutes, else by mistake."""
    fresh = store.now() - get_settings().CRON_GRACE / BEATS
    rows = CronSettings.objects.using(store.alias).filter(seen_at__gt=fresh).exclude(digest=PRESENCE)
    sets: list[dict[str, str]] = [json.loads(content) for content in rows.values_list("content", flat=True)]
    names = {name for one in sets for name in one}
    differing = sorted(name for name in names if len({one.get(name) for one in sets}) > 1)
    if differing:
        said = f"DELAYEDQ['CRON'] differs between workers that live: {', '.join(differing)}."
        yield Diagnosis("schedules differ", said, "Deploy the same settings to all workers, or give some --no-cron.")


def archives(store: Store) -> Iterator[Diagnosis]:
    if not apps.is_installed("delayedq.pipeline"):
        return
    batches = apps.get_model("delayedq_pipeline", "ArchiveBatch")._default_manager.using(store.alias)  # noqa: SLF001
    now = store.now()
    for batch in batches.filter(is_open=True, planned_at__lt=now - LEFT_OVER):
        if batch.leased_until is None or batch.leased_until <= now:
            said = (
                f"The archive batch {batch.name} is open since {batch.planned_at:%Y-%m-%d %H:%M} ({batch.state}), and"
                f" nobody works on it: its rows stay in the history. The lake is {batch.lake}."
            )
            yield Diagnosis("open archive batch", said, "manage.py run_pipeline archive")
