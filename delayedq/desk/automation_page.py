"""The page of automation: who decides the messages of each task, what is measured of its handler, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from django.db import router, transaction
from django.db.models import Case, Count, F, IntegerField, Q, Sum, Value, When
from django.utils.translation import gettext_lazy as _

from delayedq.conf import get_settings
from delayedq.desk import rules
from delayedq.desk.agreement import Agreement
from delayedq.desk.decorator import DeskTask
from delayedq.desk.errors import DeskError, NotAllowed
from delayedq.desk.models import Automation
from delayedq.desk.options import Mode
from delayedq.desk.tasks import mode_set
from delayedq.desk.visits import measured
from delayedq.tasks import registered

if TYPE_CHECKING:
    from datetime import datetime

# How automation went, period by period: who decided, how people and handler agreed, and what reviews have found.


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


# Automation page


#: How many days the page looks back on.
DAYS = 14

#: The size of a chart, in its own units.
WIDTH, HEIGHT = 280, 56

MEANINGS = {
    Mode.PEOPLE: (_("people"), _("People decide; the handler is not called.")),
    Mode.SHADOW: (_("shadow"), _("People decide; the handler decides too, unseen, and both are compared.")),
    Mode.ASSISTED: (_("assisted"), _("People decide; the form is filled in with what the handler says.")),
    Mode.REVIEWED: (_("reviewed"), _("The handler decides; a share goes to review.")),
    Mode.AUTOMATIC: (_("automatic"), _("The handler decides, unless it asks for a person.")),
}


@dataclass(frozen=True, slots=True)
class TaskAutomation:
    """One task: its mode now, and whether that is set in the database or comes from its code."""

    kind: str
    mode: Mode
    is_set: bool
    required: float | None
    agreement: Agreement
    total: Period
    days: list[Period]

    @property
    def allowed(self) -> float | None:
        """The share that the brake lets the handler decide; None: there is no brake."""
        return None if self.required is None else self.agreement.allowed(self.required)

    @property
    def modes(self) -> list[tuple[str, Any, Any, bool]]:
        return [(mode.value, *MEANINGS[mode], mode is self.mode) for mode in Mode]

    @property
    def meaning(self) -> Any:
        return MEANINGS[self.mode][1]

    @property
    def rows(self) -> list[tuple[Period, timedelta]]:
        """The days, the last one first, and the time that each has saved."""
        return [(day, day.saved_as_in(self.total)) for day in reversed(self.days)]

    @property
    def lines(self) -> list[tuple[str, list[str]]]:
        """The points of both lines of the chart, and the class of each."""
        automated, agreement = [day.share_automated for day in self.days], [day.agreement.share for day in self.days]
        return [("dq-series-arrived", _points(automated)), ("dq-series-finished", _points(agreement))]


def tasks_of(user: Any, items: Any, now: datetime) -> list[TaskAutomation]:
    """The desk tasks of the queues that the user may see."""
    tasks: dict[str, Any] = {
        kind: task
        for kind, task in sorted(registered.items())
        if isinstance(task, DeskTask) and rules.may(user, "view", task.queue_name)
    }
    modes = dict(Automation.objects.values_list("kind", "mode"))
    days = by_task(items.filter(kind__in=tasks), now, count=DAYS)
    return [
        TaskAutomation(
            kind=kind,
            mode=Mode(modes.get(kind, task.desk.mode)) if task.desk.has_handler else Mode.PEOPLE,
            is_set=kind in modes,
            required=task.desk.required,
            agreement=measured(kind, items.db),
            total=reduce(add, days.get(kind, []), Period(now)),
            days=days.get(kind, []),
        )
        for kind, task in tasks.items()
    ]


def days(now: datetime) -> int:
    """How many days the page looks back on: fewer where RETENTION is shorter."""
    return len(begins_of(now, DAY, DAYS))


def may_set(user: Any) -> bool:
    return bool(user.is_active and user.has_perm("delayedq_desk.change_automation"))


def may_set_of(user: Any, kind: str) -> bool:
    """Whether the user may set the mode of this task, if it is one with a desk, in a queue that they see."""
    task = registered.get(kind)
    return isinstance(task, DeskTask) and may_set(user) and rules.may(user, "view", task.queue_name)


def demand_mode(user: Any, kind: str, mode: str) -> tuple[Any, Mode]:
    """The task, and the mode that it then has. Raises what `set_mode` raises; the form of the admin asks too."""
    task: Any = registered.get(kind)
    if not may_set_of(user, kind):
        raise NotAllowed(str(_("You may not set who decides the messages of this task.")))
    new = Mode(mode or task.desk.mode)
    if new is not Mode.PEOPLE and not task.desk.has_handler:
        raise DeskError(str(_("This task has no handler: people decide.")))
    return task, new


def set_mode(user: Any, kind: str, mode: str) -> None:
    """Who decides the messages of the task from now on; an empty mode: what its code says.

    The history says who has set it. Raises NotAllowed, ValueError for an unknown mode, and DeskError for one that asks
    a handler where there is none.
    """
    task, new = demand_mode(user, kind, mode)
    rows = Automation.objects.filter(kind=kind)
    with transaction.atomic(using=router.db_for_write(Automation)):
        before = rows.values_list("mode", flat=True).first() or task.desk.mode
        if mode:
            Automation.objects.update_or_create(kind=kind, defaults={"mode": new})
        else:
            rows.delete()
        recorded = mode_set.using(queue_name=task.queue_name, backend=task.backend)
        recorded.enqueue(task=kind, by=str(user), before=str(before), mode=str(new))


def _points(shares: list[float | None]) -> list[str]:
    """Where these shares are, from the first day at the start to the last one at the end; None has no point."""
    step = WIDTH / max(len(shares) - 1, 1)
    known = [(number * step, share) for number, share in enumerate(shares) if share is not None]
    return [f"{x:.1f},{2 + (HEIGHT - 4) * (1 - share):.1f}" for x, share in known]
