"""The async twin of a method that asks the database."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def twin[**P, R](method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same, awaited: it runs in the thread that Django keeps for the database."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(method)(*args, **kwargs)

    return call
