"""Tell what a drain leaves: messages that are due, and that no worker of it could start."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error

from delayedq.models import Message
from delayedq.operations.explain import Waiting, due_in
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from delayedq.store.base import Store

logger = logging.getLogger("delayedq")

#: At most so many messages are read of each lane, and so many kinds are named.
LOOK, MOST = 2_000, 10


class Leftover(NamedTuple):
    """Messages of one kind in one queue. `is_more`: not all were counted. `why`: what holds up the first of them."""

    queue: str
    kind: str
    number: int
    is_more: bool
    why: str


def leftovers(store: Store, serves: Callable[[str], bool]) -> list[Leftover]:
    """The messages that are due in the queues that are served, by queue and kind. Raises django.db.Error.

    At most LOOK of each lane are read, in the order in which they are due.
    """
    now = store.now()
    found: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    is_cut = False
    for lane in store.lanes():
        if BARE in lane.queue or not serves(lane.queue):
            continue
        rows = due_in(store, lane, now).order_by("scheduled_at").values_list("id", "kind")[:LOOK]
        is_cut = is_cut or len(rows) == LOOK
        for id_, kind in rows:
            found[lane.queue, kind] += 1
            first.setdefault((lane.queue, kind), id_)
    return [
        Leftover(queue, kind, number, is_cut, _why(store, first[queue, kind], now))
        for (queue, kind), number in found.most_common(MOST)
    ]


def _why(store: Store, id_: int, now: datetime) -> str:
    message = Message.objects.using(store.alias).filter(pk=id_).first()
    return (
        "It has ended meanwhile." if message is None else Waiting(store, message, now, is_left=True).answers()[0].text
    )


def tell_what_is_left(store: Store, serves: Callable[[str], bool]) -> None:
    """Log a warning for each kind of message that is due and was left; none if the database does not answer."""
    try:
        left = leftovers(store, serves)
    except Error as error:
        logger.warning("What the drain has left could not be read: %s", str(error).strip())
        return
    for one in left:
        number = f"at least {one.number}" if one.is_more else f"{one.number}"
        logger.warning(
            "The drain has left %s due message(s) of %s in queue %s. %s", number, one.kind, one.queue, one.why,
            extra={"queue": one.queue},
        )  # fmt: skip
