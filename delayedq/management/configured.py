"""A command that tells in one line what the settings or this installation lack, also with --skip-checks."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import NotSupportedError

from delayedq.store.requirements import problem_of_driver


class ConfiguredCommand(BaseCommand):
    def execute(self, *args: Any, **options: Any) -> str | None:
        """Raises CommandError also for wrong settings, a missing library, and a database that Django finds too old."""
        try:
            return super().execute(*args, **options)
        except (ImproperlyConfigured, NotSupportedError) as error:
            raise CommandError(_told(error)) from error


def _told(error: Exception) -> str:
    """Django itself names no extra."""
    problem = problem_of_driver(error) if isinstance(error, ImproperlyConfigured) else None
    return problem or str(error)
