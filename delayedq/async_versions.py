"""The async version of a method that uses the database."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def async_version[**P, R](method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the same method as a coroutine function; it runs in the thread that `sync_to_async` uses."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(method)(*args, **kwargs)

    return call
