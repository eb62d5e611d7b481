"""Check that the queues that an operator names exist, and pause them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import Error, connections
from django.utils.translation import gettext as _

from delayedq.exceptions import InvalidQueue
from delayedq.management.backends import chosen_store
from delayedq.management.telling import add_by, add_json, tell, who_and_why
from delayedq.models import PausedTask
from delayedq.operations.acts import pause_one_task, pause_queues, resume_one_task, resume_queues
from delayedq.operations.pauses import check_name
from delayedq.operations.wording import grouped, printable
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from argparse import ArgumentParser
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
        if not takes_any(backends):
            raise CommandError(_("There is no queue %(name)r") % {"name": name} + near(name, known))
        said = _("Warning: no task and no message has the queue %(name)r so far") % {"name": name}
        warn.write(f"{said}{near(name, known)}")


def takes_any(backends: Sequence[DelayedQBackend]) -> bool:
    """Whether one of them takes any queue (`"QUEUES": []`)."""
    return not all(backend.queues for backend in backends)


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


# `manage.py delayedq pause` and `resume`: a queue, a task (`--task`), or all queues (`--all`).


def add_pause(verb: str, parser: ArgumentParser) -> None:
    """The options of `pause` or `resume`."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("queue", metavar="QUEUE", nargs="?")
    which.add_argument("--task", metavar="PATH", help="Not a queue, but the messages of a task.")
    which.add_argument("--all", action="store_true", help="All queues of tasks that are known now.")
    if verb == "pause":
        parser.add_argument("--new", action="store_true", help="Also a queue that nobody knows so far.")
    add_by(parser)
    add_json(parser)


def run_pause(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError for a queue or task that nobody knows, with a near name."""
    store, backends = chosen_store(options["backend"])
    queue, task, act = options["queue"], options["task"], who_and_why(options)
    if queue is not None:
        did = _pause_queue(store, backends, queue, act, is_new=options["new"])
        told, changed = told_paused(queue, did), [queue] if did else []
    elif task is not None:
        if task not in registered:
            raise CommandError(_("There is no task %(name)r") % {"name": task} + near(task, {*registered}))
        did = pause_one_task(store, task, *act)
        told, changed = told_paused(task, did), [task] if did else []
    else:
        changed = pause_queues(store, None, *act)
        told = _("Paused: %(names)s.") % {"names": _listed(changed)}
    tell(out, options, told, {"paused": changed})


def _pause_queue(
    store: Store, backends: Sequence[DelayedQBackend], queue: str, act: tuple[str, str], *, is_new: bool
) -> bool:
    """`is_new`: nobody needs to know it, if a backend takes any queue."""
    try:
        check_name(queue)
        known = known_queues([queue], backends)
        if queue not in known and not (is_new and takes_any(backends)):
            hint = " " + _("To pause it all the same, add --new.") if takes_any(backends) else ""
            raise CommandError(_("There is no queue %(name)r") % {"name": queue} + near(queue, known) + hint)
        return bool(pause_queues(store, [queue], *act))
    except InvalidQueue as error:
        raise CommandError(str(error)) from None


def run_resume(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError for a queue or task that is not paused."""
    store, _backends = chosen_store(options["backend"])
    queue, task, act = options["queue"], options["task"], who_and_why(options)
    if queue is None and task is None:
        changed = resume_queues(store, None, *act)
        tell(out, options, _("Resumed: %(names)s.") % {"names": _listed(changed)}, {"resumed": changed})
        return
    if not (resume_queues(store, [queue], *act) if task is None else resume_one_task(store, task, *act)):
        raise CommandError(_not_paused(store, queue, task))
    name = queue if task is None else task
    tell(out, options, told_resumed(name), {"resumed": [name]})


def _not_paused(store: Store, queue: str, task: str | None) -> str:
    if task is not None:
        others = _listed(PausedTask.objects.using(store.alias).values_list("kind", flat=True))
        return _("The task %(name)r is not paused; paused: %(others)s.") % {"name": task, "others": others}
    paused = store.paused()
    said = _("%(name)r is not paused; paused: %(others)s.") if paused else _("%(name)r is not paused; no queue is.")
    return said % {"name": queue, "others": _listed(paused)}


def told_paused(name: str, did: bool) -> str:
    """Of a queue, a task, a channel: whether it is now, or was before."""
    said = _("%(name)s is paused.") if did else _("%(name)s was already paused.")
    return said % {"name": printable(name)}


def told_resumed(name: str) -> str:
    return _("%(name)s is resumed.") % {"name": printable(name)}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(printable, names))) or _("none")
