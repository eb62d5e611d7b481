"""Read the row of a task, live or ended, as Python values, and find rows by their arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import Case, F, Q, When

from delayedq.core.metadata import as_given
from delayedq.core.serialization import dump_call, load_call, loads
from delayedq.core.signatures import parameter_names, positional_names, takes_any_name
from delayedq.models.stored_json import SameJSON, StoredName, as_json

if TYPE_CHECKING:
    from delayedq.tasks.base import BaseTask


class StoredCallQuerySet[M: models.Model](models.QuerySet[M]):
    """Rows of tasks."""

    def called_with(self, task: BaseTask, /, **arguments: Any) -> Self:
        """Those of this task whose call has these values for these arguments, given by position or by name.

        A value is compared as it is stored, with its type: a UUID is no str. An argument that a call left to its
        default is not stored, so it matches no value. No index helps: filter by time too where there are many rows.

        Raises TypeError for a name that the task's function lacks; NotStorable for a value that can't be stored.

            Message.objects.called_with(remind, flight_id=7)
        """
        names = parameter_names(task.func, task.takes_context)
        if not takes_any_name(task.func, task.takes_context) and (wrong := arguments.keys() - set(names)):
            raise TypeError(
                f"{task.module_path} takes {', '.join(names) or 'nothing'}, not {', '.join(sorted(wrong))}."
            )
        by_position = positional_names(task.func, task.takes_context)
        found = Q(kind__in=[task.module_path, *task.aliases])
        stored = json.loads(dump_call((), arguments)).get("kwargs", {})
        for name, value in stored.items():
            places: list[tuple[str, str | int]] = [("kwargs", name)]
            if name in by_position:
                places.append(("args", by_position.index(name)))
            found &= Q(*(_argument_is(task, place, value) for place in places), _connector=Q.OR)
        return self.filter(found)


def _argument_is(task: BaseTask, place: tuple[str, str | int], value: object) -> Q:
    # Of the payloads that are no calls, which need not be JSON, none is read.
    call = Case(When(kind__in=[task.module_path, *task.aliases], then=F("payload")))
    part, name = place
    return Q(SameJSON(StoredName(name, StoredName(part, as_json(call))), value))


class StoredCall:
    """The call that a message stores. References to model instances are loaded: a query for each."""

    kind: Any
    payload: Any
    metadata: Any

    @property
    def task(self) -> str:
        """The path of its task: `kind`, under the name that tasks have for it. Of a bare queue: what reads it."""
        return str(self.kind)

    @property
    def args(self) -> list[Any]:
        """The positional arguments. Raises ArgumentsMismatch for a message of a bare queue, which has none."""
        return load_call(self.payload)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments. Raises ArgumentsMismatch for a message of a bare queue, which has none."""
        return load_call(self.payload)[1]

    @property
    def metadata_value(self) -> Any:
        """The metadata that the task or `using(metadata=...)` gave it; None: none."""
        given = as_given(self.metadata)
        return None if given is None else loads(given)
