"""Signals of the desk; the sender is the task, so that `sender=refund` hears of one alone (None: it is not known here).

- `item_changed` (item, verb: str, by: a user or None): sent in the transaction of each verb, robustly: what a receiver
  raises is logged, and changes nothing; after an error of the database, what receivers have stored is undone, but not
  the verb. Two verbs are those of workers: with `replace` one has opened the item anew, with `withdraw` closed it, as
  its message was replaced, or has ended.
- `item_due_soon`, `item_late` (item): once, by the worker that finds it out.

    @receiver(item_changed, sender=refund)
    def tell_the_team(item, verb, by, **kwargs): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import Error, transaction
from django.dispatch import Signal

from delayedq import signals
from delayedq.tasks import registered

if TYPE_CHECKING:
    from delayedq.desk.models import Item

item_changed = Signal()
item_due_soon = Signal()
item_late = Signal()


def tell(signal: Signal, item: Item, **said: Any) -> None:
    """Django knows a sender by its identity, which a text read from the database does not have."""
    sender, alias = registered.get(item.kind), item._state.db  # noqa: SLF001 - Django's documented API
    if not signal.has_listeners(sender):
        return  # no statement for nobody
    with transaction.atomic(using=alias):  # a failed statement spoils this savepoint, not the transaction of the verb
        answers = signals.tell(signal, sender, item=item, **said)
        if any(isinstance(answer, Error) for _, answer in answers):
            transaction.set_rollback(True, using=alias)
