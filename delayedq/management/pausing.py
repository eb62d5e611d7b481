"""`manage.py delayedq pause` and `resume` of a task (`--task`), or of all queues (`--all`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

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
        return _("Paused: %(names)s.") % {"names": _listed(pause_all(store=store))}
    if task not in registered:
        raise CommandError(_("There is no task %(name)r") % {"name": task} + near(task, {*registered}))
    return told_paused(task, pause_task(task, store=store))


def resume_others(store: Store, task: str | None) -> str:
    """The reverse. Raises CommandError for a task that is not paused."""
    if task is None:
        return _("Resumed: %(names)s.") % {"names": _listed(resume_all(store))}
    if not resume_task(task, store):
        others = _listed(PausedTask.objects.using(store.alias).values_list("kind", flat=True))
        raise CommandError(_("The task %(name)r is not paused; paused: %(others)s.") % {"name": task, "others": others})
    return told_resumed(task)


def told_paused(name: str, did: bool) -> str:
    """Of a queue, a task, a channel: whether it is now, or was before."""
    said = _("%(name)s is paused.") if did else _("%(name)s was already paused.")
    return said % {"name": printable(name)}


def told_resumed(name: str) -> str:
    return _("%(name)s is resumed.") % {"name": printable(name)}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(printable, names))) or _("none")
