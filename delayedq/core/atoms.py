"""The JSON text of what most calls are made of: None, bool, int, float and str.

Each is written for itself, since `json` takes longer to set up an encoder than to run it: 0.5 µs a call instead of 1.7.
The texts are those that `serialization` would write the long way.
"""

from __future__ import annotations

from json import dumps
from math import isfinite
from types import NoneType
from typing import TYPE_CHECKING, Any

from delayedq.core.text_forms import is_torn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TAG = "$"
#: 617 digits, which int() reads under any sys.set_int_max_str_digits; a larger int is tagged.
MAX_DECIMAL_BITS = 2048


class NoAtom(Exception):  # noqa: N818 - caught, to write it the long way
    """It is something else, or an atom that JSON has no word for."""


def text_of(value: object) -> str:
    """Raises NoAtom."""
    try:
        return _TEXTS[type(value)](value)
    except KeyError:
        raise NoAtom from None


def text_of_call(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Raises NoAtom if one of the arguments is none."""
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
    return dumps(value)


_TEXTS: dict[type, Callable[[Any], str]] = {
    NoneType: lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: _int,
    float: _float,
    str: _str,
}
