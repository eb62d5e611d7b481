"""What an edit changed: the values before and after that differ, with times in the current time zone."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from delayedq.admin.base import cut, visible
from delayedq.core.masking import MASK
from delayedq.masking import hidden, masking_of
from delayedq.models import EditedMessage, FinishedMessage, Message
from delayedq.operations.arguments import by_name
from delayedq.operations.schedule_edits import SCHEDULE
from delayedq.operations.wording import exact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from delayedq.models import Edit
    from delayedq.store.base import Store

#: Records on a page of an edit.
PER_PAGE = 50
#: At most this many characters of a value are shown.
VALUE_LENGTH = 500
#: The keys of a schedule's definition that have arguments.
CALL = frozenset({"args", "kwargs"})


class Difference(NamedTuple):
    name: str
    before: str
    after: str


class Row(NamedTuple):
    """One message (or schedule) of an edit. `id`: of the record, by which the list is paged."""

    id: int
    name: str
    url: str
    differences: list[Difference]
    undone: bool


def rows(store: Store, edit: Edit, after: int, *, payload: bool) -> list[Row]:
    """A page of the records behind the id `after`. `payload` False: the reader may not see payloads."""
    records = EditedMessage.objects.using(store.alias).filter(edit=edit, id__gt=after).order_by("id")[:PER_PAGE]
    kinds = _kinds(store, [record.message_id for record in records])
    return [_row(edit, record, kinds.get(record.message_id, ""), payload=payload) for record in records]


def _kinds(store: Store, ids: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for model in (FinishedMessage, Message):
        found |= dict(model.objects.using(store.alias).filter(id__in=ids).values_list("id", "kind"))
    return found


def _row(edit: Edit, record: EditedMessage, kind: str, *, payload: bool) -> Row:
    before, after = _loaded(record.before), _loaded(record.after)
    if edit.action == SCHEDULE:
        name = str(before.get("name", ""))
        url = f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': name})}"
    else:
        name, url = str(record.message_id), reverse("admin:delayedq_message_change", args=[record.message_id])
    found = [*_differences(before, after, kind, payload=payload)]
    return Row(record.pk, visible(name), url, found, record.undone)


def _loaded(text: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _differences(before: dict[str, Any], after: dict[str, Any], kind: str, *, payload: bool) -> Iterator[Difference]:
    """Of what the edit has written; a record may tell more of what was before."""
    for name, value in after.items():
        if name == "payload":
            yield from _arguments(str(before.get(name)), str(value), kind, payload=payload)
        elif name == "definition":
            yield from _definition(before.get(name), value, payload=payload)
        elif before.get(name) != value:
            yield Difference(visible(name), _said(before.get(name)), _said(value))


def _arguments(before: str, after: str, kind: str, *, payload: bool) -> Iterator[Difference]:
    """The arguments that differ, by name, as they may be shown; of what is masked, nobody learns whether it differs."""
    masking = masking_of(kind) if payload else hidden(kind)
    old, new = by_name(kind, before), by_name(kind, after)
    for name in {**old, **new}:
        is_hidden = masking is not None and any(
            masking.hides(name, given[name]) for given in (old, new) if name in given
        )
        if is_hidden or old.get(name) != new.get(name):
            values = [
                "" if name not in given else json.dumps(masking.value(name, given[name]) if masking else given[name])
                for given in (old, new)
            ]
            yield Difference(_("argument %s") % visible(name), *(cut(value, VALUE_LENGTH) for value in values))


def _definition(before: Any, after: Any, *, payload: bool) -> Iterator[Difference]:
    """What differs of the definition of a schedule. `payload` False: not what its arguments are."""
    old, new = _loaded(before or ""), _loaded(after or "")
    for name in {**old, **new}:
        is_hidden = name in CALL and not (payload and all(map(_is_shown, (old, new))))
        if is_hidden or old.get(name) != new.get(name):
            values = [MASK if is_hidden and name in given else _said(given.get(name)) for given in (old, new)]
            yield Difference(visible(name), *values)


def _is_shown(definition: dict[str, Any]) -> bool:
    return masking_of(str(definition.get("task", ""))) is None


def _said(value: Any) -> str:
    """A value; times in the current time zone."""
    if value is None:
        return ""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is not None and timezone.is_aware(moment):
        return exact(moment)
    return cut(value if isinstance(value, str) else json.dumps(value), VALUE_LENGTH)
