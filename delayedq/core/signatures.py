"""Signatures of task functions as callers see them, and a cheap test whether arguments fit."""

from __future__ import annotations

import inspect
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@cache
def signature_of(func: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    """The signature of a function, without its first parameter if that is the context."""
    signature = inspect.signature(func)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:] if takes_context else parameters)


@cache
def parameter_names(func: Callable[..., Any], takes_context: bool) -> tuple[str, ...]:
    return tuple(signature_of(func, takes_context).parameters)


@cache
def positional_names(func: Callable[..., Any], takes_context: bool) -> tuple[str, ...]:
    """The names of what takes positional arguments; the last one is that of `*args`, if the function has it."""
    named = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    return tuple(one.name for one in signature_of(func, takes_context).parameters.values() if one.kind not in named)


@cache
def takes_any_name(func: Callable[..., Any], takes_context: bool) -> bool:
    """Whether the function has `**kwargs`."""
    parameters = signature_of(func, takes_context).parameters.values()
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def check_fit(func: Callable[..., Any], takes_context: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError if the arguments do not fit the function."""
    fewest, most = _arity(func, takes_context)
    if kwargs or not fewest <= len(args) <= most:
        signature_of(func, takes_context).bind(*args, **kwargs)


@cache
def _arity(func: Callable[..., Any], takes_context: bool) -> tuple[int, float]:
    """The least and the greatest number of positional arguments that fit without any keyword argument.

    (0, -1), which nothing fits, if a keyword argument is required. Calls within these bounds need no `bind`.
    """
    parameters = signature_of(func, takes_context).parameters.values()
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return 0, -1
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    fewest = sum(p.default is p.empty for p in positional)
    return fewest, inf if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
