"""Masks of secrets in JSON values and in texts. Pure functions: `delayedq.masking` says what is secret."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from delayedq.core.serialization import TAG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    #: What an argument of this name is shown as, given its JSON value.
    Argument = Callable[[str, Any], Any]

#: Stands in the place of what is masked.
MASK = "[masked]"
#: The same as the JSON of a payload or a result.
MASKED = f'"{MASK}"'
#: Shorter secrets are masked only where they stand as a word of their own: "7" is in too many words.
SHORT = 4


def masked_call(call: Any, names: Sequence[str], argument: Argument) -> Any:
    """The JSON value of a call, with each argument as `argument` shows it; MASK if it is no call.

    `names`: of the positional parameters; the last one stands for all further arguments.
    """
    args, kwargs = parts_of(call)
    if args is None or kwargs is None:
        return MASK
    shown: dict[str, Any] = {}
    if args:
        shown["args"] = [argument(name_at(index, names), value) for index, value in enumerate(args)]
    if kwargs:
        shown["kwargs"] = {name: argument(name, value) for name, value in kwargs.items()}
    return shown


def arguments_of(call: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The arguments of a call by name, as JSON values; none if it is no call."""
    args, kwargs = parts_of(call)
    if args is not None and kwargs is not None:
        yield from ((name_at(index, names), value) for index, value in enumerate(args))
        yield from kwargs.items()


def parts_of(call: Any) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Its args and kwargs; None for what is no list, or no dict."""
    given = call if isinstance(call, dict) else {"args": None}
    args, kwargs = given.get("args", []), given.get("kwargs", {})
    return args if isinstance(args, list) else None, kwargs if isinstance(kwargs, dict) else None


def name_at(index: int, names: Sequence[str]) -> str:
    """The name of the positional argument at this index."""
    return names[min(index, len(names) - 1)] if names else str(index)


# Texts


def secrets_in(value: Any) -> Iterator[str]:
    """The texts of all scalars in a JSON value, but for None, booleans and empty texts."""
    match value:
        case bool() | None | "":
            return
        case str():
            yield value
        case int() | float():
            yield str(value)
        case list():
            for part in value:
                yield from secrets_in(part)
        case dict():
            yield from _secrets_in_dict(value)


def _secrets_in_dict(value: dict[str, Any]) -> Iterator[str]:
    if value.get(TAG) == "bytes" and isinstance(value.get("v"), str):
        with suppress(ValueError):
            yield repr(b64decode(value["v"]))[2:-1]
    for name, part in value.items():
        if name != TAG:
            yield from secrets_in(part)


def without(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that masks all of these in a text, as they are and as `repr` and JSON write them."""
    forms = {form for secret in secrets for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1])} - {""}
    if not forms:
        return str
    pattern = re.compile("|".join(_pattern(form) for form in sorted(forms, key=len, reverse=True)))
    return lambda text: pattern.sub(MASK, text)


def _pattern(form: str) -> str:
    return re.escape(form) if len(form) >= SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
