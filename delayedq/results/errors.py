"""The errors of a message: the JSON record that is stored of each, and what results show of it."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from delayedq import clock
from delayedq.compat import TaskError
from delayedq.core.error_records import with_error
from delayedq.masking import error_text, masking_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.store.protocol import Claimed


#: The largest text and traceback of a stored error, in characters.
TEXT_LENGTH = 2_000
TRACEBACK_LENGTH = 20_000
#: How many errors of a chain are stored.
CHAIN_LENGTH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError(TaskError):  # type: ignore[misc]  # the stubs do not say that TaskError is frozen
    """The error of one attempt.

    attempt: its number, 1 is the first. failed_at: when it ended. message: its text. chain: the classes and texts of
    what it was raised from, the nearest first.
    """

    attempt: int = field(default=0, compare=False)
    failed_at: datetime | None = field(default=None, compare=False)
    message: str = field(default="", compare=False)
    chain: tuple[str, ...] = field(default=(), compare=False)


def recorded(stored: str | None) -> list[TaskError]:
    """The errors of a message, the oldest first. `stored`: its column `errors`."""
    records = json.loads(stored) if stored else []
    return [
        AttemptError(
            exception_class_path=record["exception"],
            traceback=record["traceback"],
            attempt=record["attempt"],
            failed_at=datetime.fromisoformat(record["failed_at"]),
            message=record["message"],
            chain=tuple(record.get("chain", ())),
        )
        for record in records
    ]


def errors_with(claimed: Claimed, error: BaseException, worker: str, seconds: float | None) -> str:
    """The JSON list of the errors of a message, with this one added. `seconds`: duration; None if nothing ran."""
    mask = error_text(claimed.kind, claimed.payload)
    return with_error(
        claimed.errors,
        attempt=claimed.attempt,
        failed_at=clock.now(),
        seconds=seconds,
        worker=worker,
        exception=path_of(error),
        message=text_of(error, mask),
        chain=chain_of(error, mask),
        traceback=mask(trace_of(error))[-TRACEBACK_LENGTH:],
    )


def task_error(error: BaseException, mask: Callable[[str], str] = str) -> TaskError:
    """`mask` is `masking.error_text` of its message."""
    return AttemptError(
        exception_class_path=path_of(error),
        traceback=mask(trace_of(error)),
        message=text_of(error, mask),
        chain=tuple(chain_of(error, mask)),
    )


def masked_trace(claimed: Claimed, error: BaseException | None) -> str:
    """The traceback of an error as it may be logged, if something of the message is masked; else ""."""
    if error is None or masking_of(claimed.kind) is None:
        return ""
    return error_text(claimed.kind, claimed.payload)(trace_of(error))


def path_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def chain_of(error: BaseException, mask: Callable[[str], str] = str) -> list[str]:
    """What an error was raised from, or while it was handled: classes and texts, the nearest first."""
    chain: list[str] = []
    seen = {id(error)}
    while len(chain) < CHAIN_LENGTH:
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if following is None or id(following) in seen:
            break
        error = following
        seen.add(id(error))
        chain.append(f"{path_of(error)}: {text_of(error, mask)}")
    return chain


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def text_of(error: object, mask: Callable[[str], str] = str) -> str:
    """`str(error)`, masked by `mask`, then cut to TEXT_LENGTH."""
    try:
        text = mask(str(error))
    except Exception:  # noqa: BLE001 - __str__ of a user's exception may raise anything
        text = "<it can't be printed>"
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…"
