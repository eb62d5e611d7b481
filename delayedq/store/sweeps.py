"""Sweeps: what outlives its messages is looked at page by page, so that no statement is long, however much there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Exists, OuterRef

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from django.db.models import QuerySet

    from delayedq.store.base import Store

    Sweep = Callable[[Store, Any], "Swept"]

#: Rows that one page reads.
PAGE = 1_000


class Swept(NamedTuple):
    """What one page of a sweep has removed, and after what the next one goes on; None: it has come to the end."""

    removed: int
    reached: Any


#: What features and apps have registered, in that order.
_SWEEPS: list[Sweep] = []


def register_sweep(sweep: Sweep) -> None:
    """Let lease keepers look at the rows of an app, too, once a minute: page by page, until one reaches the end (None).

    Each keeper does it for its database, whose leases wait meanwhile: a page is read by an index and waits for
    nothing else. Call it in `AppConfig.ready`; to register a function again changes nothing.

    Example:
        register_sweep(close_withdrawn)
    """
    if sweep not in _SWEEPS:
        _SWEEPS.append(sweep)


def sweeps() -> tuple[Sweep, ...]:
    """All that are registered, in that order."""
    return tuple(_SWEEPS)


def forget_gone(
    store: Store, rows: QuerySet[Any], written: str, older_than: timedelta, after: int | None, limit: int
) -> Swept:
    """Of the next `limit` of these rows by primary key, delete those of messages neither live nor in the history.

    `written` is the column that says when a row was written: younger ones stay. Whether the message has gone is part of
    the condition of the statement that deletes, since it may just come back from the history.
    """
    from delayedq.models import FinishedMessage, Message  # stores are imported before the models are loaded

    messages = Message.objects.using(store.alias), FinishedMessage.objects.using(store.alias)
    following = rows if after is None else rows.filter(pk__gt=after)
    page = list(following.order_by("pk").values_list("pk", "message_id", written)[:limit])
    if not page:
        return Swept(0, None)
    ids = {id_ for _, id_, _ in page}
    before = store.now() - older_than
    known = {id_ for each in messages for id_ in each.filter(id__in=ids).values_list("id", flat=True)}
    gone = [key for key, id_, moment in page if id_ not in known and moment < before]
    live, ended = (each.filter(id=OuterRef("message_id")) for each in messages)
    removed = rows.filter(~Exists(live), ~Exists(ended), pk__in=gone).delete()[0] if gone else 0
    return Swept(removed, page[-1][0] if len(page) == limit else None)
