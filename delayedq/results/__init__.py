"""Results of messages, as `django.tasks` has them: their errors, waiting for them, and cancelling."""

from __future__ import annotations

from delayedq.results.message import errors_with, masked_trace, path_of, task_error, text_of
from delayedq.results.reading import dropped, end, make, not_started, of_ended, of_live, running

__all__ = [
    "dropped",
    "end",
    "errors_with",
    "make",
    "masked_trace",
    "not_started",
    "of_ended",
    "of_live",
    "path_of",
    "running",
    "task_error",
    "text_of",
]
