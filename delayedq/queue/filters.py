"""Parse conditions of filter(): `payload__region__in=["eu", "us"]`, `payload__size__gte=3`, `key__startswith="UA"`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from delayedq.core.bounds import KEY_LENGTH, is_storable
from delayedq.core.conditions import MAX_DIGITS, MAX_VALUES, Condition, KeyRange, Lookup, meets
from delayedq.core.serialization import dumps
from delayedq.exceptions import InvalidQueue
from delayedq.queue.serializers import JSONSerializer

if TYPE_CHECKING:
    from delayedq.queue.serializers import Serializer

_PREFIX = "key__startswith"
#: Says that the name before it is one of the payload, as the last of a condition is a lookup if it can be.
_EXACT = "exact"
_LOOKUPS = {_EXACT, *Lookup}
#: Lookups of Django that a filter does not have: refused, as read as names in a payload they would match nothing.
_UNKNOWN = {
    *("contains", "icontains", "startswith", "istartswith", "endswith", "iendswith", "iexact", "isnull"),
    *("regex", "iregex"),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages a queue polls and browses. False: all.

    conditions: on the payload. keys: None does not ask for the key.
    """

    conditions: tuple[Condition, ...] = ()
    keys: KeyRange | None = None

    def __bool__(self) -> bool:
        return bool(self.conditions) or self.keys is not None

    def passes(self, key: str | None, payload: str) -> bool:
        """Whether a message with this key and this stored text passes."""
        is_chosen = self.keys is None or key in self.keys
        return is_chosen and (not self.conditions or meets(payload, self.conditions))

    def narrowed(self, serializer: Serializer[Any], wanted: Mapping[str, Any]) -> Filter:
        """Add conditions. Raises InvalidQueue for wrong ones; NotStorable."""
        if not wanted:
            raise InvalidQueue("A filter takes at least one condition, such as payload__region='eu'.")
        conditions, keys = [*self.conditions], self.keys
        for name, value in wanted.items():
            if name == _PREFIX:
                keys = KeyRange.of_prefix(_prefix(value)).within(keys)
            else:
                conditions.append(_condition(name, value))
        if len(conditions) > len(self.conditions) and not isinstance(serializer, JSONSerializer):
            raise InvalidQueue(
                f"Only payloads in JSON can be filtered, not {serializer.type_name!r}; any queue by {_PREFIX}."
            )
        return Filter(tuple(conditions), keys)


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= KEY_LENGTH or not is_storable(value):
        raise InvalidQueue(
            f"{_PREFIX} takes a text of 1 to {KEY_LENGTH} characters without NUL and lone surrogates, not {value!r}."
        )
    return value


def _condition(name: str, value: object) -> Condition:
    path, lookup = _parsed(name)
    if lookup == _EXACT:
        return Condition(path, (dumps(value, where=name),))
    if lookup == Lookup.IN:
        return Condition(path, _values(name, value))
    return Condition(path, (dumps(_bound(name, value)),), Lookup(lookup))


def _parsed(name: str) -> tuple[tuple[str, ...], str]:
    head, *path = name.split("__")
    lookup = path.pop() if path and path[-1] in _LOOKUPS else _EXACT
    if head != "payload" or not path or not all(step.isascii() and step.isidentifier() for step in path):
        raise InvalidQueue(
            f"A condition is payload__name or payload__name__name, in ASCII, with __{', __'.join(Lookup)} or nothing "
            f"behind it, or it is {_PREFIX}; not {name!r}. What is called {Lookup.IN} itself is payload__in__exact."
        )
    if lookup == _EXACT and path[-1] in _UNKNOWN and not name.endswith(_EXACT):
        raise InvalidQueue(
            f"A filter has __{', __'.join(Lookup)}, not __{path[-1]}, for payloads: {name!r}. "
            f"What is called {path[-1]} itself is {name}__exact."
        )
    return tuple(path), lookup


def _values(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidQueue(f"{name} takes a list, tuple or set of values, not {value!r}.")
    texts = dict.fromkeys(dumps(one, where=name) for one in value)
    if len(texts) > MAX_VALUES:
        raise InvalidQueue(f"{name} takes at most {MAX_VALUES:,} values, not {len(texts):,}.")
    return tuple(texts)


def _bound(name: str, value: object) -> int | float:
    if type(value) is int and abs(value) < 10**MAX_DIGITS:
        return value
    if type(value) is float and isfinite(value):
        return value
    raise InvalidQueue(
        f"{name} takes an int of at most {MAX_DIGITS} digits or a finite float, not {value!r}. "
        "Times can be compared if they are stored as numbers, such as those of datetime.timestamp()."
    )
