"""What workers do once a minute for all items: close those whose message has ended without a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import router, transaction
from django.db.models import Exists, F, OuterRef

from delayedq.desk import signals
from delayedq.desk.models import Item, State
from delayedq.models import Message
from delayedq.store.pages import PAGE, Page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.store.base import Store


def close_withdrawn(store: Store, after: int | None = None, limit: int = PAGE) -> Page:
    """Of the next open items by primary key, close those whose message is live no more: it was cancelled, say."""
    if not _has_items(store):
        return Page(0, None)
    rows = Item.objects.using(store.alias).filter(is_open=True, closed_at=None, pk__gt=after or 0)
    keys: Any = rows.order_by("closed_at", "pk").values_list("pk", flat=True)  # the order of an index
    last = next(iter(keys[limit - 1 : limit]), None)
    gone = keys.filter(_is_gone(store.alias))
    closed = withdraw(store, gone if last is None else gone.filter(pk__lte=last))
    return Page(len(closed), last)


def withdraw(store: Store, ids: Iterable[int]) -> list[Item]:
    """Close those of these items that are open and whose message is live no more, and tell of each; returns them."""
    with transaction.atomic(using=store.alias):
        found = list(ids)
        if not found:
            return []
        rows = Item.objects.using(store.alias).filter(pk__in=found)
        now = store.now()
        # One statement, which judges each row as it is: who has decided meanwhile has closed the item, and keeps it.
        changed = rows.filter(_is_gone(store.alias), is_open=True).update(
            is_open=False, state=State.WITHDRAWN, holder=None, until=None, closed_at=now,
            assignment=F("assignment") + 1,
        )  # fmt: skip
        closed = list(rows.filter(state=State.WITHDRAWN, closed_at=now).order_by("pk")) if changed else []
        for item in closed:
            signals.tell(signals.item_changed, item, verb="withdraw", by=None)
    return closed


def _is_gone(alias: str) -> Any:
    return ~Exists(Message.objects.using(alias).filter(pk=OuterRef("message_id")))


def _has_items(store: Store) -> bool:
    """Whether the items of this project are in this database."""
    return bool(router.allow_migrate_model(store.alias, Item))
