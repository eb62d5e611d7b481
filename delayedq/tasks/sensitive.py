"""Which arguments of a task are sensitive: those of `@task(sensitive=...)`, and of Django's `sensitive_variables`."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from django.views.decorators.debug import coroutine_functions_to_sensitive_variables, sensitive_variables

from delayedq.compat import InvalidTask
from delayedq.core.signatures import parameter_names, takes_any_name

if TYPE_CHECKING:
    from collections.abc import Callable

#: Stands for the result; no parameter can have this name.
RESULT = "return"
#: What Django writes for `@sensitive_variables()`.
ALL = "__ALL__"
#: The function that `sensitive_variables` puts around another one.
_WRAPPER = sensitive_variables("name")(lambda: None).__code__


def sensitive_names(
    func: Callable[..., Any], takes_context: bool, given: bool | Collection[str]
) -> bool | frozenset[str]:
    """The names of what is masked; True: everything; False: nothing. Raises InvalidTask for an unknown name."""
    of_django = _of_django(func)
    if given is True or of_django == ALL:
        return True
    names = frozenset(_checked(func, takes_context, given or ()))
    parameters = parameter_names(func, takes_context)
    return names | {name for name in of_django if name in parameters} or False


def _checked(func: Callable[..., Any], takes_context: bool, given: Any) -> Collection[str]:
    known = (*parameter_names(func, takes_context), RESULT)
    asked = f"{func.__module__}.{func.__qualname__}: sensitive is True, or a list of {', '.join(known)}"
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise InvalidTask(f"{asked}; not {given!r}.")
    unknown = sorted({*given} - {*known})
    if unknown and not takes_any_name(func, takes_context):
        raise InvalidTask(f"{asked}; not {', '.join(unknown)}.")
    names: Collection[str] = given
    return names


def _of_django(func: Callable[..., Any]) -> Collection[str]:
    """The names that `sensitive_variables` was given for this function; ALL if none."""
    if inspect.iscoroutinefunction(func):
        inner = inspect.unwrap(func)
        key = hash(f"{inspect.getfile(inner)}:{inner.__code__.co_firstlineno}")
        names: Collection[str] = coroutine_functions_to_sensitive_variables.get(key, ())
        return names
    wrapper = inspect.unwrap(func, stop=_is_wrapper)
    return (inspect.getclosurevars(wrapper).nonlocals["variables"] or ALL) if _is_wrapper(wrapper) else ()


def _is_wrapper(func: Any) -> bool:
    return getattr(func, "__code__", None) is _WRAPPER
