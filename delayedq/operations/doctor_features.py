"""What the doctor knows of live messages, schedules and archives: see `doctor`."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.conf import get_settings
from delayedq.cron.deployed import PRESENCE
from delayedq.exceptions import CannotRun
from delayedq.models import CronSettings, Message
from delayedq.operations.archived import archive_troubles, look_into_archives
from delayedq.operations.diagnosis import Diagnosis
from delayedq.store.protocol import BARE
from delayedq.tasks import task_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.store.base import Store

#: Workers write that they have their settings at least this many times in a grace period.
BEATS = 10
#: Of the live messages, so many of the oldest are looked at, and as many of the newest.
LOOK = 2_000
#: At most so many unknown tasks are named.
MOST = 20


def unknown_tasks(store: Store) -> Iterator[Diagnosis]:
    """Tasks of live messages that this version does not know. `check-pending` reads all messages, and arguments too."""
    ids = Message.objects.using(store.alias)
    ends = [ids.order_by(order).values_list("id", "queue", "kind")[:LOOK] for order in ("id", "-id")]
    kinds = Counter(kind for _id, queue, kind in {row for rows in ends for row in rows} if BARE not in queue)
    for kind, number in sorted(_unknown(kinds).items())[:MOST]:
        said = ngettext(
            "At least %(number)s live message is of %(task)s, a task that is unknown here.",
            "At least %(number)s live messages are of %(task)s, a task that is unknown here.",
            number,
        )
        cure = _(
            "Add its app to INSTALLED_APPS, deploy what has it, or give the task that took its place "
            "aliases=[%(task)s]; see check-pending."
        )
        yield Diagnosis("unknown task", said % {"number": number, "task": kind}, cure % {"task": repr(kind)})


def _unknown(kinds: Counter[str]) -> dict[str, int]:
    found = {}
    for kind, number in kinds.items():
        try:
            task_at(kind)
        except CannotRun:
            found[kind] = number
    return found


def schedules(store: Store) -> Iterator[Diagnosis]:
    """`CRON` that differs between workers which live: in a deploy for minutes, else by mistake."""
    fresh = store.now() - get_settings().CRON_GRACE / BEATS
    rows = CronSettings.objects.using(store.alias).filter(seen_at__gt=fresh).exclude(digest=PRESENCE)
    sets: list[dict[str, str]] = [json.loads(content) for content in rows.values_list("content", flat=True)]
    names = {name for one in sets for name in one}
    differing = sorted(name for name in names if len({one.get(name) for one in sets}) > 1)
    if differing:
        said = _("DELAYEDQ['CRON'] differs between workers that live: %(names)s.") % {"names": ", ".join(differing)}
        cure = _("Deploy the same settings to all workers, or give some --no-cron.")
        yield Diagnosis("schedules differ", said, cure)


def archives(store: Store) -> Iterator[Diagnosis]:
    for trouble in archive_troubles(store):
        yield Diagnosis(trouble.condition, trouble.sentence, trouble.cure)


def lake(store: Store) -> Iterator[Diagnosis]:
    """A lake that is set, and that this process can't read."""
    for reason in look_into_archives(store):
        said = _("The lake can't be read: %(reason)s") % {"reason": reason}
        yield Diagnosis("lake", said, _("Make DELAYEDQ['LAKE'] reachable from here; nothing is archived until then."))
