"""The conditions of `queue.filter(payload__region="eu", payload__size__width=3)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.serialization import dumps
from delayedq.exceptions import InvalidQueue
from delayedq.queue.serializers import JSONSerializer
from delayedq.store.protocol import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from delayedq.queue.serializers import Serializer


def conditions(serializer: Serializer[Any], wanted: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Parse the conditions. Raises InvalidQueue for a wrong name or payloads other than JSON; NotStorable."""
    if not isinstance(serializer, JSONSerializer):
        raise InvalidQueue(f"Only payloads in JSON can be filtered, not {serializer.type_name!r}.")
    if not wanted:
        raise InvalidQueue("A filter takes at least one condition, such as payload__region='eu'.")
    return tuple(Condition(_path(name), dumps(value, where=name)) for name, value in wanted.items())


def _path(name: str) -> tuple[str, ...]:
    head, *path = name.split("__")
    if head != "payload" or not path or not all(step.isascii() and step.isidentifier() for step in path):
        raise InvalidQueue(f"A condition is payload__name or payload__name__name, in ASCII, not {name!r}.")
    return tuple(path)


def meets(payload: object, wanted: Iterable[Condition]) -> bool:
    """Whether a payload meets all conditions; the same test that the store makes in SQL."""
    return all(_value(payload, condition.path) == condition.value for condition in wanted)


def _value(payload: object, path: tuple[str, ...]) -> str | None:
    for step in path:
        if not isinstance(payload, dict) or step not in payload:
            return None
        payload = payload[step]
    return dumps(payload)
