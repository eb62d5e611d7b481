"""Sweep over all items once a minute, in workers.

Items whose time is over wait for anybody, those whose message has ended without a decision are closed, and those that
were closed longer ago than the history goes back are deleted.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from django.db import connections, router, transaction
from django.db.models import Exists, F, OuterRef, Q

from delayedq.conf import get_settings
from delayedq.desk import signals
from delayedq.desk.agreement import WINDOW
from delayedq.desk.models import ENDING, Item, ItemChange, State
from delayedq.desk.open_items import ended, queues_of
from delayedq.models import Message
from delayedq.store.sweeps import PAGE, Swept

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.store.base import Store


def let_wait(store: Store, _after: Any = None, limit: int = PAGE) -> Swept:
    """The next items whose assignment or postponement has run out wait for anybody.

    Their row keeps who held them last: they may still decide them, as long as nobody else takes them.
    """
    if not _has_items(store):
        return Swept(0, None)
    rows, now = Item.objects.using(store.alias), store.now()
    found: list[int] = []
    for queue, state in product(queues_of(rows.open()), ENDING):
        found += ended(rows, queue, state, now)[: limit - len(found)]
        if len(found) == limit:
            break
    if not found:
        return Swept(0, None)
    # Judged as they are once they are locked: who renews one meanwhile keeps it, and who decides one is not waited for.
    over = rows.filter(pk__in=found, state__in=ENDING, until__lte=now)
    with store.database.atomic():
        free = list(store.database.unlocked(over).values_list("pk", flat=True))
        changed = over.filter(pk__in=free).update(state=State.WAITING)
    return Swept(changed, True if len(found) == limit and changed else None)


def close_withdrawn(store: Store, after: int | None = None, limit: int = PAGE) -> Swept:
    """Of the next open items by primary key, close those whose message is live no more: it was cancelled, say."""
    if not _has_items(store):
        return Swept(0, None)
    gone, last = _gone(store, after, limit, is_open=True)
    return Swept(len(withdraw(store, gone)), last)


def close_unopened(store: Store, after: int | None = None, limit: int = PAGE) -> Swept:
    """The same for planted cases that no worker has opened, and for what the version before closed without a time."""
    if not _has_items(store):
        return Swept(0, None)
    gone, last = _gone(store, after, limit, is_open=False)
    rows = Item.objects.using(store.alias).closed().filter(pk__in=list(gone), closed_at=None)
    return Swept(rows.update(closed_at=store.now()), last)


def _gone(store: Store, after: int | None, limit: int, *, is_open: bool) -> tuple[Any, int | None]:
    """The keys of those of the next page that have no time of closing and no live message, and the page's last key."""
    rows = Item.objects.using(store.alias).filter(is_open__in=(is_open,), closed_at=None, pk__gt=after or 0)
    # The order of an index. MariaDB follows it only if nothing is named of which the condition leaves one value.
    order = ["pk"] if connections[store.alias].vendor == "mysql" else ["is_open", "closed_at", "pk"]
    keys: Any = rows.order_by(*order).values_list("pk", flat=True)
    last = next(iter(keys[limit - 1 : limit]), None)
    gone = keys.filter(_is_gone(store.alias))
    return gone if last is None else gone.filter(pk__lte=last), last


def forget_closed(store: Store, after: tuple[datetime, int] | None = None, limit: int = PAGE) -> Swept:
    """Of the next items that were closed longer ago than RETENTION, delete those that the brake does not count.

    Their comments go with them; files stay in the project's storage.
    """
    retention = get_settings().RETENTION
    if retention is None or not _has_items(store):
        return Swept(0, None)
    closed = Item.objects.using(store.alias).closed().filter(closed_at__lt=store.now() - retention)
    following = (
        closed if after is None else closed.filter(Q(closed_at=after[0], pk__gt=after[1]) | Q(closed_at__gt=after[0]))
    )
    page = list(following.order_by("closed_at", "pk").only("closed_at", "kind", "agreed", "decided_at")[:limit])
    begins = {key: _counted_since(store.alias, *key) for key in {(item.kind, item.agreed) for item in page}}
    old = [item.pk for item in page if not _is_counted(item, begins[item.kind, item.agreed])]
    if old:
        closed.filter(pk__in=old).delete()
    return Swept(len(old), (page[-1].closed_at, page[-1].pk) if len(page) == limit else None)


def _counted_since(alias: str, kind: str, agreed: bool | None) -> datetime | None:
    """Since when comparisons of this kind and result are among the last that `measured` counts; None: none is old."""
    rows = Item.objects.using(alias).filter(kind=kind, agreed=agreed, decided_at__isnull=False)
    last = rows.order_by("-decided_at").values_list("decided_at", flat=True)[WINDOW - 1 : WINDOW]
    return None if agreed is None else next(iter(last), None)


def _is_counted(item: Item, begin: datetime | None) -> bool:
    return item.agreed is not None and item.decided_at is not None and (begin is None or item.decided_at >= begin)


def withdraw(store: Store, ids: Iterable[int]) -> list[Item]:
    """Close those of these items that are open and whose message is live no more, and tell of each; returns them."""
    with transaction.atomic(using=store.alias):
        found = list(ids)
        if not found:
            return []
        rows = Item.objects.using(store.alias).filter(pk__in=found)
        now = store.now()
        # One statement, which judges each row as it is: who has decided meanwhile has closed the item, and keeps it.
        changed = rows.open().filter(_is_gone(store.alias)).update(
            is_open=False, state=State.WITHDRAWN, holder=None, until=None, closed_at=now,
            assignment=F("assignment") + 1,
        )  # fmt: skip
        closed = list(rows.filter(state=State.WITHDRAWN, closed_at=now).order_by("pk")) if changed else []
        ItemChange.objects.using(store.alias).bulk_create(
            ItemChange(item=item, at=now, verb="withdraw", is_by_code=True) for item in closed
        )
        for item in closed:
            signals.tell(signals.item_changed, item, verb="withdraw", by=None)
    return closed


def _is_gone(alias: str) -> Any:
    return ~Exists(Message.objects.using(alias).filter(pk=OuterRef("message_id")))


def _has_items(store: Store) -> bool:
    """Whether the items of this project are in this database."""
    return bool(router.allow_migrate_model(store.alias, Item))
