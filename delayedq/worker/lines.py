"""One readable line for each attempt that ended, while developing; and then none of those that Django would log."""

from __future__ import annotations

import logging
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.management.color import supports_color

from delayedq.compat import TASKS_LOGGER
from delayedq.operations.wording import printable
from delayedq.records import leave_tasks_to_us
from delayedq.worker.logs import is_full

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.core.lifecycle import Decision
    from delayedq.worker.executor import AttemptResult

GREEN, YELLOW, RED, GREY, PLAIN = "\033[32m", "\033[33m", "\033[31m", "\033[90m", "\033[0m"
_COLOURS = {"succeeded": GREEN, "failed": RED}


def wanted_by_default() -> bool:
    """With DEBUG, and without a LOGGING of the project: Django's own would write two lines per task."""
    return bool(settings.DEBUG and not settings.LOGGING)


class TaskLines:
    """Belongs to the loop of a worker process. Lines of one round trip are written together."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._colours = wanted and supports_color() and "NO_COLOR" not in os.environ
        if wanted:
            logging.getLogger(TASKS_LOGGER).addFilter(leave_tasks_to_us)

    def tell(self, concluded: Iterable[tuple[AttemptResult, Decision | None]]) -> None:
        """None instead of a decision: the message has succeeded."""
        if self._wanted and not is_full(sys.stdout.fileno()):
            lines = "".join(self._line(*one) for one in concluded if one[0].started is not None)
            # A key may have letters that the terminal lacks, say where PYTHONIOENCODING is ascii.
            sys.stdout.write(lines.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding))
            sys.stdout.flush()

    def _line(self, result: AttemptResult, decided: Decision | None) -> str:
        attempt, word = result.attempt, _word(decided)
        name = printable(f"{attempt.kind} {attempt.key or f'#{attempt.id}'}")
        assert result.started is not None
        took = _span(result.finished - result.started)
        again = f", attempt {attempt.attempt} of {attempt.max_attempts}" if attempt.attempt > 1 else ""
        error = f": {type(result.error).__name__}" if result.error is not None else ""
        moment = datetime.now().astimezone().strftime("%H:%M:%S")
        if self._colours:
            word = f"{_COLOURS.get(word.strip(), YELLOW)}{word}{PLAIN}"
            moment, took = f"{GREY}{moment}{PLAIN}", f"{GREY}{took}"
            again += PLAIN
        return f"{moment} {word} {name} {took}{again}{error}\n"


def _word(decided: Decision | None) -> str:
    if decided is None:
        return "succeeded"
    if decided.outcome is not None:
        return f"{decided.outcome:9}"
    return "later    " if decided.delay is None else f"in {_span(decided.delay):6}"


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
