"""Return values that go before their history: noted where their message ends, removed when their time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Exists, OuterRef, Q

from delayedq.store.protocol import Finish
from delayedq.store.retention import of_flows_to_retry, unneeded_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import Settled, Transition

    Sweep = Callable[[Store, Any], "Swept"]

# Rows that outlive their messages: looked at page by page, so that no statement is long, however many there are.


#: Rows that one page reads.
PAGE = 1_000


class Swept(NamedTuple):
    """What one page of a sweep has removed, and after what the next one goes on; None: it has come to the end."""

    removed: int
    reached: Any


#: What apps have registered, in that order.
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


def sweeps_of_apps() -> tuple[Sweep, ...]:
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


# Expiring


def with_retention(transitions: Sequence[Transition]) -> list[Finish]:
    """Those that end messages whose return value goes before their history."""
    return [one for one in transitions if isinstance(one, Finish) and one.result_retention is not None and one.result]


def note_results(store: Store, finishes: Sequence[Finish], settled: Settled) -> None:
    """Within the transaction that settles them: until when their return values are kept."""
    from delayedq.models import ExpiringResult  # stores are imported before the models are loaded

    untouched = settled.lost | settled.busy | settled.superseded
    now = store.now()
    rows = [
        ExpiringResult(message_id=one.claimed.id, expires_at=now + one.result_retention)
        for one in sorted(finishes, key=lambda finish: finish.claimed.id)
        if one.claimed.id not in untouched and one.result_retention is not None
    ]
    ExpiringResult.objects.using(store.alias).bulk_create(rows, batch_size=PAGE, ignore_conflicts=True)


def expire_results(store: Store, after: tuple[datetime, int] | None = None, limit: int = PAGE) -> Swept:
    """Remove return values whose time is over; the next look goes on `after` what this one has reached.

    Those that an open batch of the archive compares, and those that flows may still read, stay for a later
    look: those of flows that have not succeeded, whose retry goes on with them. What another transaction has locked
    stays too. Raises django.db.Error.
    """
    from delayedq.models import ExpiringResult, FinishedMessage

    rows = ExpiringResult.objects.using(store.alias)
    expired = rows.filter(expires_at__lte=store.now()).order_by("expires_at", "message_id")
    if after is not None:
        expired = expired.filter(Q(expires_at__gt=after[0]) | Q(expires_at=after[0], message_id__gt=after[1]))
    page = list(expired.values_list("expires_at", "message_id")[:limit])
    if not page:
        return Swept(0, None)
    ids = [id_ for _, id_ in page]
    with store.database.atomic():
        history = FinishedMessage.objects.using(store.alias).filter(id__in=ids, result__isnull=False)
        removable = history.exclude(of_flows_to_retry(store.alias))
        keep = unneeded_condition(store.alias)
        removable = removable if keep is None else removable.filter(keep)
        found = list(store.database.unlocked(removable).values_list("id", flat=True))
        removed = history.filter(id__in=found).update(result=None)
        kept = set(history.values_list("id", flat=True))
        rows.filter(message_id__in=[id_ for id_ in ids if id_ not in kept]).delete()
    return Swept(removed, page[-1] if len(page) == limit else None)
