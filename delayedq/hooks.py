"""Hooks of a project around its messages: metadata when a task enqueues one, and context managers around attempts.

`DELAYEDQ["METADATA_FROM"]` names functions that take the task and return a dict of JSON values, which is added to the
metadata of each message without a key (one with a key is that of all who offer it: what differs would replace it);
`DELAYEDQ["AROUND_ATTEMPTS"]` names functions that take what `current_message()` returns, and
return a context manager in which the task runs. One that raises is logged, and changes nothing else; a timeout of the
task that meets one is the task's. Where LOGGING has
an `AttemptHandler`, what it keeps (`delayedq.attempt_log`) is around each attempt, too.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from delayedq.attempt_log import AttemptHandler, KeptLog
from delayedq.conf import get_settings
from delayedq.core.metadata import PREFIX, with_own
from delayedq.exceptions import INTERRUPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

logger = logging.getLogger("delayedq")


@cache
def enqueue_hooks() -> tuple[Callable[[Any], dict[str, Any]], ...]:
    return tuple(map(_found, get_settings().METADATA_FROM))


@cache
def attempt_hooks() -> tuple[Callable[[Any], AbstractContextManager[object]], ...]:
    ours = (KeptLog,) if AttemptHandler.lines else ()
    return (*ours, *map(_found, get_settings().AROUND_ATTEMPTS))


def with_added(metadata: str | None, task: Any) -> str | None:
    """The metadata (JSON) of a message with what the functions of METADATA_FROM return; names that it has stay."""
    found: dict[str, Any] = {}
    for hook in enqueue_hooks():
        with _logged(hook):
            added = {name: value for name, value in hook(task).items() if not name.startswith(PREFIX)}
            json.dumps(added)  # raises for what can't be stored
            found |= added
    return with_own(json.dumps(found), json.loads(metadata or "{}")) if found else metadata


class Around:
    """The context managers of one attempt, entered in their order and left in reverse; none of them hides an error."""

    def __init__(self, attempt: Any) -> None:
        self._entered: list[AbstractContextManager[object]] = []
        try:
            for hook in attempt_hooks():
                with _logged(hook):
                    around = hook(attempt)
                    around.__enter__()
                    self._entered.append(around)
        except INTERRUPTIONS as error:
            self.leave(type(error), error, error.__traceback__)
            raise

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raises what interrupts it: then the others are left with that."""
        try:
            while self._entered:
                around = self._entered.pop()
                with _logged(around, expected=error):
                    around.__exit__(kind, error, trace)
        except INTERRUPTIONS as late:
            self.leave(type(late), late, late.__traceback__)
            raise


@contextmanager
def _logged(hook: object, expected: BaseException | None = None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if error is expected:
            return
        if isinstance(error, INTERRUPTIONS):
            raise
        logger.exception("%r failed; the message goes its way without it.", hook)


def _found(named: Any) -> Any:
    return import_string(named) if isinstance(named, str) else named


@receiver(setting_changed)
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DELAYEDQ":
        enqueue_hooks.cache_clear()
        attempt_hooks.cache_clear()
