"""Search for arguments: a text in any of them, or the value of one that has a name.

The database looks for the text in the payloads, along a keyset scan; what that finds is looked at here as it is shown,
since a search must not tell what is masked, and by the signature of its task.
"""

from __future__ import annotations

import json
import re
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.exceptions import CannotRun
from delayedq.masking import masking_of, masks_anything
from delayedq.operations.sending import bound
from delayedq.store.operator import as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet

    from delayedq.store.operator import Position

#: How a search for arguments begins, whatever keys there are.
PREFIX = "args"

#: A search looks at payloads for so many seconds, of so many first, and then of so many that they have about BYTES.
LOOKED_FOR, FIRST_LOOK, MOST_AT_ONCE, BYTES = 3.0, 100, 2_000, 16_000_000

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
        arguments = _named(kind, shown)
        return self.name in arguments and self.text in _written(arguments[self.name])


def _named(kind: str, payload: str) -> dict[str, Any]:
    """By name; of a task that this process does not know, only those that were given by name."""
    try:
        return bound(kind, payload)
    except CannotRun:
        call = _read(payload)
        given = call.get("kwargs") if isinstance(call, dict) else None
        return given if isinstance(given, dict) else {}


def _read(payload: str) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


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


class Look(NamedTuple):
    """Of some positions, those of rows that show an argument. reached: the last that was looked at, if not all were."""

    shown: set[Position]
    reached: Position | None


def that_show(rows: QuerySet[Any], positions: Sequence[Position], wanted: ArgumentText) -> Look:
    """Look at the rows of these positions for LOOKED_FOR seconds, of which about BYTES are in memory at once.

    It stops at a row of a task without masked arguments: where it stops must not tell what others have.
    """
    if not wanted.is_looked_at:
        return Look({*positions}, None)
    shown: set[Position] = set()
    first, size, until = 0, FIRST_LOOK, monotonic() + LOOKED_FOR
    while some := positions[first : first + size]:
        first += len(some)
        found = list(rows.filter(id__in=[one.id for one in some]).values_list("id", "kind", "payload"))
        ids = {id_ for id_, kind, payload in found if wanted.is_shown_in(kind, payload)}
        shown.update(one for one in some if one.id in ids)
        if first < len(positions) and monotonic() >= until:
            plain = {id_ for id_, kind, _ in found if masking_of(kind) is None}
            if last := next((one for one in reversed(some) if one.id in plain), None):
                return Look(shown, last)
        length = sum(len(payload) for _, _, payload in found) // max(len(found), 1)
        size = min(MOST_AT_ONCE, max(1, BYTES // max(length, 1)))
    return Look(shown, None)
