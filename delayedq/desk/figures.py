"""What happened on the desk: throughput, age, and how people and handlers agree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import models
from django.db.models import Avg, F, Q, Value
from django.db.models.functions import Coalesce

from delayedq.desk.models import State
from delayedq.desk.paging import queues_of
from delayedq.desk.visiting import measured
from delayedq.operations.counting import BOUND, Count, bounded_rows

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
    open: Count
    oldest: datetime | None
    done: int
    opened: Count

    @property
    def is_counted(self) -> bool:
        """Whether all was counted: else nobody knows when it is empty."""
        return self.open.exact is not None and self.opened.exact is not None

    def empty_in(self) -> timedelta | None:
        """None: it does not shrink, or there is more than was counted."""
        if self.open.exact is None or self.opened.exact is None:
            return None
        shrinks = self.done - self.opened.number
        return SPAN * (self.open.number / shrinks) if self.open.number and shrinks > 0 else None


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


@dataclass(frozen=True, slots=True)
class PersonFigures:
    """One person: how many they have decided in the last 7 days, and in how many seconds on average; how many they hold
    now, and since when the oldest of these is open.
    """

    name: str
    done: int = 0
    seconds: float | None = None
    held: int = 0
    oldest: datetime | None = None


def by_queue(items: ItemQuerySet | Any, now: datetime) -> list[QueueFigures]:
    """Those of the queues that these items have: a few statements for each, none of which reads all that is open."""
    since = now - SPAN
    closed = items.filter(is_open=False, decided_at__gte=since).order_by()
    # An expression: by the column alone SQLite groups along an index of queues, and reads all that was ever closed.
    of_queue = Coalesce("queue", Value(""))
    done = dict(closed.values_list(of_queue).annotate(models.Count("pk")))
    # What was withdrawn has left without a decision: nobody had to make one.
    left = items.filter(is_open=False, closed_at__gte=since, opened_at__gte=since, state=State.WITHDRAWN).order_by()
    withdrawn = dict(left.values_list(of_queue).annotate(models.Count("pk")))
    names = {*queues_of(items.filter(is_open=True)), *done}
    return [
        _of_queue(items.filter(queue=name), name, done.get(name, 0), withdrawn.get(name, 0), since)
        for name in sorted(names)
    ]


def _of_queue(items: Any, name: str, done: int, withdrawn: int, since: datetime) -> QueueFigures:
    rows = items.filter(is_open__in=(True, False), opened_at__gte=since).order_by()
    opened = bounded_rows(rows, BOUND).without(Count(withdrawn, exact=True))
    still_open = items.filter(is_open=True)
    oldest = still_open.order_by("opened_at").values_list("opened_at", flat=True).first()
    return QueueFigures(name, bounded_rows(still_open.order_by(), BOUND), oldest, done, opened)


def by_task(items: ItemQuerySet | Any, now: datetime) -> list[TaskFigures]:
    """Those of the tasks that these items have."""
    rows = (
        items.filter(decided_at__gte=now - SPAN)
        .values("kind")
        .annotate(
            done=models.Count("pk"),
            automated=models.Count("pk", filter=Q(is_automated=True)),
            sent_back=models.Count("pk", filter=Q(rejections__gt=0)),
            seconds=Avg("seconds"),
        )
        .order_by("kind")
    )
    return [TaskFigures(**row, agreement=measured(row["kind"], items.db)) for row in rows]


def by_person(items: ItemQuerySet | Any, now: datetime) -> list[PersonFigures]:
    """Who has decided items in the last 7 days, or holds some now: two statements, which read what they count."""
    user = f"__{get_user_model().USERNAME_FIELD}"  # a project's users may have no `username`
    decided = items.filter(decided_at__gte=now - SPAN, decided_by__isnull=False).order_by()
    held = items.assigned().filter(holder__isnull=False).order_by()
    rows = (
        *decided.values(pk_=F("decided_by"), name=F(f"decided_by{user}")).annotate(
            done=models.Count("pk"), seconds=Avg("seconds")
        ),
        *held.values(pk_=F("holder"), name=F(f"holder{user}")).annotate(
            held=models.Count("pk"), oldest=models.Min("opened_at")
        ),
    )
    people: dict[Any, dict[str, Any]] = {}
    for row in rows:
        people.setdefault(row.pop("pk_"), {}).update(row)
    found = [PersonFigures(**person) for person in people.values()]
    return sorted(found, key=lambda one: (-one.done, -one.held, str(one.name)))


def earlier(item: Item, items: ItemQuerySet | Any) -> list[Item]:
    """The last decisions on the same key, of these items."""
    if item.key is None:
        return []
    rows = items.filter(kind=item.kind, key=item.key, is_open=False).exclude(pk=item.pk)
    return list(rows.select_related("decided_by").order_by("-closed_at")[:10])
