"""`manage.py delayedq pause` and `resume` of a task (`--task`), or of all queues (`--all`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.management.base import CommandError

from delayedq.management.queues import near
from delayedq.models import PausedTask
from delayedq.operations.pauses import pause_all, pause_task, resume_all, resume_task
from delayedq.operations.wording import printable
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.store.base import Store


def pause_others(store: Store, task: str | None) -> str:
    """Pause a task, or (None) all queues; what was done. Raises CommandError for a task that is not registered."""
    if task is None:
        return f"Paused: {_listed(pause_all(store=store))}."
    if task not in registered:
        raise CommandError(f"There is no task {task!r}{near(task, {*registered})}")
    return f"{printable(task)} {'is paused' if pause_task(task, store=store) else 'was already paused'}."


def resume_others(store: Store, task: str | None) -> str:
    """The reverse. Raises CommandError for a task that is not paused."""
    if task is None:
        return f"Resumed: {_listed(resume_all(store))}."
    if not resume_task(task, store):
        others = _listed(PausedTask.objects.using(store.alias).values_list("kind", flat=True))
        raise CommandError(f"The task {task!r} is not paused; paused: {others}.")
    return f"{printable(task)} is resumed."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(printable, names))) or "none"
