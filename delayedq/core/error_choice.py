"""Which errors a task means: the values of its options `retry_on` and `give_up_on`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: An exception class, several of them, or a function that takes the error and returns True for those that are meant.
type ErrorChoice = type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], bool]


def check_error_choice(value: Any) -> None:
    """Raises ValueError for what names no errors. None means that nothing is said."""
    classes = value if isinstance(value, list | tuple) else (value,)
    if all(isinstance(one, type) and issubclass(one, BaseException) for one in classes) and classes:
        return
    if value is not None and (isinstance(value, list | tuple | type) or not callable(value)):
        raise ValueError(f"must be an exception class, several of them, or a function of the error, not {value!r}")


def is_meant(choice: ErrorChoice, error: BaseException) -> bool:
    """Whether the choice means this error. What a function of the choice raises passes through."""
    if isinstance(choice, type):
        return isinstance(error, choice)
    if isinstance(choice, Sequence):
        return isinstance(error, tuple(choice))
    return bool(choice(error))


def may_retry(error: BaseException, retry_on: ErrorChoice | None, give_up_on: ErrorChoice | None) -> bool:
    """Whether another attempt may follow this error; `give_up_on` goes before `retry_on`."""
    if give_up_on is not None and is_meant(give_up_on, error):
        return False
    return retry_on is None or is_meant(retry_on, error)
