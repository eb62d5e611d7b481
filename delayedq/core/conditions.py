"""The conditions of a filter on payload and key. Pure functions on texts; each store has the same in SQL.

A payload is judged by its JSON as it is stored: values of types that JSON lacks are objects with a tag there. A text
that is no JSON meets no condition.
"""

from __future__ import annotations

import json
import operator
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.core.bounds import KEY_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The bound of a range is a number with at most this many digits, or a float: all databases compare those exactly.
MAX_DIGITS = 64
#: A condition takes at most this many values.
MAX_VALUES = 1_000

#: The last of all characters.
_LAST = "\U0010ffff"


class Lookup(StrEnum):
    IN = "in"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"


class Condition(NamedTuple):
    """What the payload, which is JSON, must have at the end of this path of names (ASCII identifiers).

    Lookup.IN: one of `values`, which are canonical JSON, as `delayedq.core.serialization` writes it: equal values have
    equal texts. The others: a number that lies so beside the only one of `values`. Two ints are compared exactly; if
    one of them is a float, both are compared as floats, and an int beyond these as the largest of them.
    """

    path: tuple[str, ...]
    values: tuple[str, ...]
    lookup: Lookup = Lookup.IN

    @property
    def has_int_bound(self) -> bool:
        return self.lookup is not Lookup.IN and type(json.loads(self.values[0])) is int


class KeyRange(NamedTuple):
    """The keys from `first` to `last`, which are included, in the order of their code points."""

    first: str
    last: str

    @classmethod
    def of_prefix(cls, prefix: str) -> Self:
        """All keys that begin with it: none is longer than KEY_LENGTH.

        >>> "UA1545/2013" in KeyRange.of_prefix("UA1545")
        True
        """
        return cls(prefix, prefix + _LAST * (KEY_LENGTH - len(prefix)))

    def within(self, other: KeyRange | None) -> KeyRange:
        """The keys that are in both."""
        return self if other is None else KeyRange(max(self.first, other.first), min(self.last, other.last))

    @property
    def is_empty(self) -> bool:
        return self.first > self.last

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.first <= key <= self.last


def meets(payload: str, conditions: Iterable[Condition]) -> bool:
    """Whether a payload meets all conditions; what is no JSON meets none."""
    try:
        document = json.loads(payload, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return all(_meets(document, condition) for condition in conditions)


def as_text(conditions: Iterable[Condition]) -> str:
    return json.dumps([*conditions])


def from_text(text: str) -> tuple[Condition, ...]:
    return tuple(Condition(tuple(path), tuple(values), Lookup(lookup)) for path, values, lookup in json.loads(text))


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON.")


def _meets(document: object, condition: Condition) -> bool:
    for step in condition.path:
        if not isinstance(document, dict) or step not in document:
            return False
        document = document[step]
    if condition.lookup is Lookup.IN:
        return _text(document) in condition.values
    return type(document) in {int, float} and _compare(condition.lookup, document, json.loads(condition.values[0]))


#: As `delayedq.core.serialization` writes what has no tags any more.
_text: Callable[[object], str] = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _compare(lookup: Lookup, value: Any, bound: Any) -> bool:
    if not type(value) is type(bound) is int:
        value, bound = _as_float(value), _as_float(bound)
    answer: bool = getattr(operator, _OPERATORS[lookup])(value, bound)
    return answer


_OPERATORS = {Lookup.GT: "gt", Lookup.GTE: "ge", Lookup.LT: "lt", Lookup.LTE: "le"}


def _as_float(number: float) -> float:
    largest = sys.float_info.max
    return float(max(-largest, min(number, largest)))
