"""The text forms of a datetime, a time, an enum member, and a str with split surrogate pairs."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import datetime, time
from enum import Enum, EnumType, Flag
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

from delayedq.exceptions import NotStorable

#: The place between two lone surrogates, which JSON would read as one character.
_TEAR = re.compile(r"(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
#: RFC 9557, and our own suffix for the second of two equal wall times (fold).
_ZONED = re.compile(r"([^\[]+)(?:\[([^=\]]+)\])?(\[_fold=1\])?")


def is_torn(text: str) -> bool:
    return not text.isascii() and _TEAR.search(text) is not None


def torn(text: str) -> list[str]:
    return _TEAR.split(text)


def iso_text(value: datetime | time) -> str:
    """For example 2013-11-03T01:30:00-05:00[America/New_York][_fold=1]."""
    key = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return value.isoformat() + (f"[{key}]" if key else "") + ("[_fold=1]" if value.fold else "")


def read_datetime(text: str) -> datetime:
    """Restore the same instant, and the same wall time unless the rules of its zone have changed."""
    iso, key, fold = _zoned_parts(text)
    fixed = datetime.fromisoformat(iso).replace(fold=fold)
    if key is None:
        return fixed
    local = fixed.replace(tzinfo=_zone(key))
    return local if fixed.utcoffset() in {None, local.utcoffset()} else fixed.astimezone(local.tzinfo)


def read_time(text: str) -> time:
    iso, key, fold = _zoned_parts(text)
    plain = time.fromisoformat(iso).replace(fold=fold)
    return plain if key is None else plain.replace(tzinfo=_zone(key))


def _zoned_parts(text: str) -> tuple[str, str | None, int]:
    match = _ZONED.fullmatch(text)
    if match is None:
        raise ValueError("not an ISO time, with or without [Area/City] behind it")
    return match[1], match[2], int(match[3] is not None)


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except OSError as error:  # a directory of the zone database
        raise ValueError(f"no time zone: {key}") from error


def plain_datetime(value: datetime) -> datetime:
    """Convert an instance of a subclass. Raises NotStorable if that loses something (pandas' NaT, nanoseconds)."""
    with suppress(ValueError):
        plain = read_datetime(iso_text(value))
        if plain.replace(tzinfo=None) == value.replace(tzinfo=None) and plain.utcoffset() == value.utcoffset():
            return plain
    raise NotStorable("it is more than a plain datetime")


def is_member(value: object) -> bool:
    return issubclass(type(value), Enum)


def member_path(member: Enum) -> list[object]:
    """[module:qualname, name], with the value instead of the name for a Flag of several bits or none."""
    kind = type(member)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__" or _find_enum(path) is not kind:
        raise NotStorable(f"{path} does not lead to its class in another process")
    if member._name_ in kind.__members__:
        return [path, member._name_]
    if issubclass(kind, Flag):
        return [path, member._value_]
    raise NotStorable("it is not among the members of its class")


def read_member(path_and_name: list[Any]) -> Enum:
    path, name = path_and_name
    kind = _find_enum(path)
    if kind is None:
        raise LookupError("no Enum in a module that is imported here")
    return kind(name) if issubclass(kind, Flag) and type(name) is int else kind[name]


def _find_enum(path: str) -> type[Enum] | None:
    """Reads only `__dict__` of loaded modules and classes, as getattr() may import modules or call code."""
    module, _, names = path.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        if not issubclass(type(found), ModuleType | type):
            return None
        found = object.__getattribute__(found, "__dict__").get(name)
    return found if issubclass(type(found), EnumType) and found.__members__ else None
