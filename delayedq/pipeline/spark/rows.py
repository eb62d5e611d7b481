"""Turn rows of files into messages for calls of one task, or say why not. Runs in executors.

A row is a dict by column. Files of texts (CSV) hold texts only; they are read as what the task's parameters are
annotated with. Nothing is guessed: what does not read as its type is a reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache
from math import isfinite
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from delayedq.core.bounds import EARLIEST, KEY_LENGTH, is_storable
from delayedq.core.serialization import dump_call
from delayedq.exceptions import InvalidOption, NotStorable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: a column as it is, or a text put together of several, such as `{year}-{month:0>2}`."""

    columns: tuple[str, ...]
    template: str | None = None

    def value(self, row: Row) -> Any:
        """None if there is none. Raises ValueError if a part of a template is missing, or has another form."""
        if self.template is None:
            return row.get(self.columns[0])
        values = {name: row.get(name) for name in self.columns}
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"column {missing[0]} is empty")
        return self.template.format_map(values)


def source_of(text: str, columns: Collection[str]) -> Source:
    """Raises InvalidOption if the text names no column."""
    if text in columns:
        return Source((text,))
    try:
        parts = [(name, form or "") for _, name, form, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"{text!r} is not a template: {error}.") from None
    names = tuple(dict.fromkeys(name for name, _ in parts))
    if unknown := [name for name, form in parts or [(text, "")] if name not in columns or "{" in form]:
        raise InvalidOption(f"There is no column {unknown[0]!r}; there are {', '.join(columns)}.")
    for name, form in parts:
        if _ATTRIBUTE.search(name) or _WIDE.search(form):
            raise InvalidOption(f"{text!r} is not a template: a column in it has no dot, and no width above 999.")
    return Source(names, text)


#: What a template would read as a part of the value before it, and what it would fill with too many blanks.
_ATTRIBUTE, _WIDE = re.compile(r"[.\[]"), re.compile(r"\d{4}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a task takes. `type_` None: anything."""

    name: str
    source: Source
    type_: type | None = None
    required: bool = True
    nullable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How rows become messages for one task.

    key, at: None for messages without a key, or due at once. at_format: as strptime has it; None for ISO 8601.
    zone: the name of the time zone of times that tell none; None to refuse them.
    """

    queue: str
    kind: str
    priority: int
    max_attempts: int
    max_payload_bytes: int
    metadata: str | None = None
    parameters: tuple[Parameter, ...] = ()
    key: Source | None = None
    at: Source | None = None
    at_format: str | None = None
    zone: str | None = None


class Checked(NamedTuple):
    """A row's message (OFFERS), or the reason why it has none, and then the row."""

    queue: str
    kind: str
    key: str | None
    priority: int
    max_attempts: int
    payload: str | None
    metadata: str | None
    scheduled_at: datetime | None
    reason: str | None
    row: str | None


def check(row: Row, recipe: Recipe) -> Checked:
    """All reasons at once, separated by semicolons."""
    reasons: list[str] = []

    def tried[T](name: str, reads: Callable[[], T]) -> T | None:
        try:
            return reads()
        except (ValueError, TypeError, OverflowError) as error:
            reasons.append(f"{name}: {error}")
            return None

    key = tried("key", lambda: _key(row, recipe)) if recipe.key else None
    moment = tried("time", lambda: _scheduled_at(row, recipe)) if recipe.at else None
    arguments = {}
    for parameter in recipe.parameters:
        value = tried(parameter.name, lambda parameter=parameter: _argument(row, parameter, recipe.zone))  # type: ignore[misc]
        if value is not _LEFT_OUT:
            arguments[parameter.name] = value
    payload = tried("payload", lambda: _payload(arguments, recipe))
    reason = "; ".join(reasons) or None
    return Checked(
        recipe.queue,
        recipe.kind,
        None if reason else key,
        recipe.priority,
        recipe.max_attempts,
        None if reason else payload,
        recipe.metadata,
        None if reason else moment,
        reason,
        _told(row) if reason else None,
    )


def _told(row: Row) -> str:
    try:
        return json.dumps(row, default=str)
    except (ValueError, RecursionError):  # of a number of thousands of digits, or of thousands of levels
        return json.dumps({name: f"({type(value).__name__})" for name, value in row.items()})


def refuse(text: str, reason: str, recipe: Recipe) -> Checked:
    """A line that is not even a row."""
    return Checked(
        recipe.queue, recipe.kind, None, recipe.priority, recipe.max_attempts, None, None, None, reason, text
    )


# The parts of a message

_LEFT_OUT = object()


def _key(row: Row, recipe: Recipe) -> str:
    assert recipe.key
    value = recipe.key.value(row)
    key = "" if value is None else str(value)
    if not 1 <= len(key) <= KEY_LENGTH:
        raise ValueError("is empty" if not key else f"has {len(key)} characters, and may have {KEY_LENGTH}")
    if not is_storable(key):
        raise ValueError("holds a NUL or a lone surrogate")
    return key


def _scheduled_at(row: Row, recipe: Recipe) -> datetime:
    assert recipe.at
    value = recipe.at.value(row)
    if value is None:
        raise ValueError("is empty")
    when = moment(value, recipe.zone, recipe.at_format).astimezone(UTC)
    if when < EARLIEST:
        raise ValueError("is before the range of times that can be stored")
    return when


def _argument(row: Row, parameter: Parameter, zone: str | None) -> object:
    value = parameter.source.value(row)
    if value is not None:
        return read(value, parameter.type_, zone)
    if not parameter.required:
        return _LEFT_OUT
    if parameter.nullable:
        return None
    raise ValueError("is empty")


def _payload(arguments: Mapping[str, object], recipe: Recipe) -> str:
    try:
        payload = dump_call((), arguments)
    except NotStorable as error:
        raise ValueError(str(error)) from None
    size = len(payload.encode())
    if size > recipe.max_payload_bytes:
        raise ValueError(f"takes more than {recipe.max_payload_bytes:,} bytes")
    return payload


# Values


def read(value: Any, type_: type | None, zone: str | None = None) -> object:
    """The value as this type. Raises ValueError with the reason."""
    if type_ is datetime:
        return moment(value, zone)
    if type_ is None or type(value) is type_:
        return value
    if isinstance(value, str):
        return _from_text(value.strip(), type_)
    if type_ in (float, Decimal) and type(value) is int:
        return type_(value)
    raise ValueError(f"is {type(value).__name__}, not {_WORDS[type_]}")


def moment(value: Any, zone: str | None, format_: str | None = None) -> datetime:
    """An aware datetime. Of a local time that comes twice it is the first; one that is skipped is a ValueError."""
    found = _parsed(value.strip(), format_) if isinstance(value, str) else value
    if not isinstance(found, datetime):
        raise ValueError(f"is {type(value).__name__}, not a time")  # noqa: TRY004 - of the file, not of the code
    try:
        found = _in_zone(found, zone) if found.utcoffset() is None else found
        found.astimezone(UTC)
    except OverflowError:
        raise ValueError("is outside the range of times that can be stored") from None
    return found


def _parsed(text: str, format_: str | None) -> datetime:
    try:
        return datetime.strptime(text, format_) if format_ else datetime.fromisoformat(text)  # noqa: DTZ007
    except ValueError:
        raise ValueError("is not a time" + (f" of the form {format_}" if format_ else " in ISO 8601")) from None


def _in_zone(local: datetime, zone: str | None) -> datetime:
    if zone is None:
        raise ValueError("has no time zone; name one with --timezone")
    aware = local.replace(tzinfo=_zone(zone), fold=0)
    if aware.astimezone(UTC).astimezone(aware.tzinfo).replace(tzinfo=None) != local.replace(fold=0):
        raise ValueError(f"does not exist in {zone}: clocks were put forward over it")
    return aware


_zone = cache(ZoneInfo)


def _from_text(text: str, type_: type) -> object:
    try:
        value = _READERS[type_](text)
    except (ValueError, LookupError, InvalidOperation, RecursionError):
        raise ValueError(f"is not {_WORDS[type_]}") from None
    if type(value) is not type_:
        raise ValueError(f"is not {_WORDS[type_]}")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


def _yes(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=_finite(text))
    except OverflowError:
        raise ValueError(text) from None


_READERS: dict[type, Callable[[str], object]] = {
    str: str,
    int: int,
    float: _finite,
    bool: _yes,
    Decimal: Decimal,
    UUID: UUID,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: _seconds,
    list: json.loads,
    dict: json.loads,
}
_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Decimal: "a decimal number",
    UUID: "a UUID",
    datetime: "a time",
    date: "a date in ISO 8601",
    time: "a time of day in ISO 8601",
    timedelta: "a number of seconds",
    list: "a JSON list",
    dict: "a JSON object",
}
#: What a file can hold.
TYPES = frozenset(_WORDS)
