"""Who has the page of an item open at this moment: each page says so when it is loaded, and every 10 seconds."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, router, transaction

from delayedq.desk.models import Presence

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.desk.models import Item

logger = logging.getLogger("delayedq")

#: Who was not heard of for so long has closed the page: three calls of it.
GONE = timedelta(seconds=30)
#: Rows of a user that are older than this are deleted when they open another item.
KEPT = timedelta(days=1)
#: A page names at most this many people.
NAMED = 20


def others(item: Item, user: Any, now: datetime) -> list[tuple[Any, timedelta]]:
    """Say that the user has the item open; returns who else has, and for how long, the first one first."""
    _note(item, user, now)
    found = Presence.objects.filter(item=item, at__gt=now - GONE).exclude(user=user).select_related("user")
    return [(one.user, now - one.since) for one in found.order_by("since", "pk")[:NAMED]]


def _note(item: Item, user: Any, now: datetime) -> None:
    """An error of the database is logged in one line: who has a page open is no reason not to show it."""
    alias = router.db_for_write(Presence)
    rows = Presence.objects.using(alias)
    mine = rows.filter(item=item, user=user)
    try:
        with transaction.atomic(using=alias):
            if mine.filter(at__gt=now - GONE).update(at=now) or mine.update(since=now, at=now):
                return
            rows.filter(user=user, at__lt=now - KEPT).delete()
            rows.create(item_id=item.pk, user_id=user.pk, since=now, at=now)
    except IntegrityError:  # another page of the same user has just done it, or the user was deleted
        return
    except DatabaseError as error:
        logger.warning("Who has the desk item %s open was not stored: %s", item.pk, str(error).strip())
