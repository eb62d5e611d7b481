"""Check that the queues that an operator names exist, and pause them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from django.core.management.base import CommandError
from django.db import Error, connections
from django.utils.translation import gettext as _

from delayedq.models import PausedTask
from delayedq.operations.acts import pause_one_task, pause_queues, resume_one_task, resume_queues
from delayedq.operations.wording import grouped, printable
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.core.management.base import OutputWrapper

    from delayedq.backend import DelayedQBackend
    from delayedq.store.base import Store

#: At most this many names are listed.
LISTED = 20


def check_queues(names: Iterable[str], backends: Sequence[DelayedQBackend], warn: OutputWrapper) -> None:
    """Raises CommandError for a queue that can't have messages: it is in no QUEUES, and has none.

    Where a backend takes any queue (`"QUEUES": []`) an unknown name is only warned of.
    """
    names, known = list(names), known_queues(names, backends)
    for name in names:
        if name in known:
            continue
        if all(backend.queues for backend in backends):
            raise CommandError(_("There is no queue %(name)r") % {"name": name} + near(name, known))
        said = _("Warning: no task and no message has the queue %(name)r so far") % {"name": name}
        warn.write(f"{said}{near(name, known)}")


def known_queues(names: Iterable[str], backends: Sequence[DelayedQBackend]) -> set[str]:
    """The queues of tasks that there are; the databases are asked only if one of these names is not configured."""
    known = _configured(backends)
    return known if known.issuperset(names) else known | _stored(backends)


def near(name: str, known: set[str]) -> str:
    """The end of a sentence about a name that is not known."""
    nearest = get_close_matches(name, known, 1)
    listed = sorted(known)[:LISTED]
    more = _(", and %(number)s more") % {"number": grouped(len(known) - LISTED)} if len(known) > LISTED else ""
    asked = _(". Did you mean %(name)r?") % {"name": nearest[0]} if nearest else "."
    known_ones = _("Known: %(names)s.") % {"names": f"{', '.join(listed)}{more}"}
    return f"{asked} {known_ones}" if listed else asked


def _configured(backends: Sequence[DelayedQBackend]) -> set[str]:
    """In QUEUES, or of a task."""
    names = {backend.alias for backend in backends}
    of_tasks = {str(task.queue_name) for task in registered.values() if task.backend in names}
    return of_tasks.union(*(backend.queues for backend in backends))


def _stored(backends: Sequence[DelayedQBackend]) -> set[str]:
    """The queues that have messages or are paused; of a database that does not answer, none."""
    found: set[str] = set()
    for store in {backend.store.alias: backend.store for backend in backends}.values():
        try:
            found |= {lane.queue for lane in store.lanes()} | store.paused()
        except Error:
            connections[store.alias].close()
    return {queue for queue in found if BARE not in queue}


# `manage.py delayedq pause` and `resume` of a task (`--task`), or of all queues (`--all`).


def pause_others(store: Store, task: str | None) -> str:
    """Pause a task, or (None) all queues; what was done. Raises CommandError for a task that is not registered."""
    if task is None:
        return _("Paused: %(names)s.") % {"names": _listed(pause_queues(store))}
    if task not in registered:
        raise CommandError(_("There is no task %(name)r") % {"name": task} + near(task, {*registered}))
    return told_paused(task, pause_one_task(store, task))


def resume_others(store: Store, task: str | None) -> str:
    """The reverse. Raises CommandError for a task that is not paused."""
    if task is None:
        return _("Resumed: %(names)s.") % {"names": _listed(resume_queues(store))}
    if not resume_one_task(store, task):
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
