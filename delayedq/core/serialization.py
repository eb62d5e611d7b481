"""Serialization of the arguments and results of tasks: values to JSON text and back.

The text is canonical: equal values have equal texts, whatever the order of their dicts and sets, so payloads can be
compared as texts. It is ASCII and strict JSON. Values of types that JSON lacks are tagged:

    {"args": [7, {"$": "uuid", "v": "2f6d..."}], "kwargs": {"at": {"$": "datetime", "v": "2013-01-01T09:00:00+00:00"}}}

These are restored exactly: None, bool, int, float, str, list, dict, tuple, set, frozenset, datetime, date, time,
timedelta, UUID, Decimal, bytes, and members of an Enum that can be found by its module and name. With these exceptions:

- a dict is restored in the order of its sorted keys; an OrderedDict keeps its order, but is restored as a dict, as are
  a defaultdict and a Counter;
- a tzinfo other than ZoneInfo is restored as a fixed offset;
- a subclass of str, int, float, datetime or date is restored as the plain value.

All other types are refused, including other subclasses: a namedtuple restored as a tuple would fail in the worker.
Nothing is pickled. Reading a text imports no module and calls nothing that the text names.
"""

from __future__ import annotations

import json
import re
import reprlib
import sys
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, EnumType, Flag
from math import isfinite
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from delayedq.exceptions import ArgumentsMismatch, NotStorable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# The text forms of a datetime, a time, an enum member, and a str with split surrogate pairs.


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
    if issubclass(kind, Flag) and _combined(kind, member._value_) is member:
        return [path, member._value_]
    raise NotStorable("it is not among the members of its class")


def read_member(path_and_name: list[Any]) -> Enum:
    path, name = path_and_name
    kind = _find_enum(path)
    if kind is None:
        raise LookupError("no Enum in a module that is imported here")
    if issubclass(kind, Flag) and type(name) is int:
        return _combined(kind, name)
    return EnumType.__getitem__(kind, name)


def _combined(kind: type[Flag], value: int) -> Flag:
    """The member of these bits. Calling the class would call its own `_missing_`, and a row may name any class."""
    known = kind._value2member_map_.get(value)
    found = Flag._missing_.__func__(kind, value) if known is None else known  # type: ignore[attr-defined]
    if isinstance(found, Flag):
        return found
    raise LookupError("no member has these bits")  # they are left over, by a FlagBoundary.EJECT


def _find_enum(path: str) -> type[Enum] | None:
    """Reads only `__dict__` of loaded modules and classes, as getattr() may import modules or call code."""
    module, _, names = path.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        if not issubclass(type(found), ModuleType | type):
            return None
        found = object.__getattribute__(found, "__dict__").get(name)
    return found if issubclass(type(found), EnumType) and found._member_map_ else None


# Fast path of serialization for None, bool, int, float and str, of which most calls consist.
#
# Each is written directly, since `json` takes longer to set up an encoder than to run it: 0.5 µs per call instead of
# 1.7. The texts are identical to those of the general path in `serialization`.


TAG = "$"

#: An int of 617 digits, which int() reads under any sys.set_int_max_str_digits; a larger one is tagged.
MAX_DECIMAL_BITS = 2048


class NoAtom(Exception):  # noqa: N818 - always caught: the general path takes over
    """The value is of another type, or has no plain JSON form (NaN, a huge int, a lone surrogate pair)."""


def text_of(value: object) -> str:
    """The JSON text of the value. Raises NoAtom."""
    try:
        return _TEXTS[type(value)](value)
    except KeyError:
        raise NoAtom from None


def text_of_call(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """The JSON text of a call. Raises NoAtom if one of its arguments is not an atom."""
    if TAG in kwargs:
        raise NoAtom
    members = []
    try:
        if args:
            members.append(f'"args":[{",".join([_TEXTS[type(value)](value) for value in args])}]')
        if kwargs:
            named = [
                f"{_TEXTS[type(name)](name)}:{_TEXTS[type(kwargs[name])](kwargs[name])}" for name in sorted(kwargs)
            ]
            members.append(f'"kwargs":{{{",".join(named)}}}')
    except KeyError:
        raise NoAtom from None
    return f"{{{','.join(members)}}}"


def _int(value: int) -> str:
    if value.bit_length() > MAX_DECIMAL_BITS:
        raise NoAtom
    return repr(value)


def _float(value: float) -> str:
    if not isfinite(value):
        raise NoAtom
    return repr(value)


def _str(value: str) -> str:
    if is_torn(value):
        raise NoAtom
    return json.dumps(value)


_TEXTS: dict[type, Callable[[Any], str]] = {
    NoneType: lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: _int,
    float: _float,
    str: _str,
}


# Serialization


#: How deep lists, dicts and so on may be nested; all JSON parsers can read that.
MAX_DEPTH = 100

_TAGGED_KEYS = {TAG, "v"}

_CALL_KEYS = {"args", "kwargs"}

_STR = frozenset({str})

_to_json: Callable[[object], str] = json.JSONEncoder(
    check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode

_decoder = json.JSONDecoder()


def _from_json(text: str) -> Any:
    """Of a text that nobody has indented: looking for white space around it takes as long as reading a small one."""
    try:
        value, end = _decoder.raw_decode(text)
        if end == len(text):
            return value
    except ValueError:
        pass
    return _decoder.decode(text)


def dumps(value: object, *, where: str = "value") -> str:
    """The JSON text of a value. Raises NotStorable, in whose message `where` names the value.

    >>> dumps({"b": 1, "a": (2,)})
    '{"a":{"$":"tuple","v":[2]},"b":1}'
    """
    try:
        return text_of(value)
    except NoAtom:
        return _to_json(_encode_at(where, value))


def dump_call(args: tuple[object, ...], kwargs: Mapping[str, object], names: Sequence[str] = ()) -> str:
    """The JSON text of a call. Raises NotStorable, in whose message `names` name the positional arguments."""
    try:
        return text_of_call(args, kwargs)
    except NoAtom:
        return _to_json(_encode_call(args, kwargs, names))


def loads(text: str) -> Any:
    """The value of a text. Raises ArgumentsMismatch if it can't be read, ReferenceGone if its row was deleted."""
    try:
        return _from_tagged_json(text) if '"$"' in text else _from_json(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentsMismatch(f"The payload is not readable JSON: {error}") from error


def stored_json[Form: (dict[str, Any], list[Any])](text: str | None, form: type[Form]) -> Form:
    """What a column has as plain JSON. Empty for what has another form: other code has written it, or nobody."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return form()
    return found if isinstance(found, form) else form()


def load_call(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The args and kwargs of a text that `dump_call` wrote. Raises what `loads` raises."""
    call = loads(text)
    if type(call) is not dict or not call.keys() <= _CALL_KEYS:
        raise ArgumentsMismatch(f"The payload is not a call with args and kwargs: {reprlib.repr(call)}")
    args, kwargs = call.get("args", []), call.get("kwargs", {})
    if type(args) is not list or type(kwargs) is not dict or (kwargs and not _STR.issuperset(map(type, kwargs))):
        raise ArgumentsMismatch(
            f"The payload's args are not a list, or its kwargs are not a dict of names: {reprlib.repr(call)}"
        )
    return args, kwargs


def register(
    tag: str, recognises: Callable[[object], bool], encode: Callable[[Any], object], decode: Callable[[Any], object]
) -> None:
    """Support another type of values: those that `recognises` returns True for are stored as `encode(value)`.

    `encode` may raise NotStorable with the reason. `decode` gets the encoded value back; its ValueError, TypeError,
    LookupError, ArithmeticError and AttributeError mean a payload that can't be read, other errors pass through.
    Raises ValueError for a tag that is taken.
    """
    if tag in _DECODERS:
        raise ValueError(f"The tag {tag!r} is taken.")
    _DECODERS[tag] = _Decoder(object, decode)
    _REGISTERED.append(_Registered(tag, recognises, encode))


# Writing: a value is converted into plain JSON values, which are then written by one call of the encoder.
def _encode_call(args: tuple[object, ...], kwargs: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    call: dict[str, object] = {}
    if args:
        call["args"] = [_encode_at(_place(index, names), value) for index, value in enumerate(args)]
    if kwargs:
        call["kwargs"] = _keyed({name: _encode_at(f"argument {name!r}", value) for name, value in kwargs.items()}, 0)
    return call


def _place(index: int, names: Sequence[str]) -> str:
    return f"argument {names[index]!r}" if index < len(names) else f"positional argument {index + 1}"


def _encode_at(where: str, value: object) -> object:
    try:
        return _encode(value, 0)
    except _RefusedValue as refused:
        raise NotStorable(refused.explain(where)) from None


class _RefusedValue(Exception):  # noqa: N818 - converted to NotStorable
    """Each container that it passes adds itself and the index or key, so the steps begin at the refused value."""

    def __init__(self, value: object, reason: str = "; pass its plain value, or what identifies it.") -> None:
        super().__init__(f"<{type(value).__name__}> can't be stored{reason}")
        self.steps: list[tuple[object, str]] = []

    def explain(self, where: str) -> str:
        seen = set()
        for container, step in reversed(self.steps):
            if id(container) in seen:
                return f"{where}: {_RefusedValue(container, ', for it contains itself.')}"
            seen.add(id(container))
            where += step
        return f"{where}: {self}"


def _encode(value: object, depth: int) -> object:
    return _ENCODERS.get(type(value), _encode_unlisted)(value, depth)


def _encode_unlisted(value: object, depth: int) -> object:
    for codec in _REGISTERED:
        if codec.recognises(value):
            return _tagged(codec.tag, _encode(_ask(codec.encode, value), _deeper(value, depth)))
    for base, plain in _PLAIN_FORMS.items():
        if issubclass(type(value), base):
            return _encode(_ask(plain, value), depth)
    raise _RefusedValue(value)


def _ask(encode: Callable[[Any], object], value: object) -> object:
    try:
        return encode(value)
    except NotStorable as error:
        raise _RefusedValue(value, f": {error}.") from None


def _tagged(tag: str, value: object) -> dict[str, object]:
    return {TAG: tag, "v": value}


def _tagging(tag: str, form: Callable[[Any], object]) -> Callable[[Any, int], object]:
    return lambda value, _depth: _tagged(tag, form(value))


def _deeper(container: object, depth: int) -> int:
    if depth == MAX_DEPTH:
        raise _RefusedValue(container, f", for it sits inside {MAX_DEPTH} others.")
    return depth + 1


def _encode_elements(values: Iterable[object], depth: int) -> list[object]:
    depth = _deeper(values, depth)
    encoded: list[object] = []
    try:
        for value in values:
            encoded.append(_encode(value, depth))  # noqa: PERF401 - its length is the index that failed
    except _RefusedValue as refused:
        refused.steps.append((values, f"[{len(encoded)}]"))
        raise
    return encoded


def _encode_set(values: Iterable[object], depth: int) -> list[object]:
    depth = _deeper(values, depth)
    return sorted((_encode(value, depth) for value in values), key=_to_json)


def _encode_dict(values: Mapping[Any, object], depth: int) -> object:
    return _keyed(_encode_entries(values, depth), depth)


def _encode_entries(values: Mapping[Any, object], depth: int) -> dict[Any, object]:
    depth = _deeper(values, depth)
    encoded = {}
    for key, value in values.items():
        try:
            encoded[key] = _encode(value, depth)
        except _RefusedValue as refused:
            refused.steps.append((values, f"[{reprlib.repr(key)}]"))
            raise
    return encoded


def _keyed(encoded: dict[Any, object], depth: int) -> object:
    """A JSON object if all keys are plain strings, else tagged pairs. The values are encoded, the keys are not."""
    if _STR.issuperset(map(type, encoded)) and TAG not in encoded and not any(map(is_torn, encoded)):
        return encoded
    return _tagged("dict", sorted(_pairs(encoded, depth), key=lambda pair: _to_json(pair[0])))


def _pairs(encoded: dict[Any, object], depth: int) -> list[list[object]]:
    try:
        return [[_encode(key, depth + 1), value] for key, value in encoded.items()]
    except _RefusedValue as refused:
        refused.steps.append((encoded, ".keys()"))
        raise


def _encode_text(value: str, _depth: int) -> object:
    return _tagged("str", torn(value)) if is_torn(value) else value


def _encode_int(value: int, _depth: int) -> object:
    return value if value.bit_length() <= MAX_DECIMAL_BITS else _tagged("int", hex(value))


def _encode_float(value: float, _depth: int) -> object:
    return value if isfinite(value) else _tagged("float", repr(value))


# Reading: values inside a tag are decoded before the tag.
def _untag(found: dict[str, Any]) -> object:
    """Decode a JSON object. A dict with the tag among its keys is stored as pairs, so an object with it is a tag."""
    if TAG not in found:
        return found
    tag = found[TAG]
    if found.keys() != _TAGGED_KEYS or type(tag) is not str:
        raise ArgumentsMismatch(f"The payload has a malformed tag: {reprlib.repr(found)}")
    if tag not in _DECODERS:
        raise ArgumentsMismatch(f"The payload has an unknown tag: {reprlib.repr(tag)}")
    try:
        return _DECODERS[tag].read(found["v"])
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        reason = f"The payload has a malformed {tag}, {reprlib.repr(found['v'])}: {error}"
        raise ArgumentsMismatch(reason) from error


_from_tagged_json: Callable[[str], Any] = json.JSONDecoder(object_hook=_untag).decode


class _Decoder(NamedTuple):
    form: type
    decode: Callable[[Any], object]

    def read(self, value: object) -> object:
        if not isinstance(value, self.form):
            raise TypeError(f"not a {self.form.__name__}")
        return self.decode(value)


class _Registered(NamedTuple):
    tag: str
    recognises: Callable[[object], bool]
    encode: Callable[[Any], object]


#: Tried in this order. Enum is first, so that members that are also a str or an int stay members.
_REGISTERED = [_Registered("enum", is_member, member_path)]

#: By exact type; the second parameter is the depth.
_ENCODERS: dict[type, Callable[[Any, int], object]] = {
    NoneType: lambda value, _depth: value,
    bool: lambda value, _depth: value,
    int: _encode_int,
    float: _encode_float,
    str: _encode_text,
    list: _encode_elements,
    dict: _encode_dict,
    defaultdict: _encode_dict,
    Counter: _encode_dict,
    OrderedDict: lambda value, depth: _tagged("dict", _pairs(_encode_entries(value, depth), depth)),
    tuple: lambda value, depth: _tagged("tuple", _encode_elements(value, depth)),
    set: lambda value, depth: _tagged("set", _encode_set(value, depth)),
    frozenset: lambda value, depth: _tagged("frozenset", _encode_set(value, depth)),
    datetime: _tagging("datetime", iso_text),
    date: _tagging("date", date.isoformat),
    time: _tagging("time", iso_text),
    timedelta: _tagging("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    UUID: _tagging("uuid", str),
    Decimal: _tagging("decimal", str),
    bytes: _tagging("bytes", lambda value: b64encode(value).decode()),
}

#: Converts an instance of a subclass to its base type.
_PLAIN_FORMS: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    datetime: plain_datetime,
    date: lambda value: date.fromisoformat(date.isoformat(value)),
}

#: By tag: the JSON type that the encoded value must have, and its decoder.
_DECODERS: dict[str, _Decoder] = {
    "int": _Decoder(str, lambda text: int(text, 16)),
    "float": _Decoder(str, float),
    "str": _Decoder(list, "".join),
    "dict": _Decoder(list, dict),
    "tuple": _Decoder(list, tuple),
    "set": _Decoder(list, set),
    "frozenset": _Decoder(list, frozenset),
    "datetime": _Decoder(str, read_datetime),
    "date": _Decoder(str, date.fromisoformat),
    "time": _Decoder(str, read_time),
    "timedelta": _Decoder(list, lambda parts: timedelta(*parts)),
    "uuid": _Decoder(str, UUID),
    "decimal": _Decoder(str, Decimal),
    "bytes": _Decoder(str, lambda text: b64decode(text, validate=True)),
    "enum": _Decoder(list, read_member),
}
