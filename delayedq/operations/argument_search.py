"""Search for arguments: a text in any of them, or the value of one that has a name.

The database looks for the text in the payloads, along a keyset scan; what that finds is looked at here as it is shown,
since a search must not tell what is masked, and by the signature of its task.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.masking import masking_of, masks_anything
from delayedq.operations.sending import by_name
from delayedq.store.operator import as_json

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from delayedq.store.operator import Position

#: How a search for arguments begins, whatever keys there are.
PREFIX = "args"

_FORM = re.compile(rf"{PREFIX}(?:\.(?P<name>[^\s.:]+))?:(?P<text>.+)", re.DOTALL)


class ArgumentText(NamedTuple):
    """What to search for. name: of the argument that has it as its value; None: it stands anywhere in the payload."""

    text: str
    name: str | None = None

    @property
    def is_looked_at(self) -> bool:
        """Whether the text in a payload is not enough."""
        return self.name is not None or masks_anything()

    def is_shown_in(self, kind: str, payload: str) -> bool:
        """Whether it is in the payload of a message of this task, as that may be shown."""
        masking = masking_of(kind)
        shown = payload if masking is None else masking.payload(payload)
        if self.name is None:
            return self.text in shown or as_json(self.text) in shown
        arguments = by_name(kind, shown)
        return self.name in arguments and self.text in _written(arguments[self.name])


def _written(value: Any) -> set[str]:
    """How a value may be entered."""
    return {str(value), json.dumps(value), json.dumps(value, ensure_ascii=False)}


def argument_in(text: str) -> ArgumentText | None:
    """What `args:TEXT` or `args.NAME:VALUE` searches for; None: the text is of no such form.

    >>> argument_in("args.order:17")
    ArgumentText(text='17', name='order')
    >>> argument_in("args:Berlin")
    ArgumentText(text='Berlin', name=None)
    >>> argument_in("arguments")
    """
    found = _FORM.fullmatch(text)
    return None if found is None else ArgumentText(found["text"], found["name"])


def that_show(rows: QuerySet[Any], positions: list[Position], wanted: ArgumentText) -> list[Position]:
    """Those of these positions of rows at which it is shown."""
    if not wanted.is_looked_at:
        return positions
    found = rows.filter(id__in=[position.id for position in positions]).values_list("id", "kind", "payload")
    ids = {id_ for id_, kind, payload in found if wanted.is_shown_in(kind, payload)}
    return [one for one in positions if one.id in ids]
