"""What a search box finds: messages, tasks, schedules and flows, by id, key or name, in a few bounded statements."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from delayedq.core.bounds import KEY_LENGTH, is_storable
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import definitions
from delayedq.flows.operator import page_of_flows
from delayedq.models import CronSchedule, Flow
from delayedq.operations.browsing import EndedSelection, Selection, by_key, ended_page, find_ended, id_in
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from delayedq.store.base import Store

#: At most this many of each are found.
MOST = 20


class Thing(StrEnum):
    """What can be found; its value is the model of which a reader needs the permission to view."""

    MESSAGE = "message"
    ENDED = "finishedmessage"
    TASK = "task"
    SCHEDULE = "cronschedule"
    FLOW = "flow"


class Hit(NamedTuple):
    """`name`: its key, path or name, "" if a message has no key. `kind`: the task of a message. `is_exact`: what was
    searched is its id or its whole name.
    """

    thing: Thing
    name: str
    id: int | None = None
    kind: str = ""
    is_exact: bool = False


def hits(store: Store, text: str, things: Collection[Thing]) -> list[Hit]:
    """Of these things, those whose id is `text` (`4711` or `#4711`), or whose key or name has it; exact ones first.

    Keys are searched by how they begin, paths of tasks by how the words in them begin. The history, which has no index
    of keys, is searched for them only if nothing else is found; its latest 50,000 messages are read then.
    """
    text = text.strip()
    if not text or len(text) > KEY_LENGTH or not is_storable(text):
        return []
    found = [hit for thing, find in _FINDERS.items() if thing in things for hit in find(store, text)]
    if not found and Thing.ENDED in things:
        found = list(_ended_by_key(store, text))
    return sorted(found, key=lambda hit: not hit.is_exact)


def single(found: list[Hit]) -> Hit | None:
    """The one that is meant: the only exact one, or else the only one."""
    chosen = [hit for hit in found if hit.is_exact] or found
    return chosen[0] if len(chosen) == 1 else None


def _live(store: Store, text: str) -> Iterator[Hit]:
    number = text.removeprefix("#")
    given = text if id_in(number) is None else number
    for row in by_key(store, given, Selection(as_of=store.now()))[:MOST]:
        key = row.key or ""
        yield Hit(Thing.MESSAGE, key, row.pk, row.kind, row.pk == id_in(given) or key == text)


def _ended(store: Store, text: str) -> Iterator[Hit]:
    for row in find_ended(store, text.removeprefix("#")):
        yield Hit(Thing.ENDED, row.key or "", row.pk, row.kind, is_exact=True)


def _ended_by_key(store: Store, text: str) -> Iterator[Hit]:
    for row in ended_page(store, EndedSelection(key=text)).rows[:MOST]:
        yield Hit(Thing.ENDED, row.key or "", row.pk, row.kind, row.key == text)


def _tasks(store: Store, text: str) -> Iterator[Hit]:  # noqa: ARG001
    wanted = _words(text)
    for path in sorted(path for path in registered if wanted in _words(path))[:MOST]:
        yield Hit(Thing.TASK, path, is_exact=text in {path, path.rpartition(".")[2]})


def _words(path: str) -> str:
    """For a search by how the words in a path begin."""
    return f".{path.casefold().replace('_', '.')}"


def _schedules(store: Store, text: str) -> Iterator[Hit]:
    try:
        defined = set(definitions())
    except ImproperlyConfigured:  # the page of schedules says what is wrong
        defined = set()
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name__icontains=text).order_by("name")
    names = {name for name in defined if text.casefold() in name.casefold()} | set(
        rows.values_list("name", flat=True)[:MOST]
    )
    for name in sorted(names, key=lambda name: (name != text, name))[:MOST]:
        yield Hit(Thing.SCHEDULE, name, is_exact=name == text)


def _flows(store: Store, text: str) -> Iterator[Hit]:
    flow = Flow.objects.using(store.alias).filter(pk=id_in(text) or 0).first()
    if flow is not None:
        yield Hit(Thing.FLOW, flow.name, flow.pk, is_exact=True)
    for seen in page_of_flows(store, None, MOST, text).flows:
        if flow is None or seen.flow.pk != flow.pk:
            yield Hit(Thing.FLOW, seen.flow.name, seen.flow.pk, is_exact=seen.flow.name == text)


_FINDERS: dict[Thing, Callable[[Store, str], Iterator[Hit]]] = {
    Thing.MESSAGE: _live,
    Thing.ENDED: _ended,
    Thing.TASK: _tasks,
    Thing.SCHEDULE: _schedules,
    Thing.FLOW: _flows,
}
