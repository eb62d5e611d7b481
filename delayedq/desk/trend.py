"""Count automation by period: who decided, how people and handler agreed, and what reviews have found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Case, Count, F, IntegerField, Q, Sum, Value, When

from delayedq.conf import get_settings
from delayedq.desk.agreement import Agreement
from delayedq.desk.options import Mode

if TYPE_CHECKING:
    from datetime import datetime

DAY, WEEK = timedelta(days=1), timedelta(days=7)

_TRUE = Q(truth__isnull=False)
_OF_HANDLER = Q(mode=Mode.REVIEWED, is_blind=False, proposal__isnull=False)
#: What is counted of the items that were decided in a period.
_COUNTS = {
    "done": Q(),
    "automated": Q(is_automated=True),
    "compared": Q(agreed__isnull=False),
    "agreed": Q(agreed=True),
    "by_people": Q(decided_by__isnull=False, seconds__isnull=False),
    "reviewed": _OF_HANDLER & Q(reviewed_by__isnull=False),
    "errors": _OF_HANDLER & Q(rejections__gt=0),
    "planted": _TRUE,
    "planted_right": _TRUE & Q(truth=F("decision")),
    "handler_planted": _TRUE & Q(agreed__isnull=False),
    "handler_right": _TRUE & Q(agreed=True),
}


@dataclass(frozen=True, slots=True)
class Period:
    """What was decided from `begin` on, until the next period.

    done: all decisions. automated: those of the handler alone. compared, agreed: where a person or a known answer can
    be compared with the handler. by_people, seconds: decisions of people, and their time in all. reviewed, errors:
    decisions of the handler that were reviewed, and that were sent back. planted, planted_right: cases with a known
    answer that people decided, and as it is; handler_planted, handler_right: the same of the handler.
    """

    begin: datetime
    done: int = 0
    automated: int = 0
    compared: int = 0
    agreed: int = 0
    by_people: int = 0
    seconds: float = 0.0
    reviewed: int = 0
    errors: int = 0
    planted: int = 0
    planted_right: int = 0
    handler_planted: int = 0
    handler_right: int = 0

    @property
    def share_automated(self) -> float | None:
        return self.automated / self.done if self.done else None

    @property
    def agreement(self) -> Agreement:
        return Agreement(self.agreed, self.compared)

    @property
    def people(self) -> Agreement:
        """How often people are right, by cases with a known answer."""
        return Agreement(self.planted_right, self.planted)

    @property
    def handler(self) -> Agreement:
        """The same of the handler."""
        return Agreement(self.handler_right, self.handler_planted)

    @property
    def saved(self) -> timedelta:
        """The time that people would have taken for what was automated, at the mean of the period."""
        return self.saved_as_in(self)

    def saved_as_in(self, longer: Period) -> timedelta:
        """The same at the mean of a longer period, so that the days of a fortnight add up to what it has saved."""
        mean = longer.seconds / longer.by_people if longer.by_people else 0.0
        return timedelta(seconds=self.automated * mean)

    def __add__(self, later: Period) -> Period:
        """Both as one: the mean of a longer time is known where a short one has too few."""
        totals = {name: getattr(self, name) + getattr(later, name) for name in (*_COUNTS, "seconds")}
        return Period(min(self.begin, later.begin), **totals)


def begins_of(now: datetime, step: timedelta, count: int) -> list[datetime]:
    """When the periods begin: not before RETENTION, as only some of what is older is still stored. If even the last
    period is longer, it begins there.
    """
    if step <= timedelta() or count < 1:
        raise ValueError(f"trend() takes a step and a count above 0, not {step!r} and {count!r}.")
    begins, retention = [now - step * ago for ago in range(count, 0, -1)], get_settings().RETENTION
    return begins if retention is None else [one for one in begins if one >= now - retention] or [now - retention]


def by_task(items: Any, now: datetime, *, step: timedelta = DAY, count: int = 14) -> dict[str, list[Period]]:
    """By kind of these items: the last periods of this length, the oldest first; the last one ends now.

    One statement, which reads what was decided since. There are fewer periods if what was decided in the first ones is
    deleted by now: see `begins_of`. Raises ValueError for a step or a count that is not above 0.
    """
    begins = begins_of(now, step, count)
    numbers = [When(decided_at__gte=begin, then=Value(number)) for number, begin in reversed([*enumerate(begins)])]
    rows = (
        items.filter(decided_at__gte=begins[0], decided_at__lt=now)
        .annotate(number=Case(*numbers, output_field=IntegerField()))
        .order_by()
        .values("kind", "number")
        .annotate(
            total=Sum("seconds", filter=_COUNTS["by_people"]),
            **{f"of_{name}": Count("pk", filter=counted) for name, counted in _COUNTS.items()},
        )
    )
    periods: dict[str, list[Period]] = {}
    for row in rows:
        of_task = periods.setdefault(row["kind"], [Period(begin) for begin in begins])
        counts = {name: row[f"of_{name}"] for name in _COUNTS}
        of_task[row["number"]] = Period(begins[row["number"]], seconds=row["total"] or 0.0, **counts)
    return periods
