"""What happened on the desk: throughput, age, and how people and handlers agree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Avg, Count, Min, Q

from delayedq.desk.visiting import measured

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.desk.agreement import Agreement
    from delayedq.desk.models import Item, ItemQuerySet

#: What the figures look back on.
SPAN = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """One queue: how many are open, since when, and when it is empty if it goes on as in the last 7 days."""

    queue: str
    open: int
    oldest: datetime | None
    done: int
    opened: int

    def empty_in(self) -> timedelta | None:
        """None: it does not shrink."""
        shrinks = self.done - self.opened
        return SPAN * (self.open / shrinks) if self.open and shrinks > 0 else None


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """One task: who has decided its messages in the last 7 days, and how well the handler does."""

    kind: str
    done: int
    automated: int
    sent_back: int
    seconds: float | None
    agreement: Agreement

    @property
    def share_automated(self) -> float:
        return self.automated / self.done if self.done else 0.0

    @property
    def saved(self) -> timedelta:
        """The time that people would have taken for what was automated, at their mean."""
        return timedelta(seconds=self.automated * (self.seconds or 0.0))


def by_queue(items: ItemQuerySet | Any, now: datetime) -> list[QueueFigures]:
    """Those of the queues that these items have."""
    since = now - SPAN
    rows = (
        items.filter(Q(is_open=True) | Q(closed_at__gte=since) | Q(opened_at__gte=since))
        .values("queue")
        .annotate(
            open=Count("pk", filter=Q(is_open=True)),
            oldest=Min("opened_at", filter=Q(is_open=True)),
            done=Count("pk", filter=Q(closed_at__gte=since)),
            opened=Count("pk", filter=Q(opened_at__gte=since)),
        )
        .order_by("queue")
    )
    return [QueueFigures(**row) for row in rows]


def by_task(items: ItemQuerySet | Any, now: datetime) -> list[TaskFigures]:
    """Those of the tasks that these items have."""
    rows = (
        items.filter(decided_at__gte=now - SPAN)
        .values("kind")
        .annotate(
            done=Count("pk"),
            automated=Count("pk", filter=Q(is_automated=True)),
            sent_back=Count("pk", filter=Q(rejections__gt=0)),
            seconds=Avg("seconds"),
        )
        .order_by("kind")
    )
    return [TaskFigures(**row, agreement=measured(row["kind"], items.db)) for row in rows]


def by_person(items: ItemQuerySet | Any, now: datetime) -> list[dict[str, Any]]:
    """How many each person has decided in the last 7 days, and in how many seconds on average."""
    decided = items.filter(decided_at__gte=now - SPAN, decided_by__isnull=False)
    return list(
        decided.values("decided_by__username").annotate(done=Count("pk"), seconds=Avg("seconds")).order_by("-done")
    )


def earlier(item: Item) -> list[Item]:
    """The last decisions on the same key."""
    if item.key is None:
        return []
    rows = type(item).objects.filter(kind=item.kind, key=item.key, is_open=False).exclude(pk=item.pk)
    return list(rows.select_related("decided_by").order_by("-closed_at")[:10])
