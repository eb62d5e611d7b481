"""For `manage.py shell`: `from delayedq.shell import *`. What waits, what ended, and running what is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.models import FinishedMessage, Message
from delayedq.operations.browsing import find_ended, find_live
from delayedq.operations.explain import explain as _explain
from delayedq.operations.queues import all_databases
from delayedq.operations.wording import printable

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from delayedq.store.base import Store

__all__ = ["FinishedMessage", "Message", "dead", "due", "explain", "last", "work"]


def due() -> QuerySet[Message]:
    """What would be claimed now."""
    return Message.objects.due()


def dead() -> QuerySet[FinishedMessage]:
    """The dead letters, the last first."""
    return FinishedMessage.objects.failed().order_by("-finished_at")


def last(count: int = 10) -> list[FinishedMessage]:
    """What ended last."""
    return list(FinishedMessage.objects.order_by("-finished_at")[:count])


def explain(id_or_key: object) -> None:
    """Print why a message does not run, or how it ended."""
    text = str(id_or_key)
    found: list[tuple[Store, Message | FinishedMessage]] = []
    for store in all_databases():
        found += [(store, one) for one in find_live(store, text)]
        found += [(store, one) for one in find_ended(store, text)]
    for store, message in found:
        print(printable(f"#{message.pk} {message.kind}"))  # noqa: T201 - a shell shows it
        for answer in _explain(message, store=store):
            print(f"  {printable(answer.text)}")  # noqa: T201
    if not found:
        print(f"There is no live message with the id or key {text!r}, and no ended one with that id.")  # noqa: T201


def work(limit: int = 100) -> int:
    """Run what is due in this process, at most `limit` messages; returns how many attempts there were."""
    from delayedq.testing import run_due

    return len(run_due(limit=limit, raise_failures=False, follow=False))
