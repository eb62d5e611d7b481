"""Measure the desk: throughput, age, and how people and handlers agree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.auth import get_user_model
from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce

from delayedq.desk.models import State
from delayedq.desk.open_items import queues_of
from delayedq.desk.visits import measured
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


class Decided(NamedTuple):
    """What one person (None: none) has decided of a task in a queue, in the last 7 days.

    closed: how many of the decisions ended a message. seconds: of all `timed` ones together.
    """

    queue: str
    kind: str
    person: Any
    number: int
    closed: int
    automated: int
    sent_back: int
    timed: int
    seconds: float


def decided(items: ItemQuerySet | Any, now: datetime) -> list[Decided]:
    """One statement for the figures of queues, tasks and people, which reads no more than these decisions."""
    # An expression: by a column alone SQLite groups along its index, and reads all that was ever decided.
    groups = (
        items.filter(decided_at__gte=now - SPAN)
        .order_by()
        .values_list(Coalesce("queue", Value("")), "kind", "decided_by")
    )
    counted = groups.annotate(
        number=models.Count("pk"),
        closed=models.Count("pk", filter=Q(state=State.DONE)),
        automated=models.Count("pk", filter=Q(is_automated=True)),
        sent_back=models.Count("pk", filter=Q(rejections__gt=0)),
        timed=models.Count("seconds"),
        total=Coalesce(models.Sum("seconds"), 0.0),
    )
    return [Decided(*row) for row in counted]


def by_queue(items: ItemQuerySet | Any, now: datetime, rows: list[Decided] | None = None) -> list[QueueFigures]:
    """Those of the queues that these items have: a few statements for each, none of which reads all that is open."""
    done = {
        name: sum(row.closed for row in found)
        for name, found in _grouped(decided(items, now) if rows is None else rows, "queue").items()
    }
    names = {*queues_of(items.open()), *(name for name in done if done[name])}
    return [_of_queue(items.filter(queue=name), name, done.get(name, 0), now - SPAN) for name in sorted(names)]


def _grouped(rows: list[Decided], column: str) -> dict[Any, list[Decided]]:
    groups: dict[Any, list[Decided]] = {}
    for row in rows:
        groups.setdefault(getattr(row, column), []).append(row)
    return groups


def _mean(rows: list[Decided]) -> float | None:
    timed = sum(row.timed for row in rows)
    return sum(row.seconds for row in rows) / timed if timed else None


def _of_queue(items: Any, name: str, done: int, since: datetime) -> QueueFigures:
    oldest = items.open().order_by("opened_at").values_list("opened_at", flat=True).first()
    return QueueFigures(name, bounded_rows(items.open().order_by(), BOUND), oldest, done, _opened(items, since))


def _opened(items: Any, since: datetime) -> Count:
    """How many were opened, without planted cases that were not. What was withdrawn has left without a decision: nobody
    had to make one.
    """
    rows = items.filter(is_open__in=(True, False), opened_at__gte=since).order_by()
    read = rows.values("state", "is_open")[: BOUND + 1]  # of an index alone
    left = Q(state=State.WITHDRAWN) | Q(state=State.POSTPONED, is_open=False)  # the latter was not opened
    found = read.aggregate(all=models.Count("state"), left=models.Count("state", filter=left))
    return bounded_rows(rows, BOUND) if found["all"] > BOUND else Count(found["all"] - found["left"], exact=True)


def by_task(items: ItemQuerySet | Any, now: datetime, rows: list[Decided] | None = None) -> list[TaskFigures]:
    """Those of the tasks that these items have."""
    groups = _grouped(decided(items, now) if rows is None else rows, "kind")
    return [_of_task(kind, groups[kind], measured(kind, items.db)) for kind in sorted(groups)]


def _of_task(kind: str, rows: list[Decided], agreement: Agreement) -> TaskFigures:
    return TaskFigures(
        kind,
        done=sum(row.number for row in rows),
        automated=sum(row.automated for row in rows),
        sent_back=sum(row.sent_back for row in rows),
        seconds=_mean([row for row in rows if row.person is not None]),  # what code decides says nothing of people
        agreement=agreement,
    )


def by_person(items: ItemQuerySet | Any, now: datetime, rows: list[Decided] | None = None) -> list[PersonFigures]:
    """Who has decided items in the last 7 days, or holds some now."""
    groups = _grouped(decided(items, now) if rows is None else rows, "person")
    groups.pop(None, None)
    of_holders = items.assigned().filter(holder__isnull=False).order_by().values_list("holder")
    held = {row[0]: row[1:] for row in of_holders.annotate(models.Count("pk"), models.Min("opened_at"))}
    people = get_user_model()._base_manager.using(items.db).filter(pk__in={*groups, *held})  # noqa: SLF001
    names = people.values_list("pk", get_user_model().USERNAME_FIELD)  # a project's users may have no `username`
    found = [_of_person(str(name), groups.get(pk, []), *held.get(pk, ())) for pk, name in names]
    return sorted(found, key=lambda one: (-one.done, -one.held, one.name))


def _of_person(name: str, rows: list[Decided], held: int = 0, oldest: datetime | None = None) -> PersonFigures:
    return PersonFigures(name, sum(row.number for row in rows), _mean(rows), held, oldest)


def earlier(item: Item, items: ItemQuerySet | Any) -> list[Item]:
    """The last decisions on the same key, of these items."""
    if item.key is None:
        return []
    rows = items.closed().filter(kind=item.kind, key=item.key).exclude(pk=item.pk)
    return list(rows.select_related("decided_by").order_by("-closed_at")[:10])
