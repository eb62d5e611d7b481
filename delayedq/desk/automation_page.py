"""The page of automation: who decides the messages of each task, what is measured of its handler, and since when."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from django.db import router, transaction
from django.utils.translation import gettext_lazy as _

from delayedq.desk import rules, trend
from delayedq.desk.decorator import DeskTask
from delayedq.desk.errors import DeskError, NotAllowed
from delayedq.desk.models import Automation
from delayedq.desk.options import Mode
from delayedq.desk.tasks import mode_set
from delayedq.desk.trend import Period
from delayedq.desk.visits import measured
from delayedq.operations.acts import note
from delayedq.store import default_store
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from delayedq.desk.agreement import Agreement

#: How many days the page looks back on.
DAYS = 14
#: What the record of a change calls the mode of a task that has no row.
AS_IN_CODE = "as in the code"
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
    days = trend.by_task(items.filter(kind__in=tasks), now, count=DAYS)
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
    return len(trend.begins_of(now, trend.DAY, DAYS))


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


def set_mode(user: Any, kind: str, mode: str, why: str = "") -> None:
    """Who decides the messages of the task from now on; an empty mode: what its code says.

    Raises NotAllowed, ValueError for an unknown mode, and DeskError for one that asks a handler where there is none.
    """
    _, new = demand_mode(user, kind, mode)
    with recorded(user, kind, why):
        if mode:
            Automation.objects.update_or_create(kind=kind, defaults={"mode": new})
        else:
            Automation.objects.filter(kind=kind).delete()


@contextmanager
def recorded(user: Any, kind: str, why: str = "") -> Iterator[None]:
    """Record what the block changes of the mode of a task: among the edits, and by a message, both with it or not.

    A task that is gone has no queue for a message.
    """
    with transaction.atomic(using=router.db_for_write(Automation)):
        before = _set_mode_of(kind)
        yield
        after = _set_mode_of(kind)
        if before == after:
            return
        said = f"Set the mode of {kind}: {after or AS_IN_CODE}, before: {before or AS_IN_CODE}"
        note(default_store(), said, user.get_username(), why)
        task: Any = registered.get(kind)
        if isinstance(task, DeskTask):
            told = mode_set.using(queue_name=task.queue_name, backend=task.backend)
            modes = {"before": str(before or task.desk.mode), "mode": str(after or task.desk.mode)}
            told.enqueue(task=kind, by=str(user), **modes)


def _set_mode_of(kind: str) -> str | None:
    """The mode that is set in the database; None: that of the code holds."""
    mode: str | None = Automation.objects.filter(kind=kind).values_list("mode", flat=True).first()
    return mode


def _points(shares: list[float | None]) -> list[str]:
    """Where these shares are, from the first day at the start to the last one at the end; None has no point."""
    step = WIDTH / max(len(shares) - 1, 1)
    known = [(number * step, share) for number, share in enumerate(shares) if share is not None]
    return [f"{x:.1f},{2 + (HEIGHT - 4) * (1 - share):.1f}" for x, share in known]
